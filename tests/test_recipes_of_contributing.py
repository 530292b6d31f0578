"""CONTRIBUTING's recipes hold: a method, a head, a profile and a graph pass are each one new file.

Each file is put into a copy of the tree, where the command that the recipe names is run.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("README.md", "bench", "docs", "edgepeft", "profiles", "pyproject.toml", "tests")

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="recipes are followed in a checkout")

METHOD = '''"""SSF (Lian et al., 2022, arXiv:2210.08823, eq. 4): y' = gamma * y + beta, of the feed-forward's output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from edgepeft.backbones.base import Role, Site
from edgepeft.methods.base import PerLayer, option


class ScaleAndShift(nn.Module):
    """gamma * y + beta, [..., d] -> [..., d]."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), scale))
        self.beta = nn.Parameter(torch.zeros(width))

    def forward(self, y: Tensor) -> Tensor:
        """The same shape."""
        return self.gamma * y + self.beta


class SSF(PerLayer):
    """Scales and shifts of features."""

    name: ClassVar[str] = "ssf"
    title: ClassVar[str] = "SSF"
    paper: ClassVar[str] = "Lian et al., 2022, arXiv:2210.08823"
    equation: ClassVar[str] = "gamma * y + beta"
    near_identity: ClassVar[bool] = True
    learning_rate: ClassVar[float] = 1e-3
    learning_rate_source: ClassVar[str] = "a guess for this test"

    scale: float = option(1.0, "where gamma starts")

    def attaches_to(self) -> tuple[Role, ...]:
        """The feed-forward's output."""
        return (Role.FFN_OUTPUT,)

    def build(self, sites: Sequence[Site]) -> dict[str, nn.Module]:
        """One a site."""
        return {site.name: ScaleAndShift(site.out_features, self.scale) for site in sites}
'''

HEAD = '''"""Two linear layers without anything between them, as a test of the recipe (Nobody et al.)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from edgepeft.heads.base import Head, fresh_linear


class Stacked(Head):
    """logits = W2 dropout(W1 pooled + b1) + b2."""

    kind: ClassVar[str] = "stacked"
    places: ClassVar[Mapping[str, str]] = {"first": "classifier.dense", "second": "classifier.out_proj"}

    def __init__(self, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__(hidden, outputs, dropout)
        self.first, self.second = fresh_linear(hidden, hidden), fresh_linear(hidden, outputs)

    def forward(self, pooled: Tensor, *weights: Tensor) -> Tensor:
        """[batch, d] -> [batch, outputs]."""
        logits: Tensor = self.second(self.dropout(self.first(pooled)))
        return logits
'''

PROFILE = """name = "board-of-a-test"
title = "A board that this test makes up"

[cores]
value = 2
unit = "cores"
kind = "spec"
source = "its data sheet"

[memory]
value = 512
unit = "MB"
kind = "spec"
source = "its data sheet"

[isa]
value = ["asimd"]
unit = "flags"
kind = "unsourced"

[figures.fp32_peak]
value = 20
unit = "GFLOP/s"
kind = "unsourced"

[figures.runtime_threads]
value = 2
unit = "threads"
kind = "unsourced"

[figures.copy]
value = 1.5
unit = "GB/s"
kind = "unsourced"

[[latencies]]
model = "ResNet-50 (224 x 224)"
graph = "resnet-50"
runtime = "ncnn"
precision = "fp32"
threads = 2
value = 900
unit = "ms"
kind = "measured"
source = "its data sheet"
"""

PASS = '''"""Pass: what a Neg of a Neg gives is its input."""

from __future__ import annotations

import onnx
{imported}

{contract}def drop_double_negations(graph: onnx.GraphProto) -> None:
    """Have readers of such values read the input."""
    negated = {{node.output[0]: node.input[0] for node in graph.node if node.op_type == "Neg"}}
    for node in graph.node:
        node.input[:] = [negated.get(negated.get(name, ""), name) for name in node.input]
'''
IMPORTED = """
from edgepeft.graph.contract import Contract
from edgepeft.graph.contract import same_interface, well_formed
"""
DECLARED = "@Contract(requires=[well_formed], ensures=[well_formed], keeps=[same_interface], mutates=True)\n"

Run = Callable[..., subprocess.CompletedProcess[str]]


def commands(heading: str, name: str = "") -> list[str]:
    """The arguments for pytest that CONTRIBUTING gives under a heading."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    recipe = text.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    (arguments,) = re.findall(r'^    make test PYTEST_ARGS="(.*)"$', recipe, re.MULTILINE)
    return shlex.split(re.sub(r"\b(NAME|KIND)\b", name, arguments))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the recipes and their commands need."""
    copy, ignored = (
        tmp_path / "copy",
        shutil.ignore_patterns("*.pyc.*", "*.png", "node_modules"),
    )  # another worker may be compiling
    copy.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=ignored)
        else:
            shutil.copyfile(ROOT / name, copy / name)
    return copy


@pytest.fixture
def python(tree: Path) -> Run:
    """Runs a module in the copy."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(tree)}
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)

    return run


def expect(done: subprocess.CompletedProcess[str], *, passed: int) -> None:
    """At least so many tests passed, and none failed."""
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout).group(1)) >= passed, done.stdout[-500:]


def pytest_in(python: Run, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python("pytest", "--verbose", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments)


def test_a_method_is_one_file_and_what_is_generated_from_it(tree: Path, python: Run):
    (tree / "edgepeft" / "methods" / "ssf.py").write_text(METHOD)
    # Without what is generated, too, no test fails: neither of the method nor of the catalogue.
    besides = ("tests/methods/test_catalogue.py", "-k", "ssf or catalogue")
    expect(pytest_in(python, *commands("A PE method", "ssf"), *besides), passed=17)
    assert python("bench.generated", "--check").returncode == 1
    assert python("bench.generated").returncode == 0
    assert "| `ssf` | `gamma * y + beta` |" in (tree / "docs" / "methods.md").read_text()


def test_a_head_is_one_file(tree: Path, python: Run):
    (tree / "edgepeft" / "heads" / "stacked.py").write_text(HEAD)
    expect(pytest_in(python, *commands("A head", "stacked")), passed=3)


def test_a_profile_is_one_file_and_the_page_made_from_it(tree: Path, python: Run):
    (tree / "profiles" / "board-of-a-test.toml").write_text(PROFILE)
    expect(pytest_in(python, *commands("A device profile", "board-of-a-test")), passed=3)
    assert python("bench.published", "docs", "--check").returncode == 1
    assert python("bench.published", "docs").returncode == 0
    assert "board-of-a-test" in (tree / "docs" / "devices.md").read_text()


def test_a_graph_pass_is_one_file_and_refused_without_a_contract(tree: Path, python: Run):
    path = tree / "edgepeft" / "graph" / "negations.py"
    path.write_text(PASS.format(imported="", contract=""))
    refused = pytest_in(python, *commands("A graph pass"), "-k", "has_a_contract")
    assert refused.returncode == 1
    assert "edgepeft.graph.negations.drop_double_negations" in refused.stdout
    path.write_text(PASS.format(imported=IMPORTED, contract=DECLARED))
    expect(pytest_in(python, *commands("A graph pass")), passed=25)
