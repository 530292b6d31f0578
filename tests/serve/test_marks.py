"""What the page marks in a text, by its own function in Node: JavaScript counts halves of characters, Python none."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from edgepeft.resources import package_data

NODE = shutil.which("node")
TEXT = "😀 w5 שָׁלוֹם e\u0301 𝛽 end"
# The page's function, and as much of a document as it asks for; a lone answer as JSON.
DRIVER = """
const make = (name, text) => ({ name, parts: text === undefined ? [] : [text], append(...more) { this.parts.push(...more); } });
const told = (part) => (typeof part === "string" ? part : [part.name, ...part.parts.map(told)]);
const { text, prediction } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const marked = markedText(text, prediction);
console.log(JSON.stringify([marked.dir, ...told(marked).slice(1)]));
"""


# The same for a whole card.
CARD = """
const titled = (task, name) => make(name, task);
const make = (name, text) => ({ name, parts: text === undefined ? [] : [text], append(...more) { this.parts.push(...more); } });
const told = (part) => (typeof part === "string" ? part : [part.name, ...part.parts.map(told)]);
const { text, second, prediction } = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(told(answerCard("qa", { prediction }, text, second)).slice(2)));
"""


def marked(text: str, prediction: dict[str, object], driver: str = DRIVER, **more: str) -> list[object]:
    page = package_data("serve/page.js").read_text(encoding="utf-8")
    functions = page[page.index("function markedText") : page.index("function scoreList")]
    assert NODE is not None
    given = json.dumps({"text": text, "prediction": prediction, **more})
    done = subprocess.run([NODE, "-e", functions + driver], input=given, capture_output=True, text=True, check=True)
    found: list[object] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_spans_are_marked_where_pythons_string_has_them():
    found = [("w5", "PER"), ("שָׁלוֹם", "LOC"), ("e\u0301", "X"), ("𝛽", "X")]
    spans = [
        {"start": TEXT.index(word), "end": TEXT.index(word) + len(word), "label": label, "score": 0.5}
        for word, label in found
    ]
    parts = marked(TEXT, {"spans": spans, "unread": TEXT.index("end")})
    marks = [["mark", word, ["b", label]] for word, label in found]
    assert parts == ["auto", "😀 ", marks[0], " ", marks[1], " ", marks[2], " ", marks[3], " ", ["s", "end"]]
    assert marked(TEXT, {"spans": []}) == ["auto", TEXT]


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_an_answer_is_marked_in_the_passage_and_not_in_the_question():
    place = {"start": TEXT.index("e\u0301"), "end": TEXT.index(" 𝛽")}
    prediction = {"text": "e\u0301", "answered": True, **place, "score": 0.5}
    before, after = TEXT.split("e\u0301")
    expected = ["p", before, ["mark", "e\u0301", ["b", "answer"]], after]
    assert marked("what?", prediction, CARD, second=TEXT) == [expected]
    none = {"text": "", "answered": False, "score": 0.5}
    assert marked("what?", none, CARD, second=TEXT) == [["p", "no answer in the second text"]]
