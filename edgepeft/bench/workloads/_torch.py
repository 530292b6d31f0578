"""What both PyTorch workloads need: threads, the model, the task's modules, tensors of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgepeft.bench.planning.job import Job

if TYPE_CHECKING:
    from torch import Tensor, nn

    from edgepeft.backbones.source import Backbone
    from edgepeft.bundle.delta import Delta

__all__ = ["FRESH_DELTA", "batch_tensors", "job_delta", "load"]

FRESH_DELTA = "PyTorch ran a fresh delta of this method and shape: a bundle holds no PyTorch modules"


def load(job: Job) -> tuple[Backbone, nn.Module]:
    """The bundle's backbone in transformers (SDPA attention), on ``job.threads`` threads."""
    import torch

    from edgepeft.backbones.hooks import load_model
    from edgepeft.backbones.source import open_backbone

    torch.set_num_threads(job.threads)
    torch.manual_seed(job.seed)
    backbone = open_backbone(job.bundle)
    return backbone, load_model(backbone)


def job_delta(job: Job, backbone: Backbone) -> Delta:
    """A delta of the job's method and settings; its speed is that of the trained one."""
    from edgepeft.bundle.delta import new_delta
    from edgepeft.methods.base import method_named

    method = method_named(job.method or "").from_settings(job.settings)
    kind = job.task_kind()
    return new_delta(backbone, method, job.task or "bench", kind.labels, head=kind.head, kind=kind.name)


def batch_tensors(job: Job, index: int) -> dict[str, Tensor]:
    """Ids and mask of batch ``index`` as tensors, both [batch, longest]; nothing is copied."""
    import torch

    inputs = job.batch(index)
    return {name: torch.from_numpy(inputs[name]) for name in ("input_ids", "attention_mask")}
