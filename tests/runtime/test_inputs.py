"""What ``Runtime.logits`` takes, and how it refuses what it cannot take: by the input's name, before anything runs."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from tiny import ragged
from transformers import PreTrainedTokenizerFast

from edgepeft.backbones.tokens import TextEncoder
from edgepeft.common.errors import DataError
from edgepeft.runtime.inputs import texts_of
from edgepeft.runtime.runtime import Runtime

CONFIG = {"vocab_size": 60, "pad_token_id": 0, "type_vocab_size": 2}  # of the tiny BERT


@pytest.fixture(scope="module")
def runtime(exported):
    with Runtime(exported, cache=False) as opened:
        yield opened


def batch(**changed):
    return {**ragged(4, 9, CONFIG), **changed}


@pytest.mark.parametrize("name", ["input_ids", "attention_mask", "token_type_ids"])
def test_a_missing_input_is_named_with_those_that_are_read(runtime, name):
    inputs = batch()
    del inputs[name]
    for read in (lambda: runtime.logits("mood", inputs), lambda: runtime.last_hidden_state(inputs)):
        with pytest.raises(
            DataError, match=f"no {name}; this backbone reads input_ids, attention_mask, token_type_ids"
        ):
            read()


def test_inputs_that_the_backbone_does_not_read_change_nothing(runtime):
    more = batch(special_tokens_mask=np.zeros((1, 1), np.int64))
    np.testing.assert_array_equal(runtime.logits("mood", more), runtime.logits("mood", batch()))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"input_ids": np.ones((4, 9), np.int32)}, "input_ids holds int32; int64 is needed"),
        ({"attention_mask": np.ones((4, 9), bool)}, "attention_mask holds bool"),
        ({"token_type_ids": np.zeros((4, 8), np.int64)}, r"token_type_ids has shape \[4, 8\]"),
        ({"attention_mask": np.ones((3, 9), np.int64)}, r"attention_mask has shape \[3, 9\]"),
        ({"input_ids": np.ones(9, np.int64)}, r"input_ids has shape \[9\]"),
        ({"input_ids": np.full((4, 9), 60)}, "input_ids are 60 to 60; this backbone has embeddings of 0 to 59"),
        ({"input_ids": np.full((4, 9), -1)}, "input_ids are -1 to -1"),
        ({"attention_mask": np.eye(4, 9, -1, np.int64)}, "row 0 .* masked"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(runtime, changed, message):
    with pytest.raises(DataError, match=message):
        runtime.logits("mood", batch(**changed))


def test_an_id_beneath_the_mask_may_be_anything(runtime):
    inputs = batch()
    odd = np.where(inputs["attention_mask"] == 1, inputs["input_ids"], -100)
    np.testing.assert_array_equal(runtime.logits("mood", {**inputs, "input_ids": odd}), runtime.logits("mood", inputs))


def test_no_rows_have_no_logits(runtime):
    nothing = {name: values[:0] for name, values in batch().items()}
    assert runtime.logits("pair", nothing).shape == (0, 3)  # its labels are a, b, c
    assert runtime.last_hidden_state(nothing).shape == (0, 9, 32)


def test_one_text_has_one_answer_and_a_list_of_it_the_same(runtime):
    assert runtime.predict("mood", "w7 w8 w9") == runtime.predict("mood", ["w7 w8 w9"])
    assert runtime.predict_all(["mood"], "w7 w8 w9") == {"mood": runtime.predict("mood", [("w7 w8 w9", None)])}
    assert len(runtime.predict("mood", "")) == 1 and runtime.predict("mood", []) == []
    assert runtime.predict_all(["mood"], "") == {"mood": runtime.predict("mood", "")}


def test_a_rows_columns_may_have_the_names_that_a_files_rows_have(runtime):
    (known,) = runtime.predict("mood", ["w5 w6"])
    for row in ({"sentence1": "w5 w6"}, {"text": "w5 w6", "id": 3}, {"Review": "w5 w6"}):
        assert runtime.predict("mood", [row])[0].scores == known.scores
    (pair,) = runtime.predict("pair", [("w5", "w6")])
    assert runtime.predict("pair", [{"premise": "w5", "hypothesis": "w6"}])[0].scores == pair.scores
    said = "row 0: no column sentence1; text, review may each be the text. Found columns: text, review. Call the text"
    with pytest.raises(DataError, match=said):
        runtime.predict("mood", [{"text": "w5", "review": "w6"}])


@pytest.mark.parametrize(
    "texts", [[5], ["w7", None], 5, [("w7", 5)], [("w7", "w8", "w9")], [b"w7"], {"text": 1}.values()]
)
def test_what_is_no_text_is_refused_by_its_row(runtime, texts):
    for read in (lambda: runtime.predict("mood", texts), lambda: runtime.predict_all(["mood", "score"], texts)):
        with pytest.raises(DataError, match=r"row [01]: a text, or a pair of texts"):
            read()


@pytest.mark.parametrize("length", [0, 3])
def test_one_row_without_tokens_is_refused_at_any_length(runtime, length):
    inputs = {name: np.zeros((1, length), np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    with pytest.raises(DataError, match="row 0 of the batch is masked throughout"):
        runtime.logits("mood", inputs)


def test_one_row_without_padding_is_refused_for_an_id_without_an_embedding(runtime):
    inputs = {name: np.ones((1, 3), np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    inputs["input_ids"][0, 2] = CONFIG["vocab_size"]
    with pytest.raises(DataError, match="input_ids are 1 to 60; this backbone has embeddings of 0 to 59"):
        runtime.logits("mood", inputs)


def test_a_row_alone_is_answered_as_in_a_batch_padded_or_not(runtime):
    inputs = batch()
    together = runtime.logits("mood", inputs)
    for row, expected in enumerate(together):
        alone = {name: values[row : row + 1] for name, values in inputs.items()}
        kept = alone["attention_mask"][0] != 0
        bare = {name: values[:, kept] for name, values in alone.items()}
        np.testing.assert_allclose(runtime.logits("mood", alone)[0], expected, atol=1e-5)
        np.testing.assert_allclose(runtime.logits("mood", bare)[0], expected, atol=1e-5)


def test_a_session_describes_its_inputs_and_outputs_once(runtime, monkeypatch):
    runtime.logits("mood", batch())
    monkeypatch.setattr(type(runtime.session("mood")), "get_inputs", None)  # asked again, it would fail
    monkeypatch.setattr(type(runtime.session("mood")), "get_outputs", None)
    assert np.isfinite(runtime.logits("mood", batch())).all()


def test_a_row_alone_has_a_session_of_its_own_from_the_first_one_on(exported, monkeypatch):
    inputs, opened = {name: values[:1] for name, values in batch().items()}, []
    with Runtime(exported, cache=False) as runtime:
        open_graph = runtime._pool.open_graph
        monkeypatch.setattr(
            runtime._pool, "open_graph", lambda model, **how: opened.append(how) or open_graph(model, **how)
        )
        first = runtime.logits("mood", inputs)
        assert (runtime.logits("mood", inputs) == first).all() and len(opened) == 1
        for _ in range(2):  # of several rows
            np.testing.assert_allclose(runtime.logits("mood", batch())[:1], first, atol=1e-5)
        assert (runtime.logits("mood", inputs) == first).all() and len(opened) == 2
        # Of a batch a pattern of memory would take one block, which no hole of the shared arena has.
        one, several = runtime._session_of_one_row("mood").shared, runtime.session("mood").shared
        assert [each.get_session_options().enable_mem_pattern for each in (one, several)] == [True, False]


def test_a_task_whose_file_was_replaced_goes_on_with_the_session_that_is_open(exported, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "bundle")
    inputs = {name: values[:1] for name, values in batch().items()}
    with Runtime(folder, cache=False) as runtime:
        first = runtime.logits("mood", inputs)
        (folder / "tasks" / "mood.onnx").write_bytes(b"another")
        np.testing.assert_array_equal(runtime.logits("mood", inputs), first)


def test_a_text_alone_whose_own_session_cannot_be_opened_is_answered_by_that_of_batches_which_is_said_once(
    exported, monkeypatch, recwarn
):
    inputs = {name: values[:1] for name, values in batch().items()}

    def broken(_):
        raise ValueError("no such form")

    with Runtime(exported, cache=False) as runtime:
        expected = runtime.logits("mood", batch())[:1]
        monkeypatch.setattr("edgepeft.runtime.runtime.for_one_row", broken)
        for _ in range(2):
            np.testing.assert_allclose(runtime.logits("mood", inputs), expected, atol=1e-5)
    (said,) = (str(each.message) for each in recwarn if "text alone" in str(each.message))
    assert "task mood" in said and "no such form" in said


@pytest.mark.parametrize(
    ("given", "columns"),
    [
        ({"sentence1": "fine", "sentence2": ""}, (["fine"], [""])),
        (("fine", ""), (["fine"], [""])),
        ({"sentence1": "fine", "sentence2": None}, (["fine"],)),
        ({"sentence1": "fine"}, (["fine"],)),
        ("fine", (["fine"],)),
    ],
)
def test_an_empty_second_text_makes_a_pair_as_in_a_batch_of_transformers(exported, given, columns):
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(exported / "tokenizer.json"))
    encoder = TextEncoder(exported / "tokenizer.json", ("input_ids",), 0)
    assert encoder.encode(texts_of([given]), 16).inputs["input_ids"].tolist() == theirs(*columns)["input_ids"]
