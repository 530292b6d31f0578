"""A TUF repository as a folder of static files: what it holds; versions, signatures and keys, by python-tuf.

    metadata/1.root.json, timestamp.json, 7.snapshot.json, 3.targets.json, 5.stable.json
    targets/stable/<sha256>.backbone.onnx, targets/stable/tasks/<sha256>.mood.onnx, ...

A channel is a role that ``targets`` delegates ``<channel>/...`` to; its files are named as in a bundle.  The target
``<channel>/backbone.onnx`` has in its ``custom`` field the manifest without its tasks, each task's and template's graph
its entry; as JSON in a text, for TUF signs no floats.

The version in force is what ``timestamp.json`` leads to.  It is written last, so a publisher that was killed has
published nothing, and its leftovers are written over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from securesystemslib.signer import CryptoSigner
from tuf.api import metadata as tuf
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, MetaFile, Root, TargetFile, Targets
from tuf.repository import Repository

from edgepeft.bundle.bundle import BACKBONE_FILE, TASKS_FOLDER, TEMPLATES_FOLDER, places
from edgepeft.bundle.manifest import Manifest, TaskEntry, TemplateEntry
from edgepeft.common.atomic import write_atomically
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.common.messages import mistakes_text
from edgepeft.common.resources import private_folder
from edgepeft.common.task_name import GRAPH, check_task_names
from edgepeft.deploy.signature import read_private_key

METADATA, TARGETS = "metadata", "targets"
_CUSTOM = "edgepeft"
ROLES = ("root", "targets", "snapshot", "timestamp")

# Until a role's metadata expires: an attacker can hold back what is new for as long as the timestamp's.
DAYS: Mapping[str, int] = {"root": 365, "targets": 365, "snapshot": 90, "timestamp": 7}


def check_channel(name: str) -> str:
    """The name itself, where a channel may have it."""
    if not re.fullmatch("[a-z0-9][a-z0-9-]{0,31}", name) or name in ROLES:
        raise UsageError(
            f"{name!r} cannot be a channel's name: small letters, digits and '-', at most 32, and none of "
            f"{', '.join(sorted(ROLES))}."
        )
    return name


def without_training(manifest: Manifest) -> Manifest:
    """The manifest of what is published: no version before, and no training graphs of older versions."""
    tasks = {name: e.model_copy(update={"train_sha256": None, "previous": None}) for name, e in manifest.tasks.items()}
    templates = {name: e.model_copy(update={"train_sha256": None}) for name, e in manifest.templates.items()}
    return manifest.model_copy(update={"tasks": tasks, "templates": templates})


def same_base(one: Manifest, other: Manifest) -> bool:
    """Whether two differ in their tasks at most, and in the versions of what wrote them."""
    return (one.backbone, one.files, one.templates) == (other.backbone, other.files, other.templates)


def customs(manifest: Manifest) -> dict[str, dict[str, str]]:
    """The ``custom`` field of the files that have one, by place."""
    found: dict[str, BaseModel] = {BACKBONE_FILE: manifest.model_copy(update={"tasks": {}, "templates": {}})}
    found |= {f"{TASKS_FOLDER}/{name}{GRAPH}": entry for name, entry in manifest.tasks.items()}
    found |= {f"{TEMPLATES_FOLDER}/{name}{GRAPH}": entry for name, entry in manifest.templates.items()}
    return {place: {_CUSTOM: stated.model_dump_json()} for place, stated in found.items()}


@dataclass(frozen=True)
class Published:
    """A channel as its signed metadata state it: a whole manifest, and the target of each place."""

    manifest: Manifest
    targets: Mapping[str, TargetFile]

    @classmethod
    def read(cls, channel: str, targets: Mapping[str, TargetFile]) -> Published:
        """What a channel's targets say."""
        by_place = {name.removeprefix(f"{channel}/"): target for name, target in targets.items()}
        try:  # the ``custom`` fields make up the manifest
            tasks, templates = {}, {}
            for place in by_place:
                folder, _, name = place.removesuffix(GRAPH).partition("/")
                if place.endswith(GRAPH) and folder == TASKS_FOLDER:
                    tasks[name] = TaskEntry.model_validate_json(_custom(by_place, place))
                elif place.endswith(GRAPH) and folder == TEMPLATES_FOLDER:
                    templates[name] = TemplateEntry.model_validate_json(_custom(by_place, place))
            check_task_names(tasks)
            check_task_names(templates)
            base = Manifest.model_validate_json(_custom(by_place, BACKBONE_FILE))
            manifest = without_training(base.model_copy(update={"tasks": tasks, "templates": templates}))
        except ValidationError as error:
            raise BundleError(
                f"channel {channel}: its manifest is not one this version knows: {mistakes_text(error)}."
            ) from error
        except UsageError as error:
            raise BundleError(f"channel {channel}: {error}") from error
        for place, sha256 in places(manifest).items():
            target = by_place.get(place)
            if target is None or target.hashes.get("sha256") != sha256:
                raise BundleError(
                    f"channel {channel}: {place} is not the file that its entry names; it must be published again."
                )
        return cls(manifest, by_place)


def _custom(by_place: Mapping[str, TargetFile], place: str) -> str:
    """The text in a target's ``custom`` field; empty, which is no JSON, where there is none."""
    custom = getattr(by_place.get(place), "custom", None)
    return str(custom.get(_CUSTOM, "")) if isinstance(custom, dict) else ""


class FolderRepository(Repository):  # type: ignore[misc,unused-ignore]  # without tuf it is Any
    """The metadata in ``folder``, to be read and, with ``keys``, edited; ``days`` until what is signed now expires."""

    def __init__(self, folder: Path, keys: Keys, days: Mapping[str, int] = DAYS) -> None:
        self.folder, self.keys, self.days = folder / METADATA, keys, {**DAYS, **days}
        self._infos: dict[str, MetaFile] = {}
        self._snapshot: MetaFile | None = None
        if self.found("timestamp"):
            self._snapshot = self.timestamp().snapshot_meta
            self._infos = dict(self.snapshot().meta)

    @property
    def targets_infos(self) -> dict[str, MetaFile]:
        """As ``Repository``'s: of the targets and of each channel."""
        return self._infos

    @property
    def snapshot_info(self) -> MetaFile:
        """As ``Repository``'s; there is a snapshot."""
        assert self._snapshot is not None
        return self._snapshot

    def found(self, role: str) -> bool:
        """Whether the role has metadata in force, or such as was signed just now."""
        return self._path(role) is not None

    def open(self, role: str) -> Metadata[Any]:
        """A role's metadata in force; new ones where there are none."""
        if (path := self._path(role)) is None:
            kinds: dict[str, Any] = {"root": Root, "snapshot": tuf.Snapshot, "timestamp": tuf.Timestamp}
            fresh: Any = kinds.get(role, Targets)()
            fresh.version = 0  # close() makes it 1
            return Metadata(fresh)
        try:
            return Metadata.from_file(str(path))
        except (RepositoryError, OSError) as error:
            raise BundleError(
                f"{path} is missing or damaged ({error}); put the repository's last backup in place."
            ) from error

    def close(self, role: str, md: Metadata[Any]) -> None:
        """Sign and write a role's next version."""
        md.signed.version += 1
        days = self.days[_kind(role)]
        md.signed.expires = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
        roots = [md.signed if isinstance(md.signed, Root) else self.root()]
        if role == "root" and self.found(role):  # a new root is signed by the old one's keys too
            roots.insert(0, self.open(role).signed)
        md.signatures.clear()
        by_id = {signer.public_key.keyid: signer for signer in self.keys.signers(_kind(role))}
        for root in roots:
            asked = root.roles[_kind(role)]
            signers = [by_id[key] for key in asked.keyids if key in by_id]
            if len(signers) < asked.threshold:
                raise UsageError(
                    f"the role {role} is signed by {asked.threshold} of its keys, and {self.keys.folder} has "
                    f"{len(signers)} of them. Put {_kind(role)}.pem there."
                )
            for signer in signers:
                md.sign(signer, append=True)
        number = "" if role == "timestamp" else f"{md.signed.version}."
        write_atomically(self.folder / f"{number}{role}.json", md.to_bytes())
        if role == "snapshot":
            self._snapshot = MetaFile(md.signed.version)
        elif role not in ("root", "timestamp"):
            self._infos[f"{role}.json"] = MetaFile(md.signed.version)

    def _path(self, role: str) -> Path | None:
        """Where the role's version lies that was last signed here, or else is in force."""
        if role == "root":
            versions = [int(m[1]) for p in self.folder.glob("*.root.json") if (m := re.match(r"(\d+)\.", p.name))]
            return self.folder / f"{max(versions)}.root.json" if versions else None
        if role == "timestamp":
            return path if (path := self.folder / "timestamp.json").is_file() else None
        info = self._snapshot if role == "snapshot" else self._infos.get(f"{role}.json")
        return None if info is None else self.folder / f"{info.version}.{role}.json"

    @property
    def channels(self) -> list[str]:
        """Those that something was published in."""
        delegations = self.targets().delegations if self.found("targets") else None
        return sorted(delegations.roles or {}) if delegations is not None else []

    def put_in_force(self, *more: str, snapshot: bool = False) -> None:
        """Make boards find what was signed, also in the channels ``more``; sign anew what replaced keys had signed."""
        root = self.root()
        role = root.roles["targets"]
        keys = {key: root.keys[key] for key in role.keyids}
        delegated = {
            name: tuf.DelegatedRole(name, list(keys), role.threshold, True, [f"{name}/*", f"{name}/*/*"])
            for name in sorted({*self.channels, *more})
        }
        wanted = tuf.Delegations(keys, delegated)
        if not self._is_signed("targets") or self.targets().delegations != wanted:
            with self.edit_targets() as targets:
                targets.delegations = wanted
        for name in delegated:
            if not self._is_signed(name):
                self.sign_anew(name)
        self.do_snapshot(force=snapshot)
        self.do_timestamp(force=True)

    def sign_anew(self, role: str) -> None:
        """The next version of a role's metadata, with the same content."""
        with self.edit(role):
            pass

    def is_due(self, role: str) -> bool:
        """Whether half of a role's days are over, and its key is at hand."""
        kind = _kind(role)
        left = self.open(role).signed.expires - datetime.now(UTC)
        return bool(left < timedelta(days=self.days[kind] / 2) and self.keys.paths(kind))

    def _is_signed(self, role: str) -> bool:
        """Whether a role's metadata are signed by the keys of today."""
        if not self.found(role):
            return False
        md, by = self.open(role), self.root() if role in ROLES else self.targets()
        try:
            by.verify_delegate(role, md.signed_bytes, md.signatures)
        except RepositoryError:
            return False
        return True


def _kind(role: str) -> str:
    """The role whose keys and days hold: a channel is signed as ``targets`` is."""
    return role if role in ROLES else "targets"


class Keys:
    """The publisher's Ed25519 keys: PEM files in ``folder``, ``<role>.pem``, ``<role>-2.pem``, ...

    A machine that only refreshes the timestamp needs ``timestamp.pem`` alone; ``root.pem`` is wanted when keys change,
    and may lie in a drawer.
    """

    def __init__(self, folder: Path, repository: Path) -> None:
        self.folder = folder
        if folder.resolve().is_relative_to(repository.resolve()):
            raise UsageError(
                f"the keys' folder {folder} lies in the repository {repository}, which everybody reads. Choose another."
            )

    def paths(self, role: str) -> list[Path]:
        """The files of a role, in the order in which they were made."""
        found = [path for path in self.folder.glob(f"{role}*.pem") if re.fullmatch(rf"{role}(-\d+)?\.pem", path.name)]
        return sorted(found, key=lambda path: (len(path.name), path.name))

    def signers(self, role: str) -> list[CryptoSigner]:
        """The keys of a role."""
        return [CryptoSigner(read_private_key(path)) for path in self.paths(role)]

    def make(self, role: str, number: int) -> list[CryptoSigner]:
        """As many new keys of a role, beside those that are there."""
        private_folder(self.folder)
        made = []
        for _ in range(number):
            signer = CryptoSigner.generate_ed25519()
            taken = {path.name for path in self.paths(role)}
            names = (f"{role}.pem" if n == 1 else f"{role}-{n}.pem" for n in range(1, len(taken) + 2))
            path = self.folder / next(name for name in names if name not in taken)
            write_atomically(path, signer.private_bytes)
            path.chmod(0o600)
            made.append(signer)
        return made

    def retire(self, paths: Iterable[Path]) -> None:
        """Put keys aside, for good."""
        aside = private_folder(self.folder / "retired")
        for path in paths:
            key_id = CryptoSigner(read_private_key(path)).public_key.keyid
            path.rename(aside / f"{path.stem}.{key_id[:12]}.pem")
