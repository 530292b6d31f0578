"""What a task's texts begin with is computed once: each text is, token for token, what transformers writes of it whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from deltas import TEXTS, random_delta, saved
from once import made_once

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.delta import Delta
from edgepeft.runtime import kv_cache
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.training.text_engine import generated

END, STEPS = 37, 8
SIZES = {"eos_token_id": END, "head_dim": 16}  # heads as wide as what is lowered
DECODING = Decoding(STEPS)
LONG, OTHER = (" ".join(f"w{first + 3 * i % 40}" for i in range(12)) for first in (10, 7))
# Of one structure three tasks, of two instructions, and one whose last word is joined to the text's first, which makes
# another token; one with a prompt before the instruction; one with hardly any.
TASKS = {
    "long": ("lora", f"{LONG} "),
    "same": ("lora", f"{LONG} "),
    "other": ("lora", f"{OTHER} "),
    "joined": ("lora", LONG),
    "prompted": ("prompt-r", f"{LONG} "),
    "short": ("lora", "w9 "),
}
SETTINGS: dict[str, dict[str, Any]] = {"lora": {"rank": 2}, "prompt-r": {"length": 3}}
WORDS = [" ".join(text.first.split()[:9]) for text in TEXTS]


def export_tasks(backbone: Path, folder: Path) -> None:
    opened, paths = open_backbone(str(backbone)), []
    for seed, (task, (method, literal)) in enumerate(TASKS.items()):
        template = {"source": f"{literal}{{text}}", "target": "{out}"}
        given: dict[str, Any] = {"settings": SETTINGS[method], "head": "text", "seed": seed, "template": template}
        paths.append(saved(random_delta(opened, method, task, None, **given), folder / task))
    export_bundle(opened, paths, folder / "bundle", texts=TEXTS[:8], weights="fp32")


@pytest.fixture(scope="module")
def folder(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "beginnings", lambda folder: export_tasks(tiny("llama", **SIZES), folder))


@pytest.fixture
def runtime(folder: Path) -> Iterator[Runtime]:
    with Runtime(folder / "bundle", threads=1, cache=False) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def expected(folder: Path, tiny: Callable[..., Path]) -> Callable[[str, str], tuple[int, ...]]:
    """(task, text) -> what transformers writes of instruction and text, under the delta's hooks."""
    backbone = open_backbone(str(tiny("llama", **SIZES)))
    model, encoder = load_model(backbone, "eager"), backbone.encoder()
    deltas = {task: Delta.load(folder / task, backbone).eval() for task in TASKS}

    def write(task: str, text: str) -> tuple[int, ...]:
        ids = torch.tensor([[2, *encoder.plain_ids(f"{TASKS[task][1]}{text}"), 3]])  # [CLS] ... [SEP]
        with torch.no_grad():
            row = generated(deltas[task], model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, STEPS)
        tokens = row[0].tolist()
        return tuple(tokens[: [*tokens, END].index(END)])

    return write


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each run of a session had."""
    found: list[int] = []
    plain = kv_cache._Run.logits

    def counted(self: Any) -> Any:
        found.append(len(self.ids))
        return plain(self)

    monkeypatch.setattr(kv_cache._Run, "logits", counted)
    return found


def test_a_request_runs_its_own_tokens_alone(runtime: Runtime, expected: Any, ran: list[int]):
    text = WORDS[3]
    for task, before in (("long", 12), ("prompted", 15)):
        ran.clear()
        answers = [runtime.write(task, [text], DECODING)[0] for _ in range(2)]
        assert [answer.tokens for answer in answers] == [expected(task, text)] * 2
        own = len(text.split()) + 1  # [SEP]
        assert ran[:2] == [before + 2, own]  # [CLS], the instruction and [SEP], once
        prompts = [tokens for tokens in ran if tokens > 1]
        assert prompts == [before + 2, own, own]
    ran.clear()
    answers = [runtime.write("short", [text], DECODING)[0] for _ in range(2)]  # a word saves nothing
    assert answers[0].tokens == expected("short", text) and ran[0] == len(text.split()) + 3


def test_ragged_rows_of_one_task_and_of_several_have_the_tokens_of_each_text_whole(runtime: Runtime, expected: Any):
    texts = WORDS[:8]
    assert [a.tokens for a in runtime.write("long", texts, DECODING)] == [expected("long", text) for text in texts]
    tasks = [[*TASKS][i % len(TASKS)] for i in range(12)]
    answers = runtime.predict_mixed(tasks, WORDS[8:20], decoding=DECODING)
    assert [a.tokens for a in answers] == [expected(*row) for row in zip(tasks, WORDS[8:20], strict=True)]  # type: ignore[union-attr]


def test_rows_that_join_later_start_from_theirs_too(runtime: Runtime, expected: Any):
    batch = runtime.writing(DECODING)
    drafts = batch.add("long", WORDS[2:4])
    for task, text in (("other", WORDS[5]), ("short", WORDS[6]), ("same", WORDS[7])):
        batch.step()
        drafts += batch.add(task, [text])
    while len(batch):
        batch.step()
    assert [draft.written.tokens for draft in drafts] == [
        expected(draft.task, draft.text.first.removeprefix(TASKS[draft.task][1])) for draft in drafts
    ]


def test_the_least_recently_used_goes_where_memory_is_short(
    runtime: Runtime, expected: Any, monkeypatch: pytest.MonkeyPatch
):
    kept, text = runtime.generator.beginnings, WORDS[3]
    runtime.write("long", [text], DECODING)
    one = kept.n_bytes
    assert one == 2 * 2 * 2 * 16 * 14 * 4  # layers, keys and values, heads, width, tokens, bytes
    needed = runtime.generator.row_bytes(len(text.split()) + 14, DECODING)
    allowed = max(2 * 4 * one, needed + 2 * one)  # a quarter is theirs: two fit
    monkeypatch.setattr("edgepeft.runtime.generation.memory_bytes", lambda: 2 * allowed)
    for task in ("same", "long", "other"):
        assert runtime.write(task, [text], DECODING)[0].tokens == expected(task, text)
    runtime.generator.check_row(len(text.split()) + 14, DECODING)  # as the next row does
    assert [*kept._kept] == ["long", "other"] and kept.n_bytes == 2 * one
    monkeypatch.setattr("edgepeft.runtime.generation.memory_bytes", lambda: 2 * (needed + one))  # a row comes first
    runtime.generator.check_row(len(text.split()) + 14, DECODING)
    assert [*kept._kept] == ["other"]
    monkeypatch.setattr("edgepeft.runtime.generation.memory_bytes", lambda: 2 * needed)
    runtime.generator.beginnings.shrink(0)
    found = runtime.write("long", [text], DECODING)
    assert found[0].tokens == expected("long", text) and not kept.n_bytes  # it is not computed where it has no room
    monkeypatch.setattr("edgepeft.runtime.generation.memory_bytes", lambda: 2 * allowed)
    assert runtime.write("long", [text], DECODING)[0].tokens == expected("long", text) and kept.n_bytes == one
