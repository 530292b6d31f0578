"""Float32 products on the CPU: by oneDNN instead of MKL where that is faster and float32 all the same.

MKL has no AVX-512 for AMD's processors.  On one of them (an EPYC of Zen 5, one thread, PyTorch 2.13) products of
MiniLM's shapes took 0.44 of the time by oneDNN, and a training step 0.56 to 0.65 with attention made of such products:
up to 128 tokens that beats transformers' fast one there, at 256 it loses.

PyTorch has no switch between the libraries but oneDNN's permission to round to bfloat16.  What becomes of that depends
on the processor, so a product is compared with float64 first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from edgepeft.device.host.machine import cpu_vendor

__all__ = ["attention_for", "float32_by_onednn", "is_float32"]

_TERMS = 256  # of each sum of the product that is compared
_MOST_TOKENS = 128  # up to which attention in separate products is faster


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
    return "eager" if by_onednn and max_length <= _MOST_TOKENS else None


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
