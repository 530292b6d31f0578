"""What the built graph is made of: the checkpoint's own tensors, standard operators, every site a named value."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers
from graphs import Both, build, require_sites, session
from onnx import TensorProto, helper
from safetensors.numpy import load_file, save_file
from tiny import MODEL_TYPES, PRE_NORM, ROTARY, SIZES, known, ragged, randomise

from edgepeft.backbones.base import family_of
from edgepeft.backbones.config import config_of
from edgepeft.backbones.source import open_backbone


def external(tensor: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_weight_is_a_tensor_of_the_unchanged_file_by_its_own_name(tiny: Callable[..., Path], model_type: str):
    backbone = open_backbone(str(tiny(model_type)))
    stored, raw = load_file(backbone.weights), backbone.weights.read_bytes()
    weights = [i for i in build(backbone).graph.initializer if i.data_location == TensorProto.EXTERNAL]
    for tensor in weights:
        where = external(tensor)
        assert where["location"] == "model.safetensors"
        offset, length = int(where["offset"]), int(where["length"])
        expected = stored[tensor.name]
        assert raw[offset : offset + length] == expected.tobytes()
        assert tuple(tensor.dims) == expected.shape
    left = set(stored) - {tensor.name for tensor in weights}
    assert all("pooler" in name for name in left)


def test_nothing_else_of_size_is_in_the_graph(tiny: Callable[..., Path]):
    model = build(open_backbone(str(tiny("roberta"))))
    inline = [i for i in model.graph.initializer if i.data_location != TensorProto.EXTERNAL]
    assert all(np.prod(i.dims, dtype=int) <= 4 for i in inline)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_it_passes_the_checker_at_opset_20_and_ir_10_with_standard_operators(
    tiny: Callable[..., Path], tmp_path: Path, model_type: str
):
    backbone = open_backbone(str(tiny(model_type)))
    model = build(backbone)
    shutil.copyfile(backbone.weights, tmp_path / "model.safetensors")
    onnx.save(model, tmp_path / "backbone.onnx")
    onnx.checker.check_model(str(tmp_path / "backbone.onnx"), full_check=True)
    assert model.ir_version == 10
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 20)]
    assert {node.domain for node in model.graph.node} == {""}


@pytest.mark.parametrize("model_type", [*MODEL_TYPES, *PRE_NORM, "roformer", *known(*ROTARY)])
def test_every_site_its_input_and_residual_are_what_the_modules_of_transformers_see(
    tiny: Callable[..., Path], model_type: str
):
    """The site table's two columns, module path and graph value, name the same numbers."""
    both = Both(tiny(model_type))
    gated = model_type in ROTARY  # a second first product and what it reads; and no input of the activation alone
    norms = 2 if model_type in PRE_NORM else int(gated)
    in_layers = both.backbone.architecture.n_layers * (8 + 7 + 2 + norms)  # outputs, inputs, residuals
    others = dict.fromkeys(("roformer", *ROTARY), 2).get(
        model_type, 4 if norms else 3
    )  # words, positions, all embeddings; the last norm
    assert require_sites(both, ragged(4, 7, SIZES[model_type])) == in_layers + others


@pytest.mark.parametrize("model_type", ["bert", "roberta", "xlm-roberta", "electra"])
def test_split_keys_and_values_positions_and_the_mask_are_transformers(tiny: Callable[..., Path], model_type: str):
    both, seen = Both(tiny(model_type)), dict[str, torch.Tensor]()
    architecture = both.backbone.architecture
    for site in (site for site in architecture.sites if site.shape):
        module, name = both.model.get_submodule(site.module), site.name
        if site.is_input:
            module.register_forward_pre_hook(lambda _, args, name=name: seen.update({name: args[0]}))
        elif site.argument:
            module.register_forward_pre_hook(
                lambda _, args, given, site=site: seen.update({site.name: [*args, *given.values()][site.argument]}),
                with_kwargs=True,
            )
        else:
            module.register_forward_hook(lambda _, __, output, name=name: seen.update({name: output}))
    rows = ragged(4, 7, SIZES[model_type])
    feed = {name: rows[name] for name in architecture.inputs}
    both.model(**{name: torch.from_numpy(values) for name, values in feed.items()})
    model = build(both.backbone)
    del model.graph.output[:]
    model.graph.output.extend(
        helper.make_tensor_value_info(n, TensorProto.INT64 if n == "position_ids" else TensorProto.FLOAT, None)
        for n in seen
    )
    found = dict(zip(seen, session(model, both.backbone.folder).run(list(seen), feed), strict=True))
    real = rows["attention_mask"].astype(bool)
    positions = np.broadcast_to(seen["position_ids"].numpy(), real.shape)
    np.testing.assert_array_equal(found.pop("position_ids"), positions[real])
    np.testing.assert_array_equal(found["attention_bias"] < 0, seen["attention_bias"].numpy() < 0)
    assert not found.pop("attention_bias")[real[:, None, None]].any() and len(found) == 2 * architecture.n_layers
    for name, values in found.items():
        split = seen[name].detach().unflatten(-1, (values.shape[1], -1)).numpy()  # (B, S, h, e)
        np.testing.assert_allclose(values.transpose(0, 2, 1, 3)[real], split[real], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["roberta-base", "bert-base-uncased", "distilbert-base-uncased"])
def test_a_base_models_graph_is_under_200_kilobytes(tmp_path: Path, name: str):
    """The weights are a hole in the file: building reads the header alone."""
    config = config_of(name)
    architecture = family_of(config).architecture(config)
    header, offset = {}, 0
    for tensor, shape in architecture.tensors.items():
        size = 4 * int(np.prod(shape))
        header[tensor] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert build(open_backbone(str(tmp_path))).ByteSize() < 200_000


def test_building_imports_neither_torch_nor_transformers(tiny: Callable[..., Path]):
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from edgepeft.backbones.source import open_backbone\n"
        "backbone = open_backbone(sys.argv[1])\n"
        "print(backbone.architecture.graph(backbone.checkpoint).ByteSize())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tiny("electra"))], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 0


def test_building_twice_gives_the_same_bytes(tiny: Callable[..., Path]):
    folder = str(tiny("bert"))
    assert build(open_backbone(folder)).SerializeToString() == build(open_backbone(folder)).SerializeToString()


def renamed(folder: Path, target: Path, rename: Callable[[str], str]) -> Path:
    """A copy of the model whose tensors have other names."""
    target.mkdir()
    shutil.copyfile(folder / "config.json", target / "config.json")
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {rename(name): tensor for name, tensor in tensors.items()}, target / "model.safetensors", {"format": "pt"}
    )
    return target


def test_gamma_and_beta_of_googles_first_checkpoints_are_found_and_keep_their_names(
    tiny: Callable[..., Path], tmp_path: Path
):
    def old(name: str) -> str:
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    both = Both(renamed(tiny("bert"), tmp_path / "old", old))
    both.assert_equal(ragged(3, 8, SIZES["bert"]))
    names = {i.name for i in build(both.backbone).graph.initializer}
    assert "embeddings.LayerNorm.gamma" in names
    assert "embeddings.LayerNorm.weight" not in names


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_whole_models_checkpoint_is_read_under_its_prefix(tmp_path: Path, model_type: str):
    config = transformers.AutoConfig.for_model(model_type, **SIZES[model_type])
    model = transformers.AutoModelForMaskedLM.from_config(config)
    randomise(model).save_pretrained(tmp_path / "whole")
    both = Both(tmp_path / "whole")
    both.assert_equal(ragged(3, 8, SIZES[model_type]))
    prefix = {"xlm-roberta": "roberta"}.get(model_type, model_type)
    weights = [i.name for i in build(both.backbone).graph.initializer if i.data_location == TensorProto.EXTERNAL]
    assert all(name.startswith(f"{prefix}.") for name in weights)


@pytest.mark.parametrize("model_type", [*MODEL_TYPES, *PRE_NORM, "roformer", *known(*ROTARY)])
def test_where_a_config_is_silent_it_is_read_as_transformers_reads_it(tiny: Callable[..., Path], model_type: str):
    kept = ("model_type", "hidden_size", "dim", "num_hidden_layers", "n_layers", "num_attention_heads", "n_heads")
    kept += ("intermediate_size", "hidden_dim", "vocab_size", "max_position_embeddings")
    whole = json.loads((tiny(model_type) / "config.json").read_text())
    config = {name: value for name, value in whole.items() if name in kept}
    architecture = family_of(config).architecture(config)
    theirs = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(theirs)
    trained = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}  # not RoFormer's sines
    assert dict(architecture.tensors) == {
        name: shape for name, shape in trained.items() if not name.startswith("pooler")
    }
    norms = {name for name, module in model.named_modules() if isinstance(module, torch.nn.LayerNorm)}
    assert set(architecture.norms) == norms
    assert architecture.pad_token_id == theirs.pad_token_id
    assert architecture.layer_norm_eps == getattr(theirs, "layer_norm_eps", 1e-12)


@pytest.mark.parametrize("name", ["roberta-base", "bert-base-uncased", "electra-small-discriminator", "albert-base-v2"])
def test_the_tensor_table_of_a_published_architecture_is_transformers(name: str):
    config = config_of(name)
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**config))
    architecture = family_of(config).architecture(config)
    shapes = {n: tuple(p.shape) for n, p in model.named_parameters()}
    ours = {**architecture.tensors, **architecture.pooler}
    assert {n: s for n, s in shapes.items() if not n.startswith("pooler")} == dict(architecture.tensors)
    assert all(shapes[n] == s for n, s in ours.items())
