"""CTranslate2, encoders and text: ``settings["compute_type"]`` float32 or int8."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.peers._writing import require_all
from edgepeft.bench.planning.job import Job, Prepared


class _Tokens:
    """A tokenizer as far as the converter asks one: random weights have no words, a token is called by its number."""

    pad_token, eos_token, unk_token, bos_token = (f"t{number}" for number in (0, 1, 2, 0))

    def __init__(self, size: int) -> None:
        self._size = size

    def convert_ids_to_tokens(self, number: int) -> str:
        return f"t{number}"

    def get_vocab(self) -> dict[str, int]:
        return {f"t{number}": number for number in range(self._size)}


def export(folder: Path, out: Path) -> None:
    """Convert the checkpoint, in float32; 8 bits are made of it when it is loaded."""
    from ctranslate2.converters import TransformersConverter
    from transformers import AutoConfig

    size = AutoConfig.from_pretrained(folder).vocab_size

    class Converter(TransformersConverter):  # type: ignore[misc]
        def load_tokenizer(self, *_: Any, **__: Any) -> _Tokens:
            return _Tokens(size)

    Converter(str(folder)).convert(str(out), force=True)


def _how(job: Job) -> dict[str, Any]:
    """One stream of ``job.threads`` threads."""
    return {"compute_type": job.settings["compute_type"], "inter_threads": 1, "intra_threads": job.threads}


def _rows(job: Job, batch: int) -> list[list[int]]:
    """The tokens of each row."""
    values = job.batch(batch)
    pairs = zip(values["input_ids"], values["attention_mask"], strict=True)
    return [ids[mask == 1].tolist() for ids, mask in pairs]


def encode(job: Job) -> Prepared:
    """BERT's and RoBERTa's encoders, to hidden states."""
    import ctranslate2

    encoder = ctranslate2.Encoder(str(Path(str(job.model)).parent), **_how(job))
    return Prepared(lambda batch: encoder.forward_batch(_rows(job, batch)))


def write(job: Job) -> Prepared:
    """Text; ``settings["mkl"]``: which library multiplies.

    With ``settings["labels"]``, lists of token ids, a step scores them for each row, encoding the row once a label.
    """
    os.environ["CT2_USE_MKL"] = str(job.settings.get("mkl", 1))  # read when the library is loaded
    import ctranslate2

    translator = ctranslate2.Translator(str(Path(str(job.model)).parent), **_how(job))
    labels = _named(job.settings.get("labels", ()))

    def step(batch: int) -> None:
        rows = _named(_rows(job, batch))
        if labels:
            translator.score_batch([row for row in rows for _ in labels], labels * len(rows))
            return
        asked = job.new_tokens
        bounds = {"min_decoding_length": asked, "max_decoding_length": asked}  # none ends before
        written = translator.translate_batch(rows, beam_size=1, **bounds)
        require_all([len(row.hypotheses[0]) for row in written], asked)

    return Prepared(step)


def _named(rows: Iterable[Iterable[int]]) -> list[list[str]]:
    return [[f"t{number}" for number in row] for row in rows]
