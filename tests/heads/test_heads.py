"""Heads against transformers' own models for sequence classification, with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import suite
import torch
import transformers
from tiny import SIZES, ragged, randomise
from tolerance import exact_logits, exactly

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.bundle.delta import Delta, new_delta
from edgepeft.common.errors import UnknownName, UsageError
from edgepeft.heads.base import head_named, heads
from edgepeft.methods.lora import LoRA
from edgepeft.tasks.base import kinds

# Model type -> kind of head, and where transformers keeps the head's own tensors.
HEADS = {
    "bert": ("bert-pooler", {"classifier": "classifier"}),
    "roberta": ("roberta", {"dense": "classifier.dense", "out_proj": "classifier.out_proj"}),
    "xlm-roberta": ("roberta", {"dense": "classifier.dense", "out_proj": "classifier.out_proj"}),
    "albert": ("albert-pooler", {"classifier": "classifier"}),
    "ernie": ("bert-pooler", {"classifier": "classifier"}),
    "rembert": ("bert-pooler", {"classifier": "classifier"}),
    "xlm-roberta-xl": ("roberta", {"dense": "classifier.dense", "out_proj": "classifier.out_proj"}),
    "megatron-bert": ("bert-pooler", {"classifier": "classifier"}),
    "roformer": ("electra", {"dense": "classifier.dense", "out_proj": "classifier.out_proj"}),
    "electra": ("electra", {"dense": "classifier.dense", "out_proj": "classifier.out_proj"}),
    "deberta-v2": ("deberta", {"dense": "pooler.dense", "out_proj": "classifier"}),
    "distilbert": ("distilbert", {"pre_classifier": "pre_classifier", "classifier": "classifier"}),
}
# Those that read one vector; tests/backbones/test_trie.py has what a decoder's labels are read by.
KINDS = sorted(kind for kind, head in heads().items() if not head.decodes)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Any, Backbone]]:
    """transformers' whole model with random parameters, and its folder opened as a backbone."""

    def made(model_type: str, labels: int) -> tuple[Any, Backbone]:
        config = transformers.AutoConfig.for_model(model_type, **SIZES[model_type], num_labels=labels)
        model = transformers.AutoModelForSequenceClassification.from_config(config, attn_implementation="eager")
        folder = tmp_path_factory.mktemp(model_type)
        randomise(model).save_pretrained(folder)
        return model, open_backbone(str(folder))

    return made


def require_like(theirs: Any, delta: Delta, backbone: Backbone, shape: tuple[int, ...]) -> None:
    """The head with their weights gives their logits, of that shape."""
    for own, place in delta.head.places.items():
        getattr(delta.head, own).load_state_dict(theirs.get_submodule(place).state_dict())
    found = ragged(5, 9, SIZES[backbone.architecture.model_type])
    rows = {name: torch.from_numpy(found[name]) for name in backbone.architecture.inputs}
    theirs.double()
    with torch.no_grad():
        expected = exactly(lambda: {"logits": theirs(**rows).logits})["logits"]
        ours = delta.logits(load_model(backbone, attention="eager"), rows)
    assert expected.value.shape == shape
    expected.require(ours.numpy())


@pytest.mark.parametrize("labels", [3, 1], ids=["three classes", "regression"])
@pytest.mark.parametrize("model_type", HEADS)
def test_logits_equal_transformers_model_with_the_same_head(classifier: Any, model_type: str, labels: int):
    theirs, backbone = classifier(model_type, labels)
    kind, places = HEADS[model_type]
    delta = new_delta(backbone, LoRA(), "t", None if labels == 1 else tuple("abc")[:labels]).eval()
    assert delta.card.head == kind  # the kind that the backbone gets when nothing is said
    assert head_named(kind).places == places
    require_like(theirs, delta, backbone, (5, labels))


class WithHead(suite.Case):
    """A LoRA under a head of a kind, on a model that has the pooler that it reads."""

    def __init__(self, kind: str, backbone: Backbone) -> None:
        super().__init__(LoRA(rank=2), backbone)
        self.kind = kind

    def fresh(self) -> Delta:
        of_task = next((name for name, kind in kinds().items() if kind.head == self.kind), None)
        labels = suite.LABELS if of_task is None else None
        return new_delta(self.backbone, self.method, "task", labels, head=self.kind, kind=of_task).eval()


@pytest.mark.parametrize("model_type", [*HEADS, "mpnet"])
def test_logits_of_tokens_equal_transformers_model_for_token_classification(tmp_path: Path, model_type: str):
    config = transformers.AutoConfig.for_model(model_type, **SIZES[model_type], num_labels=3)
    theirs = transformers.AutoModelForTokenClassification.from_config(config, attn_implementation="eager")
    randomise(theirs).save_pretrained(tmp_path)
    backbone = open_backbone(str(tmp_path))
    delta = new_delta(backbone, LoRA(), "t", ("B-X", "I-X", "O"), kind="tokens").eval()
    require_like(theirs, delta, backbone, (5, 9, 3))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not head_named(kind).per_token])
def test_torch_equals_the_exported_graph(tiny: Callable[..., Path], kind: str):
    suite.torch_equals_onnxruntime(WithHead(kind, open_backbone(str(tiny(suite.has_what_it_reads(kind))))))


DENSE = ["deberta", "distilbert", "electra", "roberta"]


@pytest.mark.parametrize("kind", [*DENSE, "albert-pooler", "bert-pooler", "linear", "score", "tokens", "vector"])
def test_count_is_that_of_the_layers_of_its_equation(tiny: Callable[..., Path], kind: str):
    architecture = open_backbone(str(tiny(suite.has_what_it_reads(kind)))).architecture
    head, d = head_named(kind), architecture.hidden_size
    dense = d * d + d if kind in DENSE else 0
    for outputs in (1, 4):
        bias = 0 if kind == "score" else outputs
        of_output = 0 if kind == "vector" else d * outputs + bias
        assert head.n_parameters(architecture, outputs) == dense + of_output


@pytest.mark.parametrize("kind", KINDS)
def test_every_head_says_where_transformers_keeps_each_of_its_modules(kind: str):
    modules = {name.rpartition(".")[0] for name, _ in head_named(kind)(8, 3, 0.1).named_parameters()}
    assert set(head_named(kind).places) == modules


def test_linear_reads_the_mean_of_real_tokens_where_sentence_transformers_says_so(tiny: Callable[..., Path]):
    backbone = open_backbone(str(tiny("bert", mean=True)))
    delta = new_delta(backbone, LoRA(), "t", ("a", "b")).eval()
    assert (delta.card.head, delta.card.head_reads) == ("linear", "mean")
    model = load_model(backbone)
    rows = {name: torch.from_numpy(array) for name, array in ragged(4, 7, SIZES["bert"]).items()}
    with torch.no_grad():
        hidden, logits = model(**rows).last_hidden_state.numpy(), delta.logits(model, rows).numpy()
    room = exact_logits(delta, model, rows).error
    weight, bias = (p.detach().numpy() for p in delta.head.parameters())
    means = [row[mask == 1].mean(0) for row, mask in zip(hidden, rows["attention_mask"].numpy(), strict=True)]
    np.testing.assert_allclose(logits, np.stack(means) @ weight.T + bias, rtol=0, atol=2 * room)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if head_named(kind).places])
def test_dropout_is_there_in_training_and_gone_in_evaluation(kind: str):
    torch.manual_seed(0)
    head = head_named(kind)(32, 3, 0.5)
    shapes = [(32, 32) if name.endswith("weight") else (32,) for name in head.reads]
    pooled, read = torch.randn(4, 32), [torch.randn(shape) for shape in shapes]
    assert not torch.equal(head.train()(pooled, *read), head(pooled, *read))
    assert torch.equal(head.eval()(pooled, *read), head(pooled, *read))


@pytest.mark.parametrize("model_type", ["distilbert", "roberta"])
def test_a_head_that_reads_what_the_backbone_lacks_is_refused_by_the_tensors_name(
    tiny: Callable[..., Path], model_type: str
):
    """Also where a checkpoint has a pooler that the model's own class does not read, as RoBERTa's may."""
    backbone = open_backbone(str(tiny(model_type)))
    with pytest.raises(
        UsageError, match=rf"reads pooler\.dense\.weight, which {model_type} does not have; leave it out"
    ):
        new_delta(backbone, LoRA(), "t", ("a", "b"), head="bert-pooler")


def test_an_unknown_head_gets_the_nearest_known_one():
    with pytest.raises(UnknownName, match=r"Did you mean 'linear'\?"):
        head_named("liner")
