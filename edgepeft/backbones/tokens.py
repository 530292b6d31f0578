"""Text to token ids, the same way in training, verification and on the board: the tokenizers library alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from edgepeft.errors import BundleError, DataError

__all__ = ["Text", "TextEncoder", "TokenBatch", "cleaned", "pad_rows"]


class Text(NamedTuple):
    """One input: a sentence, or a pair of sentences."""

    first: str
    second: str | None = None


@dataclass(frozen=True)
class TokenBatch:
    """Padded rows, int64 [batch, length] each, by input name; ``truncated`` counts rows that lost tokens.

    ``encodings`` say where in its text each token of a row stands.  ``per_text`` says how many rows each text is, where
    it is read in windows.
    """

    inputs: dict[str, NDArray[Any]]
    truncated: int = 0
    encodings: tuple[Encoding, ...] = ()
    per_text: tuple[int, ...] = ()

    @property
    def windows(self) -> list[tuple[Encoding, ...]]:
        """The encodings of each text's windows."""
        ends = accumulate(self.per_text)
        return [self.encodings[end - n : end] for n, end in zip(self.per_text, ends, strict=True)]


class TextEncoder:
    """A ``tokenizer.json`` with the inputs and the padding of one backbone."""

    def __init__(self, path: Path, inputs: Sequence[str], pad_token_id: int) -> None:
        self._path = path
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise BundleError(f"{path} is missing or is not a tokenizer.json ({error}).") from error
        self._tokenizer.no_padding()
        self._inputs = tuple(inputs)
        self._pad = pad_token_id

    def encode(self, texts: Sequence[Text], max_length: int) -> TokenBatch:
        """Tokenize, truncate the longest part first to ``max_length`` tokens, pad to the longest row.

        Raises:
            BundleError: the tokenizer's own parts contradict each other.
        """
        self._tokenizer.enable_truncation(max_length)
        encodings = self._encoded(texts)
        return TokenBatch(self._padded(encodings), sum(bool(e.overflowing) for e in encodings), tuple(encodings))

    def windows(self, texts: Sequence[Text], max_length: int, names: Sequence[str] = ()) -> TokenBatch:
        """Tokenize pairs, each in as many rows as it takes to read its second text; two that follow each other share a
        third of ``max_length``.  ``names`` are the texts' in errors.

        Raises:
            DataError: a first text leaves no room for the second.
        """
        self._tokenizer.no_truncation()
        alone = self._encoded([Text(text.first) for text in texts], special=False)
        own, overlap = self._tokenizer.num_special_tokens_to_add(True), max_length // 3
        for i, first in enumerate(alone):
            if (room := max_length - own - len(first.ids)) <= overlap:
                raise DataError(
                    f"{names[i] if names else f'row {i}'}: the question's {len(first.ids)} tokens leave "
                    f"{max(0, room)} of {max_length} for the passage, and a window of it needs more than {overlap}; "
                    "ask in fewer words, or train with a greater --max-length."
                )
        self._tokenizer.enable_truncation(max_length, stride=overlap, strategy="only_second")
        found = [(first, *first.overflowing) for first in self._encoded(texts)]
        every = tuple(window for windows in found for window in windows)
        return TokenBatch(self._padded(every), 0, every, tuple(map(len, found)))

    def _encoded(self, texts: Sequence[Text], special: bool = True) -> list[Encoding]:
        pairs = [cleaned(t.first) if t.second is None else (cleaned(t.first), cleaned(t.second)) for t in texts]
        try:
            encodings: list[Encoding] = self._tokenizer.encode_batch(pairs, add_special_tokens=special)
        except BaseException as error:  # bare Exception, and for Rust's panics a subclass of BaseException alone
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            raise BundleError(f"{self._path} cannot encode a text ({error}); use a sound tokenizer.json.") from error
        return encodings

    def _padded(self, encodings: Sequence[Encoding]) -> dict[str, NDArray[Any]]:
        columns = {
            "input_ids": ([e.ids for e in encodings], self._pad),
            "attention_mask": ([e.attention_mask for e in encodings], 0),
            "token_type_ids": ([e.type_ids for e in encodings], 0),
        }
        return {name: pad_rows(*columns[name]) for name in self._inputs}

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones left out."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def plain_ids(self, text: str) -> list[int]:
        """The text's own tokens, no special ones."""
        self._tokenizer.no_truncation()
        return list(self._tokenizer.encode(cleaned(text), add_special_tokens=False).ids)


def pad_rows(rows: Sequence[Sequence[int]], fill: int) -> NDArray[Any]:
    """Ragged rows -> int64 [batch, longest]."""
    padded = np.full((len(rows), max(map(len, rows), default=0)), fill, np.int64)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded


def cleaned(text: str) -> str:
    """Lone surrogates, which JSON can carry and UTF-8 cannot, become the replacement character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
