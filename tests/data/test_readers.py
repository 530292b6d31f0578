"""A dataset that cannot be reached is told once, in one sentence; ``datasets`` itself is played."""

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edgepeft.common.errors import DataError, UsageError
from edgepeft.data.columns import Columns
from edgepeft.data.readers import Records, format_of, read_dataset, splits_of
from edgepeft.data.rows import read_rows
from edgepeft.tasks.base import kind_named


def test_a_name_without_a_network_is_one_sentence_and_no_retry_is_logged(monkeypatch, caplog):
    hub = logging.getLogger("huggingface_hub")

    def unreachable(name, config):
        hub.getChild("utils._http").warning("thrown while requesting %s. Retrying in 1s [Retry 1/5].", name)
        raise ConnectionError("Couldn't reach 'imdb' on the Hub (LocalEntryNotFoundError)\nand more")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=unreachable))
    before = hub.level
    with pytest.raises(UsageError, match=r"no file imdb, .*Couldn't reach 'imdb' .*needs a network the first time\.$"):
        list(read_dataset(Path("imdb")))
    assert not caplog.records
    assert hub.level == before


def test_classes_of_a_dataset_are_read_by_their_names_in_lists_too(monkeypatch):
    class Rows(list):
        column_names = ("tokens", "ner_tags", "label")

        def with_format(self, _):
            return self

    rows = Rows([{"tokens": ["Ada"], "ner_tags": [1, 0], "label": -1}, {"tokens": [], "ner_tags": [], "label": 1}])
    rows.features = {
        "tokens": SimpleNamespace(feature=SimpleNamespace()),
        "ner_tags": SimpleNamespace(feature=SimpleNamespace(names=["O", "B-PER"], int2str=None)),
        "label": SimpleNamespace(names=["no", "yes"], int2str=None),
    }
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=lambda name, config: {"train": rows}))
    (_, first), (_, second) = read_dataset(Path("a"))
    assert first == {"tokens": ["Ada"], "ner_tags": ["B-PER", "O"], "label": None}
    assert second["label"] == "yes" and second["ner_tags"] == []


def test_a_split_is_read_whatever_its_format_and_without_a_description_of_its_columns():
    class Split:
        """As ``from_generator`` makes a stream, after ``set_format("pandas")``."""

        features = None

        def __init__(self, rows=(None,)):
            self.rows = rows

        def with_format(self, form):
            assert form is None
            return Split([{"text": "a", "label": "x"}])

        def __iter__(self):
            return iter(self.rows)

    assert list(Records(Split()).read(None)) == [(1, {"text": "a", "label": "x"})]


def test_numpys_values_in_memory_are_those_of_python():
    numbers = [{"text": np.str_("a"), "label": np.int64(1)}, {"text": "b", "label": np.bool_(False)}]
    assert [(row.sentence1, row.label) for row in read_rows(Records(numbers), labels=True)] == [
        ("a", "1"),
        ("b", "false"),
    ]
    squad = {"text": np.array(["Oslo"], object), "answer_start": np.array([0], np.int32)}
    ((_, row),) = Records([{"answers": squad, "tags": np.array([0, 1]), "words": list(np.array(["a", "b"]))}]).read(
        None
    )
    assert row == {"answers": {"text": ["Oslo"], "answer_start": [0]}, "tags": [0, 1], "words": ["a", "b"]}
    assert {type(tag) for tag in row["tags"]} == {int}


FEATURES = {
    "text": {"dtype": "string", "_type": "Value"},
    "label": {"names": ["ham", "spam"], "_type": "ClassLabel"},
    "tags": {"feature": {"names": ["O", "B-PER"], "_type": "ClassLabel"}, "_type": "Sequence"},
}
ROWS = [{"text": f"a {i}", "label": i % 2 if i < 2500 else -1, "tags": [1, 0]} for i in range(2501)]


def arrow_table(described=True):
    pyarrow = pytest.importorskip("pyarrow", reason="pip install edgepeft[data]")
    schema = pyarrow.schema(
        [("text", pyarrow.string()), ("label", pyarrow.int64()), ("tags", pyarrow.list_(pyarrow.int64()))],
        metadata={"huggingface": json.dumps({"info": {"features": FEATURES}})} if described else None,
    )
    return pyarrow, pyarrow.Table.from_pylist(ROWS, schema=schema)


@pytest.mark.parametrize("name", ["rows.arrow", "rows.feather", "stream.arrow", "rows.parquet"])
def test_arrow_and_parquet_files_have_the_names_of_their_classes(tmp_path, name):
    pyarrow, table = arrow_table()
    path = tmp_path / name
    if name == "rows.parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    else:
        write = pyarrow.ipc.new_stream if name == "stream.arrow" else pyarrow.ipc.new_file
        with write(str(path), table.schema) as file:
            file.write_table(table)  # in one batch
    read = dict(format_of(path)(path))
    assert [*read] == [*range(1, 2502)] and [row["text"] for row in read.values()] == [row["text"] for row in ROWS]
    assert read[2] == {"text": "a 1", "label": "spam", "tags": ["B-PER", "O"]} and read[2501]["label"] is None
    path.write_bytes(b"ARROW1\0\0 and nothing")
    with pytest.raises(DataError, match=f"{name} is not an? (arrow|parquet) file"):
        list(format_of(path)(path))


def test_messages_of_an_arrow_file_are_found_by_its_footer(tmp_path):
    """polars writes no stream behind the first bytes: its schema there has no length before it."""
    pyarrow, table = arrow_table()
    with pyarrow.ipc.new_file(str(path := tmp_path / "rows.arrow"), table.schema) as file:
        file.write_table(table, max_chunksize=1000)
    content = path.read_bytes()
    begin = content.index(b"\xff\xff\xff\xff", 12)  # the first batch
    path.write_bytes(content[:8] + bytes(begin - 8) + content[begin:])
    assert [row["text"] for _, row in format_of(path)(path)] == [row["text"] for row in ROWS]


def test_a_folder_of_save_to_disk_is_read_without_datasets(tmp_path, monkeypatch):
    """As datasets 2 to 5 write it: streams that a ``state.json`` names, described beside."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    pyarrow, table = arrow_table(described=False)
    for split, rows in (
        ("train", table.slice(0, 2000)),
        ("validation", table.slice(2000, 100)),
        ("test", table.slice(2500)),
    ):
        (folder := tmp_path / "saved" / split).mkdir(parents=True)
        names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
        for i, name in enumerate(names):
            half = -(-len(rows) // 2)
            with pyarrow.ipc.new_stream(str(folder / name), table.schema) as file:
                file.write_table(rows.slice(i * half, half))
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
        (folder / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "validation", "test"]}')
    rows = [row for _, row in read_dataset(Path(f"{tmp_path / 'saved'}#train"))]
    assert [row["text"] for row in rows] == [f"a {i}" for i in range(2000)]
    assert rows[1]["label"] == "spam" and rows[1]["tags"] == ["B-PER", "O"]
    assert next(row["text"] for _, row in read_dataset(tmp_path / "saved" / "validation")) == "a 2000"
    parts = splits_of(tmp_path / "saved", "label")
    assert {*parts} == {"train", "eval"}  # a test part without labels is none
    (tmp_path / "saved" / "train" / "state.json").write_text("{}")
    with pytest.raises(DataError, match=r"state\.json names no files of rows"):
        list(read_dataset(tmp_path / "saved" / "train"))


def test_a_class_that_is_called_after_a_candidates_column_is_that_candidate(tmp_path):
    """COPA on the Hub: ClassLabel(names=["choice1", "choice2"])."""
    kind = kind_named("choice")
    for names in (("choice1", "choice2"), ("ending0", "ending1")):
        (path := tmp_path / "rows.jsonl").write_text(
            json.dumps({"premise": "a", names[1]: "c", names[0]: "b", "label": names[1]})
        )
        (row,) = read_rows(path, labels=True, columns=kind.columns(Columns()), label_of=kind.label_text)
        assert kind().expected(row) == "c"


def test_a_column_of_a_split_is_no_split():
    """``split["text"]`` has the features of its split, and holds texts."""

    class Column(list):
        features = SimpleNamespace()

    with pytest.raises(DataError, match=r'rows:1: expected a dictionary of columns; found "a"'):
        list(read_rows(Records(Column(["a", "b"])), labels=True))
