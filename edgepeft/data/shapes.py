"""Shapes of rows: which columns of other tools' files are text, label and the rest.

``SHAPES`` is tried in order on a file's first rows, where no option names a column; the first that fits reads all of
its rows, and says so.  Each shape is of one kind of task, which is taken where none is asked for.
"""

import contextlib
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from edgepeft.data.columns import (
    BITS,
    COUNTER,
    LABELS,
    NUMBERED,
    SCORES,
    TEXTS,
    is_mark,
    lower_names,
    mark_of,
    number_of,
    one_of,
    parse_cell,
    require_names,
    sole,
    text_columns,
)
from edgepeft.data.label_names import names_beside

Cells = Mapping[str, Any]  # of a row, by its columns
Head = Sequence[Cells]
_TAGS = ("tags", "ner_tags", "pos_tags", "chunk_tags", "labels", "ner")
_MARKS = ("spans", "entities", "label", "labels")
TAUGHT = {*_TAGS, *_MARKS, *SCORES}  # what rows say that have no label
_LISTS = ("tokens", "words", "endings", "choices", "options", "answers", "candidates", "translation")
_NESTED = {*LABELS, *_TAGS, *_MARKS, *_LISTS}
_PASSAGES = ("article", "passage", "context")  # that a question is about
_QUESTIONS = ("ctx", "premise", "sent1", "startphrase", "question", "question_stem")
_BODIES = ("body", "description", "content")
_INSTRUCTION = ("instruction", "input", "context")
_ANSWERED = ((_INSTRUCTION, "output"), (_INSTRUCTION, "response"), (("prompt",), "completion"))
_WRITTEN = (("article", "highlights"), ("article", "summary"), ("document", "summary"), ("dialogue", "summary"))


class Shape(NamedTuple):
    """How the rows of a file are read."""

    kind: str  # of task
    description: str  # the columns, as they are read
    read: Callable[[Cells], Cells]  # a row -> the same by its usual names
    source: str | None = None  # pattern of columns, of a task that writes text
    target: str | None = None


def shape_of(path: object, head: Head, *, picked: bool = True) -> Shape | None:
    """Tell the shape by a file's first rows; None if they have the usual columns, or none that is known.

    Unless a candidate is to be ``picked``, labels stay as they are.
    """
    first = lower_names(head[0] if head else {})
    nested = []  # columns of texts that are lists or mappings
    for name in (name for lower, name in first.items() if lower in _NESTED):
        texts = [cell for row in head if (cell := row.get(name)) not in (None, "")]
        if texts and all(isinstance(cell, str) and not isinstance(parse_cell(cell), str) for cell in texts):
            nested.append(name)

    def whole(row: Cells) -> Cells:
        return {**row, **{name: parse_cell(row[name]) for name in nested if name in row}}

    rows = [*map(whole, head)] if nested else head
    for known in SHAPES if head else ():
        with contextlib.suppress(AttributeError, IndexError, KeyError, TypeError):  # columns that hold something else
            if (found := known(rows, first, path)) is not None:
                if known is _choice and not picked:
                    return found._replace(read=lambda row: {**found.read(whole(row)), **_labelled(row)})
                return found._replace(read=lambda row: found.read(whole(row))) if nested else found
    return None


def recognised_shape(path: object, head: Head, columns: Sequence[str | None] = ()) -> Shape | None:
    """Tell the shape by a file's first rows, and say it; None if they do not tell, or options name the ``columns``."""
    shape = None if any(columns) else shape_of(path, head)
    if shape is not None:
        warnings.warn(f"{path}: rows of {shape.description}; --kind {shape.kind} is taken.", stacklevel=2)
        return shape
    names = lower_names(head[0] if head else {})
    named = next(filter(None, columns[2:]), None)
    label = named or next((names[name] for name in LABELS if name in names), "")
    values = [row.get(label) for row in head]
    if not names_beside(path, label, values):
        require_names(path, f"column {label}", values)
    return None


def _renamed(**names: str | None) -> Callable[[Cells], Cells]:
    """Return a reader of rows that has their columns by these names too, if they are there."""
    given = {usual: name for usual, name in names.items() if name is not None}
    return lambda row: {**row, **{usual: row[name] for usual, name in given.items() if name in row}}


def _tagged(head: Head, names: Mapping[str, str], path: object) -> Shape | None:
    """Lists of words and of their tags, as the Hub's data sets and CoNLL's files have them."""
    lists = (names[n] for n in ("tokens", "words") if isinstance(head[0].get(names.get(n, "")), list))
    # Prodigy's tokens are objects beside a text.
    words = next((n for n in lists if not any(isinstance(each, Mapping) for each in head[0][n])), None)
    if words is None or "sentence1" in names:
        return None
    asked = [names[name] for name in _TAGS if isinstance(head[0].get(names.get(name, "")), list)]
    tags = "tags" if "tags" in asked else sole(path, asked, "the tags", "--label-column")
    return Shape("tokens", f"{words}{f' and {tags}' if tags else ''}", _renamed(words=words, tags=tags))


def _marked(head: Head, names: Mapping[str, str], path: object) -> Shape | None:
    """A text and marks in it: [start, end, label] (spaCy, doccano), or objects (Prodigy, doccano, Label Studio)."""
    text = next((names[name] for name in ("text", "data") if name in names), None)
    if "sentence1" in names or text is None or not isinstance(head[0][text], str):
        return None
    every = {str(name).lower(): name for row in head for name in row}
    for name in _MARKS:
        column = every.get(name)
        lists = [row.get(column) for row in head if column is not None]
        marks = [mark for each in lists if isinstance(each, list) for mark in each]
        if column is not None and marks and all(map(is_mark, marks)):

            def read(row: Cells, column: str = column) -> Cells:  # Prodigy leaves an empty list out
                found = row.get(column, [] if "answer" in row else None)
                others = {n: v for n, v in row.items() if n not in (column, "words")}
                spans = [*map(mark_of, found)] if isinstance(found, list) else found
                return {**others, "text": row[text], "spans": spans}

            return Shape("tokens", f"{text} and {column}", read)
    return None


def _label_studio(head: Head, names: Mapping[str, str], path: object) -> Shape | None:
    """Label Studio's export: ``data`` with the text, ``annotations`` with results."""
    data = head[0].get("data")
    if "annotations" not in names or not isinstance(data, Mapping):
        return None
    texts = [name for name, value in data.items() if isinstance(value, str)]
    column = "text" if "text" in texts else sole(path, texts, "the text", "--text-column")

    def found(row: Cells, what: str) -> list[Any] | None:  # none of a row that nobody has finished
        made = [each for each in row.get("annotations") or () if isinstance(each, Mapping)]
        kept = [each.get("result") or () for each in made if not each.get("was_cancelled")]
        values = [each.get("value", {}) for each in kept[0] if isinstance(each, Mapping)] if kept else []
        return [value for value in values if what in value] if kept else None

    def chosen(row: Cells) -> list[str]:
        return [name for value in found(row, "choices") or () for name in value["choices"]]

    has = [what for what in ("labels", "choices", "rating", "number") if any(found(row, what) for row in head)]
    what = has[0] if has else "choices"
    several = what == "choices" and any(len(chosen(row)) > 1 for row in head)

    def read(row: Cells) -> Cells:
        values, text = found(row, what), row["data"].get(column)
        if what == "labels":
            return {"text": text, "spans": None if values is None else [*map(mark_of, values)]}
        if what != "choices":
            return {"sentence1": text, "label": (values or [{}])[0].get(what)}
        made = chosen(row)
        label = made if several and values is not None else made[0] if len(made) == 1 else made or None
        return {"sentence1": text, "label": label}

    told = f"data.{column} and annotations{f', of which only {what} are read' if len(has) > 1 else ''}"
    of_choices = "labels" if several else "classification"
    return Shape({"labels": "tokens", "choices": of_choices}.get(what, "regression"), told, read)


def _choice(head: Head, names: Mapping[str, str], path: object) -> Shape | None:
    """A text and a list of endings or answers, and which is right (HellaSwag, SWAG, ARC, CommonsenseQA, MMLU)."""
    nested = head[0].get("question")
    if isinstance(nested, Mapping) and "stem" in nested:  # CommonsenseQA as published
        return Shape("choice", "question.stem and question.choices", partial(_chosen, text="stem", within="question"))
    text = next((names[name] for name in ("sentence1", *_QUESTIONS) if name in names), None)
    about = next((names[n] for n in _PASSAGES if n in names), None) if text == names.get("question") else None
    if {"sentence1", "sentence2"} <= names.keys():
        about, text = names["sentence1"], names["sentence2"]
    endings = next((names[n] for n in ("endings", "choices", "options") if n in names), None)
    if {"sentence1", "candidates"} <= {*head[0]} and isinstance(head[0]["candidates"], list):  # our own names
        return Shape("choice", "sentence1 and candidates", dict)
    numbered = [name for name in head[0] if NUMBERED.fullmatch(name)]
    if text is not None and endings is None and len(numbered) > 1:  # SWAG and COPA
        others = () if "sentence1" in names else ("sent2", "question")  # that stand before each of the candidates
        second = next((names[name] for name in others if name in names and names[name] != text), None)
        text, second = (text, second) if about is None else (about, text)
        usual, from_1 = _renamed(sentence1=text, sentence2=second), _from_1((row, numbered) for row in head)

        def read(row: Cells) -> Cells:
            right, texts = _right(row), [row.get(name) for name in numbered]
            label = {} if right in (None, "") else {"label": _place(right, texts, from_1=from_1)}
            return {**usual(row), **label}

        told = f"{text}{f', {second}' if second else ''} and {', '.join(numbered)}"
    elif text is None or endings is None or not isinstance(head[0][endings], list | Mapping):
        return None
    else:
        from_1 = _from_1((row, row[endings]) for row in head if isinstance(row.get(endings), list))
        told = f"{f'{about}, ' if about else ''}{text} and {endings}"
        read = partial(_chosen, text=text, endings=endings, about=about, from_1=from_1)

    if "sentence1" in names and sum(_names_one(read(row)) for row in head) <= len(head) / 2:
        return None  # the label is a class of the text
    return Shape("choice", f"{told}, which are counted from 1" if from_1 else told, read)


def _names_one(row: Cells) -> bool:
    """True if there is no label, or a candidate's text, place or column, and no class of the text."""
    given, label = row.get("candidates") or [row[n] for n in row if NUMBERED.fullmatch(n)], row.get("label")
    return label in (None, "", *given, *row) or number_of(label) in range(len(given))


def _from_1(candidates: Iterable[tuple[Cells, Sequence[Any]]]) -> bool:
    """True if the right one of a row's candidates is the last number once, and never 0."""
    counted = [(number_of(_right(row)), len(of)) for row, of in candidates]
    return all(number != 0 for number, _ in counted) and any(number == n for number, n in counted)


def _right(row: Cells) -> Any:
    return next((row[name] for name in ("answerKey", "answer", "label", "gold") if name in row), None)


def _labelled(row: Cells) -> Cells:
    return {} if (right := _right(row)) in (None, "") else {"label": right}


def _chosen(
    row: Cells, text: str, endings: str = "choices", about: str | None = None, within: str = "", *, from_1: bool = False
) -> Cells:
    asked = row[within] if within else row
    given: Any = asked.get(endings)
    keys = list[Any]()
    if isinstance(given, Mapping):  # {"text": [...], "label": ["A", ...]}
        given, keys = given.get("text"), list(given.get("label", ()))
    elif isinstance(given, list) and given and isinstance(given[0], Mapping):  # [{"label": "A", "text": ...}, ...]
        given, keys = [each.get("text") for each in given], [each.get("label") for each in given]
    if isinstance(given, list):  # a number is the text of one: a label is compared with it as text
        given = [str(each) if type(each) in (int, float) else each for each in given]
    found: dict[str, Any] = {"sentence1": asked.get(text), "candidates": given}
    found |= {} if about is None else {"sentence1": row.get(about), "sentence2": asked.get(text)}
    right = _right(row)
    if right not in (None, ""):
        found["label"] = keys.index(right) if right in keys else _place(right, given, from_1=from_1)
    return found


def _place(right: Any, given: Any, *, from_1: bool) -> Any:
    """Return the index of a candidate that is called by its letter, or counted from 1; else what stands there."""
    if not isinstance(given, list) or right in given:
        return right
    if isinstance(right, str) and re.fullmatch("[A-Za-z]", right.strip()):
        return ord(right.strip().upper()) - ord("A")
    return int(number) - 1 if from_1 and (number := number_of(right)) is not None else right


def _texts(head: Head, names: Mapping[str, str], path: object) -> Shape | None:
    """Question, context and answers, a row each, as SQuAD's on the Hub; or texts that belong together, without a label,
    of which a third one that does not is left out, as all others are such."""
    if {"question", "context", "answers"} <= names.keys() and "sentence1" not in names:
        read = _renamed(sentence1=names["question"], sentence2=names["context"], label=names["answers"])
        return Shape("spans", "question, context and answers", read)
    for first, second in (("anchor", "positive"), ("query", "positive"), ("query", "pos"), ("query", "answer")):
        if {first, second} <= names.keys() and not {*LABELS, *SCORES} & names.keys():
            one, other = names[first], names[second]
            several = any(isinstance(near := row.get(other), list) and len(near) > 1 for row in head)
            told = f"{one} and {'the first of ' * several}{other}"
            if others := ", ".join(n for n in ("neg", "negative", "negatives", "neg_scores") if n in names):
                told += f"; {others} left out, for the other rows of a batch are such"

            def read(row: Cells, one: str = one, other: str = other) -> Cells:
                near = row[other]  # FlagEmbedding's is a list of texts
                return {**row, "sentence1": row[one], "sentence2": near[0] if isinstance(near, list) else near}

            return Shape("embedding", told, read)
    return None


def _score(head: Head, names: Mapping[str, str], path: object) -> Shape | None:
    """A number by the name of one."""
    there = [names[name] for name in SCORES if name in names]
    cells = {name: [cell for row in head if (cell := row.get(name)) not in (None, "")] for name in there}
    scores = [name for name in there if cells[name] and all(number_of(cell) is not None for cell in cells[name])]
    if not scores or {*LABELS} & names.keys():
        return None
    label = sole(path, scores, "the number", "--label-column")
    return Shape("regression", f"a text and the number {label}", _renamed(label=label))


def _several(head: Head, names: Mapping[str, str], path: object) -> Shape | None:
    """Several labels: a list of names, or a column of 0 and 1 for each."""
    label = next((names[name] for name in LABELS if name in names), None)
    if label is not None:
        lists = [each for row in head if (each := row.get(label)) not in (None, "")]
        bits = all(isinstance(each, list) and all(str(bit).lower() in BITS for bit in each) for each in lists)
        # As numbers of labels all rows would have the same.
        if bits and len(lists) > 1 and len({*map(len, lists)}) == 1 and len(lists[0]) > 1:
            places = range(len(lists[0]))

            def held(row: Cells) -> Cells:
                own = zip(places, row[label], strict=True)
                return {**row, "label": [place for place, bit in own if BITS[str(bit).lower()]]}

            return Shape("labels", f"a text and {label}, a 0 or 1 for each label, called by its place", held)
        if any(isinstance(each := parse_cell(cell), Mapping) and "choices" in each for cell in lists):

            def listed(row: Cells) -> Cells:  # Label Studio's: one alone is a text
                cell = parse_cell(row[label])
                return {**row, "label": cell["choices"] if isinstance(cell, Mapping) else cell and [cell]}

            return Shape("labels", f"a text and the choices in {label}", listed)
        named = all(isinstance(each, list) and all(type(name) in (str, int) for name in each) for each in lists)
        if str(path).lower().endswith(".txt") and all(len(each) < 2 for each in lists):  # fastText's classes
            return None
        told = f"a text and the list {label}"
        if all(len(each) == 1 for each in lists):
            told += ", which has one name in each row (--kind classification learns to tell which)"
        return Shape("labels", told, _renamed(label=label)) if named and lists else None
    text = next((names[name] for name in ("sentence1", *TEXTS) if name in names), None)
    others = [n for lower, n in names.items() if n != text and not COUNTER.fullmatch(lower)]
    if text is None or len(others) < 2 or not all(str(row.get(n)).lower() in BITS for row in head for n in others):
        return None

    def read(row: Cells) -> Cells:
        bits = {name: BITS.get(str(row.get(name)).lower()) for name in others}
        odd = {name: row.get(name) for name, bit in bits.items() if bit is None}
        return {**row, "sentence1": row[text], "label": odd or [name for name, bit in bits.items() if bit]}

    return Shape("labels", f"{text} and a column of 0 and 1 for each of {', '.join(others)}", read)


def _accepted(head: Head, names: Mapping[str, str], path: object) -> Shape | None:
    """One label that Prodigy's annotator accepted or rejected of each text."""
    labels, answers = ({row.get(name) for row in head} for name in ("label", "answer"))
    if "text" not in names or len(labels) > 1 or not answers <= {"accept", "reject", "ignore"}:
        return None
    if not isinstance(label := labels.pop(), str):
        return None

    def read(row: Cells) -> Cells:
        no = row.get("answer") == "reject" and row.get("label") == label
        return {**row, "sentence1": row["text"]} | ({"label": f"not {label}", "answer": "accept"} if no else {})

    return Shape("classification", f"text and label, where what was rejected is called not {label}", read)


def _picked(head: Head, names: Mapping[str, str], path: object) -> Shape | None:
    """Options of which some were accepted, as Prodigy has them."""
    if not {"text", "options", "accept"} <= names.keys():
        return None
    text, accept = names["text"], names["accept"]
    one = all(len(row[accept]) == 1 for row in head if accept in row and row.get("answer", "accept") == "accept")

    def read(row: Cells) -> Cells:
        return {**row, "sentence1": row[text], "label": one_of(row.get(accept)) if one else row.get(accept)}

    return Shape("classification" if one else "labels", f"{text} and what is in {accept}", read)


def _titled(head: Head, names: Mapping[str, str], path: object) -> Shape | None:
    """A title above a text, which are read as one."""
    bodies = [names[name] for name in _BODIES if name in names]
    if "title" not in names or len(bodies) != 1 or "sentence1" in names:
        return None
    title, body = names["title"], bodies[0]

    def joined(row: Cells) -> Cells:
        others = {name: value for name, value in row.items() if name not in (title, body)}
        return {**others, "sentence1": "\n".join(filter(None, (row.get(title), row.get(body))))}

    return Shape("classification", f"{title} above {body}", joined)


def written_shape(head: Head, names: Mapping[str, str], path: object) -> Shape | None:
    """Texts to write: a translation, a summary, the output of an instruction."""
    for asked, output in _ANSWERED:
        labelled = {*LABELS} & names.keys() and (asked[0] == "prompt" or text_columns(head[0]))
        if {asked[0], output} <= names.keys() and not labelled:
            source, target = " ".join(f"{{{names[name]}}}" for name in asked if name in names), f"{{{names[output]}}}"
            return Shape("text", f"{asked[0]} and {output}", dict, source, target)
    for text, summary in _WRITTEN:
        if {text, summary} <= names.keys():
            source, target = f"summarize: {{{names[text]}}}", f"{{{names[summary]}}}"
            return Shape("text", f"{text} and {summary}", dict, source, target)
    pair = head[0].get("translation")
    if isinstance(pair, Mapping) and len(pair) == 2:
        one, two = pair
        source = f"translate {one} to {two}: {{{one}}}"
        return Shape("text", f"translation, from {one} to {two}", lambda row: row["translation"], source, f"{{{two}}}")
    return None


SHAPES = (
    _label_studio, _tagged, _marked, _accepted, _picked, _choice, _texts, _score, _several, _titled, written_shape,
)  # fmt: skip
