"""A dataset that cannot be reached is told once, in one sentence; ``datasets`` itself is played."""

import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgepeft.common.errors import UsageError
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
