"""Between what is trained and what graphs take: one vector and its scales make every tensor of the backbone.

Tensors are made before a step, and gradients go the way back after it and are let go, a few at a time: all of either
kind are as large as the backbone.
"""

from __future__ import annotations

import numpy as np
import onnx

from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.common.fastfood import ahead
from edgepeft.data.training_loop.engine import Arrays
from edgepeft.device.host.machine import thread_count
from edgepeft.graph.derived_weights import generator_of
from edgepeft.graph.training import TrainingFacts

__all__ = ["Expansion"]


class Expansion:
    """By a delta graph's recipe; the identity where it has none."""

    def __init__(
        self, delta: onnx.ModelProto, facts: TrainingFacts, checkpoint: Checkpoint, threads: int | None = None
    ) -> None:
        """Make nothing yet.

        Raises:
            BundleError: the recipe is none that this version knows.
        """
        self._generator = generator_of(delta) if facts.generated else None
        self._facts, self._checkpoint, self._threads = facts, checkpoint, thread_count(threads)

    def inputs(self, trained: Arrays) -> Arrays:
        """What graphs take, by ``facts.leaves``.

        Raises:
            BundleError: the recipe cannot be followed.
        """
        generator, checkpoint = self._generator, self._checkpoint
        if generator is None:
            return trained
        names = self._facts.generated
        made = ahead(lambda name: generator.tensor(name, trained, checkpoint), names, self._threads)
        return {**trained, **dict(zip(names, made, strict=True))}

    def gradients(self, trained: Arrays, found: Arrays) -> Arrays:
        """Those of what is trained, from those of what graphs took, which are taken out of ``found``."""
        generator = self._generator
        if generator is None:
            return found
        parts = ahead(lambda name: generator.back(name, found.pop(name), trained), self._facts.generated, self._threads)
        totals = {name: np.zeros_like(trained[name]) for name in (generator.vector, generator.scales)}
        for part in parts:
            for name, gradient in part.items():
                totals[name] += gradient
        return {**found, **totals}
