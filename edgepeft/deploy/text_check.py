"""The check of a task that writes text: what it goes on with, as PyTorch wrote it greedily, token by token.

Log-probabilities of the likeliest tokens at each step, where the tokens before were PyTorch's (teacher forcing), so
that a difference at one step is none at the next.  They are of all tokens: one that is missing here shows too.

Letters: R rows, T steps, k candidates, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from edgepeft.bundle.manifest import EXACT, Tolerance, Verification
from edgepeft.common.errors import BundleError
from edgepeft.deploy.verify import compare_logits, in_groups
from edgepeft.runtime.decoding import log_probabilities
from edgepeft.runtime.generation import TextSession, TextState
from edgepeft.runtime.inputs import Inputs

__all__ = ["CANDIDATES", "STEPS", "TextCheck"]

STEPS, CANDIDATES = 8, 16
_FORMAT = "edgepeft.check/1"
_TOKENS, _CANDIDATES, _LOGITS = "tokens", "candidates", "logits"


class Steps(Protocol):
    """A batch that is written step by step."""

    def step(self, ids: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits of the tokens that follow."""


@dataclass(frozen=True)
class TextCheck:
    """Token ids and masks [R, length], PyTorch's ``tokens`` [R, T], and at each step the likeliest ``candidates``
    [R, T, k], from the best, with their log-probabilities ``logits`` [R, T, k]."""

    inputs: dict[str, NDArray[np.int64]]
    tokens: NDArray[np.int64]
    candidates: NDArray[np.int64]
    logits: NDArray[np.float32]

    def pack(self) -> bytes:
        """The content of a check file."""
        own = {_TOKENS: self.tokens, _CANDIDATES: self.candidates, _LOGITS: self.logits}
        arrays = {name: np.ascontiguousarray(values) for name, values in (self.inputs | own).items()}
        return save(arrays, metadata={"format": _FORMAT})

    @classmethod
    def read(cls, content: bytes, where: str, vocabulary: int) -> TextCheck:
        """What ``pack`` made, for a backbone of so many tokens.

        Raises:
            BundleError: damaged, or without what such a check needs.
        """
        try:
            found = load(content)
            own = [found.pop(name) for name in (_TOKENS, _CANDIDATES, _LOGITS)]
        except (SafetensorError, ValueError, TypeError, KeyError) as error:
            raise BundleError(f"{where} is not the check file of a task that writes text ({error}).") from error
        check = cls(found, *own)
        if not check._is_sound(vocabulary):
            raise BundleError(
                f"{where} is not the check file of a task that writes text: it needs input_ids and attention_mask of "
                "equal rows, tokens for each of these, and candidates and their logits for each token."
            )
        return check

    def _is_sound(self, vocabulary: int) -> bool:
        shapes = {values.shape for values in self.inputs.values()}
        if not {"input_ids", "attention_mask"} <= self.inputs.keys() or len(shapes) != 1 or self.tokens.ndim != 2:
            return False
        written = (*self.tokens.shape, self.candidates.shape[-1] if self.candidates.ndim else 0)
        alike = self.candidates.shape == self.logits.shape == written and self.logits.dtype == np.float32
        if not alike or not self.logits.size or len(self.tokens) != len(self.inputs["input_ids"]):
            return False
        numbers = (*self.inputs.values(), self.tokens, self.candidates)
        named = np.concatenate([self.tokens.ravel(), self.candidates.ravel(), self.inputs["input_ids"].ravel()])
        return all(values.dtype == np.int64 for values in numbers) and 0 <= named.min() <= named.max() < vocabulary

    def replay(self, session: TextSession, start: int, allowed: Tolerance = EXACT) -> Verification:
        """As ``compare``, with a task's sessions."""
        return self.compare(lambda inputs: TextState(session, inputs), start, allowed)

    def compare(self, begin: Callable[[Inputs], Steps], start: int, allowed: Tolerance = EXACT) -> Verification:
        """Run the check's rows, and compare with PyTorch's log-probabilities; a row of the result is a step of one.

        ``begin`` gives what is known of a batch before its first step, as ``TextState`` does.

        Raises:
            BundleError: ONNX Runtime stops within the model.
        """
        found = np.empty_like(self.logits)
        for rows, inputs in in_groups(self.inputs):
            state = begin(inputs)
            ids, order = np.full(len(rows), start, np.int64), np.arange(len(rows))
            for step in range(self.tokens.shape[1]):
                likely = log_probabilities(state.step(ids, order))
                found[rows, step] = np.take_along_axis(likely, self.candidates[rows, step], axis=1)
                ids = self.tokens[rows, step]
        width = self.logits.shape[-1]
        return compare_logits(self.logits.reshape(-1, width), found.reshape(-1, width), allowed)
