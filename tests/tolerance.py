"""How far from its exact value float32 may leave a result, on any processor: from float64, never from one machine.

A sum of n products, added up in any order and with or without FMA, is off by at most ``gamma_n |x|.|y|`` with
``gamma_n = n u / (1 - n u)`` and ``u = 2**-24`` (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
eq. 3.5); errors of either sign make that about ``sqrt(n) u |x|.|y|`` (Higham and Mary, 2019, SIAM J. Sci. Comput. 41(5)).
Through a whole network each operation reads what the ones before it rounded: `exactly` runs it in float64, then again with
every operation off by that much, of random sign (Monte Carlo arithmetic: Parker, 1997, UCLA CSD-970002).  So a network that
magnifies its rounding (sharp attention, a LayerNorm of nearly equal values) is allowed as much as it magnifies, and one that
does not is held to the last digits.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from deltas import TEXTS
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.delta import Delta

UNIT = 2.0**-24  # float32 rounds to nearest: off by at most this share
DRAWS = 2
# Over the largest of so many draws: errors that a processor's exp or erf makes all of one sign add up faster than random
# ones.  Over every method's gradients and logits, PyTorch and ONNX Runtime use at most 0.4 of it (of a key's bias, whose
# gradient is nothing but rounding; else 0.2), and a tensor off by 1 % is still found.
HEADROOM = 6
SUMS = {"mm", "bmm", "addmm", "baddbmm", "mv", "dot", "sum", "mean"}
# What they compute inside is a sum or difference of what they read, so its rounding counts, not the result's alone.
FUSED = {"native_layer_norm", "native_layer_norm_backward", "gelu", "gelu_backward"}
FUSED |= {f"{name}{way}" for name in ("_softmax", "_log_softmax") for way in ("", "_backward_data")}


@dataclass(frozen=True)
class Exact:
    """A result in float64, and how far from it one computation in float32 may lie."""

    value: np.ndarray
    error: float

    def require(self, found: np.ndarray, name: str = "") -> None:
        np.testing.assert_allclose(found, self.value, rtol=0, atol=self.error, err_msg=name)


def exactly(compute: Callable[[], Mapping[str, Tensor]]) -> dict[str, Exact]:
    """What ``compute`` gives in float64, and what float32 may make of each of its tensors."""
    values = {name: tensor.detach().numpy() for name, tensor in compute().items()}
    furthest = {name: 4 * UNIT * float(np.abs(value).max(initial=0)) for name, value in values.items()}
    for seed in range(DRAWS):
        with _Rounding(seed):
            rounded = compute()
        for name, tensor in rounded.items():
            off = float(np.abs(tensor.detach().numpy() - values[name]).max(initial=0))
            furthest[name] = max(furthest[name], off)
    return {name: Exact(value, HEADROOM * furthest[name]) for name, value in values.items()}


def exact_logits(delta: Any, model: torch.nn.Module, rows: Mapping[str, Any]) -> Exact:
    """Logits of a delta on the frozen model in float64."""
    delta, model = copy.deepcopy(delta).eval().double(), copy.deepcopy(model).double()
    inputs = {name: torch.as_tensor(values) for name, values in rows.items()}
    with torch.no_grad():
        return exactly(lambda: {"logits": delta.logits(model, inputs)})["logits"]


@functools.cache
def error_beside(bundle: Path) -> float:
    """How far two float32 computations of a logit may lie apart, of any task whose delta lies beside a bundle of tests."""
    backbone = open_backbone(str(bundle))  # a bundle holds its backbone's checkpoint as it was
    model, inputs = load_model(backbone, "eager"), backbone.encoder().encode(TEXTS[:8], 40).inputs
    deltas = [Delta.load(card.parent, backbone) for card in sorted(bundle.parent.glob("*/delta.json"))]
    errors = [exact_logits(delta, model, inputs).error for delta in deltas]
    return 2 * max(errors)


def require_alike(one: Any, other: Any, bundle: Path) -> None:
    """Two float32 computations of the same logits (or of probabilities, which move less) of that bundle's tasks agree."""
    np.testing.assert_allclose(one, other, rtol=0, atol=error_beside(bundle))


class _Rounding(TorchDispatchMode):
    """Every operation reads its floats, and leaves its result, off by what float32 would make of them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
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
        read = tree_map_only(Tensor, self.rounded, args) if name in FUSED else args
        out = func(*read, **kwargs)
        if name not in SUMS or out.dtype != torch.float64:
            return tree_map_only(Tensor, self.rounded, out)
        sizes = func(*tree_map_only(Tensor, torch.abs, args), **kwargs)
        return self.rounded(out, (1 + math.sqrt(_terms(args, out))) * sizes)


def _terms(args: Any, out: Tensor) -> float:
    """How many terms each sum has: of products the inner size, of a sum the values that go into one."""
    tensors = [value for value in args if isinstance(value, Tensor)]
    if len(tensors) == 1:
        return tensors[0].numel() / max(out.numel(), 1)
    return tensors[-2].shape[-1]
