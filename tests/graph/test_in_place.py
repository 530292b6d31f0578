"""The graph that reads prompts and writes, with one buffer a layer: logits of the two stored graphs, row by row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import session
from tiny import ragged, write_model

from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.text import IDS, LOGITS, PAST, PRESENT, TextGraphs, caches
from edgepeft.graph.in_place import in_place, tables
from edgepeft.graph.names import LAST, PLACE
from edgepeft.runtime import kv_cache
from edgepeft.runtime.generation import TextSession, TextState
from edgepeft.runtime.session_pool import TaskSession

# Heads are as wide as the operator asks: with norms, biases, two bases of positions, scaled ones, windows.
_LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"rope_scaling": {**_LLAMA3, "original_max_position_embeddings": 16}, "rope_theta": 500.0}),
    ("mistral", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "sliding_window": 150}),
    ("qwen2", {"num_key_value_heads": 4}),
    ("qwen3", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    ("gemma3_text", {"query_pre_attn_scalar": 16, "sliding_window": 200}),
]
LONG = {"max_position_embeddings": 200, "head_dim": 16}


def graphs_of(folder: Path) -> tuple[TextGraphs, Path]:
    backbone = open_backbone(str(folder))
    made = backbone.architecture.text_graphs(backbone.checkpoint)
    assert made is not None
    return made, backbone.folder


@pytest.fixture(scope="module", params=KINDS, ids=[kind for kind, _ in KINDS])
def states(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[TextState, TextState]]:
    """Of rows, by the lowered graph, where tokens that rows begin with may be known, and by the stored ones."""
    kind, sizes = request.param
    graphs, folder = graphs_of(write_model(tmp_path_factory.mktemp("model"), kind, **LONG, **sizes))

    def opened(model: onnx.ModelProto) -> TaskSession:
        return TaskSession(session(model, folder), {}, None)

    lowered, stored = TextSession.of(graphs, opened), TextSession(opened(graphs.encoder), opened(graphs.decoder))
    assert lowered.encoder is None
    return lambda rows, begun=(): (TextState(lowered, rows, lowered.beginning(begun, 1 << 30)), TextState(stored, rows))


def require_equal(states: tuple[TextState, TextState], ids: Any, order: Any) -> None:
    found, expected = (state.step(ids, np.asarray(order)) for state in states)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("in_front", [False, True])
def test_ragged_rows_are_read_and_go_on_beyond_the_first_buffer(states: Any, in_front: bool):
    source, rows = np.random.default_rng(0), ragged(5, 20, {"vocab_size": 60, "pad_token_id": 0})
    if in_front:
        rows = {name: np.flip(values, 1).copy() for name, values in rows.items()}
    both, n = states(rows), 5
    last = np.array([ids[mask != 0][-1] for ids, mask in zip(rows["input_ids"], rows["attention_mask"], strict=True)])
    for step in range(70):  # a buffer has 64 places
        order = [0, 1, 3] if step == 30 else range(n)  # two rows are done
        if step == 30:
            for state in both:
                state.keep([0, 1, 3])
            n, last = 3, last[:3]
        require_equal(both, last, order)
        last = source.integers(5, 60, n)


def test_long_prompts_are_read_in_parts(states: Any, monkeypatch: pytest.MonkeyPatch):
    """Of four tokens: a row that is shorter, one that ends with a part, and others."""
    monkeypatch.setattr(kv_cache, "AT_ONCE", 4)
    rows = ragged(5, 19, {"vocab_size": 60, "pad_token_id": 0})
    rows["attention_mask"][:] = np.arange(19) < np.array([[19], [3], [8], [13], [16]])
    both = states(rows)
    for ids in ([7, 8, 9, 10, 11], [5, 6, 7, 8, 9]):
        require_equal(both, np.array(ids), range(5))


def test_beams_part_and_change_places(states: Any):
    source, rows = np.random.default_rng(1), ragged(2, 7, {"vocab_size": 60, "pad_token_id": 0})
    both = states(rows)
    require_equal(both, np.array([7, 8]), [0, 1])
    for order in ([0, 0, 0, 1, 1, 1], [1, 0, 1, 5, 3, 3], [2, 1, 0, 3, 4, 5]):
        require_equal(both, source.integers(5, 60, 6), order)


def test_rows_start_from_what_they_share_with_known_tokens(states: Any):
    source = np.random.default_rng(2)
    known, ids = source.integers(5, 60, 20), source.integers(5, 60, (6, 30))
    lengths = [30, 27, 20, 30, 30, 21]
    for row, shared in enumerate([20, 12, 20, 5, 0, 20]):  # the third is no longer, the fourth shares too few
        ids[row, :shared] = known[:shared]
    mask = (np.arange(30) < np.array(lengths)[:, None]).astype(np.int64)
    both = states({"input_ids": ids * mask, "attention_mask": mask}, known.tolist())
    require_equal(both, np.array([row[n - 1] for row, n in zip(ids, lengths, strict=True)]), range(6))
    for _ in range(2):
        require_equal(both, source.integers(5, 60, 6), range(6))


def test_what_lies_beyond_a_rows_tokens_is_never_read(tmp_path: Path):
    """A buffer full of NaN behind two tokens: the step's logits are numbers, and the third place is written."""
    graphs, folder = graphs_of(write_model(tmp_path / "model", "llama", **LONG))
    lowered = in_place(graphs.decoder)
    assert lowered is not None
    run = session(lowered.model, folder)
    source = np.random.default_rng(0)
    buffers = {
        name: np.where(np.arange(8)[:, None] < 2, source.normal(size=(1, 2, 8, 16)), np.nan).astype(np.float32)
        for i in range(2)
        for name in caches(PAST, i)
    }
    angles = np.arange(8, dtype=np.float32)[:, None] * lowered.frequencies[0]
    given = {IDS: np.array([9]), LAST: np.array([0]), PLACE: np.array([2], np.int32), **buffers}
    given |= zip(tables(0), (np.cos(angles), np.sin(angles)), strict=True)
    logits, keys = run.run([LOGITS, caches(PRESENT, 0)[0]], given)
    assert np.isfinite(logits).all() and np.isfinite(keys[:, :, :3]).all()


def test_heads_of_a_width_that_the_operator_does_not_turn_and_two_stacks_stay_as_they_are(tiny: Callable[..., Path]):
    assert in_place(graphs_of(tiny("llama"))[0].decoder) is None  # of 8 numbers
    t5 = graphs_of(tiny("t5"))[0]
    assert in_place(t5.decoder) is None and in_place(t5.encoder) is None


def test_attention_that_is_written_otherwise_is_left_alone(tmp_path: Path):
    decoder = graphs_of(write_model(tmp_path / "model", "llama", **LONG))[0].decoder
    changed = onnx.ModelProto.FromString(decoder.SerializeToString())
    softmax = next(node for node in changed.graph.node if node.op_type == "Softmax")
    concat = next(node for node in changed.graph.node if softmax.input[0] in node.output)
    concat.input[:] = concat.input[::-1]  # the text's scores before the prompt's
    assert in_place(changed) is None
