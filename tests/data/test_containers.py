"""What packed files hold is counted while they are read: the room is small here, and nothing beyond it is made."""

import gzip
import io
import json
import random
import struct
import warnings
import zipfile

import pytest

from edgepeft.common.errors import DataError
from edgepeft.data import containers, tables
from edgepeft.data.readers import format_of

ROWS = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(30)]
MAIN = b'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
SHEET = b"<worksheet %b>%%b<sheetData>%%b</sheetData></worksheet>" % MAIN


@pytest.fixture(autouse=True)
def little_room(monkeypatch):
    monkeypatch.setattr(containers, "_ROOM_BYTES", 20_000)


def read(path):
    return [row for _, row in format_of(path)(path)]


def packed(folder, content):
    with gzip.open(path := folder / "rows.jsonl.gz", "wb") as file:
        file.write(content)
    return path


def zipped(folder, members, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path := folder / "rows.zip", "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def spread(folder, changed=None, content=b""):
    """A spreadsheet of the rows, of which one member is another."""
    openpyxl = pytest.importorskip("openpyxl")
    book, plain = openpyxl.Workbook(), io.BytesIO()
    for cells in (("text", "label"), *((row["text"], row["label"]) for row in ROWS)):
        book.active.append(cells)
    book.save(plain)
    with zipfile.ZipFile(plain) as source:
        members = [(name, content if name == changed else source.read(name)) for name in source.namelist()]
    return zipped(folder, members).rename(folder / "rows.xlsx")


def table(folder, columns, **options):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), path := folder / "rows.parquet", **options)
    return path


def test_a_gz_that_grows_is_refused_and_read_no_further(tmp_path, monkeypatch):
    assert read(packed(tmp_path, b"".join(json.dumps(row).encode() + b"\n" for row in ROWS))) == ROWS
    taken = []
    take = containers.Room.take
    monkeypatch.setattr(containers.Room, "take", lambda room, n: taken.append(n) or take(room, n))
    with pytest.raises(DataError, match="more than 10 times its own bytes"):
        read(packed(tmp_path, b" " * (1 << 24)))  # one line, which ends nowhere
    assert sum(taken) < 3 << 20


def test_a_zip_that_grows_is_refused_before_a_member_is_read(tmp_path, monkeypatch):
    found = read(zipped(tmp_path, [("a/1.txt", "good"), ("b/1.txt", "bad")]))
    assert found == [{"text": "good", "label": "a"}, {"text": "bad", "label": "b"}]
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *_: pytest.fail("it was read"))
    with pytest.raises(DataError, match="more than 10 times"):
        read(zipped(tmp_path, [("a/1.txt", b"x" * 500_000)]))


def test_a_zip_file_of_many_names_is_refused_before_they_are_listed(tmp_path, monkeypatch):
    path = zipped(tmp_path, [(f"a/{i}.txt", "x") for i in range(50)])
    assert len(read(path)) == 50
    monkeypatch.setattr(containers, "_LISTING_BYTES", 2000)
    monkeypatch.setattr(zipfile, "ZipFile", lambda *_: pytest.fail("it was listed"))
    with pytest.raises(DataError, match="more files than"):
        read(path)


def test_a_spreadsheet_that_grows_is_refused_before_openpyxl_reads_it(tmp_path, monkeypatch):
    openpyxl = pytest.importorskip("openpyxl")
    monkeypatch.setattr(containers, "_ROOM_BYTES", 60_000)
    assert read(spread(tmp_path)) == ROWS
    rows = b"<row><c><v>1</v></c></row>" * 50_000
    path = spread(tmp_path, "xl/worksheets/sheet1.xml", SHEET % (b"", rows))
    monkeypatch.setattr(openpyxl, "load_workbook", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(DataError, match="more than 20 times"):
        read(path)


CELLS = b'<row r="%d"><c t="inlineStr"><is><t>text</t></is></c><c t="inlineStr"><is><t>label</t></is></c></row>'


@pytest.mark.parametrize(
    "sheet",
    [
        SHEET % (b"", CELLS % 1 + CELLS % 2_000_000_000),
        SHEET % (b'<dimension ref="A1:ZZZ2000000000"/>', CELLS % 1 + CELLS % 2),
    ],
    ids=["row", "dimension"],
)
def test_rows_that_a_sheet_only_states_are_not_made(tmp_path, monkeypatch, sheet):
    monkeypatch.setattr(containers, "_ROOM_BYTES", 60_000)
    monkeypatch.setattr(tables, "_SHEET_ROWS", 100)
    assert len(read(spread(tmp_path, "xl/worksheets/sheet1.xml", sheet))) <= 1


@pytest.mark.parametrize(
    "sheet",
    [
        b"<worksheet",
        b"<!DOCTYPE x [<!ENTITY a 'xx'><!ENTITY b '&a;&a;'>]>" + SHEET % (b"", b"&b;"),
        SHEET % (b"", b'<row r="x"/>'),
        SHEET % (b"", b'<row><c r="ZZZZ1"><v>1</v></c></row>'),
        SHEET % (b"", b'<row><c t="s"><v>999</v></c></row>'),
    ],
)
def test_a_damaged_spreadsheet_is_no_traceback(tmp_path, monkeypatch, sheet):
    monkeypatch.setattr(containers, "_ROOM_BYTES", 60_000)
    try:
        assert read(spread(tmp_path, "xl/worksheets/sheet1.xml", sheet)) == []
    except DataError as error:
        assert "rows.xlsx" in str(error)


def test_rows_that_end_early_have_all_columns(tmp_path, monkeypatch):
    monkeypatch.setattr(containers, "_ROOM_BYTES", 60_000)
    cell = b'<c t="inlineStr"><is><t>%b</t></is></c>'
    rows = b"<row>%b%b</row><row>%b</row>" % (cell % b"text", cell % b"label", cell % b"good")
    assert read(spread(tmp_path, "xl/worksheets/sheet1.xml", SHEET % (b"", rows))) == [{"text": "good", "label": ""}]


def test_a_parquet_file_is_refused_by_what_it_says_of_itself(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    assert read(table(tmp_path, {name: [row[name] for row in ROWS] for name in ("text", "label")})) == ROWS
    rows = pyarrow.nulls(1_000_000, pyarrow.int8()).fill_null(0)
    runs = table(tmp_path, {"text": pyarrow.DictionaryArray.from_arrays(rows, ["a"])}, row_group_size=1_000_000)
    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(DataError, match="more than 10 times"):  # rows
        read(runs)
    with pytest.raises(DataError, match="more than 10 times"):  # bytes
        read(
            table(
                tmp_path,
                {"text": [f"{i} " + "x" * 500_000 for i in range(4)]},
                compression="zstd",
                use_dictionary=False,
            )
        )


@pytest.mark.parametrize("kind", ["text", "binary", "list", "struct", "map"])
def test_a_text_that_many_rows_of_a_parquet_file_share_is_counted_in_each(tmp_path, kind):
    pyarrow = pytest.importorskip("pyarrow")
    texts = ["x" * 1000] * 400
    columns = {
        "text": pyarrow.array(texts),
        "binary": pyarrow.array([text.encode() for text in texts]),
        "list": pyarrow.array([[text] for text in texts]),
        "struct": pyarrow.array([{"a": text} for text in texts]),
        "map": pyarrow.array([[("a", text)] for text in texts], pyarrow.map_(pyarrow.string(), pyarrow.string())),
    }
    path = table(tmp_path, {"text": columns[kind]}, compression="zstd")
    assert path.stat().st_size < 10_000
    with pytest.raises(DataError, match="more than 10 times"):
        read(path)
    few = read(table(tmp_path, {"text": columns[kind][:5]}, compression="zstd"))
    assert few == [{"text": each} for each in columns[kind][:5].to_pylist()]


def arrow_file(folder, columns, form="file", compression=None):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table(columns)
    write = pyarrow.ipc.new_file if form == "file" else pyarrow.ipc.new_stream
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    with write(str(path := folder / "rows.arrow"), table.schema, options=options) as file:
        file.write_table(table)
    return path


@pytest.mark.parametrize("form", ["file", "stream"])
@pytest.mark.parametrize("kind", ["zstd", "lz4", "dictionary", "view", "runs", "nothing"])
def test_what_an_arrow_file_becomes_is_known_before_it_is_unpacked(tmp_path, monkeypatch, form, kind):
    pyarrow = pytest.importorskip("pyarrow")
    monkeypatch.setattr(containers, "_ROOM_BYTES", 60_000)
    text, n = "x" * 2000, 400
    if kind == "view":
        one = pyarrow.array([text], pyarrow.string_view()).buffers()
        views = pyarrow.py_buffer(one[1].to_pybytes() * n)
        texts = pyarrow.Array.from_buffers(pyarrow.string_view(), n, [None, views, one[2]])
    else:
        texts = {
            "dictionary": lambda: pyarrow.DictionaryArray.from_arrays([0] * n, [text]),
            "runs": lambda: pyarrow.RunEndEncodedArray.from_arrays([n], [text]),
            "nothing": lambda: pyarrow.nulls(10**9),
        }.get(kind, lambda: pyarrow.array([text] * n))()
    compression = kind if kind in ("zstd", "lz4") else None
    with pytest.raises(DataError, match="more than 10 times"):
        read(arrow_file(tmp_path, {"text": texts}, form, compression))
    few = texts[:5]
    assert read(arrow_file(tmp_path, {"text": few}, form, compression)) == [{"text": row} for row in few.to_pylist()]


@pytest.mark.parametrize("form", ["file", "stream"])
def test_the_offsets_of_a_damaged_arrow_file_are_not_followed(tmp_path, form):
    """By itself pyarrow reads wherever they lead, and the process ends."""
    path = arrow_file(tmp_path, {"text": ["one", "two", "three"]}, form)
    sound, offsets = path.read_bytes(), struct.pack("<4i", 0, 3, 6, 11)
    assert sound.count(offsets) == 1
    for damaged in ((0, 3, 1 << 30, 11), (0, 3, -9, 11), (-(1 << 30), 3, 6, 11)):
        path.write_bytes(sound.replace(offsets, struct.pack("<4i", *damaged)))
        with pytest.raises(DataError, match="is not an arrow file"):
            read(path)


def mutated(content, chance):
    data = bytearray(content)
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(data))
        if chance.random() < 0.3:
            del data[at : at + chance.randrange(1, 30)]
        else:
            data[at] = chance.randrange(256)
    return bytes(data)


@pytest.mark.parametrize("kind", ["gz", "zip", "stored", "xlsx", "parquet"])
def test_a_packed_file_with_other_bytes_is_read_or_refused(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(containers, "_ROOM_BYTES", 200_000)
    made = {
        "gz": lambda: packed(tmp_path, b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)),
        "zip": lambda: zipped(tmp_path, [("a/1.txt", "good"), ("b/1.txt", "bad" * 40)]),
        "stored": lambda: zipped(tmp_path, [("a/1.txt", "good"), ("b/1.txt", "bad" * 40)], zipfile.ZIP_STORED),
        "xlsx": lambda: spread(tmp_path),
        "parquet": lambda: table(tmp_path, {name: [row[name] for row in ROWS] for name in ("text", "label")}),
    }
    path, chance = made[kind](), random.Random(0)
    sound, outcomes = path.read_bytes(), set()
    for _ in range(60):
        path.write_bytes(mutated(sound, chance))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                read(path)
                outcomes.add("read")
            except DataError as error:
                assert path.name in str(error)
                outcomes.add("refused")
    assert "refused" in outcomes


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (['"She said ""no"", twice"', '"It is 3"" wide"'], True),  # as pandas writes them
        (['"She said ""no"", twice"', 'an odd " stands alone'], False),  # as GLUE has them
        (["none here", "nor there"], False),
    ],
)
def test_quotation_marks_that_only_quote_the_cells_of_a_tsv_are_said(tmp_path, cells, said, recwarn):
    (path := tmp_path / "rows.tsv").write_text("text\tlabel\n" + "".join(f"{cell}\ta\n" for cell in cells))
    assert [row["text"] for row in read(path)] == cells
    assert [("call the file .csv" in str(each.message)) for each in recwarn] == [True] * said
    renamed = path.rename(tmp_path / "rows.csv")
    if said:  # what the note advises
        assert [row["text"] for row in read(renamed)] == ['She said "no", twice', 'It is 3" wide']


def test_a_licence_beside_the_table_of_a_zip_file_is_no_text(tmp_path):
    path = zipped(
        tmp_path, [("d/citation.csv", "text,label\nhi,a\n"), ("README.txt", "of rows"), ("d/LICENSE", "free")]
    )
    assert read(path) == [{"text": "hi", "label": "a"}]


@pytest.mark.parametrize(
    ("beginning", "said"),
    [
        (b"PK\x03\x04", r"rows\.csv is a spreadsheet or a zip file; call it \.xlsx or \.zip"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", r"Excel before 2007 \(\.xls\); save it as \.xlsx or \.csv"),
        (b"\x1f\x8b\x08", r"rows\.jsonl is a gzip file; let its name end in \.gz"),
        (b"PAR1\x15", r"rows\.csv is a parquet file; call it \.parquet"),
    ],
)
def test_a_file_of_another_form_than_its_name_says_is_called_what_it_is(tmp_path, beginning, said):
    path = tmp_path / ("rows.jsonl" if "jsonl" in said else "rows.csv")
    path.write_bytes(beginning + bytes(range(256)))
    with pytest.raises(DataError, match=said):
        read(path)


def test_an_array_that_is_called_jsonl_is_told_so_once(tmp_path):
    (path := tmp_path / "rows.jsonl").write_text(json.dumps(ROWS, indent=1))
    with pytest.raises(DataError, match=r"begins as an array of objects does, .*; call it \.json\."):
        read(path)
