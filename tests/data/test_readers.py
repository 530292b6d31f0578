"""A dataset that cannot be reached is told once, in one sentence; ``datasets`` itself is played."""

import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgepeft.common.errors import UsageError
from edgepeft.data import readers
from edgepeft.data.readers import read_dataset


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

    rows = Rows([{"tokens": ["Ada"], "ner_tags": [1, 0], "label": -1}, {"tokens": [], "ner_tags": [], "label": 1}])
    rows.features = {
        "tokens": SimpleNamespace(feature=SimpleNamespace()),
        "ner_tags": SimpleNamespace(feature=SimpleNamespace(names=["O", "B-PER"], int2str=None)),
        "label": SimpleNamespace(names=["no", "yes"], int2str=None),
    }
    monkeypatch.setattr(readers, "_opened", lambda source: {"train": rows})
    (_, first), (_, second) = readers.read_dataset(Path("a"))
    assert first == {"tokens": ["Ada"], "ner_tags": ["B-PER", "O"], "label": None}
    assert second["label"] == "yes" and second["ner_tags"] == []
