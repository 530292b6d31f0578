"""AdapterHub's layers of Kronecker products (``phm_layer``): names, shapes and values of their factors.

Such a layer computes x H + b, H = sum_i kron(rule_i, W_i): n terms; rule [n, n, n]; W [n, in/n, out/n].  Source:
adapters 1.3.0, ``methods/modeling.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from edgepeft.common.errors import BundleError
from edgepeft.methods._adapters import kronecker_sum
from edgepeft.training.interop._hub_config import BnConfig
from edgepeft.training.interop.conversion import StateDict

__all__ = ["PhmWeights", "Shapes"]

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class PhmWeights:
    """The names, shapes and values of such layers; ``shared`` opens the names of what all of them share."""

    config: BnConfig
    shared: str

    def shapes(self, start: str, inputs: int, outputs: int) -> Shapes:
        """Of one layer's own tensors."""
        shapes: Shapes = {}
        if not self.config.shared_phm_rule:
            shapes |= self._rule_shapes(start)
        if not self.config.shared_W_phm:
            shapes |= self._w_shapes(f"{start}W", inputs, outputs)
        return shapes | ({f"{start}b": (outputs,)} if self.config.phm_bias else {})

    def shared_shapes(self, hidden: int, width: int) -> Shapes:
        """Of what all layers share."""
        shapes = self._rule_shapes(self.shared) if self.config.shared_phm_rule else {}
        if self.config.shared_W_phm:
            shapes |= self._w_shapes(f"{self.shared}W_down", hidden, width)
            shapes |= self._w_shapes(f"{self.shared}W_up", width, hidden)
        return shapes

    def rule(self, state: StateDict, start: str) -> Tensor:
        """[n, n, n]."""
        where = self.shared if self.config.shared_phm_rule else start
        if self.config.factorized_phm_rule:
            return state[f"{where}phm_rule_left"] @ state[f"{where}phm_rule_right"]
        return state[f"{where}phm_rule"]

    def pair(self, state: StateDict, start: str, part: str) -> tuple[Tensor, Tensor]:
        """W's factors, [n, in/n, r] and [n, r, out/n]; ``part`` is down or up."""
        where = f"{self.shared}W_{part}" if self.config.shared_W_phm else f"{start}W"
        return state[f"{where}_left"], state[f"{where}_right"]

    def terms(self, state: StateDict, start: str, part: str) -> Tensor:
        """W, [n, in/n, out/n]."""
        if self.config.factorized_phm_W:
            left, right = self.pair(state, start, part)
            return left @ right
        return state[f"{start}W"]

    def weight(self, state: StateDict, start: str, part: str) -> Tensor:
        """H^T, [out, in]."""
        return kronecker_sum(self.rule(state, start), self.terms(state, start, part))

    def _rule_shapes(self, start: str) -> Shapes:
        n = self.config.phm_dim
        if self.config.factorized_phm_rule:
            return {f"{start}phm_rule_left": (n, n, 1), f"{start}phm_rule_right": (n, 1, n)}
        return {f"{start}phm_rule": (n, n, n)}

    def _w_shapes(self, name: str, inputs: int, outputs: int) -> Shapes:
        n, r = self.config.phm_dim, self.config.phm_rank
        if inputs % n or outputs % n:
            raise BundleError(
                f"phm_dim = {n} does not divide {inputs} and {outputs}, the widths of a layer; fetch the config again."
            )
        if self.config.factorized_phm_W:
            return {f"{name}_left": (n, inputs // n, r), f"{name}_right": (n, r, outputs // n)}
        return {name: (n, inputs // n, outputs // n)}
