"""AdamW (Loshchilov & Hutter, 2019, arXiv:1711.05101, algorithm 2) in NumPy, step by step as PyTorch's.

theta <- theta (1 - eta lambda)
m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2
theta <- theta - eta / (1 - b1^t)  m / (sqrt(v) / sqrt(1 - b2^t) + eps)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from edgepeft.data.training_loop.engine import Arrays

__all__ = ["AdamW", "clip"]

_TINY = 1e-6  # torch.nn.utils.clip_grad_norm_ adds it to the norm


@dataclass
class AdamW:
    """``rates`` and the moments by tensor; the moments start at zero with a tensor's first gradient."""

    rates: Mapping[str, float]
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    steps: int = 0
    first: Arrays = field(default_factory=dict)
    second: Arrays = field(default_factory=dict)

    def update(self, trained: Arrays, gradients: Arrays, factor: float = 1.0) -> None:
        """One step, in place; ``factor`` multiplies every rate (the schedule)."""
        self.steps += 1
        b1, b2 = self.betas
        for name, gradient in gradients.items():
            rate, tensor = self.rates[name] * factor, trained[name]
            m = self.first.setdefault(name, np.zeros_like(tensor))
            v = self.second.setdefault(name, np.zeros_like(tensor))
            tensor *= np.float32(1 - rate * self.weight_decay)
            m += np.float32(1 - b1) * (gradient - m)
            v *= np.float32(b2)
            v += np.float32(1 - b2) * gradient * gradient
            denominator = np.sqrt(v) / np.float32(math.sqrt(1 - b2**self.steps)) + np.float32(self.eps)
            tensor -= np.float32(rate / (1 - b1**self.steps)) * (m / denominator)


def clip(gradients: Arrays, most: float) -> float:
    """Scale all gradients, in place, so that their common norm is at most ``most``; the norm before."""
    norm = math.sqrt(sum(float(np.square(gradient, dtype=np.float64).sum()) for gradient in gradients.values()))
    if math.isfinite(norm) and norm + _TINY > most:
        scale = np.float32(most / (norm + _TINY))
        for gradient in gradients.values():
            np.multiply(gradient, scale, out=gradient)
    return norm
