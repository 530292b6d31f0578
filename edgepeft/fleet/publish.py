"""The publisher's side: a bundle's tasks into a channel, out of it, signatures renewed, keys replaced; the Hub."""

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuf.api.metadata import TargetFile

from edgepeft.backbones.emit import BUNDLE_FILES
from edgepeft.bundle.bundle import TASKS_FOLDER, Bundle, places
from edgepeft.bundle.manifest import MANIFEST_FILE, Manifest, hub_name_of, task_table
from edgepeft.bundle.versions import hashes
from edgepeft.common.atomic import drop_unfinished, replacing
from edgepeft.common.errors import EdgepeftError, UnknownName, UsageError, VerificationFailed, look_up, requiring
from edgepeft.common.messages import reason
from edgepeft.common.own_folder import locked
from edgepeft.common.resources import sha256_of
from edgepeft.common.task_name import SUFFIXES
from edgepeft.deploy.verify import audit
from edgepeft.fleet import repository as layout
from edgepeft.fleet.fetcher import hub_address
from edgepeft.fleet.repository import DAYS, METADATA, ROLES, TARGETS, FolderRepository, Keys, Published

_CARD = "README.md"


@dataclass(frozen=True)
class Publication:
    """What a call changed: places of files that are new or replaced, those that went, and whether keys were made."""

    channel: str
    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    keys_made: bool = False


def publish(
    folder: Path,
    repository: Path,
    keys: Path,
    *,
    channel: str = "stable",
    tasks: Collection[str] | None = None,
    days: Mapping[str, int] = DAYS,
    thresholds: Mapping[str, int] | None = None,
) -> Publication:
    """Put a bundle's backbone and tasks (None: all) into a channel; tasks of it that the bundle lacks stay.

    A repository that is not there is made, with new keys in the folder ``keys``, which lies outside of it: so many as
    ``thresholds`` says sign a role, else 1.  What is signed now expires after ``days``, by role.
    """
    layout.check_channel(channel)
    if repository.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"the repository {repository} lies in the bundle {folder}; choose a folder outside of it.")
    offered = _offered(folder, tasks)
    with _opened(repository, keys, days, new=True, thresholds=thresholds) as (found, made):
        before, wanted = _published(found, channel), offered
        if before is not None:  # the channel's tasks with those offered
            there = before.manifest
            stay = [name for name in there.tasks if name not in offered.tasks]
            if stay and not layout.same_base(there.model_copy(update={"templates": offered.templates}), offered):
                raise UsageError(
                    f"the channel {channel} has the tasks {', '.join(stay)} on another backbone than this bundle's. "
                    f"Add them to the bundle, or take them out first: "
                    f"{' '.join(f'--withdraw {name}' for name in stay)}."
                )
            wanted = offered.model_copy(update={"tasks": {**there.tasks, **offered.tasks}})
        bundle, targets = Bundle(folder), {} if before is None else dict(before.targets)
        kept = {  # a task's file may lie beside its usual place
            f"{TASKS_FOLDER}/{task}{suffix}": bundle.current(task, suffix)
            for task, entry in offered.tasks.items()
            for suffix in hashes(entry)
        }
        for place in places(offered):
            path, name = kept.get(place, folder / place), f"{channel}/{place}"
            targets[place] = TargetFile.from_file(name, str(path), ["sha256"])
            _store(path, repository / TARGETS, name, targets[place].hashes["sha256"])
        targets = {place: targets[place] for place in places(wanted)}
        for place, custom in layout.customs(wanted).items():
            targets[place].unrecognized_fields["custom"] = custom
        return _put(found, channel, targets, before, made)


def withdraw(
    repository: Path, keys: Path, tasks: Collection[str], *, channel: str = "stable", days: Mapping[str, int] = DAYS
) -> Publication:
    """Take tasks out of a channel; boards that have them as published drop them."""
    with _opened(repository, keys, days) as (found, _):
        before = published_in(repository, keys, channel)
        for task in tasks:
            look_up(f"task of the channel {channel}", task, before.manifest.tasks)
        out = {f"{TASKS_FOLDER}/{task}{suffix}" for task in tasks for suffix in SUFFIXES}
        return _put(found, channel, {p: t for p, t in before.targets.items() if p not in out}, before, False)


def refresh(repository: Path, keys: Path, *, days: Mapping[str, int] = DAYS) -> tuple[str, ...]:
    """Sign the timestamp anew, and whatever else has half of its days behind it and its key at hand; which roles."""
    with _opened(repository, keys, days) as (found, _):
        due = [role for role in ("root", "targets", *found.channels, "snapshot") if found.is_due(role)]
        for role in due:
            if role != "snapshot":
                found.sign_anew(role)
        found.put_in_force(snapshot="snapshot" in due)
        return (*due, "timestamp")


def rotate(repository: Path, keys: Path, role: str, *, days: Mapping[str, int] = DAYS) -> None:
    """Replace a role's keys by as many new ones as sign it; what the old ones sign from then on is worth nothing."""
    if role not in ROLES:
        raise UnknownName("role of a repository", role, ROLES)
    with _opened(repository, keys, days) as (found, _):
        old = found.keys.paths(role)
        with found.edit_root() as root:
            new = found.keys.make(role, root.roles[role].threshold)
            for key_id in list(root.roles[role].keyids):
                root.revoke_key(key_id, role)
            for signer in new:
                root.add_key(signer.public_key, role)
        found.put_in_force()
        found.keys.retire(old)


def published_in(repository: Path, keys: Path, channel: str) -> Published:
    """What a channel holds."""
    found = FolderRepository(repository, Keys(keys, repository))
    if (published := _published(found, channel)) is None:
        raise UnknownName("channel of this repository", channel, found.channels)
    return published


@contextlib.contextmanager
def _opened(
    folder: Path, keys: Path, days: Mapping[str, int], *, new: bool = False, thresholds: Mapping[str, int] | None = None
) -> Iterator[tuple[FolderRepository, bool]]:
    """The repository, held against other publishers; and whether its keys were made for it."""
    if not (folder / METADATA).is_dir() and not new:
        raise UsageError(
            f"{folder} is no repository: it has no {METADATA}. Make one with: edgepeft publish BUNDLE {folder}."
        )
    if (folder / MANIFEST_FILE).exists():
        raise UsageError(f"{folder} is a bundle; the repository is another folder, which boards can read.")
    held = Keys(keys, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        for parent in {left.parent for left in folder.rglob(".*")}:  # of one that was killed, which boards never need
            drop_unfinished(parent)
        found, made = FolderRepository(folder, held, days), False
        if not found.found("root"):  # the first, of the keys that are there, and of new ones
            with found.edit_root() as root:
                root.consistent_snapshot = True
                for role in ROLES:
                    signers, wanted = found.keys.signers(role), (thresholds or {}).get(role, 1)
                    if len(signers) < wanted:
                        signers, made = [*signers, *found.keys.make(role, wanted - len(signers))], True
                    for signer in signers:
                        root.add_key(signer.public_key, role)
                    root.roles[role].threshold = wanted
        yield found, made


def _offered(folder: Path, tasks: Collection[str] | None) -> Manifest:
    """What a bundle offers, after a check of all of it."""
    manifest = Manifest.read(folder)
    for task in tasks or ():
        manifest.task(task)
    if wrong := next((finding for finding in audit(folder) if finding.problem), None):
        raise VerificationFailed(f"{folder} is not published: {wrong.subject}: {wrong.problem}")
    files = manifest.files or {name: sha256_of(folder / name) for name in BUNDLE_FILES if (folder / name).is_file()}
    chosen = {name: entry for name, entry in manifest.tasks.items() if tasks is None or name in tasks}
    return layout.without_training(manifest.model_copy(update={"tasks": chosen, "files": files}))


def _store(path: Path, targets: Path, name: str, sha256: str) -> None:
    """Copy a file to where boards look for it, or link it to the same file of another channel."""
    parent, _, base = name.rpartition("/")
    home = targets / parent / f"{sha256}.{base}"
    if home.is_file() and sha256_of(home) == sha256:
        return
    others = targets.glob("/".join(["*", *parent.split("/")[1:], f"{sha256}.{base}"]))
    with replacing(home) as temporary:
        for other in others:
            with contextlib.suppress(OSError):  # a file system without links
                os.link(other, temporary)
                break
        if not temporary.exists():
            shutil.copyfile(path, temporary)
        if sha256_of(temporary) != sha256:
            raise VerificationFailed(f"{path} was changed while it was read; repeat when nothing writes to it.")


def _put(
    found: FolderRepository, channel: str, targets: Mapping[str, TargetFile], before: Published | None, made: bool
) -> Publication:
    """Sign a channel's targets, and put them in force."""
    old = {} if before is None else dict(before.targets)
    wanted = {f"{channel}/{place}": target for place, target in sorted(targets.items())}
    new = tuple(place for place, target in sorted(targets.items()) if old.get(place) != target)
    gone = tuple(sorted(set(old) - set(targets)))
    if new or gone:
        with found.edit_targets(channel) as signed:
            signed.targets = wanted
    found.put_in_force(channel)
    return Publication(channel, new, gone, made)


def _published(found: FolderRepository, channel: str) -> Published | None:
    """What the channel holds; None before its first publication."""
    return Published.read(channel, found.targets(channel).targets) if channel in found.channels else None


def upload(repository: Path, name: str, published: Published, license_id: str | None) -> str:
    """Bring a repository to the Hub in one commit, with a model card; the commit's address."""
    hub_address(name)
    with requiring("hub", "the Hub"):
        from huggingface_hub import HfApi
    try:
        api: Any = HfApi()
        api.create_repo(name, exist_ok=True)
        card = hub_card(name, published, license_id).encode()
        api.upload_file(path_or_fileobj=card, path_in_repo=_CARD, repo_id=name, commit_message="Model card")
        done = api.upload_folder(
            repo_id=name, folder_path=str(repository), ignore_patterns=[".*", _CARD], commit_message="edgepeft publish"
        )
    except Exception as error:  # the library's many kinds
        raise EdgepeftError(
            f"{name} could not be uploaded ({type(error).__name__}: {reason(error)}). {repository} has "
            "all of it; log in with hf auth login, and repeat with --refresh --to-hub."
        ) from error
    return str(done.commit_url)


def hub_card(name: str, published: Published, license_id: str | None) -> str:
    """The model card: scores, licence, and the kinds and methods of the tasks as tags."""
    from huggingface_hub import ModelCardData

    manifest = published.manifest
    methods = sorted({entry.method for entry in manifest.tasks.values()})
    kinds = sorted({entry.task_kind.name for entry in manifest.tasks.values()})
    data: Any = ModelCardData(
        base_model=hub_name_of(manifest),
        library_name="edgepeft",
        license=license_id,
        tags=["edgepeft", "onnx", "peft", *kinds, *methods],
    )
    lines = ["---", data.to_yaml(), "---", "", f"# {name.partition('/')[2]}", ""]
    lines += ["Tasks for boards, signed: a repository of The Update Framework, as `edgepeft publish` writes it.", ""]
    lines += [*task_table(manifest), "", "```", f"edgepeft pull --from-hub {name} bundle --root 1.root.json", "```", ""]
    return "\n".join(lines)
