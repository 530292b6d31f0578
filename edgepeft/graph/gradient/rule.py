"""What a rule is: from the gradient of a node's result to the gradients of what the node reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import onnx

from edgepeft.common.errors import BundleError
from edgepeft.common.registry import modules_of
from edgepeft.graph.gradient.tape import Extent, Tape
from edgepeft.graph.protos import attributes

__all__ = ["INTEGER_PRODUCT", "Backward", "Gradients", "Rule", "Visit", "rules"]

INTEGER_PRODUCT = "IntegerProduct"  # of x, an int8 matrix and its scales: see ``edgepeft.graph.quantise``
Backward = Literal["fp32", "int8"]

Gradients: TypeAlias = Iterator[tuple[int, str]]  # (which input of the node, the value that is its gradient)


@dataclass(frozen=True)
class Visit:
    """One node on the way back.  ``dy`` is the gradient of its first result, ``wanted`` the inputs that need one."""

    tape: Tape
    node: onnx.NodeProto
    dy: str
    wanted: frozenset[int]

    @property
    def x(self) -> str:
        """The first input."""
        return str(self.node.input[0])

    @property
    def y(self) -> str:
        """The first result."""
        return str(self.node.output[0])

    @property
    def op(self) -> Callable[..., str]:
        """``Tape.op``."""
        return self.tape.op

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The node's own."""
        return attributes(self.node)

    def number(self, value: float) -> str:
        """A scalar of the result's element type."""
        return self.tape.number(value, self.y)

    def axes(self, *given: int) -> tuple[int, ...]:
        """Axes of the first input, counted from the front."""
        rank = self.tape.rank(self.x)
        return tuple(axis % rank for axis in given)

    def asked(self, position: int, name: str) -> tuple[int, ...] | None:
        """Numbers that stand in a constant input, or in an attribute of that name; None where there are none.

        Raises:
            BundleError: they are computed.
        """
        if len(self.node.input) <= position or not self.node.input[position]:
            found = self.attributes.get(name)
            return None if found is None else tuple(found)
        known = self.tape.value(self.node.input[position])
        if known is None:
            raise self.refusal(f"with {name} that are computed")
        return tuple(map(int, known.reshape(-1)))

    def reduced(self, gradient: str, position: int, shape: tuple[Extent, ...] | None = None) -> str:
        """Summed over the axes that the input was repeated along; ``shape`` is the gradient's, if not the result's."""
        whole = self.tape.extents(self.y) if shape is None else shape
        part = self.tape.extents(self.node.input[position])
        lead = len(whole) - len(part)
        ones = tuple(1 for _ in whole[0]) if whole else ()
        odd = [axis for axis, (w, p) in enumerate(zip(whole[lead:], part, strict=True), lead) if w != p]
        if any(part[axis - lead] != ones for axis in odd):
            raise self.refusal(f"whose operand has the extents {part} in a result of {whole}")
        if lead or odd:
            gradient = self.op("ReduceSum", gradient, self.tape.ints(*range(lead), *odd), keepdims=1)
        return self.op("Squeeze", gradient, self.tape.ints(*range(lead))) if lead else gradient

    def refusal(self, what: str) -> BundleError:
        """The error to raise where the rule does not cover the node."""
        return BundleError(f"there is no gradient of {self.node.op_type} {what} ({self.node.name or self.y}).")


Rule = Callable[[Visit], Gradients]


def rules() -> dict[str, Rule]:
    """Rule by operator, of all files of ``rules``."""
    return {op: rule for module in modules_of("edgepeft.graph.gradient.rules") for op, rule in module.RULES.items()}
