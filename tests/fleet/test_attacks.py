"""What an attacker, or a publisher's mistake, puts in a repository is refused with its reason, and nothing stays behind."""

from __future__ import annotations

import json
import shutil
import socket
import time

import pytest
from boards_of import downloads, tree
from safetensors.numpy import load_file, save_file
from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import Metadata, TargetFile
from verbs import verb

from edgepeft.common.errors import EdgepeftError, VerificationFailed
from edgepeft.deploy.signature import read_private_key
from edgepeft.fleet.publish import publish, refresh, rotate
from edgepeft.fleet.repository import FolderRepository, Keys


def replayed(fleet, board, retrained):
    """Yesterday's repository, whole and correctly signed."""
    yesterday = shutil.copytree(fleet.repository / "metadata", board.parent / "yesterday")
    refresh(fleet.repository, fleet.keys)
    fleet.pull(board)
    shutil.copytree(yesterday, fleet.repository / "metadata", dirs_exist_ok=True)


def frozen(fleet, board, retrained):
    """What was true last week, for ever."""
    refresh(fleet.repository, fleet.keys, days={"timestamp": -1})


def expired_root(fleet, board, retrained):
    rotate(fleet.repository, fleet.keys, "root", days={"root": -1})


def mixed(fleet, board, retrained):
    """Today's snapshot with yesterday's targets under today's name."""
    old = (fleet.repository / "metadata" / "1.stable.json").read_bytes()
    fleet.publish(retrained / "newer")
    (fleet.repository / "metadata" / "2.stable.json").write_bytes(old)


def altered(fleet, board, retrained):
    """One bit of a delta's graph."""
    graph = _mood(fleet, retrained)
    content = bytearray(graph.read_bytes())
    content[len(content) // 2] ^= 1
    graph.write_bytes(content)


def longer(fleet, board, retrained):
    graph = _mood(fleet, retrained)
    graph.write_bytes(graph.read_bytes() + b"\0")


def shorter(fleet, board, retrained):
    graph = _mood(fleet, retrained)
    graph.write_bytes(graph.read_bytes()[:-1])


def missing(fleet, board, retrained):
    _mood(fleet, retrained).unlink()


def _mood(fleet, retrained):
    before = set(fleet.repository.rglob("*.mood.onnx"))
    fleet.publish(retrained / "newer")
    return (set(fleet.repository.rglob("*.mood.onnx")) - before).pop()


def _endless(body, content):
    while True:
        body.write(bytes(1 << 16))


def endless(fleet, board, retrained):
    """A delta that goes on for ever."""
    _mood(fleet, retrained)
    fleet.served.faults["mood.onnx"] = lambda body, content: (body.write(content), _endless(body, content))


def behind_a_login(fleet, board, retrained):
    """Whatever is asked for, a page comes."""
    fleet.served.faults["timestamp.json"] = lambda body, content: body.write(b"<html>log in</html>".ljust(len(content)))


def endless_metadata(fleet, board, retrained):
    fleet.served.faults["timestamp.json"] = _endless


def dripping(fleet, board, retrained):
    """A byte now and then, within less time than half a minute (``slow``)."""

    def drip(body, content):
        for byte in content:
            body.write(bytes([byte]))
            body.flush()
            time.sleep(0.05)

    fleet.served.faults["timestamp.json"] = drip


def revoked(fleet, board, retrained):
    """A newer timestamp by a key that was stolen, and replaced since."""
    rotate(fleet.repository, fleet.keys, "timestamp")
    stolen = CryptoSigner(read_private_key(next((fleet.keys / "retired").glob("timestamp*.pem"))))
    path = fleet.repository / "metadata" / "timestamp.json"
    forged = Metadata.from_file(str(path))
    forged.signed.version += 1
    forged.sign(stolen)
    path.write_bytes(forged.to_bytes())


def of_another_repository(fleet, board, retrained):
    """Signed by somebody, but not by whom the board trusts."""
    shutil.rmtree(fleet.repository)
    publish(fleet.bundle, fleet.repository, fleet.keys.with_name("others"))


@pytest.fixture
def slow(monkeypatch, request):
    """A window of a part of a second."""
    if "dripping" in request.node.name:
        monkeypatch.setattr("edgepeft.fleet.fetcher._WINDOW_S", 0.3)


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (replayed, "an older or another state was sent than the one signed or seen here before"),
        (frozen, "timestamp.json is expired, and this board's clock says 20.* The bundle goes on answering"),
        (expired_root, "root.json is expired"),
        (mixed, "an older or another state was sent"),
        (altered, "tasks/mood.onnx: the file is not the one that is signed"),
        (longer, "mood.onnx: the file is longer than what is signed"),
        (shorter, r"mood.onnx broke off after \d+ of \d+ bytes"),
        (missing, "a file is missing .*404"),
        (endless, "mood.onnx: the file is longer than what is signed"),
        (behind_a_login, "what was sent is no metadata .* login page"),
        (endless_metadata, "the file is longer than what is signed"),
        (dripping, "it comes too slowly"),
        (revoked, "the signatures are not by the keys that this board trusts"),
        (of_another_repository, "the signatures are not by the keys that this board trusts"),
    ],
)
def test_it_is_refused_with_its_reason_and_leaves_nothing(attack, reason, fleet, board, retrained, slow):
    root = fleet.root.read_bytes()
    attack(fleet, board, retrained)
    given = board.parent / "root.json"
    given.write_bytes(root)
    before = tree(board)
    done = verb("pull", fleet.served.address, board, "--root", given)
    assert isinstance(done.exception, EdgepeftError), done.output
    with pytest.raises(EdgepeftError, match=reason):
        raise done.exception
    assert isinstance(done.exception, VerificationFailed) == (attack not in (shorter, missing, dripping))
    assert tree(board) == before
    assert len(downloads(board)) == (attack is shorter)  # what broke off is kept to go on with


def smuggled(fleet, files):
    """Put files in the channel, correctly signed, past what ``edgepeft publish`` would have refused."""
    repository = FolderRepository(fleet.repository, Keys(fleet.keys, fleet.repository))
    with repository.edit_targets("stable") as signed:
        for place, path in files.items():
            target = TargetFile.from_file(f"stable/{place}", str(path), ["sha256"])
            target.unrecognized_fields = dict(signed.targets[f"stable/{place}"].unrecognized_fields)
            folder, _, name = f"stable/{place}".rpartition("/")
            shutil.copy(path, fleet.repository / "targets" / folder / f"{target.hashes['sha256']}.{name}")
            signed.targets[target.path] = target
            _name_in_entry(signed.targets, target)
    repository.put_in_force()


def _name_in_entry(targets, target):
    graph = targets["stable/tasks/mood.onnx"]
    entry = json.loads(graph.custom["edgepeft"])
    entry["check_sha256" if "check" in target.path else "sha256"] = target.hashes["sha256"]
    graph.unrecognized_fields["custom"] = {"edgepeft": json.dumps(entry)}


def test_a_delta_for_another_backbone_is_not_taken_up_and_not_fetched_twice(fleet, board, retrained):
    tasks = retrained / "other" / "tasks"
    smuggled(fleet, {f"tasks/mood{end}": tasks / f"mood{end}" for end in (".onnx", ".check.safetensors")})
    before = tree(board)
    done = verb("pull", fleet.served.address, board)
    assert isinstance(done.exception, VerificationFailed) and "belongs to the backbone" in str(done.exception)
    fleet.served.asked.clear()
    assert list(fleet.pull(board).refused) == ["mood"] and tree(board) == before and downloads(board) == []
    assert [path for path, _, _ in fleet.served.asked] == ["/metadata/2.root.json", "/metadata/timestamp.json"]


def test_a_delta_that_does_not_give_here_what_it_gave_the_publisher_is_not_taken_up(fleet, board, retrained, tmp_path):
    tasks, check = retrained / "newer" / "tasks", tmp_path / "mood.check.safetensors"
    tensors = load_file(tasks / "mood.check.safetensors")
    save_file({**tensors, "logits": tensors["logits"] + 0.01}, check)
    smuggled(fleet, {"tasks/mood.onnx": tasks / "mood.onnx", "tasks/mood.check.safetensors": check})
    before = tree(board)
    assert "differs from PyTorch by 0.01" in fleet.pull(board).refused["mood"]
    assert tree(board) == before


def test_a_file_that_its_entry_does_not_name_is_refused(fleet, board, retrained):
    repository = FolderRepository(fleet.repository, Keys(fleet.keys, fleet.repository))
    with repository.edit_targets("stable") as signed:
        signed.targets["stable/tasks/mood.onnx"].hashes["sha256"] = "0" * 64
    repository.put_in_force()
    with pytest.raises(EdgepeftError, match=r"tasks/mood.onnx is not the file that its entry names"):
        fleet.pull(board)


def test_a_server_that_never_answers_is_left(board, fleet, monkeypatch):
    monkeypatch.setattr("edgepeft.fleet.fetcher._WINDOW_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        fleet.served.address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(EdgepeftError, match="it comes too slowly"):
            fleet.pull(board)
