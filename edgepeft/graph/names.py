"""Names of the inputs and outputs of delta and training graphs, as the exporter writes and the splice reads them."""

from __future__ import annotations

LOGITS = "logits"
# What transformers' models for answers, and those without a head, give in its place.
START, END, STATES = "start_logits", "end_logits", "last_hidden_state"
LABELS, SHARES, LOSS = "labels", "shares", "loss"  # of a training graph
PLACES = "places"  # of one whose rows have several token rows
POOLING = "pooling"  # of one whose texts are read in windows
# Of a delta graph's metadata: how many tokens of which id must stand in front of each row.
PROMPT_LENGTH, PLACEHOLDER_ID = "edgepeft.prompt_length", "edgepeft.placeholder_id"
# Where a spliced model says that tensors lie which a recipe makes: it is no file.
GENERATED = "generated"
_ADAPTED = ":adapted"
_PREFIXES = ("override", "weight", "generated", "drawn")
_LOADERS = "generator/"


def adapted(site: str) -> str:
    """The output that replaces a site's value."""
    return site + _ADAPTED


def override(tensor: str) -> str:
    """The output that replaces a backbone tensor."""
    return f"override:{tensor}"


def weight(tensor: str) -> str:
    """The input that is bound to a backbone tensor, or to its override."""
    return f"weight:{tensor}"


def generated(tensor: str) -> str:
    """The input for a replaced backbone tensor that the loader computes by the graph's recipe."""
    return f"generated:{tensor}"


def of_loader(parameter: str) -> str:
    """The initializer with what such tensors are computed of; no node reads it."""
    return _LOADERS + parameter


def frozen_random(matrix: str) -> str:
    """The input for a random matrix that the loader draws by the graph's recipe."""
    return f"drawn:{matrix}"


def is_of_loader(initializer: str) -> bool:
    """Whether the loader reads it, and no node."""
    return initializer.startswith(_LOADERS)


def gradient(tensor: str) -> str:
    """The output of a training graph that is a trained tensor's gradient."""
    return f"gradient:{tensor}"


def dropout(index: int) -> str:
    """The input of a training graph that scales the features at one of its dropouts: 0 where dropped."""
    return f"dropout:{index}"


def of_labels(value: str) -> str:
    """What a delta graph calls the constant that a value of the labels, such as their tokens, is replaced by."""
    return f"labels/{value}"


def without_prefix(name: str) -> tuple[str, str]:
    """(kind, rest): kind is ``adapted``, ``override``, ``weight``, ``generated``, ``drawn`` or empty."""
    if name.endswith(_ADAPTED):
        return "adapted", name.removesuffix(_ADAPTED)
    kind, colon, rest = name.partition(":")
    return (kind, rest) if colon and kind in _PREFIXES else ("", name)
