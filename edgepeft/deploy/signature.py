"""Ed25519 signatures of a bundle (RFC 8032), by the ``cryptography`` package.

``edgepeft.sig`` lists the SHA-256 of the manifest and of the files that an older manifest does not name (config and
tokenizer), and signs that list.  All other files are named by the manifest with their hashes, which are checked when
they are read: so one signature covers the bundle, and checking it reads kilobytes.

A signature has a version: the second in which it was made, or one more than the last.  A check remembers the
highest one of that folder and key, so an older signed state that is put in its place is noticed.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgepeft.backbones.emit import BUNDLE_FILES
from edgepeft.bundle.bundle import TASKS_FOLDER, places
from edgepeft.bundle.manifest import MANIFEST_FILE, FileHash, Manifest
from edgepeft.common.atomic import write_json
from edgepeft.common.errors import BundleError, EdgepeftError, UsageError, VerificationFailed, requiring
from edgepeft.common.own_folder import locked
from edgepeft.common.resources import cache_folder, private_folder, sha256_of
from edgepeft.deploy.verify import audit

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE_FILE = "edgepeft.sig"
SIGNED_FILES = (MANIFEST_FILE, *BUNDLE_FILES)
_MAX_KEY_BYTES = 64 << 10
_NEW_KEY = "openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out key.pub"


class _Signature(BaseModel):
    """The content of ``edgepeft.sig``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["edgepeft.signature/1"] = "edgepeft.signature/1"
    files: dict[str, FileHash]
    version: int = Field(default=0, ge=0)  # 0: signed before there were versions
    signature: str = ""  # base64

    @property
    def signed_bytes(self) -> bytes:
        """The bytes that are signed."""
        document: dict[str, object] = {"format": self.format, "files": self.files}
        if self.version:
            document["version"] = self.version
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def sign_bundle(folder: Path, private_key: Path) -> Path:
    """Write the signature beside the manifest, of a bundle that passes verification; the file's path."""
    key = read_private_key(private_key)
    Manifest.read(folder)
    with locked(folder):
        if wrong := next((finding for finding in audit(folder) if finding.problem), None):
            raise VerificationFailed(f"{folder} is not signed: {wrong.subject}: {wrong.problem}")
        before = 0
        with contextlib.suppress(BundleError, VerificationFailed):  # none, or a damaged one, which says nothing
            before = _stated(folder).version
        unsigned = _Signature(files=_hashes(folder), version=max(before + 1, int(time.time())))
        signature = base64.b64encode(key.sign(unsigned.signed_bytes)).decode()
        path = folder / SIGNATURE_FILE
        write_json(path, unsigned.model_copy(update={"signature": signature}).model_dump())
    return path


def unsigned_files(folder: Path) -> list[str]:
    """Files in the folder that no signature covers, since edgepeft does not read them when it answers."""
    named = {*SIGNED_FILES, SIGNATURE_FILE, *places(Manifest.read(folder))}
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    # The version before of a task is in the manifest with its hashes, as the one in force.
    return sorted(name for name in files if name not in named and not name.startswith(f"{TASKS_FOLDER}/versions/"))


def check_signature(folder: Path, public_key: Path, *, allow_older: bool = False) -> None:
    """See that the bundle is what the owner of the key signed, and no older state than was seen in that folder before.

    ``allow_older`` takes an older state, and from then on as the one that was seen.
    """
    from_private = "It comes from the private one: openssl pkey -in key.pem -pubout"
    key: Ed25519PublicKey = _read_key(public_key, "public", from_private)
    from cryptography.exceptions import InvalidSignature

    Manifest.read(folder)
    stated = _stated(folder)
    try:
        key.verify(base64.b64decode(stated.signature, validate=True), stated.signed_bytes)
    except (InvalidSignature, ValueError):  # the latter of what is no base64
        raise VerificationFailed(
            f"the signature {folder / SIGNATURE_FILE} was not made by the owner of {public_key}, or was altered."
        ) from None
    now = _hashes(folder)
    if changed := sorted(name for name in {**stated.files, **now} if stated.files.get(name) != now.get(name)):
        raise VerificationFailed(
            f"{folder}: {', '.join(changed)} changed after the bundle was signed. Where you changed the bundle (add, "
            "remove, tune), sign it again; else do not use it."
        )
    _refuse_older(folder, public_key, stated.version, allow_older)


def _refuse_older(folder: Path, public_key: Path, version: int, allow_older: bool) -> None:
    """Compare with the highest version seen of this folder and key, and remember the new one."""
    facts = f"{folder.resolve()}\n{hashlib.sha256(public_key.read_bytes()).hexdigest()}"
    name = f"{hashlib.sha256(facts.encode(errors='surrogateescape')).hexdigest()}.json"
    highest = version
    try:
        seen = private_folder(cache_folder() / "signatures") / name
        highest = int(json.loads(seen.read_bytes())["version"]) if seen.is_file() else 0
        if version > highest or (version < highest and allow_older):
            write_json(seen, {"folder": str(folder.resolve()), "version": version})
    except (OSError, EdgepeftError, ValueError, KeyError, TypeError) as error:
        warnings.warn(
            f"an older signed state would not be noticed: what was seen cannot be kept ({error}).", RuntimeWarning, 2
        )
    if version < highest and not allow_older:
        raise VerificationFailed(
            f"{folder} holds an older signed state (version {version}) than was seen there before ({highest}). If "
            f"that is meant: edgepeft verify {folder} --key {public_key} --allow-older."
        )


def _stated(folder: Path) -> _Signature:
    """Read ``edgepeft.sig``, whoever made it."""
    path = folder / SIGNATURE_FILE
    try:
        return _Signature.model_validate_json(path.read_bytes())
    except OSError:
        raise VerificationFailed(f"{folder} is not signed; sign it with: edgepeft sign {folder} --key KEY.") from None
    except ValidationError as error:
        raise BundleError(f"{path} is not a signature that this version knows; sign the bundle again.") from error


def _hashes(folder: Path) -> dict[str, str]:
    """Hash the signed files that are there; the manifest always is."""
    return {name: sha256_of(folder / name) for name in SIGNED_FILES if (folder / name).is_file()}


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """An Ed25519 private key in PEM, without a password."""
    key: Ed25519PrivateKey = _read_key(path, "private", f"Make one with: {_NEW_KEY}")
    return key


def _read_key(path: Path, kind: Literal["private", "public"], remedy: str) -> Any:
    """The Ed25519 key of that kind in a PEM file."""
    with requiring("serve", "a signature"):
        from cryptography.hazmat.primitives.asymmetric import ed25519
        from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_KEY_BYTES)
        key = load_pem_public_key(content) if kind == "public" else load_pem_private_key(content, password=None)
    except OSError as error:
        raise UsageError(
            f"the {kind} key {path} cannot be read ({error.strerror}). Make one with: {_NEW_KEY}"
        ) from error
    except TypeError as error:
        raise UsageError(f"{path} is encrypted; a key without a password is needed.") from error
    except Exception as error:  # ValueError, and the library's own for what it does not support
        raise UsageError(f"{path} holds no {kind} key in PEM. {remedy}") from error
    if not isinstance(key, ed25519.Ed25519PublicKey if kind == "public" else ed25519.Ed25519PrivateKey):
        raise UsageError(f"{path} holds a key of another kind than Ed25519. {remedy}")
    return key
