"""Graphs for one row: which families have them, what is left of the packing, and that the rest stays as it is."""

from __future__ import annotations

import onnx
import pytest
import suite
from graphs import Both, build, session
from method_examples import examples
from tiny import ROTARY, known, ragged

from edgepeft.backbones.source import open_backbone
from edgepeft.graph.one_row import for_one_row
from edgepeft.graph.protos import copied
from edgepeft.methods.base import methods

LOOKED_UP = {"heads.split", "heads.merge"}


def read(model: onnx.ModelProto) -> set[str]:
    return {name for node in model.graph.node for name in node.input}


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "distilbert", "albert"])
def test_a_row_alone_looks_no_token_up(tiny, family):
    case = suite.Case(examples(methods()["pfeiffer"])[0], open_backbone(str(tiny(family, mean=True))))
    model = copied(case.spliced)
    assert read(model) >= LOOKED_UP
    assert for_one_row(model)
    assert not read(model) & LOOKED_UP
    assert "NonZero" not in {node.op_type for node in model.graph.node}
    assert len(model.graph.node) < len(case.spliced.graph.node)
    assert [i.name for i in model.graph.input] == [i.name for i in case.spliced.graph.input]


def test_hidden_states_of_a_row_alone_are_the_last_layers(tiny):
    model = build(Both(tiny("bert")).backbone)
    padding = {"attention_mask", "token.real"}
    assert read(model) >= padding
    assert for_one_row(model)
    assert not read(model) & padding


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "modernbert", "deberta-v2", *known(*ROTARY)])
def test_the_bare_backbone_of_one_row_is_transformers(tiny, family):
    both = Both(tiny(family))
    model = build(both.backbone)
    if not for_one_row(model):
        pytest.skip(f"the pass leaves {family} as it is")
    both.session = session(model, both.backbone.folder)
    for length in (1, 2, 9):
        both.assert_equal(
            ragged(
                1,
                length,
                {
                    "vocab_size": both.backbone.architecture.vocab_size,
                    "pad_token_id": both.backbone.architecture.pad_token_id,
                },
            )
        )


def test_a_graph_without_packing_stays_as_it_is():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> graph (float[N, 4] x) => (float[N, 4] logits) { logits = Relu (x) }'
    )
    before = copied(model)
    assert not for_one_row(model)
    assert model == before


@pytest.mark.parametrize("method", ["lora", "dora", "pfeiffer"])
def test_a_tasks_sums_are_in_its_products_and_no_name_stands_twice(tiny, method):
    """LoRA's updates of one x share their first product; in deltas nodes and values are called apart."""
    for number, example in enumerate(examples(methods()[method])):
        case = suite.Case(example, open_backbone(str(tiny("bert", num_hidden_layers=12))))
        model = copied(case.spliced)
        assert for_one_row(model)
        names = [node.name for node in model.graph.node if node.name]
        assert len(set(names)) == len(names)
        own = [node for node in model.graph.node if node.op_type == "Gemm" and node.input[1].startswith("delta/")]
        assert any(len(node.input) == 3 for node in own)
        if method == "lora" and number == 0:  # of query and value
            # The last layer's queries are of one token's x, and the head has one.
            assert len(own) == 3 * 11 + 4 + 1
            assert sum(node.op_type == "Split" for node in model.graph.node) == 11
