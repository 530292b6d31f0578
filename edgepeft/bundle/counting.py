"""What N tasks of a method cost beside N fine-tuned models, from an architecture alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from edgepeft.backbones.base import NO_HEAD, Architecture
from edgepeft.common.errors import UsageError
from edgepeft.heads.base import Head, head_named
from edgepeft.methods.base import Method

__all__ = ["BYTES", "Count", "count"]

BYTES = 4  # of a float32


@dataclass(frozen=True)
class Count:
    """Parameters: ``backbone`` is frozen, ``delta`` and ``head`` are a task's own, ``private`` those of
    the backbone tensors that a loaded task replaces.

    ``shares`` is False where a task brings every tensor of the encoder itself: nothing is left to share.
    """

    tasks: int
    labels: int
    head_kind: str
    backbone: int
    delta: int
    head: int
    private: int
    shares: bool

    @property
    def task(self) -> int:
        """Trained for one task."""
        return self.delta + self.head

    @property
    def total(self) -> int:
        """All tasks, with the one backbone that they share."""
        return self.tasks * self.task + (self.backbone if self.shares else 0)

    @property
    def full_models(self) -> int:
        """As many fine-tuned models."""
        return self.tasks * (self.backbone + self.head)

    def as_json(self) -> dict[str, Any]:
        """As `edgepeft count --json` prints it; bytes are of the float32 tensors on disk."""
        return {
            "tasks": self.tasks,
            "labels": self.labels,
            "head": self.head_kind,
            "backbone_parameters": self.backbone,
            "trained_parameters": {"delta": self.delta, "head": self.head, "total": self.task},
            "percent_of_backbone": round(100 * self.delta / self.backbone, 4),
            "shares_backbone": self.shares,
            "total_parameters": self.total,
            "full_models_parameters": self.full_models,
            "times_the_backbone": round(self.total / self.backbone, 4),
            "bytes": {
                "backbone": BYTES * self.backbone,
                "task": BYTES * self.task,
                "private": BYTES * self.private,
                "total": BYTES * self.total,
                "full_models": BYTES * self.full_models,
            },
        }


def count(architecture: Architecture, method: Method, head: str, *, tasks: int = 1, labels: int = 2) -> Count:
    """Count ``tasks`` tasks of one method, each with a head of that kind, or without one (``NO_HEAD``)."""
    kind = None if head == NO_HEAD else head_named(head)
    all_replaced = set(method.overrides(architecture)).issuperset(architecture.tensors)
    reads = kind.reads if kind else ()
    delta = method.n_parameters(architecture, reads)
    return Count(
        tasks=tasks,
        labels=labels,
        head_kind=head,
        backbone=architecture.n_parameters + (_n_pooler(architecture, kind) if kind else 0),
        delta=delta,
        head=kind.n_parameters(architecture, labels) if kind else 0,
        private=sum(map(math.prod, method.own_tensors(architecture, reads).values())),
        # A method that makes every tensor from a few numbers needs the pretrained ones for it.
        shares=not all_replaced or delta < architecture.n_parameters,
    )


def _n_pooler(architecture: Architecture, head: type[Head]) -> int:
    absent = [name for name in head.reads if name not in {**architecture.tensors, **architecture.pooler}]
    if absent:
        raise UsageError(f"the head {head.kind!r} reads {absent[0]}, which {architecture.model_type} does not have.")
    return sum(math.prod(architecture.shape_of(name)) for name in head.reads if name in architecture.pooler)
