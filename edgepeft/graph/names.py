"""Names in delta and training graphs, as the exporter writes and the splice reads them, and in lowered graphs."""

from collections.abc import Iterable
from typing import Literal

LOGITS = "logits"
# What transformers' models for answers, and those without a head, give in its place.
START, END, STATES = "start_logits", "end_logits", "last_hidden_state"
LABELS, SHARES, LOSS = "labels", "shares", "loss"  # of a training graph
PLACES = "places"  # of one whose rows have several token rows
POOLING = "pooling"  # of one whose texts are read in windows
# Of a lowered step of a decoder (``in_place``).
PLACE, LAST = "known.place", "known.last"  # int32 [N]; int64 [N] into the N S tokens
TEXTS = "known.texts"  # int64 [1]: N
# Of a delta graph's metadata: how many tokens of which id must stand in front of each row.
PROMPT_LENGTH, PLACEHOLDER_ID = "edgepeft.prompt_length", "edgepeft.placeholder_id"
# Where a spliced model says that tensors lie which a recipe makes: it is no file.
GENERATED = "generated"
_ADAPTED = ":adapted"
_PREFIXES = ("override", "weight", "generated", "drawn")
_LOADERS = "generator/"
_JOINED = "+"


def with_prefix(
    kind: Literal["override", "weight", "generated", "drawn", "gradient", "dropout"], rest: str | int
) -> str:
    """Name an input or output of one of these kinds; the inverse of ``without_prefix``.

    override    the output that replaces a backbone tensor
    weight      the input that is bound to a backbone tensor, or to its override
    generated   the input for a replaced backbone tensor that the loader computes by the graph's recipe
    drawn       the input for a random matrix that the loader draws by the graph's recipe
    gradient    the output of a training graph that is a trained tensor's gradient
    dropout     the input of a training graph that scales the features at one of its dropouts: 0 where dropped
    """
    return f"{kind}:{rest}"


def adapted_name(site: str) -> str:
    """Name the output that replaces a site's value."""
    return site + _ADAPTED


def loader_name(parameter: str) -> str:
    """Name the initializer with what generated tensors are computed of; no node reads it."""
    return _LOADERS + parameter


def is_of_loader(initializer: str) -> bool:
    """Whether the loader reads it, and no node."""
    return initializer.startswith(_LOADERS)


def labels_name(value: str) -> str:
    """What a delta graph calls the constant that a value of the labels, such as their tokens, is replaced by."""
    return f"labels/{value}"


def grouped_name(matrix: str) -> str:
    """What a lowered graph calls the bytes of a grouped matrix."""
    return f"{matrix}:groups"


def joined_name(names: Iterable[str]) -> str:
    """The name of tensors that are joined along an axis."""
    return _JOINED.join(names)


def names_in(joined: str) -> tuple[str, ...]:
    """The inverse of ``joined_name``."""
    return tuple(joined.split(_JOINED))


def without_prefix(name: str) -> tuple[str, str]:
    """(kind, rest): kind is ``adapted``, ``override``, ``weight``, ``generated``, ``drawn`` or empty."""
    if name.endswith(_ADAPTED):
        return "adapted", name.removesuffix(_ADAPTED)
    kind, colon, rest = name.partition(":")
    return (kind, rest) if colon and kind in _PREFIXES else ("", name)
