"""What the page marks in a text, by its own function in Node: JavaScript counts halves of characters, Python none."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess

import pytest

from edgepeft.common.resources import package_data

NODE = shutil.which("node")
TEXT = "😀 w5 שָׁלוֹם e\u0301 𝛽 end"
# As much of a document as the page's module asks for; what it shows as JSON.
DRIVER = """
globalThis.document = { createElement: (name) => ({ name, parts: [], append(...more) { this.parts.push(...more); }, setAttribute() {},
  set textContent(text) { this.parts.push(text); } }) };
const told = (part) => (typeof part === "string" ? part : [part.name, ...part.parts.map(told)]);
const { module, text, second, prediction } = JSON.parse((await import("node:fs")).readFileSync(0, "utf8"));
const { parts } = await import(module);
const shown = parts(prediction, text, second);
console.log(JSON.stringify({ dir: shown.at(-1).dir, parts: shown.map(told) }));
"""


def shown(text: str, prediction: dict[str, object], second: str = "") -> dict[str, list[object]]:
    assert NODE is not None
    module = "data:text/javascript;base64," + base64.b64encode(package_data("serve/answers.js").read_bytes()).decode()
    given = json.dumps({"module": module, "text": text, "prediction": prediction, "second": second})
    command = [NODE, "--input-type=module", "-e", DRIVER]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    found: dict[str, list[object]] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_spans_are_marked_where_pythons_string_has_them():
    found = [("w5", "PER"), ("שָׁלוֹם", "LOC"), ("e\u0301", "X"), ("𝛽", "X")]
    spans = [
        {"start": TEXT.index(word), "end": TEXT.index(word) + len(word), "label": label, "score": 0.5}
        for word, label in found
    ]
    found_in = shown(TEXT, {"spans": spans, "unread": TEXT.index("end")})
    marks = [["mark", word, ["b", label]] for word, label in found]
    assert found_in["dir"] == "auto"
    assert found_in["parts"] == [["p", "😀 ", marks[0], " ", marks[1], " ", marks[2], " ", marks[3], " ", ["s", "end"]]]
    assert shown(TEXT, {"spans": []})["parts"] == [["p", TEXT]]


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_an_answer_is_marked_in_the_passage_and_not_in_the_question():
    place = {"start": TEXT.index("e\u0301"), "end": TEXT.index(" 𝛽")}
    prediction = {"text": "e\u0301", "answered": True, **place, "score": 0.5}
    before, after = TEXT.split("e\u0301")
    expected = ["p", before, ["mark", "e\u0301", ["b", "answer"]], after]
    assert shown("what?", prediction, second=TEXT)["parts"] == [["p", "e\u0301"], expected]
    none = {"text": "", "answered": False, "score": 0.5}
    assert shown("what?", none, second=TEXT)["parts"] == [["p", "no answer in the second text"]]
