"""Text in a JSON schema: it parses and validates, whatever the model would write, and no other row is the wiser."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from spelling import END, VOCABULARY, export_schemas, write_speller
from tokenizers import Tokenizer

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import Unwritable, UsageError
from edgepeft.runtime.decoding import ANY_OBJECT, Decoding, Grammars, Guide, schema_text
from edgepeft.runtime.generation import TextState
from edgepeft.runtime.runtime import Runtime

pytest.importorskip("llguidance")


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    item: Annotated[str, Field(max_length=6)]
    count: Annotated[int, Field(ge=0, le=99)]
    city: Literal["Leeds", "York"] | None
    tags: Annotated[list[Annotated[str, Field(pattern="^[a-z]{1,3}$")]], Field(max_length=2)]


ORDER = Order.model_json_schema()  # with $defs-free anyOf, const and pattern, as pydantic writes them
# What validates answers is pydantic, which wrote none of the grammar.
TYPES: list[Any] = [
    Order,
    bool,
    Annotated[int, Field(ge=-3, le=12)],
    Literal["yes", "no", "may be"],
    Annotated[list[tuple[bool, None]], Field(min_length=1, max_length=2)],
]
WORDS = {"enum": ["ab", "abc", "cd"]}
# Its states multiply with the letters of a text, and of this one they are more than the library may keep.
WILD = {"type": "string", "pattern": "^(.*a.{1,60}){1,30}$"}
COSTLY = "".join(random.Random(0).choices("abc", k=200))


@pytest.fixture(scope="module")
def speller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_speller(tmp_path_factory.mktemp("speller"))


@pytest.fixture(scope="module")
def bundle(speller: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    schemas = {"order": ORDER, "words": WORDS, "free": None}
    return export_schemas(speller, schemas, tmp_path_factory.mktemp("schemas"))


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_whatever_is_likely_the_text_is_of_the_schema(speller: Path, kind: Any):
    """A walk that takes the likeliest of random logits, with the end at a disadvantage until it is the only one."""
    adapter, grammars = TypeAdapter(kind), Grammars(speller / "tokenizer.json", END, VOCABULARY)
    decode, source = Tokenizer.from_file(str(speller / "tokenizer.json")).decode, np.random.default_rng(0)
    seen = set()
    for _ in range(30):
        guide, tokens = grammars.guide(adapter.json_schema()), []
        while not guide.ended:
            logits = source.standard_normal(VOCABULARY).astype(np.float32)
            guide.restrict(logits)
            tokens.append(int(logits.argmax()))
            guide.take(tokens[-1])
            assert len(tokens) < 2000
        text = decode(tokens)
        adapter.validate_json(text)
        assert grammars.guide(adapter.json_schema()).followed([t for t in tokens if t != END]) is None
        seen.add(text.strip())
    assert len(seen) > 1


def test_a_guided_text_is_what_transformers_writes_where_the_same_tokens_may_come(speller: Path, bundle: Path):
    """``prefix_allowed_tokens_fn`` has all texts that there are, spelt out by hand."""
    texts = [
        space + json.dumps(word) for word in WORDS["enum"] for space in ("", " ", "\n", "  ", " \n", "\n ", "\n\n")
    ]
    tokenizer = Tokenizer.from_file(str(speller / "tokenizer.json"))
    every = [[*tokenizer.encode(text, add_special_tokens=False).ids, END] for text in texts]
    backbone = open_backbone(str(speller))
    model: Any = load_model(backbone, "eager")
    with Runtime(bundle, threads=1, cache=False) as runtime:
        for prompt in ("where to?", "a", "and then, and then"):
            ids = torch.tensor([tokenizer.encode(prompt).ids])
            guide = runtime.generator.grammars.guide(WORDS)
            rows, found = {"input_ids": ids.numpy(), "attention_mask": np.ones_like(ids)}, []
            state = TextState(runtime.generator.session(None), rows)
            token = int(ids[0, -1])
            while token != END:
                logits = state.step(np.array([token]), np.array([0]))[0]
                guide.restrict(logits)
                token = int(logits.argmax())
                guide.take(token)
                found.append(token)
            n = ids.shape[1]
            with torch.no_grad():
                theirs = model.generate(
                    ids,
                    do_sample=False,
                    max_new_tokens=20,
                    eos_token_id=END,
                    prefix_allowed_tokens_fn=lambda _, so_far, n=n: sorted(
                        {
                            e[len(so_far) - n]
                            for e in every
                            if e[: len(so_far) - n] == so_far[n:].tolist() and len(e) > len(so_far) - n
                        }
                    ),
                )
            assert found == theirs[0, n:].tolist()


def test_rows_with_a_schema_and_without_are_written_together(bundle: Path):
    texts, decoding = ["three boxes to Leeds", "one", "nine plums"], Decoding(200)
    with Runtime(bundle, threads=1, cache=False) as runtime:
        alone = {task: runtime.write(task, texts, decoding) for task in ("order", "words", "free")}
        together = runtime.writing(decoding).answers(dict.fromkeys(alone, texts))
        mixed = runtime.predict_mixed(["free", "order", "words"], texts, decoding=decoding)
    assert [answer.text for answer in together] == [answer.text for answers in alone.values() for answer in answers]
    assert [answer.text for answer in mixed] == [
        alone[task][i].text for i, task in enumerate(("free", "order", "words"))
    ]
    for answer in alone["order"]:
        Order.model_validate_json(answer.text)
        assert answer.ended
    assert {json.loads(answer.text) for answer in alone["words"]} <= set(WORDS["enum"])
    for answer in alone["free"]:
        with pytest.raises(ValueError):
            json.loads(answer.text)


def test_a_request_may_bring_a_schema_of_its_own(bundle: Path):
    with Runtime(bundle, threads=1, cache=False) as runtime:
        batch = runtime.writing(Decoding(60))
        (free,), (own,) = batch.add("free", ["one"], schema={"type": "boolean"}), batch.add("words", ["one"])
        while len(batch):
            batch.step()
        assert isinstance(json.loads(batch.answer(free).text), bool)
        assert json.loads(batch.answer(own).text) in WORDS["enum"]


def test_a_schema_that_takes_too_much_on_the_way_ends_its_own_text_alone(bundle: Path):
    with Runtime(bundle, threads=1, cache=False) as runtime:
        guide, alone = runtime.generator.grammars.guide(WILD), runtime.write("words", ["one"])[0]
        ids = (
            Tokenizer.from_file(str(bundle / "tokenizer.json"))
            .encode('"' + "".join(random.Random(0).choices("abc", k=200)))
            .ids
        )
        batch = runtime.writing(Decoding(200))
        (lost,), (kept,) = batch.add("free", ["one"], schema=WILD), batch.add("words", ["one"])
        lost.row.guide = _Scripted(guide, ids)
        while len(batch):
            batch.step()
        with pytest.raises(Unwritable, match="cannot go on in its JSON schema: lexer error"):
            batch.answer(lost)
        assert batch.answer(kept) == alone


def test_a_text_that_took_too_much_is_not_whole_and_leaves_the_schema_to_others(speller: Path):
    """The library counts the states of all texts of a schema together, and stops at the end and at an error."""
    encode = Tokenizer.from_file(str(speller / "tokenizer.json")).encode
    grammars = Grammars(speller / "tokenizer.json", END, VOCABULARY)

    def followed(letters: str) -> Guide:
        guide = grammars.guide(WILD)
        for token in encode(f'"{letters}').ids:
            guide.take(token)
        return guide

    beside, lost = grammars.guide(WILD), followed(COSTLY)
    assert not lost.ended
    with pytest.raises(Unwritable, match="cannot go on in its JSON schema"):
        lost.allowed(VOCABULARY)
    for guide in (followed("abc" * 20), beside):
        assert guide.allowed(VOCABULARY).any()


class _Scripted:
    """A guide of a model that writes these tokens."""

    def __init__(self, guide: Any, tokens: list[int]) -> None:
        self._guide, self._tokens, self.take = guide, iter(tokens), guide.take

    @property
    def ended(self) -> bool:
        ended: bool = self._guide.ended
        return ended

    def restrict(self, logits: Any) -> None:
        self._guide.restrict(logits)
        logits[:] = -np.inf
        logits[next(self._tokens)] = 0


def test_a_text_that_is_cut_says_so(bundle: Path):
    with Runtime(bundle, threads=1, cache=False) as runtime:
        (cut,) = runtime.write("order", ["one"], Decoding(9))
        assert not cut.ended and len(cut.tokens) == 9
        whole = runtime.write("order", ["one"], Decoding(200))[0]
        assert runtime.write("order", ["one"], Decoding(len(whole.tokens)))[0] == whole  # no token is left for the end


def test_beams_are_refused(bundle: Path):
    with Runtime(bundle, threads=1, cache=False) as runtime, pytest.raises(UsageError, match="written with one"):
        runtime.write("order", ["one"], Decoding(9, beams=2))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"enum": []}, "Unsatisfiable schema: anyOf is empty"),
        ({"$ref": "#"}, "no value fits it"),
        ({"type": "string", "pattern": "((("}, "cannot be followed: error: unclosed group"),
        ({"type": "string", "minLength": 5, "maxLength": 2}, r"minLength \(5\) is greater than maxLength"),
        (
            {"type": "object", "required": ["b"], "properties": {}, "additionalProperties": False},
            "'b' is unsatisfiable",
        ),
        ({"type": "array", "uniqueItems": True}, "Unimplemented keys: .*uniqueItems"),
        ({"not": {"type": "string"}, "x-guidance": {"lenient": True}}, "Unimplemented keys: .*not"),
        ({"$ref": "http://example.com/schema.json"}, "is not present in a registry"),
        ([1], "a JSON schema is an object"),
        ({"title": "a" * 70_000}, "at most 65,536"),
    ],
)
def test_a_schema_that_cannot_be_kept_is_refused(speller: Path, schema: Any, message: str):
    with pytest.raises(Unwritable, match=message):
        Grammars(speller / "tokenizer.json", END, VOCABULARY).guide(schema)


def test_a_tokenizer_without_bytes_is_refused(tiny: Any):
    with pytest.raises(Unwritable, match="cannot be told which tokens make up a JSON text"):
        Grammars(tiny("llama") / "tokenizer.json", 3, 60).guide(ANY_OBJECT)


def test_a_tokenizer_of_gguf_has_bytes_behind_other_steps(speller: Path, tmp_path: Path):
    document = json.loads((speller / "tokenizer.json").read_text())
    steps = [
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    ]
    document["decoder"] = {"type": "Sequence", "decoders": [*steps, document["decoder"]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    one, other = (Grammars(at / "tokenizer.json", END, VOCABULARY).guide(WORDS) for at in (speller, tmp_path))
    np.testing.assert_array_equal(one.allowed(VOCABULARY), other.allowed(VOCABULARY))


def test_equal_schemas_are_equal_texts():
    assert schema_text({"type": "object", "x-guidance": {"lenient": True}}) == schema_text(ANY_OBJECT)
