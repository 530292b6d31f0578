"""Tags, words, spans and their scores: seqeval's figures, characters beyond the first plane, and what users get wrong."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import write_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch.nn.functional import cross_entropy

from edgepeft.backbones.tokens import Text, TextEncoder
from edgepeft.common.errors import DataError, UsageError
from edgepeft.data.batches import encode
from edgepeft.data.columns import Columns
from edgepeft.data.parts import task_data
from edgepeft.data.rows import Row, read_rows
from edgepeft.data.words import NOWHERE, Words, places_of, read_words, spread, words_of
from edgepeft.tasks._tags import Entity, complete, entities, with_tags
from edgepeft.tasks.tokens import Tokens

GOLDEN = json.loads((Path(__file__).parent / "golden" / "seqeval.json").read_text())
BIO = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")


def row(text: str, label: object, line: int = 1) -> Row:
    return Row(text, None, Tokens.label_text(label, f"rows.jsonl:{line}"), "rows.jsonl", line)


@pytest.mark.parametrize("scheme", GOLDEN)
def test_entities_are_seqevals(scheme):
    found = [[list(entity) for entity in entities(tags)] for tags in GOLDEN[scheme]["right"]]
    assert found == GOLDEN[scheme]["entities"]


def test_tags_that_a_head_from_elsewhere_lacks_are_strange_and_mixed_ones_are_refused():
    assert Tokens(("B-X", "O")).unknown_label(row("a b", {"spans": [(0, 1, "X")]})) is None
    verbs = Tokens(("NOUN", "VERB"))  # no tag for a word outside
    assert verbs.unknown_label(row("a b", {"spans": [(0, 1, "NOUN")]})) == "O"
    assert verbs.unknown_label(row("a b", {"tags": ["NOUN", "VERB"]})) is None
    assert verbs.unknown_label(row("a b", {"tags": ["NOUN", "ADJ"]})) == "ADJ"
    assert Tokens(("B-X", "O")).unknown_label(row("a b", {"spans": [(0, 3, "X")]})) == "I-X"
    Tokens.check_labels(("NOUN", "VERB"))
    with pytest.raises(UsageError, match="write all of them one way"):
        Tokens.check_labels(("B-X", "Y"))


def test_words_that_are_not_read_are_outside_even_where_no_tag_says_so():
    target, output = np.array([[0, 1], [1, NOWHERE]]), np.array([0, 0, 0])
    assert Tokens(("NOUN", "VERB"))._given(target, output) == ["NOUN", "O"]


@pytest.mark.parametrize("scheme", GOLDEN)
def test_every_figure_is_seqevals(scheme):
    golden = GOLDEN[scheme]
    kind = Tokens(complete(tag for tags in (*golden["right"], *golden["given"]) for tag in tags))
    index = {tag: i for i, tag in enumerate(kind.labels or ())}
    targets, outputs = (np.empty(len(golden["right"]), object) for _ in range(2))
    for i, (right, given) in enumerate(zip(golden["right"], golden["given"], strict=True)):
        places = 3 * np.arange(len(right)) + 1  # of three pieces each, after a first token
        targets[i] = np.stack([[index[tag] for tag in right], places])
        outputs[i] = np.full(3 * len(right) + 2, -1)
        outputs[i][places] = [index[tag] for tag in given]
    for name, expected in golden["scores"].items():
        assert kind.score(name, targets, outputs) == pytest.approx(expected, abs=1e-12), name
    by_class = kind.errors(targets, outputs)["by_class"] if golden["by_class"] else {}
    for label, expected in golden["by_class"].items():
        assert by_class[label] == pytest.approx(expected, abs=1e-12), label


def test_bilou_is_bioes_by_other_names():
    golden = GOLDEN["BIOES"]
    for tags, expected in zip(golden["right"], golden["entities"], strict=True):
        renamed = [{"E": "L", "S": "U"}.get(tag[0], tag[0]) + tag[1:] for tag in tags]
        assert [list(entity) for entity in entities(renamed)] == expected


@pytest.mark.parametrize(
    ("known", "tags"),
    [
        (None, ["B-A", "I-A", "O", "B-B", "B-A"]),
        (("I-A", "I-B", "O"), ["I-A", "I-A", "O", "I-B", "I-A"]),
        (("U-A", "L-A", "O"), ["B-A", "L-A", "O", "U-B", "U-A"]),
        (("S-A", "E-A", "O"), ["B-A", "E-A", "O", "S-B", "S-A"]),
        (("AT", "BY", "O"), ["AT", "AT", "O", "BY", "AT"]),
    ],
)
def test_spans_are_tagged_in_the_scheme_of_the_head(known, tags):
    one, other = ("AT", "BY") if "BY" in tags else ("A", "B")
    found = [Entity(one, 0, 1), Entity(other, 3, 3), Entity(one, 4, 4)]
    assert with_tags(found, 5, known) == tags
    assert entities(tags) == found


def test_a_scheme_is_completed():
    assert complete(["B-X", "O"]) == ("B-X", "I-X", "O")  # a name of two words may come later
    assert complete(["U-X"]) == ("B-X", "I-X", "L-X", "O", "U-X")
    assert complete(["NOUN", "VERB"]) == ("NOUN", "O", "VERB")
    with pytest.raises(ValueError, match="no scheme"):
        complete(["B-X", "E-X", "U-X"])
    with pytest.raises(ValueError, match="a letter in front"):
        complete(["B-X", "NOUN"])


@pytest.mark.parametrize(
    ("tags", "refused"),
    [
        ("b-per i-per o", "the tags 'b-per' and 'i-per' would be types of their own; write O, B-TYPE and I-TYPE"),
        ("B_PER I_PER O", "the tags 'B_PER' and 'I_PER' would"),
        ("B-PER I-PER O", None),
        ("e-mail i-phone O", None),
        ("NOUN VERB o", None),
    ],
)
def test_tags_that_are_written_otherwise_are_no_names_of_types(tags, refused):
    row = Row(Words(tags.split()), None, json.dumps({"tags": tags.split()}), "rows.conll", 1)
    if refused is None:
        assert {*tags.split()} <= {*Tokens.labels_of([row])}
        return
    with pytest.raises(DataError, match=f"rows.conll: {refused}"):
        Tokens.labels_of([row])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Paris, U.S. don't", ["Paris", ",", "U", ".", "S", ".", "don", "'", "t"]),
        ("e\u0301te\u0301 x", ["e\u0301te\u0301", "x"]),  # accents that stand by themselves
        ("नमस्ते दुनिया।", ["नमस्ते", "दुनिया", "।"]),
        ("שָׁלוֹם עוֹלָם!", ["שָׁלוֹם", "עוֹלָם", "!"]),
        ("مُحَمَّد في\u200f دبي", ["مُحَمَّد", "في", "دبي"]),  # a mark of direction is no word
        ("東京へ 行く", ["東", "京", "へ", "行", "く"]),
        ("😀Ada 𝛽x👍🏽", ["😀", "Ada", "𝛽x", "👍", "🏽"]),
        ("می‌خواهم", ["می‌خواهم"]),  # joined without being joined
        ("der Bundes\xadtag \xad", ["der", "Bundes\xadtag"]),  # a word that no tag divides
        ("", []),
    ],
)
def test_words_are_where_they_stand(text, words):
    found = words_of(text)
    assert [text[start:end] for start, end in found] == words
    assert all(before[1] <= after[0] for before, after in pairwise(found))


def byte_level(tmp_path: Path) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def pieces(tmp_path: Path) -> Tokenizer:
    """BERT's division with one letter a piece, accents taken off."""
    letters = [chr(i) for i in range(33, 0x250)] + [*"שלוםעדאיבתرمحدفيب東京😀𝛽"]
    vocabulary = {piece: i for i, piece in enumerate(["[UNK]", *letters, *(f"##{letter}" for letter in letters)])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=20))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


TEXT = "😀 Ada\u0301 Łódź, שָׁלוֹם 𝛽x  東京 ok"


@pytest.mark.parametrize("make", [byte_level, pieces])
def test_the_first_piece_of_a_word_begins_where_it_does(tmp_path, make):
    encoding = make(tmp_path).encode(TEXT)
    words = words_of(TEXT)
    for (start, end), place in zip(words, places_of(words, encoding), strict=True):
        assert place != NOWHERE
        first, last = encoding.offsets[place]
        blank = len(TEXT[first:last]) - len(TEXT[first:last].lstrip())
        assert first + blank == start and last <= max(end, start + 1), TEXT[start:end]
    owned = places_of(words, encoding).tolist()
    assert owned == sorted(set(owned))


def encoder(tmp_path: Path) -> TextEncoder:
    write_tokenizer(tmp_path / "tokenizer.json", 0, 60)
    return TextEncoder(tmp_path / "tokenizer.json", ("input_ids", "attention_mask"), 0)


def test_words_past_the_cut_are_missed_and_counted(tmp_path):
    rows = [row(Words(["w5", "w6", "w7", "w8"]), {"tags": ["B-PER", "O", "B-LOC", "I-LOC"]})]
    read = encode(rows, Tokens(BIO), encoder(tmp_path), 5, 0)  # [CLS] and [SEP] are two of five
    (target,) = read.targets
    assert target.tolist() == [[1, 4, 0, 2], [1, 2, 3, NOWHERE]] and read.truncated == 1
    inputs, at = read.batch([0])
    assert at.tolist() == [[-100, 1, 4, 0, -100]] and inputs["input_ids"].shape == at.shape
    best = np.empty(1, object)
    best[0] = np.array([4, 1, 4, 0, 4])  # right as far as it is read
    kind = Tokens(BIO)
    assert kind.score("entity_precision", read.targets, best) == 1 / 2  # of Łódź's two words one: another entity
    assert kind.errors(read.targets, best)["figures"]["entities_not_read"] == 1
    assert kind.plain_answers(rows, read.targets, best) == [["w5 (PER)", "w7 (LOC)"]]


def test_the_loss_is_the_mean_over_first_pieces():
    source = np.random.default_rng(0)
    logits = source.standard_normal((3, 7, 5)).astype(np.float32)
    at = np.where(source.random((3, 7)) < 0.4, -100, source.integers(0, 5, (3, 7)))
    kind, (x, y) = Tokens(BIO), (torch.from_numpy(logits), torch.from_numpy(at))
    expected = cross_entropy(x.flatten(0, 1), y.flatten())
    assert kind.loss(x, y).item() == pytest.approx(expected.item(), rel=1e-6)
    targets = np.empty(3, object)
    for i in range(3):
        places = np.flatnonzero(at[i] >= 0)
        targets[i] = np.stack([at[i][places], places])
    assert kind.losses(logits, targets) == pytest.approx(kind.losses(logits, at))
    assert (kind.losses(logits, at) * kind.terms(at)).sum() / kind.terms(at).sum() == pytest.approx(expected.item())
    flat = kind.baseline_features(list(logits), targets)
    again = kind.logits_by_row(flat, targets)
    assert kind.losses(again, targets) == pytest.approx(kind.losses(logits, targets))
    assert spread(flat, [target[1] for target in targets]).shape == again.shape


def test_answers_have_the_offsets_of_pythons_string(tmp_path):
    text = "😀 w5 w6\u200f w7"
    batch = encoder(tmp_path).encode([Text(text)], 20)
    read = read_words(text, batch.encodings[0])
    logits = np.zeros((1, batch.inputs["input_ids"].shape[1], 5), np.float32)
    for place, tag in zip(read.places, [4, 1, 3, 0], strict=True):
        logits[0, place, tag] = 5
    (answer,) = Tokens(BIO).predictions("t", logits, [""], [read])
    spans = answer.as_json()["spans"]
    assert [(text[span["start"] : span["end"]], span["label"]) for span in spans] == [("w5 w6", "PER"), ("w7", "LOC")]
    assert spans[0]["text"] == "w5 w6" and spans[0]["start"] == 2  # an emoji is one character
    assert spans[0]["score"] == pytest.approx(np.exp(5) / (np.exp(5) + 4), abs=1e-6)
    assert answer.value == ["w5 w6 (PER)", "w7 (LOC)"] and "tags" not in answer.as_json()


def test_text_that_is_no_unicode_is_answered(tmp_path):
    text = "\ud83d w5"
    batch = encoder(tmp_path).encode([Text(text)], 20)
    logits = np.zeros((1, batch.inputs["input_ids"].shape[1], 5), np.float32)
    logits[..., 0] = 1
    (answer,) = Tokens(BIO).predictions("t", logits, [""], [read_words(text, batch.encodings[0])])
    json.dumps(answer.as_json(), ensure_ascii=False).encode()


GOOD = {"words": ["Ada", "in", "Rome"], "tags": ["B-PER", "O", "B-LOC"]}
WRONG = [
    ({"words": ["Ada", "in"], "tags": ["O"]}, "1 tag for 2 words"),
    ({"words": ["Ada", "in"], "tags": []}, "0 tags for 2 words"),
    ({"words": [], "tags": []}, "no word to tag"),
    ({"words": ["Ada", " "], "tags": ["O", "O"]}, "a word is empty or blank"),
    ({"words": ["Ada", 3], "tags": ["O", "O"]}, "words are a list of texts"),
    ({"words": ["Ada"], "tags": "O"}, "tags are a list"),
    ({"words": ["Ada"], "tags": [None]}, "the tag of word 1"),
    ({"text": "Ada", "spans": [{"start": 2, "end": 1, "label": "PER"}]}, "ends before it starts"),
    ({"text": "Ada", "spans": [{"start": 1, "end": 1, "label": "PER"}]}, "has no character"),
    ({"text": "Ada", "spans": [{"start": -1, "end": 1, "label": "PER"}]}, "starts before 0"),
    ({"text": "😀da", "spans": [{"start": 0, "end": 4, "label": "PER"}]}, "has 3 characters"),
    ({"text": "Ada", "spans": [{"start": 0.0, "end": 1, "label": "PER"}]}, "two whole numbers"),
    ({"text": "Ada", "spans": [{"start": 0, "end": 3}]}, "label of a span"),
    ({"text": "Ada", "spans": [{"start": 0, "end": 3, "label": "O"}]}, "leave that span out"),
    ({"text": "A a  b", "spans": [{"start": 3, "end": 5, "label": "PER"}]}, "has no word"),
    ({"text": "Ada", "spans": [[0, 2, "PER"], [1, 3, "LOC"]]}, "overlap"),
    ({"text": "Ada", "spans": [[0, 1, "PER"], [1, 3, "LOC"]]}, "share the word 'Ada'"),
    ({"text": "  ", "spans": []}, "no word to tag"),
    ({"sentence1": "Ada in Rome", "label": ["B-PER", "O"]}, "give the row's words too"),
    ({"sentence1": "Ada", "sentence2": "Rome", "label": []}, "a pair"),
    ({"words": ["Ada"], "tags": ["B-ORG"]}, "'B-ORG' was not seen"),
    ({"text": "Ada", "spans": [[0, 3, "ORG"]]}, "'ORG' was not seen"),
]


@pytest.mark.parametrize(("wrong", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_wrong_in_a_row_is_named_with_its_line(tmp_path, wrong, said):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in [wrong]))
    train = [row(Words(GOOD["words"]), {"tags": GOOD["tags"]}, line) for line in range(1, 5)]
    with pytest.raises(DataError, match=r"rows\.jsonl:1") as error:
        task_data(train, list(read_rows(path, labels=True, label_of=Tokens.label_text)), train[:1], kind="tokens")
    assert said in str(error.value)


def test_rows_without_an_entity_cannot_be_learnt():
    with pytest.raises(DataError, match="no row has an entity"):
        Tokens.labels_of([row(Words(["a"]), {"tags": ["O"]}), row("b", [])])
    with pytest.raises(DataError, match="no scheme"):
        Tokens.labels_of([row(Words(["a", "b"]), {"tags": ["U-X", "E-X"]})])


def test_spans_that_end_within_a_word_are_widened_and_said():
    rows = [row("Parisians came", [[0, 5, "LOC"]])] * 2
    with pytest.warns(UserWarning, match=r"2 rows.*'Paris' of 'Parisians'"):
        tags = Tokens.labels_of(rows)
    assert Tokens(tags).expected(rows[0]) == ["Parisians (LOC)"]


def test_an_inside_tag_without_a_beginning_is_an_entity():
    """seqeval's rule, and conlleval's."""
    assert entities(["O", "I-PER", "I-PER", "I-LOC"]) == [Entity("PER", 1, 2), Entity("LOC", 3, 3)]


def test_forms_of_rows_say_the_same(tmp_path):
    spans = [{"start": 0, "end": 3, "label": "PER"}, {"start": 7, "end": 11, "label": "LOC"}]
    forms = {
        "words.jsonl": json.dumps(GOOD),
        "words.json": json.dumps([GOOD]),
        "spans.jsonl": json.dumps({"text": "Ada in Rome", "spans": spans}),
        "usual.jsonl": json.dumps({"sentence1": "Ada in Rome", "label": spans[::-1]}),
        "a.conll": "-DOCSTART- -X- O O\n\nAda NNP B-NP B-PER\nin IN O O\nRome\tNNP B-NP\tB-LOC\n\n\n",
    }
    for name, content in forms.items():
        (tmp_path / name).write_text(content)
        (read,) = read_rows(tmp_path / name, labels=True, label_of=Tokens.label_text)
        assert read.sentence1 == "Ada in Rome"
        assert Tokens(BIO).targets([read])[0][0].tolist() == [1, 4, 0], name
    (read,) = read_rows(tmp_path / "a.conll", labels=False)
    assert read.sentence1 == "Ada in Rome" and read.label is None
    named = Columns(text="t", label="l")
    (tmp_path / "named.jsonl").write_text(json.dumps({"t": "Ada in Rome", "l": spans, "words": ["x"]}))
    (read,) = read_rows(tmp_path / "named.jsonl", labels=True, columns=named, label_of=Tokens.label_text)
    assert Tokens(BIO).targets([read])[0][0].tolist() == [1, 4, 0]


def test_columns_of_conll_that_differ_are_named(tmp_path):
    (tmp_path / "a.conll").write_text("Ada B-PER\nin\n")
    with pytest.raises(DataError, match=r"a\.conll:2: 1 column,"):
        list(read_rows(tmp_path / "a.conll", labels=True, label_of=Tokens.label_text))


def test_a_row_is_as_far_off_as_its_f1_lacks():
    kind, targets, outputs = Tokens(BIO), np.empty(4, object), np.empty(4, object)
    told = [([1, 4, 1], [1, 4, 4]), ([1, 4, 4], [0, 4, 4]), ([4, 4, 4], [4, 4, 4]), ([4, 4, 4], [1, 4, 4])]
    for i, (right, given) in enumerate(told):
        targets[i], outputs[i] = np.array([right, [0, 1, 2]]), np.array(given)
    assert kind.row_errors(targets, outputs) == pytest.approx([1 / 3, 1, 0, 1])
    most = np.broadcast_to(kind.majority(targets), outputs.shape)
    assert kind.row_errors(targets, most).tolist() == [1, 1, 0, 0]  # outside of all entities


def test_two_models_agree_where_the_references_margin_decides():
    reference = np.array([[[9, 0, 0], [0, 9, 0], [1, 1, 0], [0, 0, 0]], [[0, 0, 0]] * 4], np.float32)
    other = reference.copy()
    other[0, 1] = [9, 0, 0]
    assert Tokens(("B-X", "I-X", "O")).agreement(reference, other, 1e-4) == (1 / 2, 1)


def test_words_stay_words_through_pickling():
    again = pickle.loads(pickle.dumps(Words(["New York", "x"])))
    assert (str(again), again.spans) == ("New York x", ((0, 8), (9, 10)))


def test_tags_that_are_numbers_are_refused_for_none_of_them_is_outside_by_itself():
    for tags in ([3, 0], ["3", "0"]):  # the second as CoNLL's lines and tables have them
        with pytest.raises(DataError, match=r"rows:1: tags are numbers, found \[.*\]; give their names"):
            Tokens.label_text({"tags": tags}, "rows:1")
    assert json.loads(Tokens.label_text({"tags": ["3", "O"]}, "rows:1")) == {"tags": ["3", "O"]}
