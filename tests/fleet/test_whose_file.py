"""A pull writes, deletes and locks in a folder of its own, whatever lies where that should be."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time

import pytest
from boards_of import answers, tree
from verbs import edgepeft

from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.data.training_loop.checkpoint import claim
from edgepeft.fleet import pull as pulling


@pytest.fixture
def precious(tmp_path):
    """A folder that somebody would miss, with names that downloads have too."""
    folder = tmp_path / "precious"
    folder.mkdir()
    for name in ("thesis.tex", "a" * 64, f"{'b' * 64}.part", "state.json", "root.json"):
        (folder / name).write_text(name)
    return folder


def replaced(path, target):
    """A link in the place of a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    path.symlink_to(target)


@pytest.mark.parametrize("inside", ["", "files", "metadata", "metadata/root_history"])
@pytest.mark.parametrize("first", [True, False])
def test_a_link_in_the_place_of_its_folder_is_refused_and_nothing_is_written_or_deleted(
    inside, first, fleet, board, bundle, precious, retrained
):
    place = bundle if first else board
    (place / ".fleet" / inside).parent.mkdir(exist_ok=True, parents=True)
    replaced(place / ".fleet" / inside, precious)
    fleet.publish(retrained / "newer")
    before = tree(precious, but="nothing"), tree(place)
    done = edgepeft("pull", fleet.served.address, place, "--root", fleet.root)
    assert done.returncode == 1 and f"{place / '.fleet' / inside} is a link" in done.stderr, done.stderr
    assert (tree(precious, but="nothing"), tree(place)) == before


def test_a_link_in_the_place_of_a_download_is_not_written_through(fleet, board, precious, retrained):
    before = set(fleet.repository.rglob("*.mood.onnx"))
    fleet.publish(retrained / "newer")
    (new,) = set(fleet.repository.rglob("*.mood.onnx")) - before
    (board / ".fleet" / "files").mkdir(exist_ok=True)
    (board / ".fleet" / "files" / f"{new.name[:64]}.part").symlink_to(precious / "thesis.tex")
    with pytest.raises(EdgepeftError, match="is a link"):
        fleet.pull(board)
    assert (precious / "thesis.tex").read_text() == "thesis.tex"


def test_a_second_name_of_a_file_in_the_place_of_a_download_is_not_written_through(fleet, board, precious, retrained):
    """A hard link: what came with a bundle can be another name of a file of ours."""
    before = set(fleet.repository.rglob("*.mood.onnx"))
    fleet.publish(retrained / "newer")
    (new,) = set(fleet.repository.rglob("*.mood.onnx")) - before
    (board / ".fleet" / "files").mkdir(exist_ok=True)
    for end in ("", ".part"):
        os.link(precious / "thesis.tex", board / ".fleet" / "files" / f"{new.name[:64]}{end}")
    assert fleet.pull(board).taken == ("mood",) and answers(board) == answers(retrained / "newer")
    assert (precious / "thesis.tex").read_text() == "thesis.tex"


def test_only_downloads_are_deleted(fleet, board, retrained):
    files = board / ".fleet" / "files"
    files.mkdir(exist_ok=True)
    (files / "notes.txt").write_text("mine")
    (files / ("c" * 64)).write_text("an old download")
    (board / ".fleet" / "notes.txt").write_text("mine")
    fleet.publish(retrained / "newer")
    fleet.pull(board)
    assert [path.name for path in files.iterdir()] == ["notes.txt"] and (board / ".fleet" / "notes.txt").is_file()


def test_a_pull_that_is_refused_deletes_nothing_that_it_did_not_make(fleet, bundle, tmp_path):
    from edgepeft.fleet.publish import publish

    (bundle / ".fleet").mkdir()
    (bundle / ".fleet" / "notes.txt").write_text("mine")
    publish(fleet.bundle, tmp_path / "others", tmp_path / "others-keys")
    with pytest.raises(UsageError, match="Give --root FILE"):
        pulling.pull(str(tmp_path / "others"), bundle)
    assert [path.name for path in (bundle / ".fleet").iterdir()] == ["notes.txt"]


def test_a_folder_of_another_user_is_refused_with_its_owner(fleet, board, given_away, retrained):
    owner = given_away(board / ".fleet")
    fleet.publish(retrained / "newer")
    before = tree(board)
    done = edgepeft("pull", fleet.served.address, board, "--root", fleet.root)
    assert done.returncode == 1 and f"{board / '.fleet'} belongs to user {owner}" in done.stderr, done.stderr
    assert tree(board) == before


def test_a_folder_that_everybody_can_write_to_is_refused_and_one_of_our_groups_is_not(fleet, board, retrained):
    fleet.publish(retrained / "newer")
    (board / ".fleet").chmod(0o777)
    with pytest.raises(EdgepeftError, match=r"\.fleet, of user \d+, can be written to by every user .*chmod o-w"):
        fleet.pull(board)
    (board / ".fleet").chmod(0o775)  # as under umask 002
    assert fleet.pull(board).taken == ("mood",)


def test_new_folders_are_ours_alone_under_any_umask(fleet, bundle, tmp_path, retrained):
    before = os.umask(0)
    try:
        fleet.pull(bundle)
        fleet.pull(tmp_path / "new")
        fleet.publish(retrained / "newer")
        assert fleet.pull(tmp_path / "new").taken == ("mood",)  # its files are everybody's to write, and out of reach
        with claim(bundle, "mood"):
            assert (bundle / ".tune").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)
    assert {(place / ".fleet").stat().st_mode & 0o777 for place in (bundle, tmp_path / "new")} == {0o700}


def test_a_bundle_is_reached_through_links(fleet, board, retrained, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    fleet.publish(retrained / "newer")
    assert fleet.pull(tmp_path / "link" / "board").taken == ("mood",)
    assert answers(board) == answers(retrained / "newer")


def test_a_pull_that_leaves_a_task_behind_says_how_long_it_waited_and_fails(fleet, board, retrained, monkeypatch):
    monkeypatch.setattr(pulling, "_PATIENCE_S", 0.2)
    fleet.publish(retrained / "newer")
    with claim(board, "mood"):
        done = edgepeft("pull", fleet.served.address, board, "--root", fleet.root, "--json")
    assert done.returncode == 1 and "mood" in done.stderr and "waited 0.2 s" in done.stderr, done.stderr
    assert list(json.loads(done.stdout)["busy"]) == ["mood"]
    assert edgepeft("pull", fleet.served.address, board, "--root", fleet.root).returncode == 0
    assert answers(board) == answers(retrained / "newer")


def test_a_pull_waits_for_what_is_soon_over(fleet, board, retrained):
    fleet.publish(retrained / "newer")

    def hold():
        with claim(board, "mood"):
            held.set()
            time.sleep(0.5)

    held = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    assert fleet.pull(board).taken == ("mood",)
    thread.join()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_root_pulls_into_another_users_bundle_as_in_a_containers_volume(fleet, bundle, retrained):
    for path in (bundle, *bundle.rglob("*")):
        os.chown(path, 4242, 4242)
    fleet.publish(retrained / "newer")
    with claim(bundle, "pair"):
        assert fleet.pull(bundle, replace_tuned=True).taken == ("mood",)
    assert fleet.pull(bundle).taken == () and answers(bundle) == answers(retrained / "newer")
