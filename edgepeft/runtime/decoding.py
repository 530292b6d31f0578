"""Which tokens a text goes on with: greedily, or by beams, token for token as transformers' ``generate`` chooses them;
or as a grammar allows, of texts in a JSON schema.

    score of a text = sum of log p(token) / n^length_penalty,   n tokens, the one that ends it counted

A row keeps its best ``beams`` open texts and as many ended ones; it is done when the best open one, ended now, would
be no better than the worst that has ended.  A single beam takes the likeliest token, and is done when that ends it.

After each token a grammar says which may come next, and the others' logits become -inf.  llguidance (guidance-ai, MIT,
of the extra ``grammar``) reads the schema and the tokenizer.  A text is one value of it, after at most two spaces or
line ends, with at most one space between its parts; it ends where the value does.  So it parses and validates, unless
it is cut at its largest number of tokens.

Letters: R rows, k texts of a row (1 in the first step, then n beams), v vocabulary.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.base import Architecture
from edgepeft.common.errors import Unwritable, UsageError, requiring

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
            return Guide(self._begun[text].deep_copy(), partial(self._renewed, text))

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
        begins = np.flatnonzero(Guide(matcher.deep_copy()).allowed(self._n_tokens)).tolist()
        if not any(tokenizer.decode_bytes([token]).strip() for token in begins):  # spaces may stand before no value
            raise Unwritable("the JSON schema cannot be followed: no value fits it.")
        return matcher


class Guide:
    """Leads one text through the values of a schema.

    The states that a pattern comes to are kept for all texts of a schema, and counted: where they are too many,
    ``renewed`` gives a matcher without them, and the text goes on with its own alone.
    """

    def __init__(self, matcher: Any, renewed: Callable[[], Any] | None = None) -> None:
        self._matcher, self._renewed = matcher, renewed
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


Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Decoding:
    """How texts are written: at most ``max_new_tokens`` each; ``no_repeat_ngram`` of 0 lets anything stand twice.

    Without ``ends`` the token that ends a text is one like others, so that each has as many as it may have.
    """

    max_new_tokens: int = 128
    beams: int = 1
    length_penalty: float = 1.0
    no_repeat_ngram: int = 0
    ends: bool = True

    def __post_init__(self) -> None:
        for name, least in (("max_new_tokens", 1), ("beams", 1), ("no_repeat_ngram", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}; {least} is the least that there can be.")
        if not np.isfinite(self.length_penalty):
            raise UsageError(f"length_penalty is {self.length_penalty}; give a finite number, such as 1.")

    def end(self, token: int) -> int:
        """``token``, which ends texts, or one that never comes."""
        return token if self.ends else -1


GREEDY = Decoding()


class Written(NamedTuple):
    """A text's tokens, without those that start and end it; ``ended`` is false where it reached the bound."""

    tokens: tuple[int, ...]
    ended: bool


class _Hypothesis(NamedTuple):
    tokens: tuple[int, ...]  # the start's too
    score: np.float32  # the sum of its tokens' log-probabilities
    parent: int = 0  # which of the row's texts of the step before it continues


@dataclass
class Row:
    """A row's texts while they are written: open ones, best first, and ended ones; a ``guide`` leads a single one."""

    start: InitVar[int]  # the token that its one open text begins with
    most: int | None = None  # tokens
    guide: Guide | None = None
    read: tuple[int, ...] = ()  # the prompt's tokens, of which no n-gram may come again either
    open: list[_Hypothesis] = field(init=False)
    ended: list[tuple[np.float32, _Hypothesis]] = field(init=False, default_factory=list)

    def __post_init__(self, start: int) -> None:
        self.open = [_Hypothesis((start,), np.float32(0))]

    def best(self, end: int) -> Written:
        """The best text that was written."""
        tokens = self.ended[0][1].tokens[1:]
        ended = tokens[-1] == end
        return Written(tokens[:-1] if ended else tokens, ended)

    def take(self, candidates: Sequence[_Hypothesis], decoding: Decoding, end: int) -> bool:
        """Go on with candidates, which are sorted; whether the row is done."""
        length = len(candidates[0].tokens) - 1
        if self.guide is not None:
            self.guide.take(candidates[0].tokens[-1])
            if self.guide.ended and candidates[0].tokens[-1] != end:  # no step is needed to know what comes
                candidates = [candidates[0]._replace(tokens=(*candidates[0].tokens, end))]
        last = length in (decoding.max_new_tokens, self.most)
        n, divisor = decoding.beams, length**decoding.length_penalty
        ends = [last or text.tokens[-1] == end for text in candidates]
        # Of twice as many candidates as beams, those of the second half only fill up what goes on.
        new = [(text.score / divisor, text) for text, over in zip(candidates[:n], ends, strict=False) if over]
        self.ended = sorted([*self.ended, *new], key=lambda each: -each[0])[:n]
        self.open = [text for text, over in zip(candidates, ends, strict=True) if not over][:n]
        if not self.open:
            return True
        return len(self.ended) == n and bool(self.open[0].score / divisor <= self.ended[-1][0])


class NextStep(NamedTuple):
    """Input of the next step: the rows that go on, each text's last token, and which of this step it continues."""

    rows: list[int]
    ids: NDArray[np.int64]
    order: NDArray[np.int64]


def choose(rows: Sequence[Row], logits: Floats, decoding: Decoding, end: int) -> NextStep:
    """Go on with what ``logits`` [R k, v] make likeliest, row by row; changes both."""
    texts = [(text, row) for row in rows for text in row.open]
    # Before anything is banned, for probabilities are of all tokens; a single beam needs none.
    values = logits if decoding.beams == 1 else log_probabilities(logits)
    n = decoding.no_repeat_ngram
    for (text, row), of_text in zip(texts, values, strict=True):
        if n and row.guide is None:  # a grammar may ask for what stood there before
            tokens = row.read + text.tokens
            last = tokens[len(tokens) + 1 - n :]
            twice = [tokens[i + n - 1] for i in range(len(tokens) - n + 1) if tokens[i : i + n - 1] == last]
            of_text[twice] = -np.inf
    k = len(rows[0].open)
    going, ids, order = [], [], []
    for number, (row, candidates) in enumerate(zip(rows, _candidates(rows, values, decoding.beams), strict=True)):
        if not row.take(candidates, decoding, end):
            going.append(number)
            ids += [text.tokens[-1] for text in row.open]
            order += [number * k + text.parent for text in row.open]
    return NextStep(going, np.array(ids, np.int64), np.array(order, np.int64))


def _candidates(rows: Sequence[Row], values: Floats, beams: int) -> Iterator[list[_Hypothesis]]:
    """Yield the best continuations of each row, the best first: one, or two a beam, so that enough are left open."""
    if beams == 1:
        for row, token in zip(rows, values.argmax(1).tolist(), strict=True):
            yield [_Hypothesis((*row.open[0].tokens, token), np.float32(0))]
        return
    k, v = len(rows[0].open), values.shape[1]
    for row, of_row in zip(rows, values.reshape(len(rows), k, v), strict=True):
        total = (of_row + np.array([[text.score] for text in row.open], np.float32)).reshape(-1)
        best = np.argpartition(total, -2 * beams)[-2 * beams :]
        best = best[np.argsort(-total[best], kind="stable")]
        yield [_Hypothesis((*row.open[i // v].tokens, i % v), total[i], i // v) for i in best.tolist()]


def log_probabilities(logits: Floats) -> Floats:
    """[., v] -> [., v]."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
