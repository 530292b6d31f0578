"""The activations that adapters may have, by name; ONNX's standard operators express each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["ACTIVATIONS", "Activation"]

Activation = Literal[
    "relu", "gelu", "tanh-gelu", "quick-gelu", "silu", "mish", "tanh", "sigmoid", "relu6", "leaky-relu", "linear"
]


def _quick_gelu(z: Tensor) -> Tensor:
    """z sigmoid(1.702 z) (Hendrycks & Gimpel, 2016, section 2)."""
    return z * torch.sigmoid(1.702 * z)


def _linear(z: Tensor) -> Tensor:
    return z


ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "tanh-gelu": partial(functional.gelu, approximate="tanh"),
    "quick-gelu": _quick_gelu,
    "silu": functional.silu,  # also called swish
    "mish": functional.mish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu6": functional.relu6,
    "leaky-relu": functional.leaky_relu,  # slope 0.01
    "linear": _linear,
}
