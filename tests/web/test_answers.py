"""Answers in the page are those of Python's Runtime, for every kind of task, from logits that both are given.

The model is one of integers: a logit follows from a row's ids alone, so that a row which is packed, padded or put back
wrongly has others.
"""

import json
import unicodedata
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from node import run_node

from edgepeft.backbones.tokens import TextEncoder
from edgepeft.runtime.inputs import read_for_kind, tokenize
from edgepeft.runtime.prediction import predictions
from edgepeft.tasks.base import kind_from_card, kinds

from .test_tokens import odd_texts, tokenizer_of

PREDICT = """
const [{ Bundle }, { Encoder }, { KINDS }] = await Promise.all(
  ["bundle.js", "tokenizer.js", "kinds.js"].map((name) => import(MODULE + name)));
const { entry, rows, tokenizer } = given;
const per = KINDS[entry.kind].perToken;
class Tensor { constructor(type, data, dims) { Object.assign(this, { type, data, dims }); } }
const column = (ids, c) => Number(ids.reduce((sum, id, j) => sum + (id + 3n) * BigInt((j + 1) * (c + 2)), 0n) % 997n) / 100 - 5;
const token = (id, j, c) => Number((id * 7n + BigInt(j * 13 + (c + 1) * 31)) % 97n) / 10 - 5;
let most = 0;
const run = async ({ input_ids, attention_mask }) => {
  const [n, length] = input_ids.dims, data = [];
  most = Math.max(most, n);
  for (let i = 0; i < n; i++) {
    const ids = Array.from(input_ids.data.subarray(i * length, (i + 1) * length)).filter((_, j) => attention_mask.data[i * length + j]);
    if (!per) for (let c = 0; c < entry.outputs; c++) data.push(column(ids, c));
    else for (let j = -entry.promptLength; j < ids.length; j++)
      for (let c = 0; c < entry.outputs; c++) data.push(j < 0 ? 99 : token(ids[j], j, c));
  }
  return { logits: { data: Float32Array.from(data) } };
};
const create = async () => ({ inputNames: ["input_ids", "attention_mask"], run });
const files = { read: async () => new Uint8Array(0) };
const bundle = new Bundle({ Tensor, InferenceSession: { create } }, files, { tasks: { task: entry }, padTokenId: 0 }, new Encoder(tokenizer, {}, null), null, 1);
const answers = await bundle.predict("task", rows);
return { answers, most };
"""
# What letters are is as new as Python's own tables, so what these do not know is left out.
KNOWN = ["".join(char for char in text if unicodedata.category(char) != "Cn") for text in odd_texts(25)]
SINGLES = [
    *KNOWN,
    "Ada Lovelace came to the London of 1843. " * 9,
    "",
    "the ab, the ba: 日本 e\u0301!",
    "İ 👩‍👩‍👧 \ud83d the",
]
PAIRS = [[*pair] for pair in pairwise(SINGLES)]
PASSAGES = [["Who came?", text] for text in SINGLES if text.strip()]
PICKS = [{"sentence1": "the ab", "candidates": ["a", "ab the", *SINGLES[:n]]} for n in (0, 1) if SINGLES[0].strip()]
TAGS = ("B-PER", "E-PER", "I-PER", "O", "S-PER")
TASKS = {
    "classification": ("classification", ("no", "yes", "so"), {}, SINGLES),
    "with a temperature": (
        "classification",
        ("no", "yes"),
        {"temperature": 2.5, "threshold": 0.6, "risk": 0.1},
        SINGLES,
    ),
    "with a coverage": ("classification", ("0", "1", "2"), {"threshold": 0.3, "coverage": 0.9}, PAIRS),
    "of windows": ("classification", ("no", "yes"), {"stride": 5, "pool": "max"}, SINGLES),
    "of windows of pairs": ("regression", None, {"stride": 3}, [["the ab", one] for one in SINGLES]),
    "regression": ("regression", None, {}, SINGLES),
    "labels": ("labels", ("x", "y", "z"), {"thresholds": [0.2, 0.5, 0.9]}, SINGLES),
    "tokens": ("tokens", TAGS, {}, SINGLES),
    "tokens of windows": ("tokens", TAGS, {"stride": 5}, SINGLES),
    "tokens of windows that share most": ("tokens", TAGS, {"stride": 18}, SINGLES),
    "choice": ("choice", None, {"temperature": 0.5}, PICKS),
    "embedding": ("embedding", None, {"dims": 6, "scored": True}, SINGLES),
    "embedding of pairs": ("embedding", None, {"dims": 6, "scored": True}, PAIRS),
    "embedding of windows": ("embedding", None, {"dims": 6, "scored": True, "stride": 4}, SINGLES),
    "spans": ("spans", None, {}, PASSAGES),
    "spans or none": ("spans", None, {"threshold": -2.0}, PASSAGES),
}


def logits_of(batch, kind):
    ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    place, columns = np.arange(ids.shape[1])[None, :, None], np.arange(kind.n_outputs)
    if kind.per_token:
        found = (ids[..., None] * 7 + place * 13 + (columns + 1) * 31) % 97 / 10 - 5
        return (found * mask[..., None]).astype(np.float32)
    sums = ((ids[..., None] + 3) * (place + 1) * (columns + 2) * mask[..., None]).sum(1)
    return (sums % 997 / 100 - 5).astype(np.float32)


def near(one, other):
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(near(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(near, one, other))
    if isinstance(one, float) or isinstance(other, float):
        return abs(one - other) <= 2e-6 * max(1, abs(one))  # both print six digits
    return one == other


@pytest.mark.parametrize("name", TASKS)
def test_answers_are_pythons(tmp_path, name):
    of_kind, labels, chosen, rows = TASKS[name]
    kind = kind_from_card(of_kind, labels, "tokens" if of_kind in ("tokens", "spans") else "mean", chosen=chosen)
    prompt = 3 if kind.per_token else 0  # its tokens have logits too
    tokenizer = tokenizer_of([*SINGLES[:-1], "Ada Lovelace came to London."])
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    encoder = TextEncoder(tmp_path / "tokenizer.json", ["input_ids", "attention_mask"], 0)
    read = read_for_kind(kind, [tuple(row) if isinstance(row, list) else row for row in rows])
    entry = SimpleNamespace(task_kind=kind, n_outputs=kind.n_outputs, pairs=False, training={"epochs": 1})
    batch = tokenize(encoder, read.texts, 24, kind)
    logits = logits_of(batch, kind)
    expected = [answer.as_json() for answer in predictions("task", entry, read, logits, batch)]
    facts = {"kind": kind.name, "labels": labels, "chosen": chosen, "step": None, "pairs": False, "trained": True}
    more = {
        "outputs": kind.n_outputs,
        "maxLength": 24,
        "promptLength": prompt,
        "structure": "s",
        "lower": [],
        "values": None,
    }
    given = {"entry": {**facts, **more}, "rows": rows, "tokenizer": json.loads(tokenizer.to_str())}
    found = run_node(PREDICT, given)
    for row, one, other in zip(rows, found["answers"], expected, strict=True):
        assert near(one, json.loads(json.dumps(other))), (row, one, other)
    assert found["most"] > 1, "rows are run together"


def test_every_kind_but_text_is_answered():
    assert {of_kind for of_kind, *_ in TASKS.values()} == {*kinds()} - {"text"}
