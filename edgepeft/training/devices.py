"""Where a run computes: the CPU, or the accelerator that PyTorch finds (``torch.accelerator``), and by which library.

On the CPU float32 products are by oneDNN instead of MKL where that is faster and float32 all the same. MKL has no
AVX-512 for AMD's processors.  On one of them (an EPYC of Zen 5, one thread, PyTorch 2.13) products of MiniLM's shapes
took 0.44 of the time by oneDNN, and a training step 0.56 to 0.65 with attention made of such products: up to 128 tokens
that beats transformers' fast one there, at 256 it loses.

PyTorch has no switch between the libraries but oneDNN's permission to round to bfloat16.  What becomes of that depends
on the processor, so a product is compared with float64 first.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from edgepeft.backbones.base import Architecture
from edgepeft.common.errors import DoesNotFit, UsageError
from edgepeft.device.machine import cpu_vendor, memory_bytes, thread_count
from edgepeft.methods.base import Method
from edgepeft.options.verbs import TrainSettings

_FLOAT_BYTES = 4
_COPIES = 5  # of what is trained: itself, its gradient, two moments, and the tensors that were best
_FULL = ("out of memory", "can't allocate memory")  # of MPS and the CPU, whose errors have no class of their own


def device_of(asked: str) -> torch.device:
    """The device that ``--device`` asks for; auto is the accelerator, or the CPU where there is none."""
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
    """Let PyTorch take so many threads, at most one a core in force; or as OMP_NUM_THREADS says, or one a core."""
    if threads or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(thread_count(threads))


_TERMS = 256  # of each sum of the product that is compared
_MAX_TOKENS = 128  # up to which attention in separate products is faster


@contextmanager
def float32_by_onednn(device: torch.device) -> Iterator[bool]:
    """Within the block PyTorch may take oneDNN for float32 products; gives whether it does."""
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, wanted = matmul.fp32_precision, device.type == "cpu" and _slow_mkl()
    try:
        if wanted:
            matmul.fp32_precision = "bf16"
        if wanted and not is_float32():
            matmul.fp32_precision = before
            wanted = False
        yield wanted
    finally:
        matmul.fp32_precision = before


def attention_for(by_onednn: bool, max_length: int) -> str | None:
    """The ``attention`` of ``load_model`` for texts of that many tokens."""
    return "eager" if by_onednn and max_length <= _MAX_TOKENS else None


def is_float32() -> bool:
    """Whether products now have float32's errors: of n terms at most n 2**-24 of the sum of their magnitudes (Higham,
    2002, section 3.1), where terms of bfloat16 are off by up to 2**-8 each."""
    drawn = torch.Generator().manual_seed(0)
    a, b = (torch.randn(_TERMS, _TERMS, generator=drawn) for _ in range(2))
    error = (a @ b - a.double() @ b.double()).abs()
    return bool((error <= _TERMS * 2.0**-24 * (a.abs().double() @ b.abs().double())).all())


def _slow_mkl() -> bool:
    here = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(here and torch.backends.cpu.get_cpu_capability() == "AVX512" and cpu_vendor() == "AuthenticAMD")
