"""A bundle's graphs as they are read: compared with the manifest, parsed, and seen to hold only what we write."""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from edgepeft.bundle.manifest import Manifest
from edgepeft.common.errors import BundleError
from edgepeft.common.resources import sha256_of
from edgepeft.common.task_name import WEIGHTS
from edgepeft.graph.external_data import location, outside, point_at
from edgepeft.graph.protos import properties
from edgepeft.graph.validate import check_sound

__all__ = ["check_owner", "content_at", "expect_hash", "parse_delta", "parse_graph", "read_graph"]


def expect_hash(path: Path, expected: str) -> None:
    """See that a file is the one that the manifest names.

    Raises:
        BundleError: it is missing or has other bytes.
    """
    try:
        actual = sha256_of(path)
    except OSError as error:
        raise BundleError(f"{path} cannot be read ({error.strerror}); the bundle is incomplete.") from error
    if actual != expected:
        raise BundleError(
            f"{path} is not the file that the bundle was made with: its SHA-256 is {actual[:12]}, the manifest says "
            f"{expected[:12]}. It is truncated or altered; export or copy the bundle again."
        )


def read_graph(path: Path, weights: str | None = None) -> onnx.ModelProto:
    """An ONNX file without its external weights, which may only lie in ``weights``, a file beside it.

    Raises:
        BundleError: missing, damaged, not an ONNX model, or one that refers to another file.
    """
    return parse_graph(content_at(path), path, weights)


def content_at(path: Path) -> bytes:
    """A file's bytes.

    Raises:
        BundleError: it is missing, or this user may not read it.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path} is missing or cannot be read ({error.strerror}).") from error


def parse_graph(content: bytes, where: Path, weights: str | None = None) -> onnx.ModelProto:
    """The model of an ONNX file's bytes; arguments and errors as ``read_graph``."""
    model = _parsed(content, where)
    check_sound(model, where, weights)
    return model


def parse_delta(content: bytes, where: Path, weights: Path | None) -> onnx.ModelProto:
    """The delta graph of an ONNX file's bytes; what it has outside of itself is that of ``weights``.

    Raises:
        BundleError: as ``read_graph``; or the two do not belong together.
    """
    model = _parsed(content, where)
    named = f"{properties(model).get('edgepeft.task', '')}{WEIGHTS}"
    if weights is None and any(location(tensor) == named for tensor in outside(model.graph)):
        raise BundleError(f"{where} has tensors in {named}, which must come beside it; bring all of the task's files.")
    check_sound(model, where, None if weights is None else named)
    if weights is not None:
        point_at(model, weights)
    return model


def _parsed(content: bytes, where: Path) -> onnx.ModelProto:
    try:
        return onnx.load_model_from_string(content)
    except (DecodeError, ValueError) as error:
        raise BundleError(f"{where} is truncated or not an ONNX model.") from error


def check_owner(graph: onnx.ModelProto, manifest: Manifest, path: Path) -> dict[str, str]:
    """The delta graph's metadata, after a check that it belongs to this backbone.

    Raises:
        BundleError: not a delta graph, of another format version, or of another backbone.
    """
    facts = {entry.key: entry.value for entry in graph.metadata_props}
    if facts.get("edgepeft.format") != "edgepeft.task/1":
        version = facts.get("edgepeft.format", "none")
        raise BundleError(f"{path} is not a delta graph that this version knows; its edgepeft.format is {version}.")
    wanted = manifest.backbone.identity
    if facts.get("edgepeft.backbone_sha256") != wanted:
        theirs = (
            f"{facts.get('edgepeft.backbone', 'unknown')} (weights {facts.get('edgepeft.backbone_sha256', '')[:12]})"
        )
        raise BundleError(
            f"{path} belongs to the backbone {theirs}, this bundle holds {manifest.backbone.source} "
            f"(weights {wanted[:12]}). Export the task again for this backbone."
        )
    return facts
