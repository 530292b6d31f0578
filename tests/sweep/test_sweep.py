"""A whole sweep: what is computed, what is not computed again, what is dropped, and the table that follows."""

import dataclasses
import gzip
import hashlib
import json
import shutil
from statistics import mean, stdev
from unittest.mock import ANY

import numpy as np
import pytest
import torch
from inline import inline
from verbs import edgepeft

from edgepeft.bundle.card import read_card
from edgepeft.common.errors import BundleError, DataError, UsageError
from edgepeft.data.training_loop.checkpoint import latest
from edgepeft.options.verbs import TrainRequest
from edgepeft.sweep import table
from edgepeft.sweep.folder import Outcome, open_sweep
from edgepeft.sweep.local import CellRun, compute
from edgepeft.sweep.plan import read_plan
from edgepeft.sweep.run import estimate, fold, run_sweep, sweep_of
from edgepeft.sweep.table import columns, document, entries, not_worse
from edgepeft.training import engine
from edgepeft.training.engine import SharedStates
from edgepeft.training.loop import train_delta
from edgepeft.training.settings import resolve_request


def run(sweep, **how):
    told = []
    failed = run_sweep(sweep, inline, CellRun(sweep, sweep.cells[0]), watch=told.append, **how)
    return told, failed


def test_every_cell_is_run_once_and_named_by_what_its_run_records(swept):
    sweep = swept()
    told, failed = run(sweep)
    assert not failed and [each.job.cell.name for each in told] == [cell.name for cell in sweep.cells]
    assert run(swept()) == ([], {})
    for cell in sweep.cells:
        card = read_card(sweep.run(cell))
        training = card.training
        assert (card.method, training["seed"], training["learning_rate"]) == (
            cell.method.split(":")[0],
            cell.seed,
            cell.rate,
        )
        assert (card.metrics["n_train"], training["steps"]) == (cell.rows, cell.steps) == (54, 4)


@pytest.fixture
def facts():
    from safetensors import safe_open

    def facts(path):
        with safe_open(path, "np") as file:
            return json.loads(file.metadata()["facts"])

    return facts


def test_a_run_that_is_stopped_goes_on_and_ends_as_one_that_is_not(swept, facts, tmp_path):
    sweep = swept()
    cell = sweep.cells[-1]
    whole = dataclasses.replace(sweep, folder=tmp_path / "whole")
    assert compute(CellRun(sweep, cell, until=2), lambda _: None, lambda: False) is None
    checkpoint = latest(sweep.run(cell) / "checkpoint")
    asked = facts(checkpoint)["asked"]
    named = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    assert sweep.state(cell) == "begun" and named.startswith(cell.name)
    for each in (sweep, whole):
        compute(CellRun(each, cell), lambda _: None, lambda: False)
    files = [(each.run(cell) / "delta.safetensors").read_bytes() for each in (sweep, whole)]
    assert files[0] == files[1]


def test_a_run_takes_no_more_threads_than_there_are_cores(swept, monkeypatch):
    taken = []
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    monkeypatch.setattr("edgepeft.device.machine.usable_cores", lambda proc: 3)
    sweep = swept()
    compute(CellRun(sweep, sweep.cells[0], threads=10**6, until=1), lambda _: None, lambda: False)
    assert taken[0] == 3


def test_the_table_is_the_mean_of_the_seeds_at_the_rate_that_evaluation_rows_choose(done):
    sweep = done
    cards = {
        cell: json.loads((sweep.run(cell) / "delta.json").read_text())["metrics"] for cell in map(_Key, sweep.cells)
    }
    by_rate = {}
    for key, metrics in cards.items():
        if key.cell.method.startswith("lora"):
            by_rate.setdefault(key.cell.rate, []).append(metrics)
    best = max(by_rate.values(), key=lambda seeds: mean(each["eval"] for each in seeds))
    (column,) = columns(sweep)
    arm = column.chosen["lora:rank=2"]
    assert arm.score == pytest.approx(mean(each["test"] for each in best))
    header, rows = entries([column])
    assert header == ["method", "tone (accuracy)", "parameters", "bytes"]
    shown = f"{100 * arm.score:.2f} ± {100 * stdev(each['test'] for each in best):.2f} (2)"
    assert shown in rows[1][1]
    assert [row[0] for row in rows] == ["linear", "lora:rank=2", "majority", "linear head"]
    listed = document(sweep)["rows"]
    assert {name for row in listed for name in row["runs"]} == {cell.name for cell in sweep.cells}


class _Key:
    """A cell as a key."""

    def __init__(self, cell):
        self.cell, self.name = cell, cell.name

    def __fspath__(self):
        return self.name


def test_the_bootstrap_resamples_rows_of_both_alike(done):
    sweep = done
    (column,) = columns(sweep)
    one, other = column.chosen["linear"], column.chosen["lora:rank=2"]
    # Planted answers: of 40 rows the first has 30 right, the second those and n more.
    for right, arm in ((30, one), (38, other)):
        for cell in arm.cells:
            targets = np.arange(40) % 2
            outputs = np.eye(2)[np.where(np.arange(40) < right, targets, 1 - targets)]
            np.savez(sweep.run(cell) / "test.npz", targets=targets, outputs=_as_kept(sweep, cell, outputs))
    # Paired: a resample has them equal only if none of the 8 rows in which they differ is drawn: (32/40)**40.
    assert not_worse([one], [other]) == pytest.approx((32 / 40) ** 40, abs=4e-3)
    assert not_worse([other], [one]) == 1.0
    assert column.worse().keys() <= {"linear", "lora:rank=2"}


def test_an_arm_is_resampled_once_whatever_it_is_compared_with(done, monkeypatch):
    drawn, asked = table.uniform, []
    monkeypatch.setattr(table, "uniform", lambda *given: asked.append(given) or drawn(*given))
    (column,) = columns(done)
    one, other = column.chosen.values()
    first = not_worse([one], [other])
    assert not_worse([one], [other]) == first and column.worse().keys() <= {"linear", "lora:rank=2"}
    assert asked == [("bootstrap 0", (1_000, 40))] * 2


def _as_kept(sweep, cell, outputs):
    kept = sweep.answers(cell)[1]
    return outputs.argmax(1).astype(kept.dtype) if kept.ndim == 1 else outputs.astype(kept.dtype)


def test_halving_trains_half_of_the_rates_to_their_end(swept):
    sweep = swept(more='grid = [{method = "lora", rank = [2], alpha = [1, 3]}]', steps=28)
    before = {cell.name: cell.steps for cell in sweep.cells}
    run(sweep, halve=True)
    states = {(cell.method, cell.rate): sweep.state(cell) for cell in sweep.cells}
    arms = [state for (method, _), state in states.items() if method.startswith("lora")]
    assert (len(arms), arms.count("dropped")) == (4, 3) and states["linear", 1e-3] == "done"
    dropped = [sweep.outcome(cell) for cell in sweep.cells if sweep.state(cell) == "dropped"]
    assert all(each.steps in (7, 14) and each.score is not None for each in dropped)
    assert before == {cell.name: cell.steps for cell in open_sweep(sweep.folder).cells}


def test_halving_needs_something_to_choose_from(swept):
    sweep = swept()
    alone = dataclasses.replace(sweep, cells=tuple(cell for cell in sweep.cells if cell.method == "linear"))
    with pytest.raises(UsageError, match="each method has one of each"):
        run(alone, halve=True)


def test_data_that_changed_is_refused_and_another_plan_on_the_same_data_goes_on(swept, tmp_path):
    run(swept())
    told, _ = run(swept(more='grid = [{method = "bitfit"}]'))
    assert {each.job.cell.method for each in told} == {"bitfit"}
    rows = (tmp_path / "tone.jsonl").read_text()
    (tmp_path / "tone.jsonl").write_text(rows.replace("w5 ", "w6 ", 1))
    with pytest.raises(UsageError, match=r"data tone changed since runs of .*sweep were computed"):
        run(swept())


def test_a_run_that_diverges_is_an_outcome_and_one_that_fails_is_not(swept, tmp_path):
    sweep = swept(more='grid = [{method = "bitfit"}]', train="head_lr = 1e30")
    told, failed = run(sweep)
    assert not failed and run(sweep) == ([], {})
    diverged = next(each.job.cell for each in told if each.outcome.state == "diverged")
    assert "the training diverged" in sweep.outcome(diverged).reason
    (tmp_path / "sweep" / "runs" / f"{diverged.name}.json").unlink()
    (tmp_path / "test.jsonl").unlink()
    told, failed = run(sweep)
    assert list(failed) == [diverged.name] and "test.jsonl" in failed[diverged.name]


def test_a_run_whose_folder_was_emptied_is_open_again_and_in_no_table(swept):
    done = swept()
    run(done)
    before, gone = document(done), done.cells[0]
    for file in done.run(gone).iterdir():
        file.unlink()
    assert (done.n_over(), done.state(gone)) == (len(done.cells) - 1, "open")
    assert edgepeft("report", done.folder, "--out", done.folder.parent / "page").returncode == 0
    told, failed = run(done)
    assert {each.job.cell.name for each in told} == {gone.name} and not failed
    assert document(done) == before


def test_cards_alone_make_the_same_table(swept):
    sweep = swept()
    whole = run_sweep(sweep, inline, CellRun(sweep, sweep.cells[0], keep_tensors=False), watch=lambda _: None)
    assert not whole and not list(sweep.folder.rglob("*.safetensors"))
    (column,) = columns(sweep)
    assert column.chosen["lora:rank=2"].bytes > 0
    assert not_worse([column.chosen["linear"]], [column.chosen["lora:rank=2"]]) is not None


def test_lines_of_results_make_the_same_table_and_are_not_run_again(done):
    before = document(done)
    (done.run(done.cells[0]) / "delta.safetensors").unlink()  # one whose card alone is there
    folded = fold(done)
    assert sorted(path.name for path in folded.folder.iterdir() if path.name[0] != ".") == [
        "results.jsonl",
        "sweep.json",
    ]
    assert document(folded) == document(open_sweep(done.folder)) == before
    lines = [json.loads(line) for line in (done.folder / "results.jsonl").read_text().splitlines()]
    assert [(line["run"], line["data"], line["method"], line["rate"], line["seed"]) for line in lines] == [
        (cell.name, cell.data, cell.method, cell.rate, cell.seed) for cell in done.cells
    ]
    assert run(folded) == ([], {})


def test_compressed_results_are_read_and_go_on_compressed(swept):
    done = swept()
    run(done)
    before, gone = document(done), done.cells[0].name
    path = fold(done).folder / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.unlink()
    compressed = path.with_suffix(".jsonl.gz")
    compressed.write_bytes(gzip.compress(b"".join(lines)))
    assert document(open_sweep(done.folder)) == before
    compressed.write_bytes(gzip.compress(b"".join(line for line in lines if gone.encode() not in line)))
    told, failed = run(swept())
    assert {each.job.cell.name for each in told} == {gone} and not failed
    assert document(fold(swept())) == before and not path.exists()
    assert sorted(json.loads(line)["run"] for line in gzip.decompress(compressed.read_bytes()).splitlines()) == sorted(
        cell.name for cell in done.cells
    )
    compressed.write_bytes(compressed.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"results\.jsonl\.gz is damaged"):
        document(open_sweep(done.folder))


def test_what_is_not_over_stays_when_the_others_are_folded(swept):
    sweep = swept()
    part = dataclasses.replace(sweep, cells=sweep.cells[:1])
    run(part)
    sweep.end(sweep.cells[1], Outcome("diverged", 1.0, reason="the loss is not finite"))
    begun = sweep.run(sweep.cells[2])
    begun.mkdir()
    folded = fold(sweep)
    assert list(folded.results) == [cell.name for cell in sweep.cells[:2]] and begun.is_dir()
    assert folded.outcome(sweep.cells[1]) == Outcome("diverged", 1.0, reason="the loss is not finite")
    told, failed = run(folded)
    assert not failed and [each.job.cell for each in told] == list(sweep.cells[2:])
    assert list(fold(folded).results) == [cell.name for cell in sweep.cells]


def test_a_damaged_line_of_results_is_said(done):
    path = fold(done).folder / "results.jsonl"
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([first[:-9], *others]))
    with pytest.raises(DataError, match=r"results\.jsonl, line 1 is damaged"):
        document(open_sweep(done.folder))
    path.write_text("\n".join([json.dumps({**json.loads(first), "answers": "eNo="}), *others]))
    with pytest.raises(BundleError, match=rf"answers of {done.cells[0].name} are damaged"):
        document(open_sweep(done.folder))


def test_sweep_keeps_results_alone_where_asked(plan, tmp_path):
    path = plan(data="", more="")
    made = edgepeft("sweep", path, "--out", tmp_path / "kept", "--keep", "results", "--json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout) == document(open_sweep(tmp_path / "kept"))
    assert not (tmp_path / "kept" / "runs").exists() and (tmp_path / "kept" / "results.jsonl").is_file()


def test_a_sweep_that_is_refused_leaves_its_runs_as_they_were(swept, plan, tmp_path):
    sweep = swept()
    run(dataclasses.replace(sweep, cells=sweep.cells[:1]))
    (sweep.run(sweep.cells[1]) / "begun").mkdir(parents=True)
    before = {path: path.is_file() and path.read_bytes() for path in sweep.folder.rglob("*")}
    (tmp_path / "tone.jsonl").write_text((tmp_path / "tone.jsonl").read_text().replace("w5 ", "w6 ", 1))
    refused = edgepeft("sweep", plan(), "--out", sweep.folder, "--keep", "results")
    assert refused.returncode == 2 and "data tone changed since" in refused.stderr
    assert {path: path.is_file() and path.read_bytes() for path in sweep.folder.rglob("*")} == before


def test_cards_are_moved_to_another_machine_and_are_done_there(plan, tiny, tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    shutil.copytree(tiny("bert", mean=True), here / "model")
    monkeypatch.setenv("BACKBONE", str(here / "model"))
    monkeypatch.setenv("DATA", str(tmp_path))
    path = plan(backbone="$BACKBONE", data='[data.other]\ndata = "$DATA/test.jsonl"\ntest = "$DATA/tone.jsonl"')
    sweep = sweep_of(read_plan(path), here / "sweep")
    assert not run_sweep(sweep, inline, CellRun(sweep, sweep.cells[0], keep_tensors=False), watch=lambda _: None)
    kept = [path for path in sweep.folder.rglob("*") if path.is_file()]
    assert kept and not [path for path in kept if str(tmp_path).encode() in path.read_bytes()]

    before = document(sweep)
    shutil.move(here, there)
    shutil.move(there / "model", there / "model-elsewhere")
    rows = there / "rows"
    rows.mkdir()
    for name in ("tone.jsonl", "test.jsonl", "plan.toml"):
        shutil.move(tmp_path / name, rows)
    monkeypatch.setenv("BACKBONE", str(there / "model-elsewhere"))
    monkeypatch.setenv("DATA", str(rows))
    report = edgepeft("report", there / "sweep", "--out", tmp_path / "page")
    assert report.returncode == 0 and sweep.cells[0].name in (tmp_path / "page" / "report.md").read_text()
    chosen = edgepeft("choose", there / "sweep", "--profile", "rpi4")
    assert chosen.returncode == 0 and f"--backbone {there / 'model-elsewhere'}" in chosen.stderr
    moved = sweep_of(read_plan(rows / "plan.toml"), there / "sweep")
    assert run(moved) == ([], {})
    assert [{**row, "backbone": None} for row in document(moved)["rows"]] == [
        {**row, "backbone": None} for row in before["rows"]
    ]


def test_what_is_left_is_estimated_from_what_is_done(swept):
    sweep = swept()
    assert estimate(sweep, 1) is None
    part = dataclasses.replace(sweep, cells=sweep.cells[:1])
    run(part)
    seconds = part.outcome(part.cells[0]).seconds
    assert estimate(sweep, 2) == pytest.approx(seconds / 2 * (len(sweep.cells) - 1), rel=0.01)


@pytest.mark.parametrize("content", ["{", '{"schema": "edgepeft.sweep/9"}', '{"schema": "edgepeft.sweep/1"}', "[]"])
def test_a_damaged_folder_is_said(swept, content):
    sweep = swept()
    sweep.write()
    (sweep.folder / "sweep.json").write_text(content)
    with pytest.raises(DataError, match=r"sweep\.json"):
        open_sweep(sweep.folder)
    with pytest.raises(DataError, match=r"remove it|this version reads"):  # as repeating the sweep alone would not help
        run(sweep)
    (sweep.folder / "sweep.json").unlink()
    run(dataclasses.replace(sweep, cells=sweep.cells[:1]))


@pytest.fixture
def alike(tiny, swept, plan, tmp_path):
    """A sweep whose cells are easily taken for each other: backbones of the same tokens, of which two have the same
    weights too and pool otherwise, and two data sets whose rows are as many and as long."""
    plan()
    for name in ("tone", "test"):
        (tmp_path / f"other-{name}.jsonl").write_text((tmp_path / f"{name}.jsonl").read_text().replace("w7", "w8"))
    backbones = tiny("bert", mean=True), tiny("bert", mean=True, seed=1), tiny("bert")
    data = '[data.other]\ndata = "other-tone.jsonl"\ntest = "other-test.jsonl"'
    sweep = swept(backbone='", "'.join(map(str, backbones)), data=data, steps=2)
    return dataclasses.replace(sweep, cells=tuple(cell for cell in sweep.cells if (cell.seed, cell.rate) == (0, 1e-3)))


def test_states_that_cells_share_are_computed_once_and_no_cell_takes_anothers(alike, tmp_path, monkeypatch):
    computed, states_of = [], engine.states_of
    monkeypatch.setattr(engine, "states_of", lambda *given: computed.append(given) or states_of(*given))
    failing = dataclasses.replace(alike.cells[-1], options={**alike.cells[-1].options, "data": "gone.jsonl"})
    sweep = dataclasses.replace(alike, cells=(*alike.cells[:-1], failing))
    assert list(run(sweep)[1]) == [failing.name]
    kept = list(sweep.shared.iterdir())
    # A batch of each part, of each data set on each backbone; linear heads train on the same ones.
    assert len(computed) == len(kept) == 3 * 2 * 3
    for path in kept:
        path.write_bytes(path.read_bytes()[:-8])  # damaged ones are computed anew
    assert run(alike) == (ANY, {}) and not sweep.shared.exists()
    for cell in alike.cells:
        request = TrainRequest.model_validate(alike.options(cell))
        found = resolve_request(request)
        alone = train_delta(request.backbone, found.method, found.rows(), found.request, tmp_path / "alone", force=True)
        assert alone.delta.card == alike.card(cell)


def test_two_processes_that_need_the_same_states_at_once_both_have_them(tmp_path):
    inputs, shared = {"input_ids": torch.arange(6).view(2, 3)}, SharedStates(tmp_path / "states", "a")

    def meanwhile():
        shared.of(inputs, "mean", lambda: np.ones((2, 4), np.float32))
        return np.ones((2, 4), np.float32)

    assert (shared.of(inputs, "mean", meanwhile) == 1).all()
    assert (shared.of(inputs, "mean", pytest.fail) == 1).all() and len(list(shared.folder.iterdir())) == 1


def test_states_are_of_one_backbone_attention_and_pooling(tmp_path):
    inputs, kinds = {"input_ids": torch.arange(6).view(2, 3)}, [("a", None), ("b", None), ("a", "eager")]
    for n, kind in enumerate(kinds):
        for pooling in ("mean", "cls"):
            found = SharedStates(tmp_path, *kind).of(inputs, pooling, lambda n=n: np.full((2, 4), n, np.float32))
            assert (found == n).all()
    assert len(list(tmp_path.iterdir())) == 6
