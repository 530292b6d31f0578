"""Text in a JSON schema: after each token the grammar says which may come next, and the others' logits become -inf.

llguidance (guidance-ai, MIT, of the extra ``grammar``) reads the schema and the tokenizer.  A text is one value of it,
after at most two spaces or line ends, with at most one space between its parts; it ends where the value does.  So it
parses and validates, unless it is cut at its largest number of tokens.

Letters: v vocabulary.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.base import Architecture
from edgepeft.common.errors import Unwritable, requiring

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_MAX_CHARACTERS = 65_536  # of a schema; clients send them
_KEPT = 32  # grammars, of a few hundred kilobytes each
# Of a grammar and of a step, so that no schema takes long or much memory: a state is 1 to 2 kB, 14,000 of fuel a ms.
_LIMITS: Mapping[str, Any] = {"max_lexer_states": 20_000, "max_grammar_size": 100_000, "step_lexer_fuel": 200_000}
_SPACED = {"whitespace_flexible": True, "whitespace_pattern": "[ ]", "coerce_one_of": False, "lenient": False}


def schema_text(schema: Any) -> str:
    """A schema as JSON text, by which equal ones are known."""
    if not isinstance(schema, Mapping):
        raise Unwritable(f"a JSON schema is an object, such as {json.dumps(ANY_OBJECT)}; found {schema!r:.80}.")
    try:
        text = json.dumps({name: value for name, value in schema.items() if name != "x-guidance"})
    except RecursionError:
        raise Unwritable("the JSON schema's parts lie too deep in each other; give a flatter one.") from None
    except (TypeError, ValueError) as error:
        raise Unwritable(f"the JSON schema is no JSON ({error}).") from None
    if len(text) > _MAX_CHARACTERS:
        raise Unwritable(f"the JSON schema has {len(text):,} characters; at most {_MAX_CHARACTERS:,} are read.")
    return text


class Grammars:
    """Grammars by schema, of a tokenizer of ``n_tokens`` whose texts end with ``end``; several threads may use them."""

    @classmethod
    def of(cls, folder: Path, architecture: Architecture) -> Self:
        """Grammars of the backbone, or the bundle, in that folder."""
        decoder = architecture.decoder
        assert decoder is not None, "what writes text has one"
        return cls(folder / "tokenizer.json", decoder.end_token_id, architecture.vocab_size)

    def __init__(self, tokenizer: Path, end: int, n_tokens: int) -> None:
        self._path, self._end, self._n_tokens = tokenizer, end, n_tokens
        self._lock = Lock()
        self._begun: OrderedDict[str, Any] = OrderedDict()  # a matcher before its first token, by schema

    @cached_property
    def _tokenizer(self) -> Any:
        with requiring("grammar", "text in a JSON schema"):
            from llguidance import LLTokenizer
        document = json.loads(self._path.read_text(encoding="utf-8"))
        decoder = document.get("decoder") or {}
        parts = [part.get("type") for part in (decoder, *decoder.get("decoders", ()))]
        if "ByteLevel" in parts:  # beside the steps of other kinds of tokenizers, which files of GGUF have before it
            document["decoder"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
        try:
            return LLTokenizer(json.dumps(document), n_vocab=self._n_tokens, eos_token=self._end)
        except Exception as error:  # the library raises bare ones
            raise Unwritable(
                f"this backbone's tokenizer cannot be told which tokens make up a JSON text ({error}); leave the "
                "schema out."
            ) from error

    def guide(self, schema: Any) -> Guide:
        """Make what leads one text, before its first token; raises Unwritable where the schema cannot be followed."""
        text = schema_text(schema)
        with self._lock:
            if text not in self._begun:
                self._begun[text] = self._matcher(text)
                while len(self._begun) > _KEPT:
                    self._begun.popitem(last=False)
            self._begun.move_to_end(text)
            return Guide(self._begun[text].deep_copy(), self._end, partial(self._renewed, text))

    def _renewed(self, text: str) -> Any:
        """A matcher before its first token that has no states of earlier texts; nor has a later text's."""
        with self._lock:
            self._begun.pop(text, None)
            return self._matcher(text)

    def _matcher(self, text: str) -> Any:
        tokenizer = self._tokenizer
        from llguidance import LLMatcher, LLParserLimits

        schema = {**json.loads(text), "x-guidance": _SPACED}
        lark = f"start: /[ \\n]{{0,2}}/ value\nvalue: %json {json.dumps(schema)}"
        limits = LLParserLimits(**_LIMITS, verbose_errors=False)
        matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(lark), log_level=0, limits=limits)
        if matcher.is_error():
            raise Unwritable(f"the JSON schema cannot be followed: {_said(matcher)}.")
        begins = np.flatnonzero(Guide(matcher.deep_copy(), self._end).allowed(self._n_tokens)).tolist()
        if not any(tokenizer.decode_bytes([token]).strip() for token in begins):  # spaces may stand before no value
            raise Unwritable("the JSON schema cannot be followed: no value fits it.")
        return matcher


class Guide:
    """Leads one text through the values of a schema.

    The states that a pattern comes to are kept for all texts of a schema, and counted: where they are too many,
    ``renewed`` gives a matcher without them, and the text goes on with its own alone.
    """

    def __init__(self, matcher: Any, end: int, renewed: Callable[[], Any] | None = None) -> None:
        self._matcher, self._end, self._renewed = matcher, end, renewed
        self._taken: list[int] = []

    @property
    def ended(self) -> bool:
        """Whether the value is whole and nothing but the end may come; a matcher stops at an error too."""
        return bool(self._matcher.is_stopped() and self._matcher.is_accepting())

    def allowed(self, n_tokens: int) -> NDArray[np.bool_]:
        """[v]: which tokens may come next; raises Unwritable if none may, or the grammar takes too much."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error() and self._renewed is not None:
            self._matcher, self._renewed = self._renewed(), None
            self._matcher.consume_tokens(self._taken)
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[:n_tokens].astype(np.bool_)
        if self._matcher.is_error() or not allowed.any():
            said = _said(self._matcher)
            why = said if " " in said else "nothing that it allows can come"  # a bare name says why it stopped
            raise Unwritable(f"a text cannot go on in its JSON schema: {why}. Give a simpler one.")
        return allowed

    def restrict(self, logits: NDArray[np.float32]) -> None:
        """Set to -inf, of [v], what may not come next."""
        logits[~self.allowed(len(logits))] = -np.inf

    def followed(self, tokens: Sequence[int]) -> int | None:
        """Count the leading tokens that the grammar takes; None where it takes all and may end there."""
        n = int(self._matcher.try_consume_tokens(list(tokens)))
        return None if n == len(tokens) and self._matcher.is_accepting() else n

    def take(self, token: int) -> None:
        """Go on with a token that may come."""
        self._taken.append(token)
        self._matcher.consume_token(token)


def _said(matcher: Any) -> str:
    """Why, without the place in a grammar that nobody wrote; of a pattern's parse what its last line says."""
    first, *more = str(matcher.get_error()).strip().splitlines() or [""]
    reason = next((line for line in more if line.startswith("error: ")), first)
    return reason.rpartition("failed to compile JSON schema: ")[2].rstrip(".")[:200]
