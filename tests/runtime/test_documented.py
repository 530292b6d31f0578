"""The examples of docs/python.md on running, run as they stand on a bundle of that name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tiny import SIZES

from bench.suites import _random_bundle
from bench.suites._random_bundle import Structure
from edgepeft import Runtime
from edgepeft.runtime.prediction import TextAnswer

DOC = Path(__file__).parents[2] / "docs" / "python.md"
RUNNING = DOC.read_text(encoding="utf-8").partition("## Running")[2]  # tests/test_front.py runs what is above
BLOCKS = [block.group(0) for block in re.finditer(r"(?:^    .*\n|^\n(?=    ))+", RUNNING, re.M)]
PRINTED = [
    r"\('mood', 'pair', 'score'\)\n(no|yes) 0\.\d+ \{'no'",
    r"([abc] \(-?\d.*\)\n){2}",
    r"\{'mood': \[",
    r"Prediction\nPrediction\nndarray\nUnknownName\n",
    r"$",  # its answers are looked at
    "no task of this bundle",
]


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    """The tasks of a T5 that the examples name, which write what they have learnt: nothing."""
    config = {"model_type": "t5", **SIZES["t5"], "num_decoder_layers": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_random_bundle, "config_of", lambda name: config)
        written = {"head": "text", "labels": None}
        structures = [Structure("lora", ["summary"], **written), Structure("bitfit", ["title"], **written)]
        folder = _random_bundle.write_bundle(tmp_path_factory.mktemp("text") / "bundle", "tiny", structures)
    with Runtime(folder, threads=1, cache=False) as runtime:
        yield runtime


@pytest.mark.parametrize("number", range(len(PRINTED)))
def test_an_example_runs_and_prints_what_its_text_says(number, exported, stories, monkeypatch, capsys):
    assert len(BLOCKS) == len(PRINTED)
    monkeypatch.chdir(exported.parent)
    source = "from edgepeft import Runtime\n" + re.sub(r"^    ", "", BLOCKS[number], flags=re.M)
    names = {"runtime": stories}
    exec(compile(source, str(DOC), "exec"), names)
    if answers := names.get("answers") if "writing()" in source else None:
        assert [(type(one), one.task) for one in answers] == [(TextAnswer, "summary"), (TextAnswer, "title")]
    assert re.match(PRINTED[number], capsys.readouterr().out)
