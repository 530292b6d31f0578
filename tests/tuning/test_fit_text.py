"""The predicted peak of writing text and of teaching it, beside those of real processes."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import transformers
from deltas import random_delta, saved
from tiny import SIZES, write_tokenizer
from verbs import ENTRY, process

from edgepeft.backbones.source import open_backbone
from edgepeft.training.exporting.bundle import export_bundle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc"),
]

# Weights and activations that outweigh the process itself.
HEAVY = {"d_model": 384, "d_kv": 64, "d_ff": 1536, "num_layers": 4, "num_decoder_layers": 4, "num_heads": 6}
WORDS, TARGET = 16_000, 12
ANSWER = """
    import json, sys
    from edgepeft.runtime.decoding import Decoding
    from edgepeft.runtime.runtime import Runtime
    runtime = Runtime(sys.argv[1], threads=1)
    texts = [json.loads(line)["text"] for line in open(sys.argv[2])]
    runtime.write("sum", texts[:1], Decoding(max_new_tokens=2))
    for _ in range(3):
        runtime.write("sum", texts, Decoding(max_new_tokens=int(sys.argv[3])))
    print(open("/proc/self/status").read())
"""


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heavy")
    config = transformers.T5Config(**(SIZES["t5"] | HEAVY | {"vocab_size": WORDS}))
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder / "t5")  # of small logits: it is not tested
    write_tokenizer(folder / "t5" / "tokenizer.json", config.pad_token_id, WORDS)
    backbone = open_backbone(str(folder / "t5"))
    posed = {"source": "w8 {text}", "target": "{answers}", "max_target_length": TARGET}
    delta = random_delta(backbone, "lora", "sum", None, head="text", template=posed, max_length=256)
    export_bundle(backbone, [saved(delta, folder / "sum")], folder / "bundle")
    return folder / "bundle"


def written(path: Path, rows: int, words: int) -> Path:
    """Rows whose texts and answers read words of all the table."""
    chance = random.Random(0)

    def text(count: int) -> str:
        return " ".join(f"w{chance.randrange(100, WORDS - 5)}" for _ in range(count))

    lines = ({"text": text(words - 3), "answers": text(TARGET - 1)} for _ in range(rows))  # w8 and the template's two
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def predicted(bundle: Path, *arguments: Any) -> Any:
    done = process("fit", bundle, "--task", "sum", "--profile", "rpi4", *arguments, "--json")
    assert done.returncode in (0, 5), done.stderr
    return json.loads(done.stdout)


def peak(code: str, *arguments: Any) -> int:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split("VmHWM:")[1].split()[0]) * 1024


@pytest.mark.parametrize(("batch", "length"), [(1, 16), (8, 128)])
def test_the_peak_of_writing_is_predicted_within_15_percent(heavy: Path, tmp_path: Path, batch: int, length: int):
    sizes = ("--batch", batch, "--length", length, "--max-new-tokens", TARGET)
    fit = predicted(heavy, *sizes, "--workload", "infer")["inference"]
    measured = peak(ANSWER, heavy, written(tmp_path / "rows.jsonl", batch, length), TARGET)
    print(batch, length, fit["peak_bytes"] / 1e6, measured / 1e6, fit["peak_bytes"] / measured, fit["parts"])
    assert fit["peak_bytes"] == pytest.approx(measured, rel=0.15)
    assert fit["peak_bytes"] > 1.5 * fit["parts"]["process"], "a prediction of the process alone would pass too"


@pytest.mark.parametrize(("batch", "length"), [(2, 16), (8, 64)])
def test_the_peak_of_teaching_is_predicted_and_by_no_more_than_15_percent_too_low(
    heavy: Path, tmp_path: Path, batch: int, length: int
):
    fit = predicted(heavy, "--batch", batch, "--length", length)["finetune"]
    data = written(tmp_path / "rows.jsonl", 120, length)  # more than are evaluated at once
    told = f"import atexit; atexit.register(lambda: print(open('/proc/self/status').read())); {ENTRY}"
    arguments = (
        "tune",
        shutil.copytree(heavy, tmp_path / "heavy"),
        "--task",
        "sum",
        "--data",
        data,
        "--steps",
        3,
        "--batch-size",
        batch,
    )
    measured = peak(told, *arguments, "--micro-batch", batch)
    print(batch, length, fit["peak_bytes"] / 1e6, measured / 1e6, fit["peak_bytes"] / measured)
    assert 0.85 * measured <= fit["peak_bytes"] <= 1.3 * measured
