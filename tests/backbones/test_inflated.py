"""A PyTorch archive that grows when it is read is refused before torch reads it."""

import zipfile

import pytest
import torch

from edgepeft.backbones.convert import read_pickled
from edgepeft.common.errors import BundleError


def recompressed(path, method):
    with zipfile.ZipFile(path) as old:
        members = {one.filename: old.read(one) for one in old.infolist()}
    with zipfile.ZipFile(path, "w", method) as new:
        for name, content in members.items():
            new.writestr(name, content)


def test_a_bin_that_inflates_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "pytorch_model.bin"
    torch.save({"w": torch.zeros(1 << 20)}, path)
    assert read_pickled(path)["w"].shape == (1 << 20,)
    recompressed(path, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 100_000  # of 4 MiB
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(BundleError, match="compressed inside"):
        read_pickled(path)


def test_the_format_from_before_archives_is_read(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save({"w": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    assert read_pickled(path)["w"].tolist() == [1, 1, 1]
