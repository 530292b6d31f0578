"""A sweep's file says which runs there are, and leads to no other place."""

import json

import pytest

from edgepeft.common.errors import DataError, EdgepeftError
from edgepeft.sweep.folder import open_sweep
from edgepeft.sweep.local import CellRun, compute
from edgepeft.sweep.run import fold


@pytest.mark.parametrize("name", ["../../precious", "..", "", "runs", "0123456789abcdef/..", "0123456789ABCDEF"])
def test_a_name_of_another_form_is_refused_in_a_cell_and_in_a_result(name, done, tmp_path):
    path = done.folder / "sweep.json"
    document = json.loads(path.read_bytes())
    document["cells"][0]["name"] = name
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match="damaged"):
        open_sweep(done.folder)


def test_a_result_that_names_a_folder_elsewhere_removes_nothing(done, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").touch()
    fold(done)
    path = done.folder / "results.jsonl"
    result = json.loads(path.read_text().splitlines()[0])
    path.write_text(path.read_text() + json.dumps({**result, "run": "../../precious"}) + "\n")
    with pytest.raises(DataError, match=r"results\.jsonl, line \d+ is damaged"):
        fold(open_sweep(done.folder))
    assert (precious / "thesis.tex").is_file()


@pytest.mark.parametrize("place", ["runs", "run", "states"])
def test_a_link_in_the_place_of_a_folder_is_refused_and_nothing_behind_it_goes(place, done, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").touch()
    cell = done.cells[0]
    linked = {"runs": done.folder / "runs", "run": done.run(cell), "states": done.shared}[place]
    if linked.exists():
        linked.rename(tmp_path / "aside")
    linked.symlink_to(precious)
    for act in (
        lambda: done.forget_tensors(cell),
        lambda: done.forget_checkpoints(cell),
        done.forget_shared,
    ):
        try:
            act()
        except EdgepeftError as error:
            assert "is a link" in str(error)
    with pytest.raises(EdgepeftError, match="is a link"):
        compute(CellRun(done, cell), lambda _: None, lambda: False)
    assert [path.name for path in precious.iterdir()] == ["thesis.tex"] and linked.is_symlink()


def test_what_somebody_put_beside_a_runs_tensors_stays(done):
    cell = done.cells[0]
    (done.run(cell) / "notes.txt").write_text("mine")
    done.forget_tensors(cell)
    assert {path.name for path in done.run(cell).iterdir()} == {"delta.json", "notes.txt", "test.npz"}
