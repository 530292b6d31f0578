"""How far from its exact value float32 may leave a result, on any processor: from float64, never from one machine.

A sum of n products, added up in any order and with or without FMA, is off by at most ``gamma_n |x|.|y|`` with
``gamma_n = n u / (1 - n u)`` and ``u = 2**-24`` (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., eq.
3.5); errors of either sign make that about ``sqrt(n) u |x|.|y|`` (Higham and Mary, 2019, SIAM J. Sci. Comput. 41(5)).
Through a whole network each operation reads what the ones before it rounded: `float32_errors` runs it in float64 again
with every operation off by that much, of random sign (Monte Carlo arithmetic: Parker, 1997, UCLA CSD-970002).  So a
network that magnifies its rounding (sharp attention, a LayerNorm of nearly equal values) is allowed as much as it
magnifies, and one that does not is held to the last digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

UNIT = 2.0**-24  # float32 rounds to nearest: off by at most this share
_DRAWS = 2
# Over the largest of so many draws: errors that a processor's exp or erf makes all of one sign add up faster than
# random ones.  Over every method's gradients and logits, PyTorch and ONNX Runtime use at most 0.4 of it (of a key's
# bias, whose gradient is nothing but rounding; else 0.3), and a tensor off by 1 % is still found.
_HEADROOM = 6
_SUMS = {"mm", "bmm", "addmm", "baddbmm", "mv", "dot", "sum", "mean"}
# What they compute inside is a sum or difference of what they read, so its rounding counts, not the result's alone.
_FUSED = {"native_layer_norm", "native_layer_norm_backward", "gelu", "gelu_backward"}
_FUSED |= {f"{name}{way}" for name in ("_softmax", "_log_softmax") for way in ("", "_backward_data")}


def float32_errors(exact: Mapping[str, Tensor], compute: Callable[[], Mapping[str, Tensor]]) -> dict[str, float]:
    """How far float32 may lie from each tensor of ``exact``, which is what ``compute`` gives in float64."""
    furthest = {name: 4 * UNIT * _largest(value) for name, value in exact.items()}
    for seed in range(_DRAWS):
        with _Rounding(seed):
            rounded = compute()
        furthest |= {name: max(furthest[name], _largest(rounded[name] - value)) for name, value in exact.items()}
    return {name: _HEADROOM * off for name, off in furthest.items()}


def _largest(values: Tensor) -> float:
    return float(values.detach().abs().max()) if values.numel() else 0.0


class _Rounding(TorchDispatchMode):
    """Every operation reads its floats, and leaves its result, off by what float32 would make of them."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source = torch.Generator().manual_seed(seed)

    def rounded(self, tensor: Tensor, size: Tensor | None = None) -> Tensor:
        """Off by up to ``UNIT`` of itself, or of ``size``, wherever float32 cannot hold the number.

        It holds weights, masks (what they add to is as good as infinite) and counts.
        """
        if tensor.dtype != torch.float64:
            return tensor
        single = tensor.float()
        noise = torch.empty(tensor.shape, dtype=torch.float64).uniform_(-UNIT, UNIT, generator=self.source)
        off = tensor + noise * (tensor if size is None else size)
        return torch.where((single == tensor) | single.isinf(), tensor, off)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        if schema.is_mutable or any(value.alias_info for value in (*schema.arguments, *schema.returns)):
            return func(*args, **kwargs)  # a view computes nothing
        name = func.overloadpacket.__name__
        read = tree_map_only(Tensor, self.rounded, args) if name in _FUSED else args
        out = func(*read, **kwargs)
        if name not in _SUMS or out.dtype != torch.float64:
            return tree_map_only(Tensor, self.rounded, out)
        sizes = func(*tree_map_only(Tensor, torch.abs, args), **kwargs)
        return self.rounded(out, (1 + math.sqrt(_terms(args, out))) * sizes)


def _terms(args: Any, out: Tensor) -> float:
    """How many terms each sum has: of products the inner size, of a sum the values that go into one."""
    tensors = [value for value in args if isinstance(value, Tensor)]
    if len(tensors) == 1:
        return tensors[0].numel() / max(out.numel(), 1)
    return tensors[-2].shape[-1]
