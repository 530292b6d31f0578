"""Large batches run in passes: every row once, nothing real dropped, answers as PyTorch's."""

import numpy as np
import pytest
import torch
from tolerance import require_alike

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.runtime.inputs import PASS_TOKENS, passes
from edgepeft.runtime.runtime import Runtime


def ragged(lengths, width, *, left=False):
    """Ids 1, 2, ... in each row, padded with 0 on one side."""
    ids = np.zeros((len(lengths), width), np.int64)
    for row, length in zip(ids, lengths, strict=True):
        row[width - length if left else 0 : width if left else length] = np.arange(1, length + 1)
    return {"input_ids": ids, "attention_mask": (ids != 0).astype(np.int64)}


def test_a_batch_below_the_limit_is_one_pass_and_stays_as_it_is():
    inputs = ragged([3, 1, 2], 5)
    [(rows, same)] = passes(inputs, tokens=6)
    assert rows.tolist() == [0, 1, 2] and same is inputs


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("lengths", [[7, 1, 9, 3, 5, 2, 9, 4], [1] * 8, [9] * 8, [1] * 7 + [90], [50]])
def test_every_row_runs_once_with_all_its_tokens_in_their_columns(lengths, left):
    inputs = ragged(lengths, 100, left=left)
    seen = []
    for rows, part in passes(inputs, tokens=10):
        seen += rows.tolist()
        for row, ids, mask in zip(rows, part["input_ids"], part["attention_mask"], strict=True):
            whole = inputs["input_ids"][row]
            assert ids.tolist() == whole[: len(ids)].tolist() and not whole[len(ids) :].any()
            assert mask.sum() == lengths[row]
    assert sorted(seen) == list(range(len(lengths)))


def test_passes_hold_like_lengths_and_about_the_limit():
    lengths = np.random.default_rng(0).integers(1, 60, 200)
    found = [(rows, part["input_ids"].shape[1]) for rows, part in passes(ragged(lengths, 60), tokens=256)]
    sizes = [lengths[rows].sum() for rows, _ in found]
    assert min(sizes) > 0.6 * 256 and max(sizes) < 1.4 * 256
    assert [width for _, width in found] == [lengths[rows].max() for rows, _ in found]  # no padding beyond the longest
    padded = sum(len(rows) * width for rows, width in found)
    assert padded < 1.1 * lengths.sum()


@pytest.mark.parametrize("left", [False, True])
def test_the_hidden_states_of_a_batch_of_several_passes_are_pytorchs(exported, tiny, left):
    backbone = open_backbone(str(tiny("bert", mean=True)))
    width = backbone.architecture.max_length
    lengths = np.random.default_rng(1).integers(1, width + 1, 3 * PASS_TOKENS * 2 // width)
    inputs = ragged(lengths, width, left=left)
    inputs["input_ids"] %= backbone.architecture.vocab_size
    inputs["token_type_ids"] = inputs["input_ids"] % 2 * inputs["attention_mask"]
    assert len(list(passes(inputs))) > 1
    with torch.no_grad():
        model = load_model(backbone, "eager")
        expected = model(**{n: torch.from_numpy(v) for n, v in inputs.items()}).last_hidden_state.numpy()
    real = inputs["attention_mask"] != 0
    found = Runtime(exported).last_hidden_state(inputs)
    np.testing.assert_allclose(found[real], expected[real], atol=1e-5 * max(1, np.abs(expected[real]).max()))
    assert not found[~real].any()


def test_the_logits_of_a_batch_of_several_passes_come_in_the_order_asked(exported):
    runtime = Runtime(exported)
    rng = np.random.default_rng(2)
    lengths = rng.integers(1, 40, 120)
    inputs = ragged(lengths, 40)
    inputs["input_ids"] = rng.integers(5, 50, inputs["input_ids"].shape) * inputs["attention_mask"]
    inputs["token_type_ids"] = np.zeros_like(inputs["input_ids"])
    assert len(list(passes(inputs))) > 1
    alone = [runtime.logits("mood", {n: v[i : i + 1] for n, v in inputs.items()})[0] for i in range(len(lengths))]
    require_alike(runtime.logits("mood", inputs), alone, exported)
    assert np.ptp(alone, axis=0).max() > 0.05
