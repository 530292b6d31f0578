"""Which files beside it a graph reads: a downloaded one must not name any that it has no business with.

ONNX keeps a tensor's bytes in another file where ``data_location`` is EXTERNAL; tensors stand among the initializers,
in nodes' attributes, in the graphs of control flow and in functions.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from edgepeft.errors import BundleError
from edgepeft.graph.contract import Contract
from edgepeft.graph.protos import submessages

__all__ = ["all_tensors", "check_external", "external_files"]


def all_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of the model, wherever it stands."""
    yield from (message for message in submessages(model) if isinstance(message, onnx.TensorProto))


def external_files(model: onnx.ModelProto) -> set[str]:
    """The locations that the model's tensors name; "" where one names none."""
    external = [t for t in all_tensors(model) if t.data_location == onnx.TensorProto.EXTERNAL or t.external_data]
    return {next((e.value for e in t.external_data if e.key == "location"), "") for t in external}


@Contract()
def check_external(model: onnx.ModelProto, allowed: str | None, where: object) -> None:
    """See that the model reads no other file than ``allowed``, or none at all.

    Raises:
        BundleError: it does; nothing was opened.
    """
    strange = external_files(model) - ({allowed} if allowed is not None else set())
    if strange:
        may = "it must be whole by itself" if allowed is None else f"only {allowed} lies there for it"
        raise BundleError(f"{where} wants to read the file {sorted(strange)[0]!r}; {may}. Do not use it.")
