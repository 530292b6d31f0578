"""Sources and targets of the formats, beside strings written out by hand from T5's and Compacter's formats."""

from __future__ import annotations

import pytest

from edgepeft.common.errors import DataError, UnknownName
from edgepeft.data.pattern import nearest, pattern
from edgepeft.data.text_template import FORMATS, text_template

# Rows as the data sets have them: under the names of their columns.
ROWS = {
    "cola": {"sentence": "Bill floated."},
    "pair": {"sentence1": "A b.", "sentence2": "C d?"},
    "qqp": {"question1": "Why?", "question2": "How?"},
    "mnli": {"premise": "It rains.", "hypothesis": "It is dry."},
    "qnli": {"question": "Who?", "sentence": "Ann did."},
    "boolq": {"question": "is it", "passage": "It is."},
    "copa": {"premise": "He fell.", "choice1": "Ice.", "choice2": "Sun.", "question": "cause"},
    "multirc": {"question": "Who <b>ran</b>?", "answer": "Tom<br>", "paragraph": "<b>Sent 1: </b>Tom ran.<br>He won."},
    "wic": {"sentence1": "A bank.", "sentence2": "The bank.", "word": "bank"},
    "record": {
        "query": "@placeholder won",
        "entities": ["Ann", "Bob"],
        "passage": "Ann ran.\n@highlight\nShe won\n@highlight\nBob lost",
    },
    "squad": {"question": "Who's there?", "context": "It was Ann (or Bob)."},
}
SQUAD = "question: Who ' s there ? context: It was Ann ( or Bob ) ."
RECORD = "record query: @placeholder won entities: Ann, Bob passage: Ann ran. She won. Bob lost"
SOURCES = {  # T5's
    "glue:cola": ("cola", "cola sentence: Bill floated."),
    "glue:sst2": ("cola", "sst2 sentence: Bill floated."),
    "glue:mrpc": ("pair", "mrpc sentence1: A b. sentence2: C d?"),
    "glue:qqp": ("qqp", "qqp question1: Why? question2: How?"),
    "glue:mnli": ("mnli", "mnli hypothesis: It is dry. premise: It rains."),
    "glue:qnli": ("qnli", "qnli question: Who? sentence: Ann did."),
    "glue:rte": ("pair", "rte sentence1: A b. sentence2: C d?"),
    "glue:stsb": ("pair", "stsb sentence1: A b. sentence2: C d?"),
    "glue:wnli": ("pair", "wnli sentence1: A b. sentence2: C d?"),
    "superglue:boolq": ("boolq", "boolq passage: It is. question: is it"),
    "superglue:cb": ("mnli", "cb hypothesis: It is dry. premise: It rains."),
    "superglue:copa": ("copa", "copa choice1: Ice. choice2: Sun. premise: He fell. question: cause"),
    "superglue:multirc": (
        "multirc",
        "multirc question: Who ran? answer: Tom  paragraph: Sent 1: Tom ran. He won.",
    ),
    "superglue:wic": ("wic", "wic sentence1: A bank. sentence2: The bank. word: bank"),
    "superglue:rte": ("mnli", "rte hypothesis: It is dry. premise: It rains."),
    "superglue:record": ("record", RECORD),
    "squad": ("squad", SQUAD),
}
COMPACTER = {  # its name of the task comes first where no adapters are trained
    "cola": ("cola", "sentence: Bill floated."),
    "sst2": ("cola", "sentence: Bill floated."),
    "mrpc": ("pair", "sentence1: A b. sentence2: C d?"),
    "qqp": ("qqp", "question1: Why? question2: How?"),
    "mnli": ("mnli", "premise: It rains. hypothesis It is dry."),
    "qnli": ("qnli", "question: Who? sentence: Ann did."),
    "rte": ("pair", "sentence1: A b. sentence2: C d?"),
    "stsb": ("pair", "sentence1: A b. sentence2: C d?"),
    "wnli": ("pair", "sentence1: A b. sentence2: C d?"),
    "superglue-boolq": ("boolq", "question: is it passage: It is."),
    "superglue-cb": ("mnli", "premise: It rains. hypothesis: It is dry."),
    "superglue-copa": ("copa", "premise: He fell. choice1: Ice. choice2: Sun."),
    "superglue-multirc": ("multirc", "question: Who ran? answer: Tom  paragraph: Sent 1: Tom ran. He won."),
    "superglue-wic": ("wic", "sentence1: A bank. sentence2: The bank. word: bank"),
    "superglue-rte": ("mnli", "premise: It rains. hypothesis: It is dry."),
    "superglue-record": ("record", RECORD),
    "squad": ("squad", SQUAD),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_of_t5_has_its_word_and_its_fields_in_order(name: str):
    row, text = SOURCES[name]
    for adapters in (True, False):
        assert pattern(FORMATS[name].source_for(adapters=adapters)).filled(ROWS[row], "row 1") == text


@pytest.mark.parametrize("task", COMPACTER)
def test_a_source_of_compacter_has_the_tasks_name_where_no_adapters_are_trained(task: str):
    row, text = COMPACTER[task]
    sources = {adapters: FORMATS[f"compacter:{task}"].source_for(adapters=adapters) for adapters in (True, False)}
    assert pattern(sources[True]).filled(ROWS[row], "row 1") == text
    assert pattern(sources[False]).filled(ROWS[row], "row 1") == f"{task} {text}"


def test_no_format_is_without_a_source_of_this_list():
    assert set(FORMATS) == {*SOURCES, *(f"compacter:{task}" for task in COMPACTER)}


TARGETS = {
    "cola": ("unacceptable", "acceptable"),
    "sst2": ("negative", "positive"),
    "mrpc": ("not_equivalent", "equivalent"),
    "qqp": ("not_duplicate", "duplicate"),
    "mnli": ("entailment", "neutral", "contradiction"),
    "qnli": ("entailment", "not_entailment"),
    "rte": ("entailment", "not_entailment"),
    "wnli": ("not_entailment", "entailment"),
    "boolq": ("False", "True"),
    "cb": ("entailment", "contradiction", "neutral"),
    "copa": ("choice1", "choice2"),
    "multirc": ("False", "True"),
    "wic": ("False", "True"),
}


@pytest.mark.parametrize("name", [name for name in FORMATS if FORMATS[name].targets and not FORMATS[name].step])
def test_labels_are_known_by_name_and_by_number(name: str):
    found = FORMATS[name]
    words = TARGETS[name.removeprefix("compacter:").removeprefix("superglue-").rpartition(":")[2]]
    numbers = tuple(map(str, range(len(words))))
    written = numbers if name.startswith("compacter:") else words
    assert found.targets_of(words) == found.targets_of(numbers) == written
    assert found.targets_of([word.upper() for word in reversed(words)]) == written[::-1]


def test_a_label_that_no_target_has_is_refused_with_those_that_are_there():
    mrpc = FORMATS["glue:mrpc"]
    with pytest.raises(DataError, match=r"no target of glue:mrpc has the label 'same'; .* not_equivalent \(or 0\)"):
        mrpc.targets_of(("equivalent", "same"))
    with pytest.raises(DataError, match="the label '2'"):
        mrpc.targets_of(("0", "2"))
    with pytest.raises(DataError, match="the same class of glue:mrpc"):
        mrpc.targets_of(("1", "equivalent"))


def test_an_unknown_format_is_refused_with_the_nearest():
    with pytest.raises(UnknownName, match=r"no format is called 'glue:mprc'\. Did you mean 'glue:mrpc'\?"):
        text_template(format="glue:mprc", fields={})


def test_free_answers_are_every_answer_of_the_row():
    squad, record = (pattern(FORMATS[name].target) for name in ("squad", "superglue:record"))
    assert squad.choices({"answers": {"text": ["Ann.", "Ann!"], "answer_start": [7, 7]}}, "row") == ("Ann .", "Ann !")
    assert record.choices({"answers": ["Ann", "Bob"]}, "row") == ("Ann", "Bob")
    assert squad.choices({"answers": "it's"}, "row") == ("it ' s",)


def test_compacters_blanks_stand_around_other_signs_too_but_not_underscores():
    squads = [pattern(FORMATS[name].source_for(adapters=True)) for name in ("squad", "compacter:squad")]
    row = {"question": "a_b «c»", "context": "Fran\u00e7ois"}
    assert [squad.filled(row, "row") for squad in squads] == [
        "question: a _ b «c» context: François",
        "question: a_b « c » context: François",
    ]


def test_numbers_are_rounded_to_the_nearest_of_26_or_of_51_targets():
    t5, compacter = FORMATS["glue:stsb"], FORMATS["compacter:stsb"]
    assert (len(t5.names), t5.names[:3], t5.names[-1]) == (26, ("0.0", "0.2", "0.4"), "5.0")
    assert (len(compacter.names), compacter.names[:3], compacter.names[-1]) == (51, ("0.0", "0.1", "0.2"), "5.0")
    numbers = ("0", "2.533", "3.8", "4.89", "4.91", "5.0")
    assert [nearest(n, 0.2, "row") for n in numbers] == ["0.0", "2.6", "3.8", "4.8", "5.0", "5.0"]
    assert [nearest(n, 0.1, "row") for n in numbers] == ["0.0", "2.5", "3.8", "4.9", "4.9", "5.0"]
    for wrong in ("much", "nan", "inf"):
        with pytest.raises(DataError, match="f:1: the label must be a finite number"):
            nearest(wrong, 0.2, "f:1")
