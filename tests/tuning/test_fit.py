"""Predicted peaks beside those of real processes, and what `edgepeft fit` says of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from deltas import TEXTS, random_delta, saved
from tiny import write_model
from verbs import ENTRY
from verbs import edgepeft as here
from verbs import process as edgepeft  # what it predicts begins with what its own process holds

from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.delta import new_delta
from edgepeft.bundle.versions import content_of, keep
from edgepeft.methods.base import method_named
from edgepeft.training.exporting.bundle import add_deltas, export_bundle

linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")

# Weights that outweigh the process itself, in a model that is made in a second.
HEAVY = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "max_position_embeddings": 300,
    "vocab_size": 12_000,
}
ANSWER = """
    import sys
    import numpy as np
    from edgepeft.runtime.runtime import Runtime
    bundle, task, batch, length = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    runtime = Runtime(bundle, threads=1)
    words = runtime.bundle.architecture.vocab_size
    runtime.predict(task, ["w7 w8"])
    chance = np.random.default_rng(0)
    for _ in range(max(2, 3 * words // (batch * length))):  # until nearly all of the embeddings have been read
        ids = chance.integers(5, words, (batch, length))
        rows = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        runtime.logits(task, rows)
    print(int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) * 1024)
"""


@pytest.fixture(scope="session")
def heavy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heavy")
    backbone = open_backbone(str(write_model(folder / "bert", "bert", **HEAVY)))
    torch.manual_seed(0)
    lora = new_delta(backbone, method_named("lora").from_settings({"rank": "8"}), "lora", ("no", "yes"), max_length=256)
    export_bundle(backbone, [saved(lora, folder / "lora")], folder / "bundle", texts=TEXTS)
    plain = saved(random_delta(backbone, "pfeiffer", "plain"), folder / "plain")
    add_deltas(folder / "bundle", [plain], texts=TEXTS)  # not to be tuned: writing a training graph takes long
    return folder / "bundle"


def write_rows(path, n, words):
    texts = (" ".join(f"w{5 + (7 * i + j) % 50}" for j in range(words)) for i in range(n))
    rows = [{"sentence1": text, "label": ("no", "yes")[i % 2]} for i, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def measured(*arguments):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ANSWER), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "EDGEPEFT_CHECK_CONTRACTS": ""},  # which copies the graph at each pass
    )
    return int(done.stdout)


def predicted(bundle, *arguments, profile="rpi4", by=edgepeft):
    done = by("fit", bundle, "--profile", profile, *arguments, "--json")
    assert done.returncode in (0, 5), done.stderr
    return json.loads(done.stdout)


@linux
@pytest.mark.parametrize(("batch", "length"), [(8, 128), pytest.param(1, 16, marks=pytest.mark.slow)])
def test_the_peak_of_answering_is_predicted_within_15_percent(heavy, batch, length):
    fit = predicted(heavy, "--task", "lora", "--batch", batch, "--length", length)["inference"]
    assert fit["peak_bytes"] == pytest.approx(measured(heavy, "lora", batch, length), rel=0.15)
    assert fit["peak_bytes"] > 1.5 * fit["parts"]["process"], "a prediction of the process alone would pass too"


@linux
@pytest.mark.parametrize("task", ["lora", *(pytest.param(name, marks=pytest.mark.slow) for name in ("full", "said"))])
def test_the_peak_of_fine_tuning_is_predicted_and_by_no_more_than_15_percent_too_low(heavy, tmp_path, task):
    """Of a LoRA, of all tensors with their moments, and of as many with what makes them."""
    heavy = shutil.copytree(heavy, tmp_path / "heavy")
    if settings := {"said": ("intrinsic-said", {"dimension": "2000"}), "full": ("full", {})}.get(task):
        backbone = open_backbone(str(heavy))
        method = method_named(settings[0]).from_settings(settings[1])
        delta = new_delta(backbone, method, task, ("no", "yes"), max_length=256)
        add_deltas(heavy, [saved(delta, tmp_path / task)], texts=TEXTS)
    fit = predicted(heavy, "--task", task, "--batch", 8, "--length", 64)["finetune"]
    data = write_rows(tmp_path / "rows.jsonl", n=40, words=62)  # and two marks: 64 tokens
    # Its own account: what the system counts for a child begins with its parent's, which has PyTorch loaded.
    told = f"import atexit; atexit.register(lambda: print(open('/proc/self/status').read())); {ENTRY}"
    command = [sys.executable, "-c", told, "tune", str(heavy), "--task", task, "--data", str(data)]
    command += ["--steps", "3", "--batch-size", "8", "--micro-batch", "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak = int(done.stdout.split("VmHWM:")[1].split()[0]) * 1024
    # Projections of the backbone come and go within a step: for these the prediction is on the safe side.  A busy system
    # takes pages back that are not in use, and the peak with them: seen were 11 %.
    assert 0.85 * peak <= fit["peak_bytes"] <= (1.4 if task == "said" else 1.3) * peak


@linux
@pytest.mark.slow
@pytest.mark.parametrize(("batch", "length"), [(32, 128), (2, 512), (1, 16)])
def test_the_peak_of_answering_with_roberta_base_is_predicted_within_15_percent(tmp_path, batch, length):
    from edgepeft.bench.planning.target import random_subject

    random_subject("roberta-base", tmp_path, methods=["pfeiffer"])
    write_vocabulary(tmp_path)
    fit = predicted(tmp_path, "--task", "pfeiffer", "--workload", "infer", "--batch", batch, "--length", length)[
        "inference"
    ]
    assert fit["peak_bytes"] == pytest.approx(measured(tmp_path, "pfeiffer", batch, length), rel=0.15)


def write_vocabulary(folder):
    from tiny import write_tokenizer

    write_tokenizer(folder / "tokenizer.json", 1, 50265)


def test_what_fits_is_told_with_its_parts_and_limits(heavy):
    found = predicted(heavy, "--task", "lora", "--batch", 4)
    inference = found["inference"]
    assert inference["fits"] and found["finetune"]["fits"] and found["length"] == 128
    assert inference["peak_bytes"] == sum(inference["parts"].values())
    weights = 4 * (
        5 * (4 * 384 * 384 + 2 * 384 * 1536) + 384 * 384
    )  # float32: 5 layers, and the pooler that the head reads
    assert inference["parts"]["packed weights"] == weights
    assert inference["parts"]["embeddings and vectors"] > 4 * 12_000 * 384
    delta = (heavy / "tasks" / "lora.onnx").stat().st_size
    assert inference["task_bytes"] == pytest.approx(delta, rel=0.05)
    assert inference["tasks"] == 1 + (found["allowed_bytes"] - inference["peak_bytes"]) // inference["task_bytes"]
    assert found["disk"]["bundle"] == sum(f.stat().st_size for f in heavy.rglob("*") if f.is_file())


def test_what_does_not_fit_exits_with_5_and_names_the_largest_batch(heavy, tmp_path):
    fit = predicted(heavy, "--task", "lora", "--batch", 1, "--length", 128)
    small = tmp_path / "small.toml"
    limit = fit["inference"]["peak_bytes"] + 3_000_000

    def device(n_bytes):
        text = "\n".join(
            f'[{part}]\nvalue = {value}\nunit = "{unit}"\nkind = "unsourced"'
            for part, value, unit in (("cores", 1, "cores"), ("memory", n_bytes, "B"), ("isa", '["asimd"]', "flags"))
        )
        small.write_text(f'name = "small"\ntitle = "A small board"\n{text}\n')
        return small

    done = edgepeft("fit", heavy, "--profile", device(limit), "--task", "lora", "--workload", "infer", "--batch", "64")
    assert done.returncode == 5 and "answering 64 x 128 tokens takes about" in done.stderr
    largest = int(done.stderr.split("a batch of ")[1].split()[0])
    for batch, code in ((largest, 0), (largest + 1, 5)):
        again = edgepeft("fit", heavy, "--profile", small, "--task", "lora", "--workload", "infer", "--batch", batch)
        assert again.returncode == code
    done = edgepeft("fit", heavy, "--profile", device(50_000_000), "--task", "lora")
    assert done.returncode == 5 and "no batch fits" in done.stderr and "fine-tuning" in done.stderr
    found = json.loads(edgepeft("fit", heavy, "--profile", small, "--task", "lora", "--json").stdout)
    assert (found["inference"]["fits"], found["inference"]["largest_batch"], found["inference"]["tasks"]) == (
        False,
        0,
        0,
    )


def test_a_variant_of_a_device_has_less_and_a_reserve_takes_from_it(heavy):
    whole, one, kept = (
        predicted(heavy, "--task", "lora", *more, by=here)["allowed_bytes"]
        for more in ((), ("--set", "memory=1GB"), ("--reserve", "300MB"))
    )
    assert (one, kept) == (2**30, whole - 300_000_000)


def test_templates_and_tasks_of_any_kind_are_predicted(bundle, trainable, tmp_path):
    assert predicted(bundle, "--template", "lora")["finetune"]["fits"]
    assert predicted(bundle, "--task", "score")["finetune"]["fits"]  # a regression
    add_deltas(bundle, [trainable.parent / "mood"], texts=TEXTS, replace=True, delta_weights="fp16")
    assert predicted(bundle, "--task", "mood")["finetune"]["fits"]
    said = random_delta(open_backbone(str(bundle)), "intrinsic-said", "said", settings={"dimension": 90})
    add_deltas(bundle, [saved(said, tmp_path / "said")], texts=TEXTS)
    found = predicted(bundle, "--task", "said")
    assert found["finetune"]["fits"] and found["untunable"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--profile", "rpi44"], "Did you mean 'rpi4'"),
        (["--profile", "rpi4", "--task", "moods"], "Did you mean 'mood'"),
        (["--profile", "rpi4", "--template", "none"], "template"),
        (["--profile", "rpi4", "--batch", "0"], "--batch must be at least 1"),
        (["--profile", "rpi4", "--length", "1000"], "takes 1 to 64 tokens"),
        (["--profile", "rpi4", "--reserve", "9GB"], "leaves nothing"),
        (["--profile", "rpi4", "--reserve", "some"], "is no amount of memory"),
        (["--profile", "rpi4", "--workload", "sing"], "infer and finetune"),
        (["--profile", "rpi4", "--set", "memory=3GB"], "is sold with"),
    ],
)
def test_wrong_options_are_usage_errors(exported, arguments, said):
    done = here("fit", exported, *arguments)
    assert done.returncode == 2 and said in done.stderr


def test_the_disk_holds_a_task_whose_replacement_was_cut_off_where_it_lies(exported, tmp_path):
    whole = predicted(exported, "--task", "mood", by=here)["disk"]
    copy = Path(shutil.copytree(exported, tmp_path / "bundle"))
    tasks, entry = copy / "tasks", Bundle(copy).entry("pair")
    keep(tasks, "pair", entry, content_of(tasks, "pair", entry))
    (tasks / "pair.onnx").unlink()
    assert predicted(copy, "--task", "mood", by=here)["disk"]["of it, tasks"] == whole["of it, tasks"]


def test_another_task_whose_file_is_missing_is_a_damaged_bundle(exported, tmp_path):
    copy = Path(shutil.copytree(exported, tmp_path / "bundle"))
    (copy / "tasks" / "pair.onnx").unlink()
    done = here("fit", copy, "--profile", "rpi4", "--task", "mood")
    assert done.returncode == 1
    assert "pair.onnx" in done.stderr and "the bundle is incomplete" in done.stderr
