"""A board takes up what changed and nothing else, and keeps what is its own."""

from __future__ import annotations

import shutil
from collections import namedtuple

import pytest
from boards_of import TEXTS, answers, downloads, tree, tuned

from edgepeft.bundle.manifest import Manifest
from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.common.own_folder import held_folder
from edgepeft.data.training_loop.checkpoint import claim
from edgepeft.deploy.install import remove_task, roll_back
from edgepeft.fleet.publish import withdraw


def asked(served):
    """Files that were asked for, without their hashes: ``2.root.json`` is how a TUF client sees whether keys changed."""
    names = [path.rpartition("/")[2] for path, _, _ in served.asked]
    return [name.partition(".")[2] if len(name) > 64 else name for name in names]


def test_a_first_pull_over_http_gives_the_publishers_answers_and_keeps_no_download(fleet, exported, tmp_path):
    done = fleet.pull(tmp_path / "new")
    assert done.whole and done.taken == ("mood", "pair", "score")
    assert answers(tmp_path / "new") == answers(exported)
    assert downloads(tmp_path / "new") == []


def test_an_unchanged_fleet_downloads_the_timestamp_alone(fleet, board):
    before = tree(board, but="lock")
    done = fleet.pull(board)
    assert asked(fleet.served) == ["2.root.json", "timestamp.json"] and done.requests == 2
    assert done.n_bytes == (fleet.repository / "metadata" / "timestamp.json").stat().st_size
    assert tree(board, but="lock") == before


def test_one_changed_delta_is_one_graph_and_its_check_and_can_be_rolled_back(fleet, board, exported, retrained):
    fleet.publish(retrained / "newer")
    done = fleet.pull(board)
    metadata = ["2.root.json", "timestamp.json", "2.snapshot.json", "2.stable.json"]
    assert asked(fleet.served) == [*metadata, "mood.onnx", "mood.check.safetensors"]
    assert done.taken == ("mood",) and answers(board) == answers(retrained / "newer") != answers(exported)
    roll_back(board, "mood")
    assert answers(board) == answers(exported)
    assert fleet.pull(board).kept == {"mood": "rolled back on this board"}
    assert answers(board) == answers(exported)


@pytest.mark.slow
def test_the_publisher_rolls_back_by_publishing_the_old_file(fleet, board, exported, retrained):
    fleet.publish(retrained / "newer")
    fleet.pull(board)
    fleet.publish(exported, tasks=["mood"])
    assert fleet.pull(board).taken == ("mood",) and answers(board) == answers(exported)


def test_a_folder_such_as_a_usb_stick_is_a_repository_too(fleet, board, retrained):
    fleet.publish(retrained / "newer")
    fleet.served.address = str(fleet.repository)
    assert fleet.pull(board).taken == ("mood",)
    assert fleet.served.asked == []


def test_a_broken_download_goes_on_where_it_broke_off(fleet, tmp_path):
    size = next((fleet.repository / "targets" / "stable").glob("*.model.safetensors")).stat().st_size
    fleet.served.faults["model.safetensors"] = lambda body, content: body.write(content[:1000])
    with pytest.raises(EdgepeftError, match=f"broke off after 1000 of {size} bytes"):
        fleet.pull(tmp_path / "new")
    fleet.served.faults.clear()
    fleet.served.asked.clear()
    fleet.pull(tmp_path / "new")
    assert [(s, n) for path, s, n in fleet.served.asked if path.endswith("model.safetensors")] == [(1000, size - 1000)]


@pytest.mark.slow
def test_a_server_without_ranges_and_a_beginning_of_other_bytes_are_downloaded_anew(fleet, tmp_path, exported):
    fleet.served.faults["model.safetensors"] = lambda body, content: body.write(content[:1000])
    for ranges, spoil in ((False, False), (True, True)):
        board = tmp_path / f"new-{ranges}"
        fleet.served.ranges = True
        with pytest.raises(EdgepeftError):
            fleet.pull(board)
        fault = fleet.served.faults.pop("model.safetensors")
        if spoil:
            next((board / ".fleet" / "files").glob("*.part")).write_bytes(bytes(1000))
        fleet.served.ranges = ranges
        fleet.pull(board)
        fleet.served.faults["model.safetensors"] = fault
        assert answers(board) == answers(exported)


def test_a_task_that_was_tuned_here_stays_unless_it_is_to_be_replaced(fleet, board, exported, retrained):
    tuned(board, retrained / "newer")
    fleet.publish(exported, channel="beta")
    own = answers(board)
    assert fleet.pull(board).kept == {"mood": "tuned or added on this board"}
    assert fleet.pull(board, channel="beta").kept and answers(board) == own
    assert fleet.pull(board, replace_tuned=True).taken == ("mood",) and answers(board) == answers(exported)
    roll_back(board, "mood")  # what was tuned is the version before
    assert answers(board) == own


def test_a_task_that_is_being_tuned_stays_and_the_others_are_taken_up(fleet, board, retrained, monkeypatch):
    monkeypatch.setattr("edgepeft.fleet.pull._PATIENCE_S", 0.1)
    fleet.publish(retrained / "newer")
    withdraw(fleet.repository, fleet.keys, ["score"])
    with claim(board, "mood"):
        done = fleet.pull(board)
    assert list(done.busy) == ["mood"] and done.removed == ("score",)
    assert fleet.pull(board).taken == ("mood",)


def test_what_is_withdrawn_goes_and_what_the_board_removed_stays_away(fleet, board, exported, retrained):
    withdraw(fleet.repository, fleet.keys, ["pair", "score"])
    tuned(board, exported, "score")  # the same version: still the fleet's
    assert fleet.pull(board).removed == ("pair", "score")
    remove_task(board, "mood")
    assert fleet.pull(board).kept == {"mood": "removed on this board"}
    assert list(Manifest.read(board).tasks) == []
    fleet.publish(retrained / "newer", tasks=["mood"])
    assert fleet.pull(board).taken == ("mood",)


def test_another_backbone_replaces_all_but_not_what_was_tuned_unasked(fleet, board, retrained, exported):
    with pytest.raises(UsageError, match="--withdraw pair --withdraw score"):
        fleet.publish(retrained / "other")
    withdraw(fleet.repository, fleet.keys, ["pair", "score"])
    fleet.publish(retrained / "other")
    tuned(board, retrained / "newer")
    before = tree(board)
    with pytest.raises(UsageError, match="mood, which is this board's own, cannot come along"):
        fleet.pull(board)
    assert tree(board) == before
    fleet.served.asked.clear()
    board.chmod(0o750)
    link = board.with_name("link")
    link.symlink_to(board)
    done = fleet.pull(link, replace_tuned=True)
    assert link.is_symlink() and board.stat().st_mode & 0o777 == 0o750
    assert done.whole and done.taken == ("mood", "news") and answers(board) == answers(retrained / "other")
    assert "tokenizer.json" not in asked(fleet.served)  # both have the same
    assert fleet.pull(board).taken == ()


def test_own_tasks_come_along_where_the_backbone_stays_the_same(fleet, board, retrained, exported, tmp_path):
    changed = shutil.copytree(exported, tmp_path / "changed")
    manifest = Manifest.read(changed)
    fewer = {name: sha256 for name, sha256 in manifest.files.items() if "Pooling" not in name}
    manifest.model_copy(update={"files": fewer}).write(changed)
    fleet.publish(changed)
    tuned(board, retrained / "newer")
    done = fleet.pull(board)
    assert done.whole and done.taken == () and list(done.kept) == ["mood"]
    assert {name.rpartition(".")[2] for name in asked(fleet.served)} == {"json"}  # metadata alone
    assert answers(board) == answers(retrained / "newer") and answers(board, "score") == answers(exported, "score")


def test_a_bundle_that_came_by_hand_is_taken_for_the_fleets_where_it_is_as_published(fleet, bundle, retrained):
    assert fleet.pull(bundle).taken == ()
    fleet.publish(retrained / "newer")
    assert fleet.pull(bundle).taken == ("mood",)


def test_a_board_without_room_says_how_much_it_needs(fleet, board, retrained, monkeypatch):
    fleet.publish(retrained / "newer")
    usage = namedtuple("usage", "total used free")(1, 1, 1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    before = tree(board)
    with pytest.raises(EdgepeftError, match=r"has 1,000 bytes of room, and this needs [\d,]+ for 2 files"):
        fleet.pull(board)
    assert tree(board) == before


def test_one_pull_at_a_time(fleet, board):
    with held_folder(board, ".fleet"), pytest.raises(UsageError, match="another process is pulling"):
        fleet.pull(board)


def test_a_service_takes_up_a_task_and_another_backbone_without_a_restart(fleet, board, retrained):
    pytest.importorskip("starlette", reason="needs pip install edgepeft[serve]")
    from edgepeft.serve.service import Service
    from edgepeft.serve.settings import Settings

    service = Service(Settings(bundle=board, no_cache=True))

    def served():
        return [(each.label, round(each.score, 5)) for each in service.answer(["mood"] * len(TEXTS), TEXTS)]

    served()
    fleet.publish(retrained / "newer")
    fleet.pull(board)
    assert service.changed and service.reload() == ("mood",)
    assert served() == answers(retrained / "newer")
    withdraw(fleet.repository, fleet.keys, ["pair", "score"])
    fleet.publish(retrained / "other")
    fleet.pull(board)
    assert service.changed
    service.reload()
    assert served() == answers(retrained / "other")
    service.close()
