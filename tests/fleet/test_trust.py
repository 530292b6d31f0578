"""What a board trusts is what it was told; what came with a bundle is not."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timedelta

import pytest
from boards_of import answers, tree
from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import Metadata
from verbs import edgepeft

from edgepeft.common.errors import EdgepeftError, UsageError, VerificationFailed
from edgepeft.deploy.signature import read_private_key
from edgepeft.fleet.publish import publish, refresh, rotate
from edgepeft.fleet.pull import pull


@pytest.fixture
def hostile(exported, retrained, tmp_path):
    """Another publisher's repository, and a bundle that came with what it trusts of that one."""
    publish(retrained / "newer", tmp_path / "hostile", tmp_path / "hostile-keys")
    root = tmp_path / "hostile" / "metadata" / "1.root.json"
    pull(str(tmp_path / "hostile"), tmp_path / "made", root=root)
    shutil.copytree(tmp_path / "made", tmp_path / "came", symlinks=True)
    return tmp_path / "hostile", tmp_path / "came"


def test_metadata_that_came_with_a_bundle_are_no_root_of_trust(hostile):
    repository, came = hostile
    before = tree(came, but="nothing")
    done = edgepeft("pull", repository, came)
    assert done.returncode == 2 and "may have come with the bundle" in done.stderr and "Give --root" in done.stderr
    assert tree(came, but="nothing") == before


def test_a_given_root_replaces_what_came_state_and_all(hostile, fleet):
    _, came = hostile
    state = came / ".fleet" / "state.json"
    document = json.loads(state.read_bytes())
    document["refused"] = dict.fromkeys(document["taken"].values(), "no")
    state.write_text(json.dumps(document))
    assert fleet.pull(came).refused == {}
    history = came / ".fleet" / "metadata" / "root_history"
    assert [path.read_bytes() for path in history.iterdir()] == [fleet.root.read_bytes()]
    assert "hostile" not in state.read_text() and json.loads(state.read_bytes())["refused"] == {}


def test_a_root_that_was_given_once_is_remembered_outside_of_the_bundle(fleet, tmp_path, retrained, hostile):
    board = tmp_path / "new"
    fleet.pull(board)
    fleet.publish(retrained / "newer")
    assert edgepeft("pull", fleet.served.address, board).returncode == 0
    assert answers(board) == answers(retrained / "newer")
    shutil.rmtree(board)
    shutil.copytree(hostile[1], board, symlinks=True)  # somebody puts another in its place
    with pytest.raises(VerificationFailed, match="signatures are not by the keys that this board trusts"):
        pull(str(hostile[0]), board)
    assert pull(fleet.served.address, board).refused == {}


def test_without_a_place_to_remember_it_the_root_is_given_each_time(fleet, tmp_path, monkeypatch, retrained):
    monkeypatch.setenv("EDGEPEFT_CACHE", "/proc/nowhere")
    with pytest.warns(RuntimeWarning, match="needs --root again"):
        fleet.pull(tmp_path / "new")
    fleet.publish(retrained / "newer")
    with pytest.warns(RuntimeWarning):  # the state stays: the task is the fleet's
        assert fleet.pull(tmp_path / "new").taken == ("mood",)
    with pytest.raises(UsageError, match="Give --root"):
        pull(fleet.served.address, tmp_path / "new")


def signed_by(path, keys, change):
    """A file of metadata, changed and signed anew by these keys alone."""
    document = Metadata.from_file(str(path))
    change(document.signed)
    document.signatures.clear()
    for key in keys:
        document.sign(CryptoSigner(read_private_key(key)), append=True)
    path.write_bytes(document.to_bytes())


def newer(signed):
    signed.version += 1


def test_one_of_two_keys_signs_nothing(tmp_path, exported, retrained):
    repository, keys = tmp_path / "r", tmp_path / "k"
    publish(exported, repository, keys, thresholds={"targets": 2, "timestamp": 2, "root": 2})
    root = repository / "metadata" / "1.root.json"
    pull(str(repository), tmp_path / "board", root=root)
    publish(retrained / "newer", repository, keys)
    good = shutil.copytree(repository, tmp_path / "good")
    for name, role in (("timestamp.json", "timestamp"), ("2.stable.json", "targets")):
        key = keys / f"{role}.pem"
        for signers in ([key], [key, key]):  # nor the same one twice
            signed_by(repository / "metadata" / name, signers, lambda signed: None)
            with pytest.raises(VerificationFailed, match="signatures are not by the keys"):
                pull(str(repository), tmp_path / "board")
        shutil.copytree(good, repository, dirs_exist_ok=True)
    second = repository / "metadata" / "2.root.json"
    shutil.copy(root, second)
    signed_by(second, [keys / "root.pem"], newer)
    with pytest.raises(VerificationFailed, match="signatures are not by the keys"):
        pull(str(repository), tmp_path / "board")
    second.unlink()
    assert pull(str(repository), tmp_path / "board").taken == ("mood",)


@pytest.mark.parametrize("role", ["targets", "snapshot", "timestamp"])
def test_a_revoked_key_signs_nothing_for_boards_that_saw_it_and_for_new_ones(role, fleet, board, tmp_path):
    rotate(fleet.repository, fleet.keys, role)
    stolen = next((fleet.keys / "retired").glob(f"{role}*.pem"))
    newest = max((fleet.repository / "metadata").glob(f"*{role}.json"), key=lambda path: path.name)
    signed_by(newest, [stolen], newer if role == "timestamp" else lambda signed: None)
    for place in (board, tmp_path / "new"):
        with pytest.raises(EdgepeftError, match="signatures are not by the keys that this board trusts"):
            fleet.pull(place)
    assert not (tmp_path / "new").exists()


def test_a_revoked_root_key_makes_no_next_root(fleet, board):
    rotate(fleet.repository, fleet.keys, "root")
    fleet.pull(board)
    stolen = next((fleet.keys / "retired").glob("root*.pem"))
    forged = fleet.repository / "metadata" / "3.root.json"
    shutil.copy(fleet.repository / "metadata" / "2.root.json", forged)
    signed_by(forged, [stolen], newer)
    with pytest.raises(VerificationFailed, match="signatures are not by the keys"):
        fleet.pull(board)


@pytest.mark.parametrize("name", ["snapshot", "targets", "stable"])
def test_no_part_of_another_state_is_mixed_in(name, fleet, board, retrained):
    """Each file is validly signed, but of another moment."""
    metadata = fleet.repository / "metadata"
    old = {path.name: path.read_bytes() for path in metadata.iterdir()}
    fleet.publish(retrained / "newer")
    rotate(fleet.repository, fleet.keys, "targets")  # so that every role has a newer version
    newest = max(metadata.glob(f"*.{name}.json"), key=lambda path: int(path.name.split(".")[0]))
    newest.write_bytes(old[f"1.{name}.json"])
    before = tree(board)
    with pytest.raises(VerificationFailed):
        fleet.pull(board)
    assert tree(board) == before


class Earlier(datetime):
    """What a clock says that was set back by a year."""

    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) - timedelta(days=365)


@pytest.fixture
def set_back(monkeypatch):
    """Set the board's clock back: python-tuf asks datetime for the time, and so do we."""
    from tuf.ngclient._internal import trusted_metadata_set

    def set_back():
        monkeypatch.setattr(trusted_metadata_set.datetime, "datetime", Earlier)
        monkeypatch.setattr("edgepeft.fleet.remote.datetime", Earlier)

    return set_back


def test_a_clock_that_goes_back_a_year_takes_nothing_older_pulls_on_and_says_so(
    fleet, board, retrained, tmp_path, set_back
):
    yesterday = shutil.copytree(fleet.repository / "metadata", tmp_path / "yesterday")
    fleet.publish(retrained / "newer")
    assert fleet.pull(board).taken == ("mood",)
    today = shutil.copytree(fleet.repository / "metadata", tmp_path / "today")
    shutil.copytree(yesterday, fleet.repository / "metadata", dirs_exist_ok=True)
    set_back()
    behind = "this board's clock says .*last saw something new.*Set it"
    with (
        pytest.warns(RuntimeWarning, match=behind),
        pytest.raises(VerificationFailed, match="an older or another state"),
    ):
        fleet.pull(board)
    shutil.copytree(today, fleet.repository / "metadata", dirs_exist_ok=True)
    with pytest.warns(RuntimeWarning, match=behind):
        assert fleet.pull(board).taken == () and answers(board) == answers(retrained / "newer")
    fleet.publish(fleet.bundle)
    with pytest.warns(RuntimeWarning, match=behind):
        assert fleet.pull(board).taken == ("mood",)


def test_what_expired_is_refused_and_looks_fresh_by_a_clock_that_was_set_back_which_is_said(fleet, board, set_back):
    refresh(fleet.repository, fleet.keys, days={"timestamp": -1})
    with pytest.raises(VerificationFailed, match=r"timestamp\.json is expired"):
        fleet.pull(board)
    set_back()
    with pytest.warns(RuntimeWarning, match="nobody can see that metadata are out of date"):
        assert fleet.pull(board).taken == ()
