"""Text to token ids, the same way in training, verification and on the board: the tokenizers library alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from edgepeft.backbones.base import Architecture
from edgepeft.common.errors import BundleError, DataError
from edgepeft.common.resources import pointer_note


class Text(NamedTuple):
    """One input: a sentence, or a pair of sentences."""

    first: str
    second: str | None = None


@dataclass(frozen=True)
class TokenBatch:
    """Padded rows of tokens."""

    inputs: dict[str, NDArray[Any]]  # int64 [batch, length], by input name
    truncated: int = 0  # rows that lost tokens
    encodings: tuple[Encoding, ...] = ()  # where in its text each token of a row stands
    per_text: tuple[int, ...] = ()  # rows that each text is, where it is read in windows
    whole: tuple[Encoding, ...] = ()  # of the texts, as if nothing were too long
    overlap: int = 0  # tokens that two windows share, which follow each other

    @property
    def of_texts(self) -> tuple[Encoding, ...]:
        """The encoding of each text: as much as is read of it."""
        return self.whole or self.encodings

    @property
    def windows(self) -> list[tuple[Encoding, ...]]:
        """The encodings of each text's windows."""
        ends = accumulate(self.per_text)
        return [self.encodings[end - n : end] for n, end in zip(self.per_text, ends, strict=True)]


class TextEncoder:
    """A ``tokenizer.json`` with the inputs and the padding of one backbone.

    Texts that are too long lose their ends, or with ``keeps_end``, for decoder-only models, their beginnings.
    """

    def __init__(self, path: Path, inputs: Sequence[str], pad_token_id: int, keeps_end: bool = False) -> None:
        self._path, self._direction = path, "left" if keeps_end else "right"
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            note = pointer_note(path)
            raise BundleError(f"{path} is missing or is not a tokenizer.json ({error}).{note}") from error
        self._tokenizer.no_padding()
        self._cut: tuple[object, ...] = ()  # how the library was last told to cut
        self._inputs = tuple(inputs)
        self._pad = pad_token_id

    def beyond(self, n: int) -> str | None:
        """The first token with an id of ``n`` or more, of those that were added, or of the vocabulary."""
        added = self._tokenizer.get_added_tokens_decoder()
        if (found := next((place for place in sorted(added) if place >= n), None)) is not None:
            return f"the added token {str(added[found].content)!r}"
        if self._tokenizer.get_vocab_size(with_added_tokens=False) <= n:
            return None
        return f"the token {min((i, token) for token, i in self._tokenizer.get_vocab().items() if i >= n)[1]!r}"

    def encode(self, texts: Sequence[Text], max_length: int) -> TokenBatch:
        """Tokenize, truncate the longest part first to ``max_length`` tokens, pad to the longest row."""
        self._cut_at(max_length, direction=self._direction)
        encodings = self._encoded(texts)
        truncated = sum(1 for e in encodings if e.overflowing)
        return TokenBatch(self._padded(encodings), truncated, tuple(encodings))

    def _cut_at(self, max_length: int | None, **how: Any) -> None:
        """Cut from here on at so many tokens, or not at all."""
        if (wanted := (max_length, *how.items())) == self._cut:
            return
        if max_length is None:
            self._tokenizer.no_truncation()
        else:
            self._tokenizer.enable_truncation(max_length, **how)
        self._cut = wanted

    def windows(
        self, texts: Sequence[Text], max_length: int, overlap: int, names: Sequence[str] = (), *, second: bool = False
    ) -> TokenBatch:
        """Tokenize, each text in as many rows as it takes to read it; two that follow each other share ``overlap``
        tokens.

        Of a pair the longer part is divided, or always the ``second``, and the other one stands whole in every window.
        What fits into one is as ``encode`` has it.  ``names`` are the texts' in errors.
        """
        self._cut_at(None)
        whole = self._encoded(texts)
        found, divided = [(encoding,) for encoding in whole], {"only_first": list[int](), "only_second": list[int]()}
        for i, encoding in enumerate(whole):
            sizes = [encoding.sequence_ids.count(part) for part in (0, 1)]
            own, fits = int(second or sizes[1] > sizes[0]), len(encoding.ids) <= max_length
            room = max_length - len(encoding.ids) + sizes[own]
            if room <= overlap and (second or not fits):
                name, left, kept = names[i] if names else f"row {i}", max(0, room), sizes[1 - own]
                if texts[i].second is None:
                    read = f"a window of {max_length} tokens reads {left} of a text"
                    raise DataError(f"{name}: {read}, and shares {overlap} with the next.")
                parts = ("question", "passage") if second else ("shorter text", "longer one")
                instead = "ask in fewer words, or train with" if second else "shorten it, or train with --long cut or"
                raise DataError(
                    f"{name}: the {parts[0]}'s {kept} tokens leave {left} of {max_length} for the {parts[1]}, and a "
                    f"window of it needs more than {overlap}; {instead} a greater --max-length."
                )
            if not fits:
                divided[("only_first", "only_second")[own]].append(i)
        for strategy, chosen in divided.items():
            self._cut_at(max_length, stride=overlap, strategy=strategy)
            for i, first in zip(chosen, self._encoded([texts[i] for i in chosen]), strict=True):
                found[i] = (first, *first.overflowing)
        every = tuple(window for windows in found for window in windows)
        return TokenBatch(self._padded(every), 0, every, tuple(map(len, found)), tuple(whole), overlap)

    def room(self, max_length: int, *, pairs: bool) -> int:
        """How many tokens of a text, or of a pair, stand in so many beside special ones."""
        return max_length - int(self._tokenizer.num_special_tokens_to_add(pairs))

    def _encoded(self, texts: Sequence[Text]) -> list[Encoding]:
        parts = [(cleaned(t.first),) if t.second is None else (cleaned(t.first), cleaned(t.second)) for t in texts]
        try:
            if len(parts) == 1:
                return [self._tokenizer.encode(*parts[0])]
            return self._tokenizer.encode_batch([p if len(p) > 1 else p[0] for p in parts])
        except BaseException as error:  # bare Exception, and for Rust's panics a subclass of BaseException alone
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            raise BundleError(f"{self._path} cannot encode a text ({error}); use a sound tokenizer.json.") from error

    def _padded(self, encodings: Sequence[Encoding]) -> dict[str, NDArray[Any]]:
        of = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        fill = {"input_ids": self._pad}
        return {n: pad_rows([getattr(each, of[n]) for each in encodings], fill.get(n, 0)) for n in self._inputs}

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones left out."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)

    def plain_ids(self, text: str) -> list[int]:
        """The text's own tokens, no special ones."""
        self._cut_at(None)
        return list(self._tokenizer.encode(cleaned(text), add_special_tokens=False).ids)


def text_encoder(path: Path, architecture: Architecture) -> TextEncoder:
    """Open the tokenizer of a backbone; a decoder-only one keeps the ends of texts."""
    return TextEncoder(path, architecture.inputs, architecture.pad_token_id, keeps_end=architecture.decoder_only)


def pad_rows(rows: Sequence[Sequence[int]], fill: int) -> NDArray[Any]:
    """Ragged rows -> int64 [batch, longest]."""
    if len({len(row) for row in rows}) == 1:  # one text, above all
        return np.array(rows, np.int64)
    padded = np.full((len(rows), max(map(len, rows), default=0)), fill, np.int64)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded


def cleaned(text: str) -> str:
    """Lone surrogates, which JSON can carry and UTF-8 cannot, become the replacement character."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
