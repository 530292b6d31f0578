"""The labels of a task as a trie of tokens, which one pass of a decoder scores: a shared beginning is computed once.

A node is a beginning of some labels, and stands for the token that ends it; the root is the token that a decoder starts
from.  Only where labels part is anything decided, so nodes are those with several children, and what lies above them.
An edge leads from such a node to a child.  A label's probability is the product over its edges, each among its
siblings: exact, and never an answer that is no label.

Letters: n nodes, e edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["EDGES", "LABEL_VALUES", "SEES", "TOKENS", "Trie"]

# Values of a backbone's graph that a task replaces by its own: ``Trie.values``.
TOKENS, SEES, EDGES = "label.tokens", "label.sees", "label.edges"
LABEL_VALUES = (TOKENS, SEES, EDGES)

_Prefix = tuple[int, ...]


@dataclass(frozen=True)
class Trie:
    """``targets`` are the labels' tokens, each with the one that ends a text; no target begins another."""

    targets: tuple[tuple[int, ...], ...]
    start: int

    @cached_property
    def _children(self) -> dict[_Prefix, list[int]]:
        """The tokens that follow each beginning, in the order of the labels."""
        children: dict[_Prefix, list[int]] = {}
        for target in self.targets:
            for length, token in enumerate(target):
                following = children.setdefault(target[:length], [])
                if token not in following:
                    following.append(token)
        return children

    @cached_property
    def nodes(self) -> tuple[_Prefix, ...]:
        """Where labels part, and the beginnings of these; the root comes first."""
        parting = [prefix for prefix, tokens in self._children.items() if len(tokens) > 1]
        needed = {prefix[:length] for prefix in parting for length in range(len(prefix) + 1)}
        return tuple(sorted(needed, key=lambda prefix: (len(prefix), list(self._children).index(prefix))))

    @cached_property
    def edges(self) -> tuple[tuple[_Prefix, int], ...]:
        """(node, the child's token), of nodes with several children."""
        return tuple((node, t) for node in self.nodes if len(self._children[node]) > 1 for t in self._children[node])

    @property
    def values(self) -> dict[str, NDArray[np.int64]]:
        """What the graph reads: tokens [n], which nodes each node sees [n, n], the edges' tokens [e]."""
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
        """[n, e, labels]: whether the edge leaves the node, on the label's way."""
        ways = [[target[: len(s) + 1] == (*s, t) for target in self.targets] for s, t in self.edges]
        return np.logical_and(self.siblings[:, :, None], ways)

    @cached_property
    def _ways(self) -> tuple[_Prefix, ...]:
        """Nodes that begin no other: with their own beginnings they cover all."""
        return tuple(n for n in self.nodes if not any(n != other and n == other[: len(n)] for other in self.nodes))

    def side_by_side(self) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
        """The same for a decoder that takes plain sequences: ways from the root, one after the other in one row.

        Their tokens [m], which of these each sees [m, m], and for each node a place where it stands [n].
        """
        places = [way[:length] for way in self._ways for length in range(len(way) + 1)]
        owners = np.repeat(np.arange(len(self._ways)), [len(way) + 1 for way in self._ways])
        earlier = np.tri(len(places), dtype=bool)
        tokens = np.array([place[-1] if place else self.start for place in places], np.int64)
        sees = earlier & (owners[:, None] == owners[None])
        return tokens, sees, np.array([places.index(node) for node in self.nodes], np.int64)
