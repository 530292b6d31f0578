"""What N tasks of a method cost beside N fine-tuned models, from an architecture alone."""

from __future__ import annotations

import math
from typing import Any

from edgepeft.backbones.base import NO_HEAD, Architecture
from edgepeft.common.errors import UsageError
from edgepeft.heads.base import head_named
from edgepeft.methods.base import Method

BYTES = 4  # of a float32


def count(architecture: Architecture, method: Method, head: str, *, tasks: int = 1, labels: int = 2) -> dict[str, Any]:
    """Count ``tasks`` tasks of one method, each with a head of that kind, or without one (``NO_HEAD``).

    As `edgepeft count --json` prints it; bytes are of the float32 tensors on disk, ``private`` those of the backbone
    tensors that a loaded task replaces.  Where a task brings every tensor itself, nothing is left to share.
    """
    kind = None if head == NO_HEAD else head_named(head)
    reads = kind.reads if kind else ()
    if absent := [name for name in reads if name not in {**architecture.tensors, **architecture.pooler}]:
        raise UsageError(f"the head {head!r} reads {absent[0]}, which {architecture.model_type} does not have.")
    pooler = sum(math.prod(architecture.shape_of(name)) for name in reads if name in architecture.pooler)
    backbone, delta = architecture.n_parameters + pooler, method.n_parameters(architecture, reads)
    of_head = kind.n_parameters(architecture, labels) if kind else 0
    # A method that makes every tensor from a few numbers needs the pretrained ones for it.
    all_replaced = set(method.overrides(architecture)).issuperset(architecture.tensors)
    shares = not all_replaced or delta < architecture.n_parameters
    total, full_models = tasks * (delta + of_head) + backbone * shares, tasks * (backbone + of_head)
    return {
        "tasks": tasks,
        "labels": labels,
        "head": head,
        "backbone_parameters": backbone,
        "trained_parameters": {"delta": delta, "head": of_head, "total": delta + of_head},
        "percent_of_backbone": round(100 * delta / backbone, 4),
        "shares_backbone": shares,
        "total_parameters": total,
        "full_models_parameters": full_models,
        "times_the_backbone": round(total / backbone, 4),
        "bytes": {
            "backbone": BYTES * backbone,
            "task": BYTES * (delta + of_head),
            "private": BYTES * sum(map(math.prod, method.own_tensors(architecture, reads).values())),
            "total": BYTES * total,
            "full_models": BYTES * full_models,
        },
    }
