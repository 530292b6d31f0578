"""A task's check file: 64 rows of mixed length with the logits that PyTorch gives under hooks."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edgepeft.backbones.source import Backbone
from edgepeft.backbones.tokens import Text
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import DataError
from edgepeft.common.resources import package_data
from edgepeft.data.columns import SENTENCES, Columns
from edgepeft.data.pattern import pattern
from edgepeft.data.readers import Source
from edgepeft.data.rows import read_rows
from edgepeft.data.text_template import of_source
from edgepeft.deploy.verify import CANDIDATES, STEPS, DataCheck, TextCheck, in_groups, pack_check, run_in_groups
from edgepeft.runtime.inputs import texts_of, tokenize
from edgepeft.tasks.base import TaskType

ROWS = 64


def shipped_texts() -> list[Text]:
    """The texts that come with edgepeft, one a line."""
    lines = package_data("verify_texts.txt").read_text(encoding="utf-8").splitlines()
    return [Text(line) for line in lines if line]


@dataclass(frozen=True)
class CheckTexts:
    """What tasks are verified on: those given, or 64 of mixed length of a file's rows, or the shipped ones."""

    given: Sequence[Text] | None = None
    data: Source | None = None
    columns: Columns = SENTENCES

    def of(self, source: str | None, kind: TaskType | None = None) -> list[Text]:
        """The texts of a task of that source and kind; where a text has no columns, it stands in each of them."""
        if self.given is None and self.data is not None:
            columns = of_source(self.columns, source)
            columns = columns if kind is None else kind.columns(columns)
            how: dict[str, Any] = {} if kind is None else {"label_of": kind.label_text}
            rows = list(read_rows(self.data, labels=columns.label is not None, columns=columns, **how))
            texts = [Text(row.sentence1, row.sentence2) for row in rows] if kind is None else [*kind.read(rows)[0]]
            # Spread over all lengths: the shortest and the longest are where padding goes wrong.
            texts.sort(key=lambda text: len(text.first) + len(text.second or ""))
            chosen = np.linspace(0, len(texts) - 1, min(ROWS, len(texts))).round().astype(int)
            return [texts[i] for i in chosen]
        texts = shipped_texts() if self.given is None else list(self.given)
        if source is None:
            return texts
        fields = pattern(source).fields
        filled = ({name: texts[(i + k) % len(texts)].first for k, name in enumerate(fields)} for i in range(len(texts)))
        return texts_of(filled, source)


def data_check(delta: Delta, backbone: Backbone, model: nn.Module, source: Source, columns: Columns) -> DataCheck:
    """PyTorch's logits for every row of a file, and its labels where all of them are the task's."""
    kind = delta.card.task_kind
    columns = kind.columns(of_source(columns, delta.card.source, delta.card.step))
    texts, per_row = kind.read(list(read_rows(source, labels=False, columns=columns)))
    batch = tokenize(backbone.encoder(), texts_of_kind(texts, delta.card.pairs), delta.card.max_length, kind)
    targets: NDArray[Any] | None = None
    with contextlib.suppress(DataError):  # a file of texts alone, or one of another task's, gives no metric
        how: dict[str, Any] = {"label_of": kind.label_text, "optional": kind.optional_labels}
        rows = kind.as_known(list(read_rows(source, labels=True, columns=columns, **how)))
        unknown = any(kind.unknown_label(row) is not None for row in rows)
        targets = None if unknown else kind.targets_at_tokens(rows, batch)
    grouping = kind.grouping(batch, per_row)
    return DataCheck(batch.inputs, _logits(delta, model, batch.inputs), targets, kind, grouping)


def check_content(delta: Delta, backbone: Backbone, model: nn.Module, texts: Sequence[Text]) -> bytes:
    """The bytes of a check file for this delta; fewer texts than 64 are repeated in other company."""
    rows = list(islice(cycle(texts_of_kind(texts, delta.card.pairs)), ROWS))
    inputs = backbone.encoder().encode(rows, delta.card.max_length).inputs
    if delta.card.writes:
        return _text_check(delta, model, inputs).pack()
    return pack_check(inputs, _logits(delta, model, inputs))


def _text_check(delta: Delta, model: nn.Module, inputs: dict[str, NDArray[np.int64]]) -> TextCheck:
    """What PyTorch goes on with greedily, and its likeliest tokens; past the end of a text too.

    What its cache gives is a guess: one pass over a whole guess says what is likeliest at each step, and that is the
    next one.  A step's is right as soon as those before it are, so that the last is found when nothing changes.
    """
    from edgepeft.training.text_engine import generated

    decoder, words = delta.architecture.decoder, min(CANDIDATES, delta.architecture.vocab_size)
    assert decoder is not None, "a delta that writes text has one"
    starts = decoder.starts(inputs["input_ids"], inputs["attention_mask"])[:, None]
    read = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    found, shape = np.empty((len(starts), STEPS), np.int64), (len(starts), STEPS, words)
    best, likely = np.empty(shape, np.int64), np.empty(shape, np.float32)  # tokens, and their log-probabilities
    with torch.no_grad():
        for rows, group in in_groups(read):
            found[rows] = generated(delta, model, _tensors(group), STEPS, ends=False).numpy()
        for _ in range(STEPS):
            guess, before = found, np.concatenate([starts, found[:, :-1]], axis=1)
            for rows, group in in_groups(read):
                given = _tensors({**group, "decoder_input_ids": before[rows]})
                top = delta.logits(model, given).log_softmax(-1).topk(words)
                best[rows], likely[rows] = top.indices.numpy(), top.values.numpy()
            found = np.ascontiguousarray(best[..., 0])
            if np.array_equal(found, guess):
                break
    return TextCheck(inputs, found, best, likely)


def _logits(delta: Delta, model: nn.Module, inputs: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
    with torch.no_grad():
        return run_in_groups(lambda group: delta.logits(model, _tensors(group)).numpy(), inputs)


def _tensors(arrays: Mapping[str, NDArray[np.int64]]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


def texts_of_kind(texts: Sequence[Text], pairs: bool) -> list[Text]:
    """Texts of the task's kind: a pair task reads each text with its successor."""
    if not pairs:
        return [Text(text.first) for text in texts]
    others = (*texts[1:], texts[0])
    return [
        text if text.second is not None else Text(text.first, o.first) for text, o in zip(texts, others, strict=True)
    ]
