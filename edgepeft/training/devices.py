"""Where a run computes: the CPU, or the accelerator that PyTorch finds (``torch.accelerator``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from edgepeft.backbones.base import Architecture
from edgepeft.common.errors import DoesNotFit, UnknownName, UsageError
from edgepeft.device.host.machine import memory_bytes, thread_count
from edgepeft.methods.base import Method
from edgepeft.training.settings import TrainSettings

__all__ = ["KINDS", "check_memory", "device_named", "device_of", "fitting", "use_threads"]

KINDS = ("auto", "cpu", "cuda", "mps")
_FLOAT_BYTES = 4
_COPIES = 5  # of what is trained: itself, its gradient, two moments, and the tensors that were best
_FULL = ("out of memory", "can't allocate memory")  # of MPS and the CPU, whose errors have no class of their own


def device_of(asked: str) -> torch.device:
    """The device that ``--device`` asks for; auto is the accelerator, or the CPU where there is none."""
    if asked not in KINDS:
        raise UnknownName("device", asked, KINDS)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if asked == "cpu" or (asked == "auto" and accelerator is None):
        return torch.device("cpu")
    if accelerator is None or asked not in ("auto", accelerator.type):
        there = "cpu" if accelerator is None else f"cpu and {accelerator.type}"
        raise UsageError(
            f"--device {asked}: PyTorch {torch.__version__} finds none here; it finds {there}. Leave --device out, or "
            "install that device's driver and a PyTorch built for it."
        )
    return accelerator


def device_named(device: torch.device) -> str:
    """Its kind, and the model of a GPU of CUDA."""
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type


def check_memory(device: torch.device, method: Method, architecture: Architecture) -> None:
    """See that what does not depend on the rows has room: the model, and what a method trains of it, in float32."""
    trained, there = method.n_parameters(architecture), memory_bytes()
    needed = _FLOAT_BYTES * (architecture.n_parameters + _COPIES * trained)
    if device.type == "cpu" and needed > there:
        raise DoesNotFit(
            f"training {method.name} on this {architecture.model_type} takes {needed / 1e9:.1f} GB at least: the "
            f"model, and {_COPIES} times the {trained:,} parameters that are trained (these, their gradients, AdamW's "
            f"two moments, the best so far); this host or its control group has {there / 1e9:.1f} GB. Train fewer, by "
            "lora or an adapter, or where there is more."
        )


@contextmanager
def fitting(device: torch.device, options: TrainSettings) -> Iterator[None]:
    """Run a training within the block."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and not any(words in str(error) for words in _FULL):
            raise
        half = "" if options.bf16 or device.type == "cpu" else ", or give --bf16"
        raise DoesNotFit(
            f"{device_named(device)} is out of memory. Lower --batch-size ({options.batch_size}) or --max-length "
            f"({options.max_length}){half}, with --force."
        ) from error


def use_threads(threads: int | None) -> None:
    """Let PyTorch take so many threads, or as many as there are cores in force."""
    torch.set_num_threads(threads or thread_count())
