"""The labels of a task as a trie of tokens, scored in one pass of a decoder: shared prefixes are computed once.

A node is a prefix of some labels, and stands for its last token; the root is the decoder's start token, of a
decoder-only model the last one read.  Only branching nodes and their ancestors are kept.  An edge leads from a
branching node to a child.  A label's probability is the product over its edges of a softmax among siblings.

Letters: n nodes, e edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.base import Decoder
from edgepeft.backbones.tokens import TextEncoder
from edgepeft.common.errors import UsageError

# Values of a backbone's graph that a task replaces by its own: ``Trie.values``.
TOKENS, SEES, EDGES = "label.tokens", "label.sees", "label.edges"
LABEL_VALUES = (TOKENS, SEES, EDGES)

# Of two tables of edges in a task's graph, by nodes and by labels, a byte each: a thousand labels of some words each.
MAX_CELLS = 2**24
_Prefix = tuple[int, ...]


@dataclass(frozen=True)
class Trie:
    """``targets`` are the labels' tokens, each with the one that ends a text; no target begins another."""

    targets: tuple[tuple[int, ...], ...]
    start: int

    @cached_property
    def _children(self) -> dict[_Prefix, dict[int, None]]:
        """The tokens that follow each beginning, in the order of the labels."""
        children: dict[_Prefix, dict[int, None]] = {}
        for target in self.targets:
            for length, token in enumerate(target):
                children.setdefault(target[:length], {})[token] = None
        return children

    @cached_property
    def nodes(self) -> tuple[_Prefix, ...]:
        """Where labels part, and the beginnings of these; the root comes first."""
        parting = [prefix for prefix, tokens in self._children.items() if len(tokens) > 1]
        needed = {prefix[:length] for prefix in parting for length in range(len(prefix) + 1)}
        order = {prefix: i for i, prefix in enumerate(self._children)}
        return tuple(sorted(needed, key=lambda prefix: (len(prefix), order[prefix])))

    @property
    def n_cells(self) -> int:
        """Entries of ``siblings`` and ``paths``."""
        return len(self.edges) * (len(self.nodes) + len(self.targets))

    @cached_property
    def edges(self) -> tuple[tuple[_Prefix, int], ...]:
        """(node, the child's token), of nodes with several children."""
        return tuple((node, t) for node in self.nodes if len(self._children[node]) > 1 for t in self._children[node])

    @property
    def values(self) -> dict[str, NDArray[np.int64]]:
        """Values that the graph reads: tokens [n], which nodes each node sees [n, n], the edges' tokens [e]."""
        sees = [[int(node[: len(other)] == other) for other in self.nodes] for node in self.nodes]
        found = {
            TOKENS: [node[-1] if node else self.start for node in self.nodes],
            SEES: sees,
            EDGES: [token for _, token in self.edges],
        }
        return {name: np.array(value, np.int64) for name, value in found.items()}

    @property
    def siblings(self) -> NDArray[np.bool_]:
        """[n, e]: whether the edge leaves the node."""
        return np.array([[node == source for source, _ in self.edges] for node in self.nodes])

    @property
    def paths(self) -> NDArray[np.bool_]:
        """[e, labels]: whether the edge is on the label's way."""
        return np.array([[target[: len(s) + 1] == (*s, t) for target in self.targets] for s, t in self.edges])

    @property
    def tables(self) -> dict[str, NDArray[np.bool_]]:
        """Tables that a head reads, by name."""
        return {"siblings": self.siblings, "paths": self.paths}

    @cached_property
    def ways(self) -> tuple[_Prefix, ...]:
        """Nodes that begin no other: with their own beginnings they cover all."""
        return tuple(n for n in self.nodes if not any(n != other and n == other[: len(n)] for other in self.nodes))

    def side_by_side(self) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
        """Lay it out for a decoder that takes plain sequences: ways from the root, one after the other in one row.

        Their tokens [m], which of these each sees [m, m], and for each node a place where it stands [n].
        """
        places = [way[:length] for way in self.ways for length in range(len(way) + 1)]
        owners = np.repeat(np.arange(len(self.ways)), [len(way) + 1 for way in self.ways])
        earlier = np.tri(len(places), dtype=bool)
        tokens = np.array([place[-1] if place else self.start for place in places], np.int64)
        sees = earlier & (owners[:, None] == owners[None])
        return tokens, sees, np.array([places.index(node) for node in self.nodes], np.int64)


def trie_of(labels: Sequence[str], encoder: TextEncoder, decoder: Decoder) -> Trie:
    """The labels as a decoder writes them."""
    if len(labels) < 2:
        raise UsageError(f"labels are scored against each other; found {len(labels)}, where two are needed.")
    known: dict[tuple[int, ...], str] = {}
    for label in labels:
        target = (*encoder.plain_ids(label), decoder.end_token_id)
        if len(target) == 1 or decoder.end_token_id in target[:-1]:
            raise UsageError(f"the label {label!r} cannot be scored: its tokens are {target[:-1]}; rename it.")
        if target in known:
            raise UsageError(
                f"the labels {known[target]!r} and {label!r} are the same tokens {target[:-1]}; rename one."
            )
        known[target] = label
    trie = Trie(tuple(known), decoder.start_token_id or 0)
    if trie.n_cells > MAX_CELLS:
        raise UsageError(
            f"{len(labels)} labels of {len(trie.nodes)} different beginnings are too many to be scored at once: "
            f"{trie.n_cells:,} cells of {MAX_CELLS:,} at most. Give fewer or shorter ones, or use an encoder."
        )
    return trie
