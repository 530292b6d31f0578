"""Signatures: what the key's owner signed is served, and nothing that was altered since."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess

import pytest

pytest.importorskip("cryptography", reason="needs pip install edgepeft[serve]")

from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from verbs import edgepeft, process


def write_key(folder, name="key", key=None):
    key = key or ed25519.Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.fixture
def signed(bundle, tmp_path):
    private, public = write_key(tmp_path)
    assert edgepeft("sign", bundle, "--key", private).returncode == 0
    return bundle, public


def test_a_signed_bundle_is_verified(signed):
    bundle, public = signed
    assert edgepeft("verify", bundle, "--key", public).returncode == 0


def test_the_signature_is_ed25519_over_the_list_of_hashes_as_the_library_alone_sees_it(signed):
    bundle, public = signed
    document = json.loads((bundle / "edgepeft.sig").read_text())
    signed_part = {name: document[name] for name in ("format", "files", "version")}
    content = json.dumps(signed_part, sort_keys=True, separators=(",", ":")).encode()
    key = s.load_pem_public_key(public.read_bytes())
    key.verify(base64.b64decode(document["signature"]), content)
    if shutil.which("sha256sum"):
        found = subprocess.run(["sha256sum", bundle / "edgepeft.json"], capture_output=True, text=True, check=True)
        assert document["files"]["edgepeft.json"] == found.stdout.split()[0]


def altered(path, change):
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    "alter",
    [
        lambda b: altered(b / "edgepeft.json", lambda c: c.replace(b'"mood"', b'"moop"')),
        lambda b: altered(b / "config.json", lambda c: c + b"\n"),
        lambda b: altered(b / "tokenizer.json", lambda c: c.replace(b"w5", b"w6")),
        lambda b: (b / "tokenizer_config.json").write_text("{}"),
        lambda b: (b / "edgepeft.sig").unlink(),
        lambda b: (b / "edgepeft.sig").write_text("{}"),
        lambda b: altered(b / "edgepeft.sig", lambda c: c.replace(b'"signature": "', b'"signature": "A')),
        lambda b: edgepeft("remove", b, "mood"),
    ],
)
def test_whatever_is_altered_after_signing_is_found(signed, alter):
    bundle, public = signed
    alter(bundle)
    done = edgepeft("verify", bundle, "--key", public)
    assert done.returncode in (1, 3)
    assert "sign" in done.stderr


def test_an_older_signed_state_is_refused_where_a_newer_one_was_seen(signed, tmp_path):
    bundle, public = signed
    older = shutil.copytree(bundle, tmp_path / "older")
    assert edgepeft("remove", bundle, "score").returncode == 0
    assert edgepeft("sign", bundle, "--key", tmp_path / "key.pem").returncode == 0
    assert edgepeft("verify", bundle, "--key", public).returncode == 0
    shutil.rmtree(bundle)
    older.rename(bundle)
    done = edgepeft("verify", bundle, "--key", public)
    assert done.returncode == 3
    assert "older signed state" in done.stderr and "--allow-older" in done.stderr
    assert edgepeft("verify", bundle, "--key", public, "--allow-older").returncode == 0
    assert edgepeft("verify", bundle, "--key", public).returncode == 0  # that is the state that is meant now
    assert edgepeft("verify", bundle, "--allow-older").returncode == 2


def test_a_signature_from_before_there_were_versions_is_taken(signed, tmp_path):
    bundle, public = signed
    document = json.loads((bundle / "edgepeft.sig").read_text())
    del document["version"]
    content = json.dumps(
        {"format": document["format"], "files": document["files"]}, sort_keys=True, separators=(",", ":")
    ).encode()
    key = s.load_pem_private_key((tmp_path / "key.pem").read_bytes(), None)
    document["signature"] = base64.b64encode(key.sign(content)).decode()
    (bundle / "edgepeft.sig").write_text(json.dumps(document))
    assert edgepeft("verify", bundle, "--key", public).returncode == 0


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": "edgepeft.signature/1"}'])
def test_a_damaged_signature_is_replaced_by_the_signing_that_its_message_asks_for(signed, content):
    bundle, public = signed
    (bundle / "edgepeft.sig").write_bytes(content)
    assert "sign the bundle again" in edgepeft("verify", bundle, "--key", public).stderr
    assert edgepeft("sign", bundle, "--key", public.with_suffix(".pem")).returncode == 0
    assert edgepeft("verify", bundle, "--key", public).returncode == 0


def test_what_fails_verification_is_not_signed(bundle, tmp_path):
    private, _ = write_key(tmp_path)
    altered(bundle / "tasks/mood.onnx", lambda c: c[:-1] + bytes([c[-1] ^ 1]))
    done = edgepeft("sign", bundle, "--key", private)
    assert done.returncode == 3 and "mood" in done.stderr
    assert not (bundle / "edgepeft.sig").exists()


def test_what_no_signature_covers_is_named(bundle, tmp_path):
    private, _ = write_key(tmp_path)
    (bundle / "notes.txt").touch()
    done = edgepeft("sign", bundle, "--key", private)
    assert "not covered, and not read for answers: README.md, notes.txt" in " ".join(done.stderr.split())


def test_altered_weights_are_found_by_the_manifests_hash(signed):
    bundle, public = signed
    altered(bundle / "model.safetensors", lambda c: c[:-1] + bytes([c[-1] ^ 1]))
    assert edgepeft("verify", bundle, "--key", public).returncode == 3


def test_another_owners_signature_is_refused(signed, tmp_path):
    _, other = write_key(tmp_path, "other")
    done = edgepeft("verify", signed[0], "--key", other)
    assert done.returncode == 3
    assert "owner" in done.stderr


def test_wrong_keys_are_usage_errors(bundle, tmp_path):
    private, public = write_key(tmp_path)
    elliptic, elliptic_public = write_key(tmp_path, "ec", ec.generate_private_key(ec.SECP256R1()))
    (tmp_path / "none").write_text("no key")
    for key in (public, elliptic, tmp_path / "none", tmp_path / "nowhere", tmp_path):
        done = edgepeft("sign", bundle, "--key", key)
        assert done.returncode == 2, key
    for key in (private, elliptic_public, tmp_path / "none", tmp_path / "nowhere"):
        done = edgepeft("verify", bundle, "--key", key)
        assert done.returncode == 2, key
    assert not (bundle / "edgepeft.sig").exists()
    assert edgepeft("sign", tmp_path, "--key", private).returncode == 2


def test_serve_demands_the_signature_and_keeps_what_was_signed_when_an_unsigned_change_comes(signed, tmp_path):
    pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")
    from served import serving

    bundle, public = signed
    with serving(bundle, tmp_path, "--no-cache", "--require-signature", public) as own:
        edgepeft("remove", bundle, "score")
        own.wait_for(lambda: "was not read again" in own.log)
        assert own.predict("mood", {"text": "w5"})[0] == 200
        assert "score" in json.dumps(own.get("/v1/tasks")[2])
        assert edgepeft("sign", bundle, "--key", tmp_path / "key.pem").returncode == 0
        own.wait_for(lambda: "score" not in json.dumps(own.get("/v1/tasks")[2]))
    (bundle / "edgepeft.sig").unlink()
    done = process("serve", bundle, "--port", "0", "--require-signature", public)
    assert done.returncode == 3
    assert "not signed" in done.stderr
