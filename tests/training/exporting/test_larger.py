"""XLM-R-large's 560 million parameters, 2.24 GB, through the verbs: more than any protobuf holds, and memory is bounded."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tiny import write_tokenizer

from edgepeft.backbones.base import family_of
from edgepeft.backbones.checkpoint import Layout, write_safetensors
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.bundle.delta import new_delta
from edgepeft.methods.base import method_of

PARAMETERS = 559_890_432 - 1024 * 1025  # of facebook/xlm-roberta-large, without its pooler
CONFIG = {
    "model_type": "xlm-roberta",
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "vocab_size": 250_002,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "architectures": ["XLMRobertaModel"],
}


class Done(NamedTuple):
    """What a verb printed, and the most memory that it had, in bytes; mapped files count while they are in memory."""

    stdout: str
    peak: int


def edgepeft(*arguments: object) -> Done:
    command, began, peak = [sys.executable, "-m", "edgepeft", *map(str, arguments)], time.monotonic(), 0
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors)
        while process.poll() is None:
            # Gone from an ended one. Not wait4's figure, which has what this process took before it started the other.
            with contextlib.suppress(OSError, TypeError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                peak = 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])
            time.sleep(0.1)
        output.seek(0)
        errors.seek(0)
        stdout, stderr = output.read(), errors.read()
    print(f"{arguments[0]}: peak {peak / 1e9:.2f} GB, {time.monotonic() - began:.0f} s", flush=True)
    assert process.returncode == 0, stderr
    return Done(stdout, peak)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    folder = tmp_path_factory.mktemp("large")
    architecture = family_of(CONFIG).architecture(CONFIG)
    layout = {name: Layout("F32", shape) for name, shape in {**architecture.tensors, **architecture.pooler}.items()}
    source = np.random.default_rng(0)

    def values() -> Iterator[tuple[str, np.ndarray]]:
        for name, (_, shape) in layout.items():
            mean = 1 if "LayerNorm.weight" in name else 0
            yield name, mean + np.float32(0.03) * source.standard_normal(shape, np.float32)

    write_safetensors(folder / "model.safetensors", layout, values(), {"format": "pt"})
    assert sum(each.n_bytes for each in layout.values()) == 4 * PARAMETERS
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_tokenizer(folder / "tokenizer.json", 1, 1000)
    return open_backbone(str(folder))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["full", "intrinsic-said:dimension=2000"])
def test_a_task_of_two_gigabytes_is_exported_run_merged_and_checked(large: Backbone, tmp_path: Path, method: str):
    """The export itself compares with PyTorch, on texts of several lengths; the merged model with the check of that."""
    delta = new_delta(large, method_of(method), "mood", ("no", "yes"), max_length=32)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in delta.parameters():
            for rows in parameter.split(1000) if parameter.ndim > 1 else [parameter]:  # in place, and no table at once
                rows.add_(torch.randn_like(rows), alpha=0.003)
    delta.save(tmp_path / "delta")
    del delta
    rows = tmp_path / "rows.csv"
    rows.write_text("sentence1,label\n" + "".join(f"w{5 + i} w{90 + i * 7} w400,no\n" for i in range(8)))

    weights = 4 * PARAMETERS
    bundle, merged = tmp_path / "bundle", tmp_path / "merged"
    given = ("--backbone", large.folder, "--delta", tmp_path / "delta", "--out", bundle, "--verify-data", rows)
    exported = edgepeft("export", *given)
    # PyTorch's model and the delta, or the model, what ONNX Runtime maps, and what it packed of it.
    assert exported.peak < 3.5 * weights + 1e9
    assert all(path.stat().st_size < 2**24 for path in bundle.rglob("*.onnx"))
    entry = json.loads((bundle / "edgepeft.json").read_text())["tasks"]["mood"]
    assert (entry["n_bytes"] > 2**31) == (method == "full") == (entry["weights_sha256"] is not None)

    ran = edgepeft("run", bundle, "--task", "mood", "--no-cache", "--json", "w7 w100 w400", "w8")
    assert ran.peak < 3 * weights  # what is mapped or made, what is packed of it, and a table's while it is made
    answers = json.loads(ran.stdout)
    assert answers

    done = edgepeft("merge", bundle, "--task", "mood", "--out", merged)
    assert done.peak < 3 * weights
    assert (merged / "model.onnx").stat().st_size < 2**24
    assert (merged / "model.onnx_data").stat().st_size > 0.99 * weights
