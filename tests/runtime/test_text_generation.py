"""Rows of several tasks, at different steps, in one batch: token for token what transformers' ``generate`` writes of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deltas import TEXTS
from once import made_once
from writing import END, PREFIXES, TASKS, export_several

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import BundleError, DataError, DoesNotFit, UnknownName, UsageError
from edgepeft.runtime import session_pool
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.prediction import TextAnswer
from edgepeft.runtime.runtime import Runtime
from edgepeft.runtime.text_generation import Draft, TextBatch
from edgepeft.training.text_engine import generated

STEPS = 12
DECODING = Decoding(STEPS)
WORDS = [text.first for text in TEXTS]


ENDS = {"t5": ("", END), "llama": ("-llama", 37)}  # what the folder's name ends with, and a token as END is
SIZES = {"t5": {}, "llama": {"head_dim": 16}}  # as wide as what is lowered


@pytest.fixture(scope="module", params=ENDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(kind: str, tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    suffix, end = ENDS[kind]
    backbone = tiny(kind, eos_token_id=end, **SIZES[kind])
    return made_once(tmp_path_factory, f"several-texts{suffix}", lambda folder: export_several(backbone, folder))


@pytest.fixture(scope="module")
def runtime(folder: Path) -> Iterator[Runtime]:
    with Runtime(folder / "bundle", threads=1, cache=False) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def expected(kind: str, folder: Path, tiny: Callable[..., Path]) -> Callable[[str, str], tuple[tuple[int, ...], bool]]:
    """(task, text) -> what transformers writes of it alone, in float64, under the delta's hooks."""
    end = ENDS[kind][1]
    backbone = open_backbone(str(tiny(kind, eos_token_id=end, **SIZES[kind])))
    model, encoder = load_model(backbone, "eager"), backbone.encoder()
    tasks = TASKS if kind == "t5" else {**TASKS, **PREFIXES}
    deltas = {task: Delta.load(folder / task, backbone).eval() for task in tasks}
    known: dict[tuple[str, str], tuple[tuple[int, ...], bool]] = {}

    def write(task: str, text: str) -> tuple[tuple[int, ...], bool]:
        if (task, text) not in known:
            kept = slice(38) if kind == "t5" else slice(-38, None)  # a decoder goes on with a text's end
            ids = torch.tensor([encoder.plain_ids(text)[kept]])
            cut = torch.cat([torch.tensor([[2]]), ids, torch.tensor([[3]])], 1)  # [CLS] ... [SEP]
            with torch.no_grad():
                row = generated(deltas[task], model, {"input_ids": cut, "attention_mask": torch.ones_like(cut)}, STEPS)
            tokens = row[0].tolist()
            ended = end in tokens
            known[task, text] = tuple(tokens[: tokens.index(end)] if ended else tokens), ended
        return known[task, text]

    return write


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The outputs of each run of a session on a whole model."""
    found: list[list[str]] = []

    class Counted:
        def __init__(self, session: Any) -> None:
            self.session = session

        def __getattr__(self, name: str) -> Any:
            return getattr(self.session, name)

        def run_with_ort_values(self, outputs: list[str], inputs: Any) -> Any:
            found.append(outputs)
            return self.session.run_with_ort_values(outputs, inputs)

        def run_with_iobinding(self, binding: Any) -> None:
            found.append([])
            self.session.run_with_iobinding(binding)

    plain = session_pool.SessionPool._open
    monkeypatch.setattr(session_pool.SessionPool, "_open", lambda self, *of: Counted(plain(self, *of)))
    return found


def require(drafts: list[Draft], expected: Any) -> None:
    assert drafts
    for draft in drafts:
        assert draft.done and tuple(draft.written) == expected(draft.task, draft.text.first), draft


def finish(batch: Any) -> None:
    while len(batch):
        batch.step()


LORA = [(f"lora-{i % 3}", WORDS[(5 * i) % 40]) for i in range(9)]


def test_ragged_rows_of_tasks_of_one_structure_are_written_in_one_run_a_step(
    kind: str, folder: Path, expected: Any, runs: Any
):
    with Runtime(folder / "bundle", threads=1, cache=False) as runtime:
        tasks, texts = zip(*LORA, strict=True)
        runtime.predict_mixed(tasks, texts, decoding=DECODING)  # opens the sessions
        runs.clear()
        answers = runtime.predict_mixed(tasks, texts, decoding=DECODING)
        decode = runtime.bundle.encoder().decode
    steps = [len(tokens) + ended for tokens, ended in (expected(*row) for row in LORA)]
    assert len(set(steps)) > 2 and max(steps) == STEPS
    # Of the encoder, and of the decoder; one stack reads rows of like length in a run, which gives their first tokens.
    assert len(runs) == 1 + max(steps) if kind == "t5" else max(steps) < len(runs) < max(steps) + len(LORA)
    for row, answer in zip(LORA, answers, strict=True):
        tokens, ended = expected(*row)
        assert isinstance(answer, TextAnswer)
        assert (answer.task, answer.text, answer.ended) == (row[0], decode(tokens), ended)


@pytest.mark.parametrize("n", [1, 4])
def test_rows_of_one_task_are_written_as_alone(runtime: Runtime, expected: Any, n: int):
    batch = runtime.writing(DECODING)
    drafts = batch.add("r-1", WORDS[2 : 2 + n])
    finish(batch)
    require(drafts, expected)


def test_of_texts_that_are_written_together_one_whose_task_gives_no_number_fails_alone(
    runtime: Runtime, expected: Any, monkeypatch: pytest.MonkeyPatch
):
    logits = TextBatch._logits

    def spoilt(self: TextBatch) -> Any:
        found = logits(self)
        found[[draft.task == "lora-1" for draft in self._going], 3] = np.nan
        return found

    monkeypatch.setattr(TextBatch, "_logits", spoilt)
    batch = runtime.writing(DECODING)
    drafts = [draft for task in ("lora-0", "lora-1", "lora-2") for draft in batch.add(task, WORDS[4:6])]
    finish(batch)
    require(drafts[:2] + drafts[4:], expected)
    for draft in drafts[2:4]:
        with pytest.raises(BundleError, match="task lora-1 gives NaN"):
            batch.answer(draft)
    tasks = ["lora-0", "lora-1", "lora-2"]
    found = runtime.predict_mixed(tasks, WORDS[4:7], decoding=DECODING, strict=False)
    assert [type(each) for each in found] == [TextAnswer, TextAnswer, TextAnswer]  # alone, by sessions of its own


@pytest.mark.parametrize("method", ["lora", "r", "prefix"])
def test_rows_join_at_later_steps_and_leave_when_they_end(kind: str, runtime: Runtime, expected: Any, method: str):
    if (kind, method) == ("t5", "prefix"):
        return  # which has none
    batch = runtime.writing(DECODING)
    drafts = batch.add(f"{method}-1", [WORDS[5]])
    joining = {1: ("1", [WORDS[30]]), 3: ("0", [WORDS[2], WORDS[9]]), 4: ("1", [WORDS[7]]), 9: ("0", [WORDS[11]])}
    sizes = []
    for step in range(40):
        task, texts = joining.get(step, ("", []))
        drafts += batch.add(f"{method}-{task}", texts) if texts else []
        sizes.append(len(batch.step()))
    assert sizes[0] == 1 and max(sizes) > 2 and sizes[-1] == 0 and not len(batch)
    require(drafts, expected)
    again = batch.add(f"{method}-0", [WORDS[3]])  # after it was empty
    finish(batch)
    require(again, expected)


def test_rows_that_are_dropped_change_nothing_for_the_others(runtime: Runtime, expected: Any):
    batch = runtime.writing(DECODING)
    kept, dropped = batch.add("lora-0", WORDS[20:23]), batch.add("lora-1", [WORDS[5], WORDS[39]])
    batch.step()
    batch.drop(dropped)
    late = batch.add("lora-2", [WORDS[40]])
    batch.drop(late)  # before it joined
    finish(batch)
    require(kept, expected)
    assert not any(draft.done for draft in dropped + late)


def test_several_structures_and_tasks_that_share_with_none_are_all_answered(runtime: Runtime, expected: Any):
    rows = [(task, WORDS[i]) for i, task in enumerate([*TASKS, "r-0", "full"])]
    answers = runtime.predict_mixed(*zip(*rows, strict=True), decoding=DECODING)
    decode = runtime.bundle.encoder().decode
    assert [each.text for each in answers] == [decode(expected(*row)[0]) for row in rows]


def test_no_n_gram_comes_again_in_a_batch_that_rows_join(runtime: Runtime):
    decoding = Decoding(8, no_repeat_ngram=1)
    batch = runtime.writing(decoding)
    drafts = [draft for task in ("lora-0", "lora-1") for draft in batch.add(task, [WORDS[5]])]
    finish(batch)
    alone = [runtime.write(task, [WORDS[5]], decoding)[0] for task in ("lora-0", "lora-1")]
    assert [batch.answer(draft) for draft in drafts] == alone
    if runtime.bundle.architecture.decoder_only:
        assert all({*draft.ids.tolist()}.isdisjoint(draft.tokens) for draft in drafts)


def test_beams_are_written_by_each_task_alone(runtime: Runtime):
    beams = Decoding(6, beams=3)
    tasks, texts = zip(*LORA[:4], strict=True)
    alone = [runtime.write(task, [text], beams)[0] for task, text in LORA[:4]]
    assert runtime.predict_mixed(tasks, texts, decoding=beams) == alone
    with pytest.raises(UsageError, match="3 beams"):
        runtime.writing(beams)


def test_rows_wait_where_memory_allows_no_more_and_one_too_large_is_refused(
    runtime: Runtime, expected: Any, monkeypatch: pytest.MonkeyPatch
):
    row = runtime.generator.row_bytes(40, DECODING)
    sessions = [runtime.generator.session(task) for task in ("lora-0", "lora-1", "lora-0")]  # shared from two tasks on
    of_task = sessions[-1].decoder.values_bytes  # which each row has for itself
    assert of_task > 0
    allowed = 2 * (row + of_task)
    monkeypatch.setattr("edgepeft.runtime.generation.memory_bytes", lambda: 2 * allowed + 2)  # half of it is allowed
    batch = runtime.writing(DECODING)
    drafts = [draft for task, text in LORA for draft in batch.add(task, [text])]
    sizes = []
    while len(batch):
        sizes.append(len(batch.step()))
    assert 1 < max(sizes) < len(LORA)
    require(drafts, expected)
    monkeypatch.setattr("edgepeft.runtime.generation.memory_bytes", lambda: row // 2)
    with pytest.raises(DoesNotFit, match="a smaller max_new_tokens"):
        batch.add("lora-0", WORDS[:1])
    assert not len(batch)


def test_what_cannot_join_is_refused_and_leaves_the_batch_as_it_was(runtime: Runtime, expected: Any):
    batch = runtime.writing(DECODING)
    drafts = batch.add("lora-1", [WORDS[8]])
    with pytest.raises(UnknownName):
        batch.add("nobody", ["w5"])
    with pytest.raises(DataError):
        batch.add("lora-1", [7])
    assert batch.add("lora-1", []) == []
    finish(batch)
    require(drafts, expected)


def test_a_stream_is_the_answer_piece_by_piece(runtime: Runtime, expected: Any):
    stream, pieces = runtime.stream("lora-2", WORDS[3], DECODING), []
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as stopped:
            answer = stopped.value
            break
    tokens, ended = expected("lora-2", WORDS[3])
    assert "".join(pieces) == answer.text == runtime.bundle.encoder().decode(tokens)
    assert len(pieces) == len(tokens) + ended and answer == runtime.write("lora-2", WORDS[3], DECODING)[0]


def test_a_decoder_that_is_not_lowered_writes_the_texts_of_its_tasks_in_turn(tiny: Callable[..., Path], tmp_path: Path):
    """Its heads have 8 numbers: ``write`` is held beside transformers in ``test_llama``."""
    export_several(tiny("llama", eos_token_id=37), tmp_path)
    with Runtime(tmp_path / "bundle", threads=1, cache=False) as runtime:
        assert runtime.generator.session("lora-0").encoder is not None
        batch = runtime.writing(DECODING)
        drafts = batch.add("lora-1", [WORDS[5]])
        for task, text in (("lora-1", WORDS[30]), ("lora-0", WORDS[2]), ("r-1", WORDS[7])):
            batch.step()
            drafts += batch.add(task, [text])
        finish(batch)
        alone = [runtime.write(draft.task, [draft.text.first], DECODING)[0] for draft in drafts]
        assert [batch.answer(draft) for draft in drafts] == alone
