"""A repository is one that any TUF client can read, its keys stay outside, and mistakes are named."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from boards_of import answers
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from tuf.ngclient import Updater
from verbs import edgepeft

from edgepeft.common.errors import UsageError
from edgepeft.fleet.publish import publish, refresh, rotate
from edgepeft.fleet.repository import DAYS, FolderRepository


def _canonical(document):
    """OLPC's canonical JSON, for documents of ASCII strings and integers."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def test_every_signature_is_ed25519_of_the_canonical_document(fleet):
    root = json.loads(fleet.root.read_bytes())["signed"]
    for path in (fleet.repository / "metadata").iterdir():
        document = json.loads(path.read_bytes())
        role = re.sub(r"^\d+\.|\.json$", "", path.name)
        asked = root["roles"].get(role, root["roles"]["targets"])
        signatures = {each["keyid"]: bytes.fromhex(each["sig"]) for each in document["signatures"]}
        assert set(signatures) == set(asked["keyids"]) and len(signatures) == asked["threshold"] == 1
        for key, signature in signatures.items():
            public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(root["keys"][key]["keyval"]["public"]))
            text = _canonical(document["signed"]).decode().replace("\\n", "\n").encode()
            public.verify(signature, text)
        kind = role if role in DAYS else "targets"
        left = datetime.fromisoformat(document["signed"]["expires"]) - datetime.now(UTC)
        assert timedelta(days=DAYS[kind] - 1) < left <= timedelta(days=DAYS[kind])


def test_tufs_own_client_reads_it_over_http(fleet, tmp_path, exported):
    (tmp_path / "files").mkdir()
    where = [f"{fleet.served.address}/{name}/" for name in ("metadata", "targets")]
    client = Updater(
        str(tmp_path / "m"), where[0], str(tmp_path / "files"), where[1], bootstrap=fleet.root.read_bytes()
    )
    for place in ("tasks/mood.onnx", "model.safetensors"):
        target = client.get_targetinfo(f"stable/{place}")
        file = Path(client.download_target(target))
        assert file.read_bytes() == (exported / place).read_bytes()
        assert target.length == (exported / place).stat().st_size
    entry = json.loads(client.get_targetinfo("stable/tasks/mood.onnx").custom["edgepeft"])
    assert (
        entry["labels"] == ["no", "yes"]
        and entry["sha256"] in client.get_targetinfo("stable/tasks/mood.onnx").hashes.values()
    )


def test_keys_are_private_and_outside_of_the_repository(fleet):
    assert {path.stat().st_mode & 0o777 for path in fleet.keys.iterdir()} == {0o600}
    assert fleet.keys.stat().st_mode & 0o777 == 0o700
    assert not [path for path in fleet.repository.rglob("*") if path.is_file() and b"PRIVATE" in path.read_bytes()]
    with pytest.raises(UsageError, match="lies in the repository"):
        publish(fleet.bundle, fleet.repository, fleet.repository / "keys")


def test_the_timestamp_is_refreshed_by_its_key_alone_and_the_rest_when_it_is_due(fleet, board):
    aside = fleet.keys.with_name("drawer")
    fleet.keys.rename(aside)
    fleet.keys.mkdir()
    shutil.copy(aside / "timestamp.pem", fleet.keys)
    assert refresh(fleet.repository, fleet.keys) == ("timestamp",)
    assert refresh(fleet.repository, fleet.keys, days={"targets": 800}) == ("timestamp",)  # due, and no key
    with pytest.raises(UsageError, match=r"stable is signed by 1 of its keys, .* has 0 of them. Put targets.pem there"):
        FolderRepository(fleet.repository, _keys(fleet)).sign_anew("stable")
    due = refresh(fleet.repository, aside, days={"targets": 800, "snapshot": 800})
    assert due == ("targets", "stable", "snapshot", "timestamp")
    assert fleet.pull(board).taken == ()


def _keys(fleet):
    from edgepeft.fleet.repository import Keys

    return Keys(fleet.keys, fleet.repository)


def test_boards_follow_every_rotation_of_keys(fleet, board, retrained):
    old = {path.name: path.read_bytes() for path in fleet.keys.iterdir()}
    for role in ("root", "targets", "snapshot", "timestamp", "root"):
        rotate(fleet.repository, fleet.keys, role)
    assert not {path.read_bytes() for path in fleet.keys.glob("*.pem")} & set(old.values())
    fleet.publish(retrained / "newer")
    assert fleet.pull(board).taken == ("mood",) and answers(board) == answers(retrained / "newer")


def test_two_of_three_root_keys_sign(fleet, tmp_path, exported):
    publish(exported, tmp_path / "r", tmp_path / "k", tasks=["score"], thresholds={"root": 2})
    (tmp_path / "k" / "root-2.pem").rename(tmp_path / "gone.pem")
    with pytest.raises(UsageError, match=r"the role root is signed by 2 of its keys, and .* has 1 of them"):
        rotate(tmp_path / "r", tmp_path / "k", "timestamp")


@pytest.mark.slow
def test_channels_are_apart_and_share_their_files(fleet, board, retrained, exported, tmp_path):
    fleet.publish(retrained / "newer", channel="beta", tasks=["mood"])
    assert fleet.pull(board).taken == ()
    assert fleet.pull(tmp_path / "brave", channel="beta").taken == ("mood",)
    assert answers(tmp_path / "brave") == answers(retrained / "newer") != answers(board)
    weights = list(fleet.repository.rglob("*.model.safetensors"))
    assert len(weights) == 2 and len({path.stat().st_ino for path in weights}) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{repository}", "--keys", "{keys}"], "give a bundle to publish"),
        (["{bundle}", "{bundle}/r", "--keys", "{keys}"], "lies in the bundle"),
        (["{bundle}", "{board}", "--keys", "{keys}"], "is a bundle; the repository is another folder"),
        (["{nothing}", "{repository}", "--keys", "{keys}"], "is not a bundle"),
        (["{nothing}", "--keys", "{keys}", "--refresh"], "is no repository"),
        (["{repository}", "--keys", "{keys}", "--withdraw", "moods"], "Did you mean 'mood'"),
        (
            ["{repository}", "--keys", "{keys}", "--withdraw", "mood", "--channel", "beta"],
            "no channel of this repository",
        ),
        (["{repository}", "--keys", "{keys}", "--rotate", "mirror"], "no role of a repository is called 'mirror'"),
        (["{bundle}", "{repository}", "--keys", "{keys}", "--channel", "root"], "cannot be a channel's name"),
        (["{bundle}", "{repository}", "--keys", "{keys}", "--channel", "../up"], "cannot be a channel's name"),
        (["{bundle}", "{repository}", "--keys", "{keys}", "--task", "moods"], "Did you mean 'mood'"),
        (["{bundle}", "{repository}", "--keys", "{keys}", "--days", "timestamp=soon"], "--days is ROLE=NUMBER"),
        (["a", "b", "c", "--keys", "{keys}"], "two folders; found 3"),
    ],
)
def test_a_wrong_command_says_what_to_do(words, said, fleet, board, tmp_path):
    places = {"bundle": fleet.bundle, "repository": fleet.repository, "keys": fleet.keys, "board": board}
    done = edgepeft("publish", *(word.format(**places, nothing=tmp_path / "nothing") for word in words))
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_what_a_killed_publisher_left_goes_with_the_next(fleet):
    targets = fleet.repository / "targets" / "stable" / "tasks"
    (targets / f".{'0' * 64}.mood.onnx.0123abcd").write_bytes(b"half")
    (fleet.repository / "metadata" / ".7.stable.json.0123abcd").write_bytes(b"half")
    refresh(fleet.repository, fleet.keys)
    assert not [*fleet.repository.rglob(".*")]
