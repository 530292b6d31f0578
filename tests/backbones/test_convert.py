"""Checkpoints in other forms become float32 safetensors, once, and the graph equals transformers' model on them."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from graphs import Both
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file
from tiny import SIZES, known, ragged, write_model
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from edgepeft.backbones.base import families
from edgepeft.backbones.checkpoint import Layout, write_safetensors
from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import BundleError, UsageError

PICKLES = transformers.__version__ < "5"  # which writes safetensors alone

ROWS = ragged(3, 8, SIZES["bert"])


@pytest.fixture
def copied(tiny: Callable[..., Path], tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(tiny("bert"), folder)
    return folder


def in_dtype(folder: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    path = folder / "model.safetensors"
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    return tensors


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_another_precision_is_widened_exactly(copied: Path, dtype: torch.dtype):
    tensors = in_dtype(copied, dtype)
    before = (copied / "model.safetensors").read_bytes()
    both = Both(copied)
    both.assert_equal(ROWS)
    converted = load_file(both.backbone.weights)
    assert all(torch.equal(converted[name], tensor.float()) for name, tensor in tensors.items())
    assert both.backbone.folder != copied
    assert (copied / "model.safetensors").read_bytes() == before
    assert (both.backbone.folder / "tokenizer.json").read_bytes() == (copied / "tokenizer.json").read_bytes()


def test_float32_safetensors_are_used_where_they_lie(copied: Path):
    assert open_backbone(str(copied)).folder == copied


def test_the_second_opening_finds_the_conversion(copied: Path):
    in_dtype(copied, torch.float16)
    first = open_backbone(str(copied)).weights
    written = first.stat().st_mtime_ns
    assert open_backbone(str(copied)).weights == first
    assert first.stat().st_mtime_ns == written


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "checksums.json"])
def test_a_conversion_that_lost_a_bit_is_made_again(copied: Path, name: str):
    in_dtype(copied, torch.float16)
    path = open_backbone(str(copied)).folder / name
    sound = path.read_bytes()
    path.write_bytes(sound[:-9] + bytes([sound[-9] ^ 1]) + sound[-8:])
    with pytest.warns(RuntimeWarning, match="made again"):
        open_backbone(str(copied))
    assert path.read_bytes() == sound


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def test_a_pytorch_model_is_converted(copied: Path):
    expected = load_file(copied / "model.safetensors")
    pickled(copied)
    backbone = open_backbone(str(copied))
    found = load_file(backbone.weights)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(copied: Path, tmp_path: Path):
    class Hostile:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    (copied / "model.safetensors").unlink()
    (copied / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Hostile()}))
    with pytest.raises(BundleError, match="no plain dictionary of tensors, and code in it is never run"):
        open_backbone(str(copied))
    assert not (tmp_path / "ran").exists()


def sharded(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, folder / file, metadata={"format": "pt"})
    weight_map = {name: file for file, part in halves.items() for name in part}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()


def test_shards_are_joined(copied: Path):
    sharded(copied)
    Both(copied).assert_equal(ROWS)


def test_two_models_with_one_index_do_not_share_a_conversion(copied: Path, tmp_path: Path):
    other = write_model(tmp_path / "other", "bert", seed=9)
    sharded(copied)
    sharded(other)
    first, second = open_backbone(str(copied)), open_backbone(str(other))
    assert first.sha256 != second.sha256
    Both(other).assert_equal(ROWS)


def test_another_tokenizer_beside_the_same_weights_is_another_conversion(copied: Path):
    in_dtype(copied, torch.float16)
    first = open_backbone(str(copied)).folder
    (copied / "tokenizer.json").write_text((copied / "tokenizer.json").read_text() + "\n")
    second = open_backbone(str(copied)).folder
    assert (second / "tokenizer.json").read_text() == (copied / "tokenizer.json").read_text()
    assert first != second


@pytest.mark.parametrize(
    "index",
    [
        {},
        {"weight_map": None},
        {"weight_map": {}},
        {"weight_map": {"a": 3}},
        {"weight_map": {"a": "gone.safetensors"}},
        [],
    ],
    ids=str,
)
def test_a_broken_index_is_refused_without_a_traceback(copied: Path, index: object):
    (copied / "model.safetensors").unlink()
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BundleError, match=r"index\.json"):
        open_backbone(str(copied))


def test_an_index_cannot_name_files_outside_of_the_folder(copied: Path, tmp_path: Path):
    shutil.move(copied / "model.safetensors", tmp_path / "elsewhere.safetensors")
    index = {"weight_map": {"a": "../elsewhere.safetensors"}}
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BundleError, match="not beside it"):
        open_backbone(str(copied))


def test_a_vocabulary_without_tokenizer_json_becomes_one(copied: Path):
    (copied / "tokenizer.json").unlink()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(55))]
    (copied / "vocab.txt").write_text("\n".join(words))
    backbone = open_backbone(str(copied))
    from edgepeft.backbones.tokens import Text

    batch = backbone.encoder().encode([Text("word3 word4")], 16)
    np.testing.assert_array_equal(batch.inputs["input_ids"], [[2, 8, 9, 3]])


def test_no_weights_is_a_usage_error(copied: Path):
    (copied / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        open_backbone(str(copied))


def test_a_hub_name_offline_names_the_cache(monkeypatch: pytest.MonkeyPatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match="offline") as refusal:
        open_backbone("nobody/no-such-model")
    assert str(constants.HF_HUB_CACHE) in str(refusal.value)


@pytest.mark.parametrize("source", ["../gone", "/gone/model", "a/b/c", "", "bad name", "."])
def test_what_can_be_neither_folder_nor_name_is_a_usage_error(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        open_backbone(source)


# One of each family, and of BERT's own one that shares layers and one with a table of distances.
@pytest.mark.parametrize(
    "model_type", known(*sorted({family.model_types[0] for family in families().values()} | {"albert", "mpnet", "gte"}))
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("pickle_too", [False] + [True] * PICKLES, ids=["safetensors"] + ["pickled"] * PICKLES)
def test_shards_of_transformers_own_are_the_model_in_float32(
    tiny: Callable[..., Path], tmp_path: Path, model_type: str, dtype: torch.dtype, pickle_too: bool
):
    """Each family, in half precision and in many files, as ``save_pretrained`` writes it."""
    source, folder = tiny(model_type), tmp_path / "model"
    of = {"t5": AutoModelForSeq2SeqLM, "llama": AutoModelForCausalLM}.get(model_type, AutoModel)
    model = of.from_pretrained(source, dtype=dtype)
    model.save_pretrained(folder, max_shard_size="20KB", safe_serialization=not pickle_too)
    shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    kind = "pytorch_model*.bin" if pickle_too else "model-*.safetensors"
    assert len(list(folder.glob(kind))) >= 2
    backbone = open_backbone(str(folder))
    expected = {name: tensor.float() for name, tensor in model.state_dict().items()}
    for name in backbone.architecture.tensors:
        stored = backbone.checkpoint.find(name)
        found = torch.from_numpy(backbone.checkpoint.read(name).copy())
        assert torch.equal(found, expected[name if name in expected else stored.name]), name


def test_the_converted_file_is_as_the_safetensors_library_writes_it(tmp_path: Path):
    """Deltas name their backbone by its hash, and versions before this one had the library write the file."""
    source = np.random.default_rng(0)
    kinds = {"BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "F16": "<f2", "I32": "<i4", "F32": "<f4", "I64": "<i8"}
    arrays = {
        f"{name}.{dtype}": (9 * source.standard_normal((3, size))).astype(numpys)
        for dtype, numpys in kinds.items()
        for name, size in (("z", 5), ("\u00e4", 2), ("a", 0))
    }
    save_arrays(arrays, tmp_path / "library", metadata={"format": "pt"})
    layout = {name: Layout(name.rpartition(".")[2], array.shape) for name, array in arrays.items()}
    write_safetensors(tmp_path / "ours", layout, reversed(arrays.items()), {"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "library").read_bytes()
