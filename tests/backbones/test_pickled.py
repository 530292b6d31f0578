"""A .bin takes no more memory than its bytes: not by strides, not by its pickle, not by an archive in an archive."""

import io
import json
import pickle
import tarfile
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from edgepeft.backbones import checkpoint, convert
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.convert import read_pickled
from edgepeft.common.errors import BundleError
from edgepeft.data.training_loop import checkpoint as loop_checkpoint
from edgepeft.deploy.verify import read_check
from edgepeft.training.interop.base import read_state_dict


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("strides", [(0, 0), (1, 1), (0, 1)])
def test_a_tensor_that_reads_one_number_many_times_is_refused_before_it_is_copied(tmp_path, archive, strides):
    path = tmp_path / "a.bin"
    tensor = torch.zeros(200_000).as_strided((60_000, 60_000), strides)  # 14.4 GB, if it is made contiguous
    torch.save({"w": tensor}, path, _use_new_zipfile_serialization=archive)
    with pytest.raises(BundleError, match=r"its tensors ask for 14,400,000,000"):
        read_pickled(path)


@pytest.mark.parametrize("archive", [True, False])
def test_tied_tensors_and_parts_of_one_storage_are_read(tmp_path, archive):
    path, whole = tmp_path / "a.bin", torch.arange(12.0)
    state = {"a": whole, "tied": whole, "head": whole[:6].reshape(2, 3), "tail": torch.nn.Parameter(torch.ones(3))}
    torch.save(state | {"transposed": torch.ones(3, 4).T}, path, _use_new_zipfile_serialization=archive)
    found = read_pickled(path)
    assert found["a"] is found["tied"] and not found["tail"].requires_grad
    assert found["head"].tolist() == [[0, 1, 2], [3, 4, 5]] and found["transposed"].shape == (4, 3)


def test_a_pickle_of_many_tiny_objects_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(convert, "_PICKLE_BYTES", 500)
    monkeypatch.setattr(convert._Counted, "left", 500)
    path = tmp_path / "a.bin"
    torch.save({"a": torch.ones(3)}, path)
    assert read_pickled(path)["a"].tolist() == [1, 1, 1]
    torch.save({"a": [[] for _ in range(1000)]}, path)
    with pytest.raises(BundleError, match="a pickle of more than 500 bytes"):
        read_pickled(path)
    torch.save({"a": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    assert read_pickled(path)["a"].tolist() == [1, 1, 1]
    torch.save({"a": [[] for _ in range(1000)]}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(BundleError, match="more than 500 parts"):
        read_pickled(path)


def test_a_tar_is_not_unpacked(tmp_path):
    with tarfile.open(tmp_path / "a.bin", "w") as archive:
        archive.addfile(tarfile.TarInfo("storages"), io.BytesIO())
    with pytest.raises(BundleError, match="tar"):
        read_pickled(tmp_path / "a.bin")


@pytest.mark.parametrize("state", [[1], {"a": 1}, {"a": torch.ones(3).to_sparse()}])
def test_what_is_no_dictionary_of_plain_tensors_is_refused(tmp_path, state):
    torch.save(state, tmp_path / "a.bin")
    with pytest.raises(BundleError, match=r"a\.bin"):
        read_pickled(tmp_path / "a.bin")


def test_what_a_training_loop_saved_around_the_tensors_is_told_with_where_they_are(tmp_path):
    torch.save({"epoch": 3, "model": {"a": torch.ones(1)}}, tmp_path / "a.bin")
    with pytest.raises(BundleError, match="Save what is in it as model alone, a state_dict"):
        read_pickled(tmp_path / "a.bin")


def test_code_and_damage_are_refused(tmp_path):
    path = tmp_path / "a.bin"
    for content in (b"", b"x" * 10, pickle.dumps(print)):
        path.write_bytes(content)
        with pytest.raises(BundleError):
            read_pickled(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"")
    with pytest.raises(BundleError):
        read_pickled(path)


def test_a_safetensors_file_that_is_all_header_is_refused_unparsed(tmp_path, monkeypatch):
    path = tmp_path / "adapter_model.safetensors"
    save_file({"w": torch.ones(3)}, path)
    assert [*Checkpoint.open(path).tensors] == [*read_state_dict(tmp_path, path.name)] == ["w"]
    monkeypatch.setattr(checkpoint, "_MAX_HEADER_BYTES", 50)
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("it was parsed"))
    monkeypatch.setattr("edgepeft.training.interop.base.load_file", lambda _: pytest.fail("it was read"))
    monkeypatch.setattr(loop_checkpoint, "safe_open", lambda *_: pytest.fail("it was read"))
    readers = (
        lambda: Checkpoint.open(path),
        lambda: read_state_dict(tmp_path, path.name),
        lambda: loop_checkpoint.load_checkpoint(path, {}),
        lambda: loop_checkpoint.best_score(path),
    )
    for read in readers:
        with pytest.raises(BundleError, match="header claims"):
            read()
    with pytest.raises(BundleError, match="header claims"):
        read_check(path.read_bytes(), "a check file")
