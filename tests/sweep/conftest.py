"""A plan on a tiny BERT, whose runs take a part of a second each."""

import json
import shutil

import pytest
import torch
from inline import inline
from once import made_once

from edgepeft.sweep.folder import open_sweep
from edgepeft.sweep.local import CellRun
from edgepeft.sweep.plan import read_plan
from edgepeft.sweep.run import run_sweep, sweep_of

PLAN = """
backbones = ["{backbone}"]
methods = ["linear", "lora:rank=2"]
seeds = [0, 1]
{more}
[rates]
"lora:rank=2" = [1e-3, "3x"]
linear = ["1x"]
[train]
steps = {steps}
batch_size = 8
max_length = 16
{train}
[data.tone]
data = "tone.jsonl"
test = "test.jsonl"
{data}
"""


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def write_rows(folder):
    for name, n in (("tone", 60), ("test", 40)):
        rows = [
            {"sentence1": f"w{5 + (7 * i) % 40} w{5 + i % 11} {name}", "label": "ab"[i * i % 3 % 2]} for i in range(n)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_plan(folder, backbone, more="", train="", data="", steps=4):
    path = folder / "plan.toml"
    path.write_text(PLAN.format(backbone=backbone, more=more, train=train, data=data, steps=steps))
    return path


@pytest.fixture
def plan(tiny, tmp_path):
    """``plan(more="sizes = [20]")`` -> the path of a plan; its rows lie beside it."""
    write_rows(tmp_path)
    usual = tiny("bert", mean=True)
    return lambda backbone=usual, **more: write_plan(tmp_path, backbone, **more)


@pytest.fixture
def swept(plan, tmp_path):
    def swept(**more):
        return sweep_of(read_plan(plan(**more)), tmp_path / "sweep")

    return swept


@pytest.fixture
def done(tiny, tmp_path, tmp_path_factory):
    """The sweep of the plan as it is, each run done; a copy, whose rows lie elsewhere."""

    def make(folder):
        write_rows(folder)
        sweep = sweep_of(read_plan(write_plan(folder, tiny("bert", mean=True))), folder / "sweep")
        assert not run_sweep(sweep, inline, CellRun(sweep, sweep.cells[0]), watch=lambda _: None)

    shutil.copytree(made_once(tmp_path_factory, "sweep", make) / "sweep", tmp_path / "done")
    return open_sweep(tmp_path / "done")
