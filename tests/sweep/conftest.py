"""A plan on a tiny BERT, whose runs take a part of a second each."""

import json

import pytest
import torch

from edgepeft.sweep.cells import sweep_of
from edgepeft.sweep.plan import read_plan

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


@pytest.fixture
def plan(tiny, tmp_path):
    """``plan(more="sizes = [20]")`` -> the path of a plan; its rows lie beside it."""
    for name, n in (("tone", 60), ("test", 40)):
        rows = [
            {"sentence1": f"w{5 + (7 * i) % 40} w{5 + i % 11} {name}", "label": "ab"[i * i % 3 % 2]} for i in range(n)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def written(more="", train="", data="", steps=4):
        path = tmp_path / "plan.toml"
        path.write_text(PLAN.format(backbone=tiny("bert", mean=True), more=more, train=train, data=data, steps=steps))
        return path

    return written


@pytest.fixture
def swept(plan, tmp_path):
    def swept(**more):
        return sweep_of(read_plan(plan(**more)), tmp_path / "sweep")

    return swept
