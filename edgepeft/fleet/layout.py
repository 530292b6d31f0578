"""What a repository holds: each channel's files, named as in a bundle, and the manifest in their ``custom`` fields.

    metadata/1.root.json, timestamp.json, 7.snapshot.json, 3.targets.json, 5.stable.json
    targets/stable/<sha256>.backbone.onnx, targets/stable/tasks/<sha256>.mood.onnx, ...

A channel is a role that ``targets`` delegates ``<channel>/...`` to.  The target ``<channel>/backbone.onnx`` has the
manifest without its tasks, each task's and template's graph its entry; as JSON in a text, for TUF signs no floats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError
from tuf.api.metadata import TOP_LEVEL_ROLE_NAMES, TargetFile

from edgepeft.bundle.bundle import BACKBONE_FILE, TASKS_FOLDER, TEMPLATES_FOLDER, places
from edgepeft.bundle.manifest import Manifest, TaskEntry, TemplateEntry
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.common.messages import in_words
from edgepeft.common.task_name import GRAPH, check_task_names

METADATA, TARGETS = "metadata", "targets"
_CUSTOM = "edgepeft"


def check_channel(name: str) -> str:
    """The name itself, where a channel may have it."""
    if not re.fullmatch("[a-z0-9][a-z0-9-]{0,31}", name) or name in TOP_LEVEL_ROLE_NAMES:
        reserved = ", ".join(sorted(TOP_LEVEL_ROLE_NAMES))
        raise UsageError(
            f"{name!r} cannot be a channel's name: small letters, digits and '-', at most 32, and none of {reserved}."
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
    base = manifest.model_copy(update={"tasks": {}, "templates": {}})
    found = {BACKBONE_FILE: base.model_dump_json()}
    found |= {f"{TASKS_FOLDER}/{name}{GRAPH}": entry.model_dump_json() for name, entry in manifest.tasks.items()}
    for name, template in manifest.templates.items():
        found[f"{TEMPLATES_FOLDER}/{name}{GRAPH}"] = template.model_dump_json()
    return {place: {_CUSTOM: text} for place, text in found.items()}


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
            for names in (tasks, templates):
                check_task_names(names)
            base = Manifest.model_validate_json(_custom(by_place, BACKBONE_FILE))
            manifest = without_training(base.model_copy(update={"tasks": tasks, "templates": templates}))
        except ValidationError as error:
            raise BundleError(
                f"channel {channel}: its manifest is not one this version knows: {in_words(error)}."
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
    target = by_place.get(place)
    custom = None if target is None else target.custom
    return str(custom.get(_CUSTOM, "")) if isinstance(custom, dict) else ""
