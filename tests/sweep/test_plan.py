"""What a plan may say, what it comes to, and how it is refused."""

import itertools
import json
import os
import re
from pathlib import Path

import pytest

from edgepeft.common.errors import DataError, UsageError
from edgepeft.methods.base import method_of
from edgepeft.sweep.folder import open_sweep
from edgepeft.sweep.plan import Plan, placed, read_plan, recorded, share_of_rows


def test_a_plan_is_every_combination_of_what_it_names(swept):
    sweep = swept(more='sizes = [20, "50%", "100%"]')
    grid = itertools.product(
        ["20", "50%", "100%"], [("linear", 1e-3), ("lora:rank=2", 1e-3), ("lora:rank=2", 4.5e-3)], [0, 1]
    )
    expected = {(size, method, seed) for size, (method, _), seed in grid}
    assert {(cell.size, cell.method, cell.seed) for cell in sweep.cells} == expected
    assert len(sweep.cells) == len({cell.name for cell in sweep.cells}) == 3 * 3 * 2
    # 60 rows, a tenth of them chooses checkpoints.
    assert {cell.size: cell.rows for cell in sweep.cells} == {"20": 20, "50%": 27, "100%": 54}
    rates = sorted({cell.rate for cell in sweep.cells if cell.method != "linear"})
    assert rates == pytest.approx([1e-3, 3 * method_of("lora").learning_rate])


def test_a_plan_tells_as_many_runs_as_its_sweep_has(swept, tmp_path):
    more = "sizes = [20, '50%']"
    sweep = swept(more=more)
    plan = read_plan(next(tmp_path.rglob("*.toml")))
    assert plan.description == f"{len(sweep.cells)} runs of 2 methods (linear, lora:rank=2)"


def test_a_grid_of_settings_is_their_product():
    plan = Plan.model_validate(
        {
            "backbones": ["b"],
            "data": {"d": {"data": "d.csv"}},
            "grid": [{"method": "spartan", "parents": [16, 32], "children": [2, 3], "skip_layers": 1}],
        }
    )
    settings = [vars(method_of(text)) for text in plan.all_methods]
    assert [(s["parents"], s["children"]) for s in settings] == [(16, 2), (16, 3), (32, 2), (32, 3)]
    assert {s["skip_layers"] for s in settings} == {1}


@pytest.mark.parametrize(("size", "rows"), [("100%", None), ("10%", 50), ("0.1%", 1), (7, 7)])
def test_a_size_is_rows_or_a_share_of_them(size, rows):
    assert share_of_rows(size, 500) == rows


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"more": "epoch = 3"}, "epoch is not a key that is known; known keys: title, backbones"),
        ({"more": 'sizes = ["half"]'}, "size 'half': a number of rows is needed"),
        ({"more": "sizes = [9999]"}, "tone, linear: --few-shot 9999 is more than the 54 rows"),
        ({"more": "learning_rates = []"}, "learning_rates must be a list of 1 or more"),
        ({"more": "grid = [{parents = [1]}]"}, "a [[grid]] names its method"),
        ({"more": "grid = [{method = 'lroa'}]"}, "Did you mean 'lora'?"),
        ({"train": "epoch = 3"}, "no option of edgepeft train is called 'epoch'. Did you mean 'epochs'?"),
        ({"train": "lr = 0.1"}, "lr is of the whole grid"),
        ({"train": "epochs = 3"}, "--epochs and --steps exclude each other"),
        ({"train": "metric = 'loss'"}, "no metric is called 'loss'"),
        ({"data": "[data.other]\ndata = '$NOWHERE_AT_ALL/x.jsonl'"}, "the variable NOWHERE_AT_ALL, which is not set"),
        ({"data": "[data.other]\ndata = 'none.jsonl'"}, "none.jsonl"),
        ({"data": "[data.'a b/c']\ndata = 'tone.jsonl'"}, "a b/c"),
        ({"more": 'learning_rates = ["fast"]\ngrid = [{method = "bitfit"}]'}, "learning rate 'fast'"),
        ({"more": "grid = [{method = 'lora', rank = [2]}]"}, "the plan has a run twice: tone lora:rank=2"),
        ({"more": "grid = [{method = 'linear', skip = 1}]"}, "skip"),
    ],
)
def test_what_a_plan_cannot_say_is_refused_before_a_run(swept, more, message):
    with pytest.raises(UsageError) as refused:
        swept(**more)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("more", "where"),
    [("grid = [{method = 'lora', rank = []}]", "[[grid]] rank"), ("rates.linear = []", "[rates] linear")],
)
def test_a_list_of_no_value_is_no_sweep_of_no_runs(tmp_path, more, where):
    path = tmp_path / "plan.toml"
    path.write_text(f'backbones = ["a"]\nmethods = ["linear"]\n{more}\n[data.mood]\ndata = "x.csv"\n')
    with pytest.raises(UsageError, match=re.escape(f"{where} = [] has nothing to run; write one value or more")):
        read_plan(path)


@pytest.mark.parametrize(
    "content",
    [
        b"a = " + b"[" * 100_000 + b"]" * 100_000,
        b"a." * 100_000 + b"a = 1",
        rb'backbones = ["a\u0000b"]' + b'\nmethods = ["lora"]\n[data.mood]\ndata = "x.csv"\n',
        b'backbones = ["a"]\n[data.mood]\ndata = "x.csv"\n[[grid]]\nmethod = "lora"\n'
        + b"".join(b"s%d = [0,1,2,3,4,5,6,7,8,9]\n" % i for i in range(20)),
        b"#" * (1 << 20),
        b"\xff",
    ],
    ids=["nested", "dotted", "nul", "grid", "large", "bytes"],
)
def test_a_plan_is_bounded_before_it_is_read(tmp_path, content):
    (path := tmp_path / "plan.toml").write_bytes(content)
    with pytest.raises(UsageError, match=r"plan\.toml (is no plan in TOML|has 100,000,000,000,000,000,000 runs)"):
        read_plan(path)


@pytest.mark.parametrize(
    "content", [b'{"schema":' + b"[" * 100_000 + b"]" * 100_000 + b"}", rb'{"schema": "a\u0000"}', b"\xff"]
)
def test_a_sweep_that_is_damaged_is_no_traceback(tmp_path, content):
    (tmp_path / "sweep.json").write_bytes(content)
    with pytest.raises(DataError, match=r"sweep\.json is damaged"):
        open_sweep(tmp_path)


def test_no_plan_and_no_toml_are_refused_by_their_path(tmp_path):
    (odd := tmp_path / "odd.toml").write_text("backbones = [")
    for path in (tmp_path / "none.toml", odd):
        with pytest.raises(UsageError, match=path.name):
            read_plan(path)


def test_paths_are_relative_to_the_plan_and_take_variables(plan, monkeypatch, tmp_path):
    monkeypatch.setenv("ROWS", str(tmp_path))
    found = read_plan(plan(data="[data.other]\ndata = '${ROWS}/tone.jsonl'\neval = 0.2"))
    assert found.data["other"] == {"data": "${ROWS}/tone.jsonl", "eval": 0.2}
    written = recorded(found, tmp_path / "new" / "sweep")
    assert written.data["tone"] == {"data": "../../tone.jsonl", "test": "../../test.jsonl"}
    for name, each in found.data.items():
        there = placed(written.data[name], tmp_path / "new" / "sweep")
        assert there == {
            **each,
            **{key: str(tmp_path / Path(each[key]).name) for key in ("data", "test") if key in each},
        }
    assert found.data["tone"]["test"] == os.path.relpath(tmp_path / "test.jsonl")


def test_files_of_all_runs_are_relative_to_the_plan_too_and_a_share_is_no_file(plan, tmp_path):
    found = read_plan(
        plan(train='test = "test.jsonl"\neval = "20%"', data="[data.other]\ndata = 'tone.jsonl'\ntest = '5%'")
    )
    written = recorded(found, tmp_path / "new" / "sweep")
    assert (written.train["test"], written.train["eval"]) == ("../../test.jsonl", "20%")
    there = placed({**written.train, **written.data["other"]}, tmp_path / "new" / "sweep")
    assert (there["data"], there["eval"], there["test"]) == (str(tmp_path / "tone.jsonl"), "20%", "5%")


def test_a_plan_need_not_say_what_the_shape_of_its_rows_tells(swept, tmp_path):
    rows = [{"text1": f"w{5 + i % 40} w{6 + i % 11}", "text2": f"w{7 + i % 13}", "score": i % 7 / 2} for i in range(60)]
    (tmp_path / "near.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    of = "[data.near]\ndata = 'near.jsonl'\n"
    with pytest.warns(UserWarning, match="the number score; --kind regression is taken"):
        told = swept(data=of).cells
    said = swept(data=f"{of}kind = 'regression'\n").cells
    assert {cell.options.get("kind") for cell in told} == {None, "regression"}
    assert [cell.name for cell in told] == [cell.name for cell in said]
    assert all((cell.options.get("kind") == "regression") == (cell.data == "near") for cell in told)


def test_numbers_that_may_be_names_are_asked_about_with_the_data_set(swept, tmp_path):
    rows = [{"sentence1": f"w{5 + i % 40}", "label": i % 7 / 2} for i in range(60)]
    (tmp_path / "odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UsageError, match=r"^odd, linear: .*odd\.jsonl: the column label holds numbers"):
        swept(data="[data.odd]\ndata = 'odd.jsonl'\n")
