"""Ed25519 signatures of a bundle (RFC 8032), by the ``cryptography`` package.

``edgepeft.sig`` lists the SHA-256 of the manifest and of the files that an older manifest does not name (config and
tokenizer), and signs that list.  All other files are named by the manifest with their hashes, which are checked when
they are read: so one signature covers the bundle, and checking it reads kilobytes.
"""

from __future__ import annotations

import base64
import binascii
import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from edgepeft.backbones.emit import BUNDLE_FILES
from edgepeft.errors import BundleError, MissingPackage, UsageError, VerificationFailed
from edgepeft.resources import locked, sha256_of, write_json
from edgepeft.runtime.manifest import MANIFEST_FILE, FileHash, Manifest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

__all__ = ["SIGNATURE_FILE", "SIGNED_FILES", "check_signature", "sign_bundle"]

SIGNATURE_FILE = "edgepeft.sig"
SIGNED_FILES = (MANIFEST_FILE, *BUNDLE_FILES)
_MOST_KEY_BYTES = 64 << 10
_NEW_KEY = "openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out key.pub"


class _Signature(BaseModel):
    """What ``edgepeft.sig`` holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["edgepeft.signature/1"] = "edgepeft.signature/1"
    files: dict[str, FileHash]
    signature: str = ""  # base64

    @property
    def signed_bytes(self) -> bytes:
        """What the signature is of."""
        document = {"format": self.format, "files": self.files}
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def sign_bundle(folder: Path, private_key: Path) -> Path:
    """Write the signature beside the manifest; the file's path.

    Raises:
        UsageError: no bundle, or the file holds no Ed25519 private key.
        MissingPackage: ``cryptography`` is not installed.
    """
    key = _private_key(private_key)
    with locked(folder if folder.is_dir() else folder.parent):
        Manifest.read(folder)
        unsigned = _Signature(files=_hashes(folder))
        signature = base64.b64encode(key.sign(unsigned.signed_bytes)).decode()
        path = folder / SIGNATURE_FILE
        write_json(path, unsigned.model_copy(update={"signature": signature}).model_dump())
    return path


def check_signature(folder: Path, public_key: Path) -> None:
    """See that the bundle is what the owner of the key signed.

    Raises:
        UsageError: no bundle, or the file holds no Ed25519 public key.
        VerificationFailed: not signed, by another key, or changed since.
        MissingPackage: ``cryptography`` is not installed.
    """
    key = _public_key(public_key)
    Manifest.read(folder)
    path = folder / SIGNATURE_FILE
    try:
        stated = _Signature.model_validate_json(path.read_bytes())
    except OSError:
        raise VerificationFailed(f"{folder} is not signed; sign it with: edgepeft sign {folder} --key KEY.") from None
    except ValidationError as error:
        raise BundleError(f"{path} is not a signature that this version knows; sign the bundle again.") from error
    if not _is_signed_by(stated, key):
        raise VerificationFailed(f"the signature {path} was not made by the owner of {public_key}, or was altered.")
    now = _hashes(folder)
    changed = sorted(name for name in {**stated.files, **now} if stated.files.get(name) != now.get(name))
    if changed:
        raise VerificationFailed(
            f"{folder}: {', '.join(changed)} changed after the bundle was signed. Where you changed the bundle (add, "
            "remove, tune), sign it again; else do not use it."
        )


def _is_signed_by(stated: _Signature, key: Ed25519PublicKey) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(base64.b64decode(stated.signature, validate=True), stated.signed_bytes)
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True


def _hashes(folder: Path) -> dict[str, str]:
    """Of the files that are there; the manifest always is."""
    return {name: sha256_of(folder / name) for name in SIGNED_FILES if (folder / name).is_file()}


def _private_key(path: Path) -> Ed25519PrivateKey:
    content = _read_key(path, "private")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(content, password=None)
    except TypeError as error:
        raise UsageError(f"{path} is encrypted; a key without a password is needed.") from error
    except Exception as error:  # ValueError, and the library's own for what it does not support
        raise UsageError(f"{path} holds no private key in PEM. Make one with: {_NEW_KEY}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path} holds a key of another kind than Ed25519. Make one with: {_NEW_KEY}")
    return key


def _public_key(path: Path) -> Ed25519PublicKey:
    content = _read_key(path, "public")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(content)
    except Exception as error:
        raise UsageError(
            f"{path} holds no public key in PEM. It comes from the private one: openssl pkey -in key.pem -pubout"
        ) from error
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(f"{path} holds a key of another kind than Ed25519.")
    return key


def _read_key(path: Path, kind: str) -> bytes:
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise MissingPackage("signatures need the package cryptography: pip install 'edgepeft[serve]'.") from error
    try:
        with path.open("rb") as file:
            return file.read(_MOST_KEY_BYTES)
    except OSError as error:
        raise UsageError(
            f"the {kind} key {path} cannot be read ({error.strerror}). Make one with: {_NEW_KEY}"
        ) from error
