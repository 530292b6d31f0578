"""How far from its exact value float32 may leave what a test compares: `rounding.py` tells how far."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from deltas import TEXTS
from rounding import UNIT, float32_errors
from torch import Tensor

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.delta import Delta


@dataclass(frozen=True)
class Exact:
    """A result in float64, and how far from it one computation in float32 may lie."""

    value: np.ndarray
    error: float

    def require(self, found: np.ndarray, name: str = "") -> None:
        np.testing.assert_allclose(found, self.value, rtol=0, atol=self.error, err_msg=name)


def exactly(compute: Callable[[], Mapping[str, Tensor]]) -> dict[str, Exact]:
    """What ``compute`` gives in float64, and what float32 may make of each of its tensors."""
    values = {name: tensor.detach() for name, tensor in compute().items()}
    errors = float32_errors(values, compute)
    return {name: Exact(value.numpy(), errors[name]) for name, value in values.items()}


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
    model = load_model(backbone, backbone.architecture.reference)
    inputs = backbone.encoder().encode(TEXTS[:8], 40).inputs
    deltas = [Delta.load(card.parent, backbone) for card in sorted(bundle.parent.glob("*/delta.json"))]
    errors = [exact_logits(delta, model, inputs).error for delta in deltas]
    return 2 * max(errors)


def require_alike(one: Any, other: Any, bundle: Path) -> None:
    """Two float32 computations of the same logits (or of probabilities, which move less) of that bundle's tasks agree."""
    np.testing.assert_allclose(one, other, rtol=0, atol=error_beside(bundle))


def error_of(module: torch.nn.Module, *inputs: Any, **named: Any) -> float:
    """How far float32 may leave what a module makes of its inputs, tensors and modules, from the exact value."""
    module = copy.deepcopy(module).double()
    given = [copy.deepcopy(value).double() for value in (*inputs, *named.values())]
    positional, keywords = given[: len(inputs)], dict(zip(named, given[len(inputs) :], strict=True))
    return exactly(lambda: {"y": module(*positional, **keywords)})["y"].error


def error_of_sums(terms: int, sizes: np.ndarray) -> float:
    """How far float32 may leave sums of so many rounded terms, in any order: Higham's ``gamma_n |x|.|y|``."""
    share = terms * UNIT
    return share / (1 - share) * float(np.max(sizes))
