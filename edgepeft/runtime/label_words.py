"""Labels as words that a decoder scores behind a prompt: the trie of their tokens, branch by branch from one cache.

    log p(label) = sum over the edges of its way of log softmax(logits of the edge and its siblings)

The prompt's logits are those of the root; where no label goes on from a shared token, nothing else runs.

Letters: B rows, W branches that run together, v vocabulary.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.base import Decoder
from edgepeft.backbones.trie import Trie
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import Unwritable
from edgepeft.runtime.decoding import Decoding, log_probabilities
from edgepeft.runtime.generation import Generator, TextState
from edgepeft.runtime.inputs import Inputs, Tokenizing, in_batches

_BRANCHES = 16  # of the trie, from one reading of the prompt: each is a text in the cache


def word_scores(generator: Generator, task: str, inputs: Inputs, trie: Trie) -> NDArray[np.float32]:
    """[rows, labels]: log-probabilities of the labels behind each row of ``inputs``, ids and masks [rows, length]."""
    branches, decoding = [*in_batches(trie.ways, _BRANCHES)], trie_decoding(trie)
    lengths = (inputs["attention_mask"] != 0).sum(1) + generator.bundle.prompt_length(task)
    scores, session = np.zeros((len(lengths), len(trie.targets)), np.float32), generator.session(task)
    columns = defaultdict[tuple[int, ...], list[int]](list)  # the edges that leave each node
    for i, (node, _) in enumerate(trie.edges):
        columns[node].append(i)
    for rows in [*generator.parts(lengths, decoding)]:  # before anything runs: what does not fit is refused
        longest, steps = int(lengths[rows].max()), decoding.max_new_tokens - 1
        if generator.most(longest, steps) < steps:
            raise Unwritable(
                f"a text of {longest} tokens leaves fewer than the {steps} positions that the labels of task {task} "
                "take; give a shorter one."
            )
        beginning = generator.beginning(task, session, len(rows) * generator.row_bytes(longest, decoding))
        part = {name: values[rows] for name, values in inputs.items()}
        of_edges = np.zeros((len(rows), len(trie.edges)), np.float32)
        for some in branches:
            state = TextState(session, part, beginning)
            for node, logits in _followed(state, generator.decoder, part, some):
                if node in columns:
                    of_edges[:, columns[node]] = log_probabilities(logits[:, [trie.edges[i][1] for i in columns[node]]])
        scores[rows] = of_edges @ trie.paths
    return scores


def trie_decoding(trie: Trie) -> Decoding:
    """Return the decoding that takes as much as scoring these labels: a token a step, branches as beams."""
    return Decoding(1 + max(map(len, trie.ways)), beams=min(len(trie.ways), _BRANCHES))


def decoding_in(bundle: Bundle, task: str, asked: Decoding) -> Decoding:
    """Decoding by which a task's memory is counted: as ``asked``, or what its labels take where they are words."""
    entry = bundle.entry(task)
    return trie_decoding(Tokenizing(bundle, RLock()).trie(entry)) if entry.scores_words else asked


def _followed(
    state: TextState, decoder: Decoder, inputs: Inputs, branches: Sequence[tuple[int, ...]]
) -> Iterator[tuple[tuple[int, ...], NDArray[np.float32]]]:
    """Each node of these branches, and the logits [B, v] of what follows it; shared ones come more than once."""
    n, w = len(inputs["input_ids"]), len(branches)
    yield (), state.step(decoder.starts(inputs["input_ids"], inputs["attention_mask"]), np.arange(n))
    order = np.repeat(np.arange(n), w)
    for depth in range(max(map(len, branches))):
        ids = np.tile([branch[min(depth, len(branch) - 1)] for branch in branches], n)  # past its end one more, unread
        logits = state.step(ids, order).reshape(n, w, -1)
        for i, branch in enumerate(branches):
            if depth < len(branch):
                yield branch[: depth + 1], logits[:, i]
        order = np.arange(n * w)
