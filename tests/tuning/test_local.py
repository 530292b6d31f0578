"""A board's steps on its own rows, beside what `edgepeft tune` makes of the same rows."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file
from tuned import tune_task

from edgepeft import LocalTuner
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import DataError, UsageError
from edgepeft.common.resources import sha256_of
from edgepeft.data.training_loop.run import Interrupted
from edgepeft.deploy.verify import audit
from edgepeft.options.verbs import TuneSettings
from edgepeft.runtime.session import open_session
from edgepeft.tuning import activation_cache as hidden
from edgepeft.tuning.target import Files

from .conftest import known, write_moods

OPTIONS = TuneSettings(steps=8, learning_rate=1e-2, head_learning_rate=5e-2, weight_decay=0.01, seed=3)
EPOCH = TuneSettings(steps=3, learning_rate=1e-2, head_learning_rate=5e-2)  # scored at its end alone, so kept whole


def tuner(bundle, moods, task="mood", options=OPTIONS, **more):
    return LocalTuner(bundle, task, moods, options, threads=1, **more)


def same(found, expected):
    assert {*found} == {*expected}
    return all(np.array_equal(found[name], expected[name]) for name in expected)


def tuned_for(bundle, task, rows, n):
    """The tensors that a run of `edgepeft tune` has after ``n`` steps, as its checkpoint holds them."""
    steps = []

    def watch(progress):
        steps.append(progress.done if progress.phase == "train" else 0)

    with pytest.raises(Interrupted):
        tune_task(bundle, task, rows, OPTIONS, threads=1, watch=watch, stop=lambda: n in steps)
    state = load_file(bundle / ".tune" / task / f"{n}.safetensors")
    return {name.removeprefix("state:delta:"): each for name, each in state.items() if name.startswith("state:delta:")}


@pytest.mark.parametrize("task", ["mood", "score"])
def test_steps_of_the_call_are_those_of_tune_bit_for_bit(bundle, tmp_path, task):
    label = (lambda mood, telling: telling) if task == "score" else (lambda mood, telling: mood)
    rows = write_moods(tmp_path / "rows.jsonl", label=label)
    expected = tuned_for(bundle, task, rows, 5)
    board = tuner(bundle, rows, task)
    once = board.steps(board.tensors, 5)
    assert same(once.tensors, expected) and not same(once.tensors, board.tensors)
    assert (once.n_rows, len(once.losses), once.optimizer) == (48, 5, None)  # 60 less two tenths
    two = board.steps(board.tensors, 2, keep_optimizer=True)
    three = board.steps(two.tensors, 3, first=2, optimizer=two.optimizer)
    assert same(three.tensors, expected) and two.losses + three.losses == once.losses
    anew = board.steps(two.tensors, 3, first=2)  # by moments of zero: rounds that keep nothing are another loop
    assert not same(anew.tensors, expected)


def test_a_round_of_one_board_averaged_and_put_in_force_is_central_tuning(bundle, trainable, moods):
    before, task = sha256_of(bundle / "tasks" / "mood.onnx"), "mood"
    board = tuner(bundle, moods, options=EPOCH)
    n_steps = board._run.loop.total
    found = board.steps(board.tensors, n_steps)
    averaged = {name: tensor * 1.0 for name, tensor in found.tensors.items()}  # FedAvg's mean of one
    assert sha256_of(bundle / "tasks" / "mood.onnx") == before
    result = board.put_in_force(averaged, {"federated": {"rounds": 1}})
    assert result.entry is not None and not any(finding.problem for finding in audit(bundle))
    training = Bundle(bundle).entry(task).training
    assert training["federated"] == {"rounds": 1}
    central = tune_task(trainable_copy(trainable, bundle), task, moods, EPOCH, threads=1)
    assert central.training["best_step"] == n_steps  # else best-keeping took another step
    assert same(central.tensors, found.tensors)
    assert result.metrics == central.metrics


def trainable_copy(trainable, bundle):
    return shutil.copytree(trainable, bundle.parent / "central")


def test_fedprox_pulls_towards_what_was_given(bundle, moods):
    board = tuner(bundle, moods, options=TuneSettings(steps=8, learning_rate=1e-2, warmup=0.0, clip_norm=1e9))
    start = board.tensors
    free, pulled = board.steps(start, 6), board.steps(start, 6, mu=100.0)

    def gone(found):
        return sum(float(np.square(found.tensors[name] - start[name]).sum()) for name in start)

    assert gone(pulled) < 0.5 * gone(free)
    one, none = board.steps(start, 1, mu=100.0), board.steps(start, 1)
    assert same(one.tensors, none.tensors)  # mu (w - w_t) is zero in the first step


def test_frozen_tensors_are_neither_given_nor_moved_and_the_others_move_as_they_would(bundle, moods):
    free = TuneSettings(
        steps=8, learning_rate=1e-2, warmup=0.0, clip_norm=1e9
    )  # AdamW's first step is each tensor's own
    board, all_of_it = tuner(bundle, moods, options=free, freeze=["*/down.*"]), tuner(bundle, moods, options=free)
    whole, moved = all_of_it.tensors, all_of_it.steps(all_of_it.tensors, 1).tensors
    kept = {name for name in whole if "/down." in name}
    assert kept and {*board.tensors} == {*whole} - kept
    for name, tensor in board.steps(board.tensors, 1).tensors.items():
        np.testing.assert_allclose(tensor, moved[name], atol=1e-6)
        assert not np.array_equal(tensor, whole[name])
    result = board.put_in_force(board.steps(board.tensors, 8).tensors, {})
    assert result.entry is not None
    after = tuner(bundle, moods).tensors
    assert all(np.array_equal(after[name], whole[name]) for name in kept)
    assert result.entry.trainable_parameters == sum(tensor.size for tensor in whole.values())
    with pytest.raises(UsageError, match="open another LocalTuner"):
        board.steps(after, 1)


@pytest.mark.parametrize("damage", [None, "short", "a bit"])
def test_what_lies_below_is_computed_by_the_first_process_alone(bundle, moods, tmp_path, monkeypatch, damage):
    work = tmp_path / "work"
    expected = tuner(bundle, moods).steps(tuner(bundle, moods).tensors, 3)
    first = tuner(bundle, moods, work=work)
    first.steps(first.tensors, 1)
    (train, held) = sorted(work.iterdir(), key=lambda path: -path.stat().st_size)
    content = bytearray(train.read_bytes())
    content[5] ^= 1
    if damage:  # such as a power cut of a file system without order, or a memory card's age: it is computed anew
        train.write_bytes(train.read_bytes()[:-4] if damage == "short" else content)
    opened = []
    monkeypatch.setattr(hidden, "open_session", lambda *args: opened.append(args) or open_session(*args))
    second = tuner(bundle, moods, work=str(work))  # as the documents have it
    assert same(second.steps(second.tensors, 3).tensors, expected.tensors)
    assert len(opened) == (1 if damage else 0) and {*work.iterdir()} == {train, held}
    other = tuner(bundle, write_moods(tmp_path / "other.jsonl", seed=1), work=work)
    other.steps(other.tensors, 1)
    assert len(list(work.iterdir())) == 2 and not {*work.iterdir()} & {train, held}


def wrong(tensors, name, value):
    return {**tensors, name: value}


def test_tensors_that_are_not_the_tasks_are_refused(bundle, moods):
    board = tuner(bundle, moods)
    own = board.tensors
    name = next(iter(own))
    nan = own[name].copy()
    nan.flat[0] = np.nan
    for given, said in (
        ({n: t for n, t in own.items() if n != name}, f"lack {name}"),
        (wrong(own, "other", own[name]), "have unknown other"),
        (wrong(own, name, own[name][:1]), "take them of the same task"),
        (wrong(own, name, own[name].astype(np.int32)), "as int32"),
        (wrong(own, name, np.array(["a"])), "take them of the same task"),
        (wrong(own, name, nan), f"values in {name} that are not finite"),
        (wrong(own, name, np.full(own[name].shape, 1e300)), "not finite"),
    ):
        for call in (lambda given=given: board.steps(given, 1), lambda given=given: board.score(given)):
            with pytest.raises(DataError, match="the tensors given for task mood") as raised:
                call()
            assert said in str(raised.value)
    assert same(board.steps(own, 2).tensors, tuner(bundle, moods).steps(own, 2).tensors)  # nothing is left of them


def test_steps_that_the_course_lacks_labels_that_the_task_lacks_and_unknown_names_are_refused(bundle, moods, tmp_path):
    board = tuner(bundle, moods)
    for n, first, mu in ((0, 0, 0.0), (9, 0, 0.0), (2, 7, 0.0), (1, -1, 0.0), (1, 0, -1.0), (1, 0, float("nan"))):
        with pytest.raises(UsageError, match=r"steps|mu must be"):
            board.steps(board.tensors, n, first=first, mu=mu)
    board.steps(board.tensors, 8)
    for freeze, said in ((["*.A"], r"no tensor that '\*.A' names; it trains"), (["*"], "nothing of task mood is left")):
        with pytest.raises(UsageError, match=said):
            tuner(bundle, moods, freeze=freeze)
    other = write_moods(tmp_path / "other.jsonl", label=lambda mood, telling: "sad" if mood == "bad" else mood)
    with pytest.raises(DataError, match="has no label 'sad'"):
        tuner(bundle, other)
    lone = tmp_path / "lone.jsonl"  # a skewed board: one of the task's labels alone, and it trains
    lone.write_text("".join(f'{{"sentence1": "{known("w")} w{i}", "label": "bad"}}\n' for i in range(20)))
    assert tuner(bundle, Files(lone)).steps(board.tensors, 1).n_rows == 16


def test_rows_in_memory_are_those_of_a_file(bundle, tmp_path):
    path = write_moods(tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    by_file, by_rows = (tuner(bundle, given) for given in (path, rows))
    assert same(by_rows.steps(by_rows.tensors, 2).tensors, by_file.steps(by_file.tensors, 2).tensors)
    with pytest.raises(UsageError, match="rows are a file's path"):
        tuner(bundle, None)
