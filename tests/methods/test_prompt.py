"""Prompt tuning against transformers fed with embeddings that have the prompt in front."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import onnx
import pytest
import torch
from suite import Case
from tiny import SIZES, ragged

from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.bundle.delta import new_delta
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.graph.splice import prompt_of
from edgepeft.methods.base import method_named
from edgepeft.methods.prompt_r import PromptR
from edgepeft.methods.prompt_t import PromptT
from edgepeft.options.verbs import TrainSettings
from edgepeft.tasks.regression import Regression
from edgepeft.training.settings import with_defaults

P = 4
KINDS = [
    ("bert", {}),
    ("roberta", {}),
    ("roberta", {"mean": True}),
    ("distilbert", {"mean": True}),
    ("electra", {"embedding_size": 20}),
]


@pytest.fixture
def backbone(tiny) -> Backbone:
    return open_backbone(str(tiny("bert")))


def from_embeddings(case: Case, rows: dict[str, torch.Tensor]) -> torch.Tensor:
    """The hidden states of transformers' own model for [prompt; text], [batch, P + length, d]."""
    table = case.model.get_submodule("embeddings.word_embeddings").weight
    vectors = case.moved.site_modules["word_embeddings"].vectors
    batch = len(rows["input_ids"])
    embedded = torch.cat([vectors.expand(batch, -1, -1), table[rows["input_ids"]]], 1)
    more = {"attention_mask": torch.cat([torch.ones(batch, P, dtype=torch.int64), rows["attention_mask"]], 1)}
    if "token_type_ids" in rows:
        more["token_type_ids"] = torch.cat([torch.zeros(batch, P, dtype=torch.int64), rows["token_type_ids"]], 1)
    return case.model(inputs_embeds=embedded, **more).last_hidden_state


def require_logits(case: Case, rows: dict[str, torch.Tensor], pooled: torch.Tensor) -> None:
    """PyTorch's and ONNX Runtime's answers are what the head makes of ``pooled``."""
    with torch.no_grad():
        weights = [torch.from_numpy(case.backbone.checkpoint.read(name).copy()) for name in case.moved.head.reads]
        expected = case.moved.head(pooled, *weights).numpy()
    room = 2 * case.exact(rows).error  # what is expected was computed in float32 too
    np.testing.assert_allclose(case.logits(case.moved, rows), expected, rtol=0, atol=room)
    feed = {value.name: rows[value.name].numpy() for value in case.session.get_inputs()}
    np.testing.assert_allclose(case.session.run(["logits"], feed)[0], expected, rtol=0, atol=room)


def pooled_of_text(hidden: torch.Tensor, rows: dict[str, torch.Tensor], options: dict[str, object]) -> torch.Tensor:
    """The first token behind the prompt, or the mean of the text's."""
    if not options.get("mean"):
        return hidden[:, P]
    lengths = rows["attention_mask"].sum(1)
    return torch.stack([row[P : P + n].mean(0) for row, n in zip(hidden, lengths, strict=True)])


@pytest.mark.parametrize(("model_type", "options"), KINDS)
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (7, 13)])
def test_a_prompt_is_transformers_on_lengthened_embeddings_read_at_the_text(tiny, model_type, options, batch, length):
    case = Case(PromptR(length=P), open_backbone(str(tiny(model_type, **options))))
    given = ragged(batch, length, SIZES[model_type], seed=3)
    rows = {name: torch.from_numpy(given[name]) for name in case.architecture.inputs}
    with torch.no_grad():
        hidden = from_embeddings(case, rows)
    require_logits(case, rows, pooled_of_text(hidden, rows, options))


def test_a_head_of_the_first_position_reads_the_prompts_first_vector(backbone):
    case = Case(PromptR(length=P), backbone)
    case.moved.card = case.moved.card.model_copy(update={"head_reads": "first_position"})
    rows = case.rows(5, 9)
    with torch.no_grad():
        hidden = from_embeddings(case, rows)
    require_logits(case, rows, hidden[:, 0])


@pytest.mark.parametrize(("model_type", "options"), KINDS[:4])
def test_a_prompt_past_the_layernorm_leaves_the_text_where_it_was(tiny, model_type, options):
    """Transformers' own encoder on [vectors; the embeddings that the text has alone], as AdapterHub's hook makes them."""
    case = Case(PromptR(length=P, place="embeddings"), open_backbone(str(tiny(model_type, **options))))
    given = ragged(7, 13, SIZES[model_type], seed=3)
    rows = {name: torch.from_numpy(given[name]) for name in case.architecture.inputs}
    vectors = case.moved.site_modules["embeddings"].vectors
    model = copy.deepcopy(case.model)
    # The model is told of p tokens more than the text has; their embeddings come from the hook.
    longer = {name: torch.nn.functional.pad(value, (P, 0), value=1) for name, value in rows.items()}
    with torch.no_grad():
        alone = model.get_submodule("embeddings")
        seen = []
        handle = alone.register_forward_hook(lambda _, __, output: seen.append(output))
        model(**rows)
        handle.remove()
        lengthened = torch.cat([vectors.expand(7, -1, -1), seen[0]], 1)
        alone.register_forward_hook(lambda *_: lengthened)
        hidden = model(**longer).last_hidden_state
    require_logits(case, rows, pooled_of_text(hidden, rows, options))


def test_a_random_prompt_starts_between_minus_and_plus_a_half(backbone):
    torch.manual_seed(0)
    vectors = (
        new_delta(backbone, PromptR(length=20), "task", None, max_length=10).site_modules["word_embeddings"].vectors
    )
    assert -0.5 <= vectors.min() < -0.45 and 0.45 < vectors.max() <= 0.5
    assert abs(vectors.std() - 12**-0.5) < 0.02  # of a uniform distribution of width 1


def test_a_prompt_of_tokens_starts_as_the_first_rows_of_the_pretrained_vocabulary(backbone):
    vectors = (
        new_delta(backbone, PromptT(length=20), "task", None, max_length=10).site_modules["word_embeddings"].vectors
    )
    table = backbone.checkpoint.read("embeddings.word_embeddings.weight")
    np.testing.assert_array_equal(vectors.detach().numpy(), table[:20])


def test_a_prompt_of_more_tokens_than_the_vocabulary_is_refused_with_its_size(tiny):
    backbone = open_backbone(str(tiny("bert", max_position_embeddings=100)))
    with pytest.raises(UsageError, match="at most the vocabulary's size, 60; found 70"):
        new_delta(backbone, PromptT(length=70), "task", None, max_length=10)


def test_a_prompt_that_leaves_no_position_for_a_text_is_refused_with_the_longest(backbone):
    with pytest.raises(UsageError, match="at most 61: this bert has 64 positions for prompt and text; found 62"):
        PromptR(length=62).sites(backbone.architecture)


def test_a_text_beside_a_prompt_is_as_long_as_the_positions_that_are_left(backbone):
    with pytest.raises(UsageError, match="positions for 44 tokens beside a prompt of 20"):
        with_defaults(TrainSettings(task="t", max_length=45), backbone, PromptR(length=20), Regression())
    assert with_defaults(TrainSettings(task="t"), backbone, PromptR(length=20), Regression()).max_length == 44
    with pytest.raises(UsageError, match="length must be at most 61"):
        with_defaults(TrainSettings(task="t"), backbone, PromptR(length=70), Regression())
    with pytest.raises(UsageError, match=r"a prompt of 20 and texts of 45 tokens.* texts may have 44"):
        new_delta(backbone, PromptR(length=20), "task", None, max_length=45)


@pytest.mark.parametrize("length", ["0", "-3"])
def test_a_prompt_has_a_vector_at_least(length):
    with pytest.raises(UsageError, match="length must be at least 1"):
        method_named("prompt-t").from_settings({"length": length})


@pytest.mark.parametrize("value", ["-1", "many", "", "1e3", "9999999999"])
def test_a_delta_graph_whose_prompt_is_no_count_is_refused(backbone, value):
    graph = onnx.ModelProto()
    graph.CopyFrom(Case(PromptR(length=P), backbone).graph)
    for entry in graph.metadata_props:
        if entry.key == "edgepeft.prompt_length":
            entry.value = value
    with pytest.raises(BundleError, match="two counts are due"):
        prompt_of(graph)


def test_the_file_says_how_many_placeholders_of_which_token_it_needs(backbone):
    assert prompt_of(Case(PromptR(length=P), backbone).graph) == (P, 1)  # 0 is BERT's padding
    assert prompt_of(Case(dataclasses.replace(PromptR(), length=2), backbone).graph)[0] == 2
