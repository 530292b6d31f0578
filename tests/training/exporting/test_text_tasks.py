"""Tasks that write text, in bundles: their deltas in both graphs, their check files, and what every verb makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from deltas import TEXTS, random_delta, saved
from served import serving
from typer.testing import CliRunner
from writing import MINI

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.backbones.tokens import Text
from edgepeft.bundle.delta import Delta, new_delta
from edgepeft.bundle.manifest import Manifest
from edgepeft.cli._main import app
from edgepeft.common.errors import BundleError, DoesNotFit, UsageError, VerificationFailed
from edgepeft.deploy.verify import TextCheck, audit
from edgepeft.methods.base import method_of
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.generation import TextState
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import add_deltas, export_bundle

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "lora": ("lora", {"roles": ["query", "value", "ffn_output"]}),
    "compacter": ("compacter", {}),
    "prompt": ("prompt-r", {"length": 3}),
    "biases": ("bitfit", {}),  # at cross-attention's keys and values and on the output too
    "norms": ("layernorm", {}),  # overrides alone, of both stacks
    "all": ("full", {}),
    "made": ("intrinsic-said", {"dimension": 100}),
}


def verb(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def made(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Backbone, Path]:
    """A bundle with a task of each method, beside one that scores labels; their deltas lie beside it."""
    folder, backbone = tmp_path_factory.mktemp("text"), open_backbone(str(tiny("t5", eos_token_id=14)))
    deltas = []
    for seed, (task, (method, settings)) in enumerate(METHODS.items()):
        delta = random_delta(backbone, method, task, None, seed=seed, settings=settings, head="text")
        deltas.append(saved(delta, folder / task))
    deltas.append(saved(random_delta(backbone, "lora", "labels", ("yes", "no")), folder / "labels"))
    export_bundle(backbone, deltas, folder / "bundle", texts=TEXTS)
    return backbone, folder


def forced_greedily(delta: Delta, model: Any, rows: Mapping[str, np.ndarray], steps: int) -> list[list[int]]:
    """Each row's tokens, by PyTorch with teacher forcing alone: nothing is kept from step to step."""
    inputs = {name: torch.from_numpy(rows[name]) for name in ("input_ids", "attention_mask")}
    decoder = delta.architecture.decoder
    tokens = torch.full((len(rows["input_ids"]), 1), decoder.start_token_id)
    with torch.no_grad():
        for _ in range(steps):
            best = delta.logits(model, {**inputs, "decoder_input_ids": tokens})[:, -1].argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, best], 1)
    found = []
    for row in tokens[:, 1:].tolist():
        found.append(row[: row.index(decoder.end_token_id)] if decoder.end_token_id in row else row)
    return found


def test_every_method_writes_what_pytorch_writes_and_not_what_the_backbone_does(made: tuple[Backbone, Path]):
    backbone, folder = made
    model, runtime = load_model(backbone, "eager"), Runtime(folder / "bundle", threads=1, cache=False)
    rows = backbone.encoder().encode(TEXTS[:9], 40).inputs
    bare = runtime.generator.write(None, rows, Decoding(6))
    for task in METHODS:
        ours = runtime.generator.write(task, rows, Decoding(6))
        assert [[*one.tokens] for one in ours] == forced_greedily(Delta.load(folder / task, backbone), model, rows, 6)
        assert ours != bare, task
        alike = runtime.bundle.entry(task).verification
        assert alike is not None
        assert alike.agreement == 1
        assert alike.max_abs_difference <= 1e-4


def test_verify_replays_the_steps_and_notices_another_token(made: tuple[Backbone, Path], tmp_path: Path):
    bundle = made[1] / "bundle"
    assert not [finding for finding in audit(bundle) if finding.problem]
    content = (bundle / "tasks" / "lora.check.safetensors").read_bytes()
    check = TextCheck.read(content, "it", 60)
    assert check.tokens.shape == (64, 8)
    assert np.array_equal(check.candidates[..., 0], check.tokens)  # greedy
    generator = Runtime(bundle, threads=1, cache=False).generator
    own, moved = (
        check.replay(lambda rows, task=task: TextState(generator.session(task), rows).step, generator.decoder)
        for task in ("lora", "compacter")
    )
    assert own.agreement == 1 and moved.max_abs_difference > 0.1
    with pytest.raises(BundleError, match="candidates and their logits"):
        TextCheck.read(content, "it", 30)
    labels = (bundle / "tasks" / "labels.check.safetensors").read_bytes()
    with pytest.raises(BundleError, match="not the check file of a task that writes text"):
        TextCheck.read(labels, "it", 60)


def test_a_wrong_delta_is_not_added(made: tuple[Backbone, Path], monkeypatch: pytest.MonkeyPatch):
    backbone, folder = made
    original = TextCheck.pack
    monkeypatch.setattr(
        TextCheck, "pack", lambda self: original(TextCheck(self.inputs, self.tokens, self.candidates, self.logits + 1))
    )
    delta = random_delta(backbone, "lora", "wrong", None, seed=9, head="text")
    with pytest.raises(VerificationFailed, match="task wrong: ONNX Runtime differs from PyTorch"):
        add_deltas(folder / "bundle", [saved(delta, folder / "wrong")], texts=TEXTS)


def test_tasks_of_one_structure_share_their_sessions(made: tuple[Backbone, Path], tmp_path: Path):
    backbone, _ = made
    deltas = [
        saved(random_delta(backbone, "lora", task, None, seed=seed, head="text"), tmp_path / task)
        for seed, task in enumerate(("one", "two"))
    ]
    export_bundle(backbone, deltas, tmp_path / "bundle", texts=TEXTS)
    runtime = Runtime(tmp_path / "bundle", threads=1)
    alone = runtime.write("one", TEXTS[:4])
    two = runtime.write("two", TEXTS[:4])
    assert runtime.write("one", TEXTS[:4]) == alone != two
    one, two = (runtime.generator.session(task) for task in ("one", "two"))
    assert one.decoder.shared is two.decoder.shared
    assert one.encoder.shared is two.encoder.shared


def test_rows_of_all_kinds_of_tasks_are_answered_together(made: tuple[Backbone, Path]):
    runtime = Runtime(made[1] / "bundle", threads=1, cache=False)
    tasks = ["lora", "labels", None, "compacter", "lora"]
    answers = runtime.predict_mixed(tasks, TEXTS[:5])
    expected = [runtime.write(task, [text])[0] for task, text in zip(tasks, TEXTS, strict=False) if task in METHODS]
    assert [answer for answer, task in zip(answers, tasks, strict=True) if task in METHODS] == expected
    assert answers[1].label in ("yes", "no")
    assert answers[2].shape == (32,)


def test_a_service_answers_with_the_text(made: tuple[Backbone, Path], tmp_path: Path):
    pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")
    bundle, tasks = made[1] / "bundle", ["lora", "labels", "compacter"]
    with serving(bundle, tmp_path) as service:
        listed = {task["name"]: task["writes"] for task in service.get("/v1/tasks")[2]["tasks"]}
        one = service.post("/v1/tasks/lora:predict", {"text": "w9 w5"})[2]
        rows = [{"text": "w9 w5", "task": task} for task in tasks]
        mixed = service.post("/v1/predict", {"rows": rows})[2]
    runtime = Runtime(bundle, threads=1)
    assert listed == {task: task != "labels" for task in runtime.tasks}
    assert one == {"predictions": [runtime.write("lora", "w9 w5")[0].as_json()]}
    found = [answer["prediction"].get("text") for answer in mixed["answers"]]
    assert found == [runtime.write(task, "w9 w5")[0].text if task != "labels" else None for task in tasks]


def test_the_command_line_writes_text_and_says_what_it_cannot_do_with_it(made: tuple[Backbone, Path], tmp_path: Path):
    bundle = made[1] / "bundle"
    texts = ["w9 w5", "w6 w7 w8"]
    decoding = ["--beams", 2, "--max-new-tokens", 5, "--length-penalty", 0.6, "--no-repeat-ngram", 2]
    found = json.loads(verb("run", bundle, "--task", "lora", *texts, *decoding, "--json"))
    written = Runtime(bundle, threads=1).write("lora", texts, Decoding(5, 2, 0.6, 2))
    assert [row["predictions"][0] for row in found] == [answer.as_json() for answer in written]
    assert written[0].text in verb("run", bundle, "--task", "lora", *texts, *decoding)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"sentence1": "w9 w5", "id": 7}\n')
    line = json.loads(verb("run", bundle, "--task", "lora", "--input", rows))
    assert (line["id"], line["predictions"][0]["task"]) == (7, "lora")
    verb("verify", bundle)
    assert "text" in verb("info", bundle)
    tasks = {task["task"]: task for task in json.loads(verb("info", bundle, "--json"))["tasks"]}
    assert (tasks["lora"]["answers"], tasks["labels"]["answers"]) == ("text", "labels")
    assert tasks["lora"]["tunable"]
    with pytest.raises(UsageError, match="--beams is for tasks that write text"):
        verb("run", bundle, "--task", "labels", "w6", "--beams", 2)
    with pytest.raises(DoesNotFit, match="fewer beams"):
        verb("run", bundle, "--task", "lora", "w6", "--beams", 25, "--max-new-tokens", 10**8)


def test_a_stream_prints_what_is_written_piece_by_piece(made: tuple[Backbone, Path], monkeypatch: pytest.MonkeyPatch):
    bundle, printed = made[1] / "bundle", list[str]()
    texts, manner = ["w9 w5", "w6 w7 w8"], ["--max-new-tokens", 5]
    monkeypatch.setattr(typer, "echo", lambda text="", nl=True: printed.append(text + "\n" * nl))
    verb("run", bundle, "--task", "lora", *texts, *manner, "--stream")
    written = [answer.text for answer in Runtime(bundle, threads=1).write("lora", texts, Decoding(5))]
    assert "".join(printed) == "".join(f"{text}\n" for text in written)
    assert len(printed) > 2 * len(texts), "each text came in several pieces"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--task", "labels"], "what one task writes, found labels; --task names one that does"),
        (["--task", "lora", "--task", "norms"], "what one task writes, found lora, norms"),
        (["--task", "lora", "--beams", 2], "2 beams: texts are written together, or as a stream, with one"),
        (["--task", "lora", "--json"], "leave --json, --input, --out and --dims out"),
    ],
)
def test_what_cannot_be_streamed_is_refused(made: tuple[Backbone, Path], options: list[object], words: str):
    with pytest.raises(UsageError, match=words):
        verb("run", made[1] / "bundle", "w9", *options, "--stream")


def test_a_bundle_from_before_asks_to_be_exported_again(made: tuple[Backbone, Path], tmp_path: Path):
    backbone, folder = made
    export_bundle(backbone, [folder / "labels"], tmp_path / "bundle", texts=TEXTS)
    manifest = Manifest.read(tmp_path / "bundle")
    manifest.model_copy(update={"backbone": manifest.backbone.model_copy(update={"text": None})}).write(
        tmp_path / "bundle"
    )
    assert Runtime(tmp_path / "bundle", threads=1, cache=False).predict("labels", "w6")
    with pytest.raises(BundleError, match="must be exported again"):
        add_deltas(tmp_path / "bundle", [folder / "lora"], texts=TEXTS)


def test_what_a_task_writes_is_asked_for_by_name(made: tuple[Backbone, Path]):
    runtime = Runtime(made[1] / "bundle", threads=1, cache=False)
    with pytest.raises(UsageError, match="labels writes no text; ask it with predict"):
        runtime.write("labels", "w6")
    with pytest.raises(UsageError, match="lora writes text"):
        runtime.predict("lora", "w6")
    with pytest.raises(UsageError, match="lora writes text"):
        runtime.session("lora")


def test_half_precision_passes_by_its_own_bound(made: tuple[Backbone, Path], tmp_path: Path):
    backbone, folder = made
    out = tmp_path / "bundle"
    export_bundle(backbone, [folder / "lora"], out, texts=TEXTS, delta_weights="fp16")
    verification = Manifest.read(out).tasks["lora"].verification
    assert verification.tolerance == 2e-2
    assert verification.max_abs_difference > 1e-4
    assert not [finding for finding in audit(out) if finding.problem]


@pytest.mark.skipif(not MINI.is_dir(), reason="t5-mini, a small T5 with learnt weights, is not beside the repository")
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_smaller_weights_decide_as_learnt_weights_do(tmp_path: Path, weights: str):
    backbone = open_backbone(str(MINI))
    texts = [Text(f"mr sentence1: {text}") for text in ("a wonderful film", "dull , long and without any sense of wit")]
    delta = new_delta(backbone, method_of("bitfit"), "mr", None, head="text", max_length=32)
    out = tmp_path / "bundle"
    export_bundle(backbone, [saved(delta, tmp_path / "mr")], out, texts=texts, weights=weights)
    assert [answer.text for answer in Runtime(out, threads=1, cache=False).write("mr", texts)] == [
        "positive",
        "negative",
    ]


@pytest.mark.skipif(not MINI.is_dir(), reason="t5-mini, a small T5 with learnt weights, is not beside the repository")
@pytest.mark.parametrize(
    ("method", "size"),
    [("lora", 0.2), *(pytest.param(name, 1, marks=pytest.mark.slow) for name in ("compacter", "prompt-r"))],
)
def test_learnt_weights_with_a_delta_write_what_they_write_in_pytorch(tmp_path: Path, method: str, size: float):
    backbone = open_backbone(str(MINI))
    texts = [Text(f"mr sentence1: {text}") for text in ("a wonderful film", "dull , long and without any sense of wit")]
    delta = random_delta(backbone, method, "mr", None, head="text")
    for parameter in delta.parameters():
        parameter.data *= size  # as learnt ones are: larger than the weights, LoRA's updates magnify their rounding
    export_bundle(backbone, [saved(delta, tmp_path / "mr")], tmp_path / "bundle", texts=texts)
    runtime, rows = Runtime(tmp_path / "bundle", threads=1, cache=False), backbone.encoder().encode(texts, 40).inputs
    ours = runtime.generator.write("mr", rows, Decoding(6))
    assert [[*one.tokens] for one in ours] == forced_greedily(delta, load_model(backbone, "eager"), rows, 6)
    starts = np.zeros(2, np.int64), np.arange(2)
    moved, bare = (TextState(runtime.generator.session(task), rows).step(*starts) for task in ("mr", None))
    assert np.abs(moved - bare).max() > 0.01
