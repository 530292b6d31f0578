"""A task that writes text in optimum's layout: ``ORTModelForSeq2SeqLM`` writes what the bundle writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from deltas import TEXTS
from onnx import numpy_helper
from optimum_classes import optimum_class
from writing import END

from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import VerificationFailed
from edgepeft.deploy.merge import merge_task
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.runtime import Runtime

WORDS = [text.first for text in TEXTS[:6]]


@pytest.fixture(scope="module")
def bundle(several_texts: Path) -> Path:
    return several_texts


@pytest.mark.parametrize("task", ["lora-1", "r-1", "full"])
def test_optimum_loads_the_folder_and_writes_as_the_bundle(bundle: Path, tmp_path: Path, task: str):
    peer = optimum_class("ORTModelForSeq2SeqLM")
    from transformers import AutoTokenizer

    result = merge_task(Bundle(bundle), task, tmp_path / "out")
    assert result.agreement == 1
    model = peer.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = tokenizer(WORDS, padding=True, truncation=True, return_tensors="pt", return_token_type_ids=False)
    decode = Bundle(bundle).encoder().decode
    with Runtime(bundle, threads=1, cache=False) as runtime:
        for asked, decoding in (({}, Decoding()), ({"num_beams": 3, "max_new_tokens": 7}, Decoding(7, beams=3))):
            rows = [[*row, END] for row in model.generate(**inputs, **asked)[:, 1:].tolist()]
            texts = [decode(row[: row.index(END)]) for row in rows]
            assert texts == [answer.text for answer in runtime.write(task, WORDS, decoding)]


def test_both_graphs_read_one_unchanged_file_of_weights(bundle: Path, tmp_path: Path):
    merge_task(Bundle(bundle), "lora-0", tmp_path / "out")
    out = tmp_path / "out"
    assert (out / "model.safetensors").read_bytes() == (bundle / "model.safetensors").read_bytes()
    files = {path.name: path.stat().st_size for path in out.iterdir()}
    assert {name for name in files if name.endswith(".onnx")} == {"encoder_model.onnx", "decoder_model_merged.onnx"}
    for name in ("encoder_model.onnx", "decoder_model_merged.onnx"):
        onnx.checker.check_model(out / name, full_check=True)
        assert files[name] < 200_000
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == END


def test_a_model_that_does_not_write_as_pytorch_is_not_left(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    spliced = Bundle.text_graphs_of

    def off(self, task):
        graphs = spliced(self, task)
        for tensor in graphs.decoder.graph.initializer:
            if tensor.name.startswith("delta/") and len(tensor.dims) == 2:
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.5), tensor.name))
        return graphs

    monkeypatch.setattr(Bundle, "text_graphs_of", off)
    with pytest.raises(VerificationFailed, match="differs from PyTorch"):
        merge_task(Bundle(bundle), "lora-0", tmp_path / "out")
    assert not list(tmp_path.iterdir())
