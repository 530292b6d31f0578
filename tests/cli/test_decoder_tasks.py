"""A decoder's tasks from rows to a service, by the command line: labels of the last token, label words, and text in a
JSON schema."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import torch
import transformers
from pydantic import BaseModel, ConfigDict, Field

pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")
pytest.importorskip("llguidance", reason="needs pip install edgepeft[grammar]")

from served import Served, serving
from spelling import write_speller
from tokenizers import Tokenizer
from verbs import shown, verb

LABELS = ("early", "late")
HALVES = {"early": "abcdefghijklm", "late": "nopqrstuvwxyz"}


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    item: Annotated[str, Field(pattern="^[a-z]{1,6}$")]
    boxes: Annotated[int, Field(ge=0, le=99)]
    city: Literal["Leeds", "York"] | None


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def letters(n: int, seed: int) -> list[dict[str, str]]:
    """Rows of letters; a label says which half of the alphabet they are of."""
    draw = random.Random(seed)
    labels = [LABELS[i % 2] for i in range(n)]
    return [{"text": "".join(draw.choices(HALVES[label], k=draw.randint(3, 9))), "label": label} for label in labels]


def orders(n: int) -> list[dict[str, str]]:
    found = []
    for i in range(n):
        order = Order(item="plums" if i % 2 else "nails", boxes=i, city=("Leeds", "York", None)[i % 3])
        found.append({"order": f"{i} {order.item} to {order.city}", "json": order.model_dump_json()})
    return found


HELD_OUT, ORDERS = letters(24, seed=1), orders(20)
ASKED = [row["order"] for row in ORDERS]


def done(*words: object) -> None:
    """A verb that succeeds."""
    result = verb(*words)
    assert result.exit_code == 0, (result.output, result.exception)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the backbone ``model``, the deltas ``side``, ``word``, ``prompted`` and ``extract``, and their ``bundle``.

    ``extract`` had a single step, so that nothing but the grammar makes JSON of its texts, and ``prompted`` none.
    """
    folder = tmp_path_factory.mktemp("decoder-tasks")
    backbone = write_speller(folder / "model")
    (folder / "schema.json").write_text(json.dumps(Order.model_json_schema()))
    sides = (letters(80, seed=0), HELD_OUT)
    rows = {"side": sides, "word": sides, "prompted": sides, "extract": (ORDERS[:14], ORDERS[14:])}
    how: dict[str, list[object]] = {
        "side": ["--set", "rank=4", "--lr", 1e-2, "--epochs", 8, "--max-length", 16],
        "extract": ["--kind", "text", "--source", "{order}\n", "--target", " {json}", "--steps", 1, "--max-length", 32],
    }
    words = ["--kind", "classification", "--head", "labels", "--source", "The half:{text}\n", "--target", " {label}"]
    how["word"] = [*how["side"][:-1], 32, *words]
    how["prompted"] = [*words, "--steps", 0, "--max-length", 32]
    how["extract"] += ["--json-schema", folder / "schema.json", "--max-target-length", 80]
    for task, parts in rows.items():
        train, test = (write_rows(folder / f"{task}-{i}.jsonl", part) for i, part in enumerate(parts))
        asked = ["--backbone", backbone, "--data", train, "--test", test, "--task", task, "--method", "lora"]
        done("train", *asked, *how[task], "--out", folder / task)
    deltas = [part for task in rows for part in ("--delta", folder / task)]
    done("export", "--backbone", backbone, *deltas, "--out", folder / "bundle")
    return folder


@pytest.fixture(scope="module")
def service(made: Path) -> Iterator[Served]:
    with serving(made / "bundle", made, "--no-cache") as running:
        yield running


def card(made: Path, task: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((made / task / "delta.json").read_text())
    return found


def answers_of(made: Path, task: str, texts: list[str]) -> list[dict[str, Any]]:
    """What ``run`` prints."""
    rows = shown("run", made / "bundle", "--task", task, "--json", *texts)
    return [row["predictions"][0] for row in rows]


@pytest.fixture(scope="module")
def expected(made: Path) -> list[str]:
    """What transformers' class with PEFT's adapter answers to each held-out text alone."""
    peft = pytest.importorskip("peft")
    done("export", "--backbone", made / "model", "--delta", made / "side", "--to-peft", made / "peft")
    of = transformers.AutoModelForSequenceClassification
    base = of.from_pretrained(made / "model", attn_implementation="eager", num_labels=len(LABELS))
    model = peft.PeftModel.from_pretrained(base, made / "peft").eval()
    encode = Tokenizer.from_file(str(made / "model" / "tokenizer.json")).encode
    with torch.no_grad():
        logits = [model(input_ids=torch.tensor([encode(row["text"]).ids])).logits[0] for row in HELD_OUT]
    return [LABELS[int(row.argmax())] for row in logits]


def test_labels_are_those_of_transformers_in_every_verb(made: Path, service: Served, expected: list[str]):
    right = sum(label == row["label"] for label, row in zip(expected, HELD_OUT, strict=True)) / len(HELD_OUT)
    assert right > 0.7  # the majority's is a half
    found = card(made, "side")
    assert (found["head"], found["head_reads"], found["labels"]) == ("score", "last_token", list(LABELS))
    assert (found["metrics"]["metric"], found["metrics"]["test"]) == ("accuracy", right)
    evaluated = shown("eval", made / "bundle", "--task", "side", "--data", made / "side-1.jsonl", "--json")
    assert evaluated["score"] == right
    texts = [row["text"] for row in HELD_OUT]
    assert [answer["label"] for answer in answers_of(made, "side", texts)] == expected
    served = service.predict("side", {"rows": texts})[2]["predictions"]
    assert [answer["label"] for answer in served] == expected
    chat = {"model": "side", "messages": [{"role": "user", "content": texts[0]}]}
    status, _, refused = service.post("/v1/chat/completions", chat)
    assert status == 400 and "writes no text" in refused["error"]["message"]


def test_training_for_labels_says_what_an_encoder_takes(made: Path, tmp_path: Path):
    model = transformers.AutoModel.from_pretrained(made / "model")
    own = sum(each.weight.numel() for each in model.modules() if isinstance(each, torch.nn.Linear))
    said = {}
    for task, more in {
        "side": ["--label-column", "label"],
        "extract": ["--kind", "text", "--source", "{order}", "--target", "{json}"],
    }.items():
        rows = made / f"{task}-0.jsonl"
        asked = ["--backbone", made / "model", "--data", rows, "--task", task, "--steps", 1, "--max-length", 32]
        said[task] = verb("train", *asked, *more, "--out", tmp_path / task).output
    # 6 layers of 4 products of 384 x 384 and 2 of 384 x 1,536
    assert f"{own:,} multiply-adds a token" in said["side"] and f"{6 * 12 * 384**2:,};" in said["side"]
    assert "multiply-adds" not in said["extract"]


@pytest.fixture(scope="module")
def written(made: Path) -> list[str]:
    return [answer["text"] for answer in answers_of(made, "extract", ASKED)]


def test_every_answer_is_of_the_schema_in_every_verb(made: Path, service: Served, written: list[str]):
    for text in written:
        Order.model_validate_json(text)
    assert len(set(written)) > 1  # a text depends on what was read, not on the grammar alone
    found = shown("eval", made / "bundle", "--task", "extract", "--data", made / "extract-1.jsonl", "--json")
    assert found["score"] == pytest.approx(card(made, "extract")["metrics"]["test"])  # of the texts that PyTorch wrote
    assert {row["answer"] for row in found["worst"]} <= set(written)
    body = {"model": "extract", "messages": [{"role": "user", "content": ASKED[0]}]}
    status, _, said = service.post("/v1/chat/completions", body)
    assert (status, said["choices"][0]["message"]["content"]) == (200, written[0])


def test_rows_of_both_tasks_are_answered_in_one_request(service: Served, expected: list[str], written: list[str]):
    rows = [{"task": "side", "text": HELD_OUT[0]["text"]}, {"task": "extract", "text": ASKED[1]}]
    rows += [{"task": "extract", "text": ASKED[0]}, {"task": "side", "text": HELD_OUT[1]["text"]}]
    status, _, found = service.post("/v1/predict", {"rows": rows})
    assert status == 200, found
    answers = [answer["prediction"] for answer in found["answers"]]
    assert [answer.get("label") or answer["text"] for answer in answers] == [
        expected[0],
        written[1],
        written[0],
        expected[1],
    ]


@pytest.mark.parametrize("task", ["word", "prompted"])
def test_label_words_have_the_probabilities_that_transformers_gives_them(made: Path, service: Served, task: str):
    """``word`` beside PEFT's adapter, ``prompted`` beside the model itself; in 8 bits, so near them."""
    peft = pytest.importorskip("peft")
    model = transformers.AutoModelForCausalLM.from_pretrained(made / "model", attn_implementation="eager")
    if task == "word":
        done("export", "--backbone", made / "model", "--delta", made / task, "--to-peft", made / "peft-word")
        model = peft.PeftModel.from_pretrained(model, made / "peft-word")
    encode = Tokenizer.from_file(str(made / "model" / "tokenizer.json")).encode
    rows = [row["text"] for row in HELD_OUT]
    answers, expected = answers_of(made, task, rows), list[list[float]]()
    temperature = card(made, task)["chosen"].get("temperature", 1)
    for text in rows:
        ids = encode(f"The half:{text}\n").ids
        first = [encode(f" {label}").ids for label in LABELS]  # which differ in their second token, a letter
        with torch.no_grad():
            logits = model.eval()(input_ids=torch.tensor([[*ids, first[0][0]]])).logits[0, -1]
        expected.append((logits[[label[1] for label in first]] / temperature).softmax(0).tolist())
    found = [[answer["scores"][label] for label in LABELS] for answer in answers]
    assert abs(torch.tensor(found) - torch.tensor(expected)).max() < 0.05
    said = [LABELS[row.index(max(row))] for row in expected]
    right = sum(label == row["label"] for label, row in zip(said, HELD_OUT, strict=True)) / len(HELD_OUT)
    assert card(made, task)["metrics"]["test"] == right and (task == "prompted" or right > 0.7)
    evaluated = shown("eval", made / "bundle", "--task", task, "--data", made / "side-1.jsonl", "--json")
    assert abs(evaluated["score"] - right) < 0.1
    body = {"rows": [{"task": task, "text": rows[0]}, {"task": "extract", "text": ASKED[0]}]}
    status, _, answered = service.post("/v1/predict", body)
    assert (status, answered["answers"][0]["prediction"]) == (200, answers[0])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tune", "--data", "side-1.jsonl"), "training graph does not score label words"),
        (("run", "--stream", "abc"), "--stream shows what one task writes"),
    ],
)
def test_what_label_words_cannot_do_is_refused_by_name(made: Path, words: tuple[str, ...], said: str):
    words = tuple(str(made / word) if word.endswith(".jsonl") else word for word in words)
    result = verb(words[0], made / "bundle", "--task", "word", *words[1:])
    assert result.exit_code and re.search(said, str(result.exception)), (result.output, result.exception)


def test_all_are_verified(made: Path):
    done("verify", made / "bundle")


HOSTILE: list[tuple[Any, str]] = [
    ({"enum": []}, "Unsatisfiable schema"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"$ref": "#"}, "no value fits it"),
    ({"const": json.loads("[" * 900 + "]" * 900)}, "recursion limit exceeded"),
    ({"title": "a" * 70_000}, "at most 65,536"),
    ([1], "a JSON schema is an object"),
]


@pytest.mark.parametrize(("schema", "message"), HOSTILE, ids=[message for _, message in HOSTILE])
def test_a_schema_that_cannot_be_kept_is_refused_and_leaves_nothing(
    made: Path, tmp_path: Path, schema: Any, message: str
):
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    asked = ["--backbone", made / "model", "--data", made / "extract-0.jsonl", "--task", "t", "--kind", "text"]
    asked += ["--source", "{order}:", "--target", "{json}", "--json-schema", tmp_path / "schema.json"]
    result = verb("train", *asked, "--out", tmp_path / "out")
    assert type(result.exception).__name__ == "Unwritable", (result.output, result.exception)
    assert re.search(message, str(result.exception))
    assert not (tmp_path / "out" / "delta.json").exists()


def test_merge_says_the_pattern_that_what_it_writes_does_not_know(made: Path, tmp_path: Path):
    result = verb("merge", made / "bundle", "--task", "extract", "--out", tmp_path / "merged")
    assert result.exit_code == 0 and r"give it texts as '{order}\n' makes them" in result.output
