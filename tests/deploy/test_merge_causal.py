"""A decoder's task that writes as one plain graph: token for token what transformers writes, by ONNX Runtime alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from deltas import TEXTS, random_delta, saved
from optimum_classes import optimum_class
from tiny import SIZES, ragged

from edgepeft.backbones.hooks import load_model, padded_in_front
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import UsageError
from edgepeft.deploy.merge import merge_task
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.training.text_engine import generated

STEPS = 12


def made(folder: Path, out: Path, method: str, settings: dict[str, Any], weights: Any = "fp32") -> Delta:
    backbone = open_backbone(str(folder))
    delta = random_delta(backbone, method, "t", None, settings=settings, head="text").eval()
    export_bundle(backbone, [saved(delta, out / "delta")], out / "bundle", texts=TEXTS[:20], weights=weights)
    return delta


def greedy(session: ort.InferenceSession, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """[B, STEPS]: as generation code of any language would write, all of a prompt first, then token by token."""
    past = {
        value.name: np.zeros((len(ids), value.shape[1], 0, value.shape[3]), np.float32)
        for value in session.get_inputs()
        if value.name.startswith("past")
    }
    written = np.empty((len(ids), 0), np.int64)
    for _ in range(STEPS):
        places = np.maximum(mask.cumsum(1) - 1, 0)[:, -ids.shape[1] :]
        found = session.run(None, {"input_ids": ids, "attention_mask": mask, "position_ids": places, **past})
        names = [value.name.replace("present", "past_key_values") for value in session.get_outputs()]
        past = dict(zip(names[1:], found[1:], strict=True))
        ids = found[0][:, -1:].argmax(-1)
        mask, written = np.pad(mask, ((0, 0), (0, 1)), constant_values=1), np.concatenate([written, ids], 1)
    return written


@pytest.mark.parametrize(
    ("model_type", "method", "settings"),
    [
        ("qwen3", "lora", {"rank": 2, "roles": ("query", "key", "ffn_gate")}),
        ("gemma3_text", "pfeiffer", {"bottleneck": 4}),
        ("llama", "full", {}),
    ],
)
def test_greedy_tokens_of_ragged_rows_are_transformers(
    tiny: Callable[..., Path], tmp_path: Path, model_type: str, method: str, settings: dict[str, Any]
):
    delta = made(tiny(model_type), tmp_path, method, settings)
    assert merge_task(Bundle(tmp_path / "bundle"), "t", tmp_path / "out").agreement == 1
    rows = {name: torch.from_numpy(values) for name, values in ragged(5, 9, SIZES[model_type]).items()}
    rows.pop("token_type_ids")
    with torch.no_grad():
        expected = generated(delta, load_model(open_backbone(str(tiny(model_type))), "eager"), rows, STEPS, ends=False)
    path = tmp_path / "out" / "model.onnx"
    onnx.checker.check_model(path, full_check=True)
    session = ort.InferenceSession(path)  # of standard operators, and nothing beside it
    given = [values.numpy() for values in padded_in_front(rows).values()]
    np.testing.assert_array_equal(greedy(session, *given), expected.numpy())
    products = sum(node.op_type in ("Gemm", "MatMul") for node in onnx.load(path).graph.node)
    layers = 3 if model_type == "gemma3_text" else 2
    assert products == 9 * layers + 1 + 2 * layers * (method == "pfeiffer")  # LoRA is in the weights


def test_optimum_loads_the_folder_and_writes_as_the_bundle(tiny: Callable[..., Path], tmp_path: Path):
    peer = optimum_class("ORTModelForCausalLM")
    made(tiny("llama"), tmp_path, "lora", {"rank": 2})
    merge_task(Bundle(tmp_path / "bundle"), "t", tmp_path / "out")
    model, rows = peer.from_pretrained(tmp_path / "out"), ragged(3, 7, SIZES["llama"])
    given = padded_in_front({name: torch.from_numpy(rows[name]) for name in ("input_ids", "attention_mask")})
    found = model.generate(**given, max_new_tokens=STEPS, eos_token_id=None)[:, 7:].tolist()
    with Runtime(tmp_path / "bundle", threads=1, cache=False) as runtime:
        expected = runtime.generator.write("t", rows, Decoding(STEPS, ends=False))
    assert found == [list(one.tokens) for one in expected]


def test_eight_bits_stay_so(tiny: Callable[..., Path], tmp_path: Path):
    sizes = {"hidden_size": 64, "vocab_size": 1100, "intermediate_size": 96}
    made(tiny("llama", **sizes), tmp_path, "lora", {"rank": 2}, "int8")
    result = merge_task(Bundle(tmp_path / "bundle"), "t", tmp_path / "out")
    assert result.text is not None and result.kl_tolerance is not None and result.text.kl < result.kl_tolerance
    whole = (tmp_path / "out" / "model.onnx").stat().st_size
    assert whole < 1.5 * (tmp_path / "bundle" / "model.int8.safetensors").stat().st_size
    config = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (config["eos_token_id"], config["do_sample"]) == (3, False)


def test_a_task_with_places_of_its_own_is_refused_and_leaves_nothing(tiny: Callable[..., Path], tmp_path: Path):
    made(tiny("llama"), tmp_path, "prefix", {"length": 3})
    with pytest.raises(UsageError, match=r"task t puts 3 places .* \(prefix\).* --to-peft"):
        merge_task(Bundle(tmp_path / "bundle"), "t", tmp_path / "out")
    assert not (tmp_path / "out").exists()
