"""Teacher-forced logits of a delta that writes text, against transformers' own model: as it is, and changed by hand."""

from __future__ import annotations

import copy
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deltas import random_delta
from tiny import SIZES, ragged
from tolerance import exactly
from torch import Tensor

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.bundle.delta import Delta, new_delta
from edgepeft.common.errors import UsageError
from edgepeft.data.columns import NO_TARGET
from edgepeft.methods.base import method_of
from edgepeft.tasks.base import kind_named
from edgepeft.training.engine import decoder_inputs

FORMS = [{}, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, {"decoder_start_token_id": 4}]
TARGETS = torch.tensor([[7, 9, 3, NO_TARGET], [5, 6, 7, 3], [3, NO_TARGET, NO_TARGET, NO_TARGET]])


class Case:
    """A delta with random values, a batch of three ragged rows, and copies of the model in float64."""

    def __init__(self, folder: Path, delta: Callable[[Backbone], Delta]) -> None:
        self.backbone = open_backbone(str(folder))
        self.model: Any = load_model(self.backbone, "eager")
        self.delta = delta(self.backbone).eval()
        rows = ragged(3, 11, SIZES["t5"], seed=1)
        self.rows = {name: torch.from_numpy(rows[name]) for name in ("input_ids", "attention_mask")}

    def require_like(
        self,
        change: Callable[[Any], None] = lambda model: None,
        rows: Callable[[Any], Mapping[str, Tensor]] | None = None,
        shift: float | Tensor = 0.0,
    ) -> Tensor:
        """Ours are what transformers makes of the targets, where its model, its rows or its logits are changed so."""
        model = copy.deepcopy(self.model).double()
        change(model)
        read = decoder_inputs(TARGETS, model.config.decoder_start_token_id, model.config.pad_token_id)
        with torch.no_grad():
            given = self.rows if rows is None else rows(model)
            exact = exactly(lambda: {"logits": model(**given, labels=TARGETS).logits + shift})["logits"]
            ours = self.delta.logits(self.model, {**self.rows, "decoder_input_ids": read})
        exact.require(ours.numpy())
        return ours


def random_text(method: str, **settings: Any) -> Callable[[Backbone], Delta]:
    return lambda backbone: random_delta(backbone, method, "t", None, head="text", settings=settings)


@pytest.mark.parametrize("sizes", FORMS, ids=str)
def test_a_fresh_delta_gives_transformers_own_logits(tiny: Callable[..., Path], sizes):
    fresh = lambda backbone: new_delta(backbone, method_of("lora"), "t", None, head="text", max_length=40)  # noqa: E731
    case = Case(tiny("t5", **sizes), fresh)
    assert case.require_like().shape == (3, 4, SIZES["t5"]["vocab_size"])
    card = case.delta.card
    assert (card.head, card.head_reads, card.labels, card.writes, card.kind) == (
        "text",
        "text",
        None,
        True,
        "text",
    )
    assert case.delta.n_parameters()["head"] == 0


@pytest.mark.parametrize("sizes", FORMS, ids=str)
def test_lora_in_both_stacks_is_its_product_in_the_weights(tiny: Callable[..., Path], sizes):
    case = Case(tiny("t5", **sizes), random_text("lora", rank=2, alpha=6.0, roles=("query", "value", "ffn_output")))
    tensors = {name: tensor.detach().double() for name, tensor in case.delta.tensors().items()}
    stacks = {name.partition(".")[0] for name in tensors}
    assert stacks == {"encoder", "decoder"}

    def merge(model: Any) -> None:
        for name in case.delta.site_modules:
            site = case.backbone.architecture.site(name)
            weight = model.get_parameter(f"{site.reads}.weight")
            a, b = (tensors[f"{name}/{part}"] for part in "AB")
            weight.data += 6.0 / 2 * b @ a

    moved, still = case.require_like(merge), Case(tiny("t5", **sizes), random_text("lora")).model
    assert not torch.allclose(moved, still(**case.rows, labels=TARGETS).logits, atol=0.1)


def test_an_output_bias_is_added_to_every_word(tiny: Callable[..., Path]):
    case = Case(tiny("t5"), random_text("bitfit"))
    for name, tensor in case.delta.tensors().items():
        if not name.startswith("pooled.labels"):
            tensor.data.zero_()
    (bias,) = (t.detach().double() for name, t in case.delta.tensors().items() if name.startswith("pooled.labels"))
    assert bias.abs().max() > 0.1
    case.require_like(shift=bias)


def test_full_fine_tuning_of_a_tied_table_reaches_all_its_readers(tiny: Callable[..., Path]):
    case = Case(tiny("t5"), random_text("full"))
    tensors = {name.removeprefix("override/"): t.detach().double() for name, t in case.delta.tensors().items()}

    def replace(model: Any) -> None:
        for name, tensor in tensors.items():
            model.get_parameter(name).data.copy_(tensor)

    case.require_like(replace)


def test_a_prompt_stands_before_the_encoders_tokens_alone(tiny: Callable[..., Path]):
    case = Case(tiny("t5"), random_text("prompt-r", length=3))
    (prompt,) = (tensor.detach().double() for tensor in case.delta.tensors().values())

    def rows(model: Any) -> dict[str, Tensor]:
        words, mask = model.shared(case.rows["input_ids"]), case.rows["attention_mask"]
        embeds = torch.cat([prompt.expand(len(words), -1, -1), words], 1)
        return {"inputs_embeds": embeds, "attention_mask": torch.cat([torch.ones_like(mask[:, :3]), mask], 1)}

    case.require_like(rows=rows)


def test_what_the_decoder_reads_is_the_target_one_later():
    assert decoder_inputs(TARGETS, 4, 0).tolist() == [[4, 7, 9, 3], [4, 5, 6, 7], [4, 3, 0, 0]]


def test_an_encoder_writes_nothing_and_text_has_no_labels(tiny: Callable[..., Path]):
    with pytest.raises(UsageError, match="has no decoder to write text with"):
        new_delta(open_backbone(str(tiny("bert"))), method_of("lora"), "t", None, head="text")
    with pytest.raises(UsageError, match="writes text and has no labels"):
        new_delta(open_backbone(str(tiny("t5"))), method_of("lora"), "t", ("yes", "no"), head="text")


def test_losses_hold_one_row_in_float64_at_a_time():
    chance = np.random.default_rng(0)
    logits = chance.standard_normal((8, 50, 2000), np.float32)
    targets = chance.integers(0, 2000, (8, 50))
    tracemalloc.start()
    losses = kind_named("text")().losses(logits, targets)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    exact = logits.astype(np.float64)
    each = np.take_along_axis(exact, targets[..., None], -1)[..., 0] - np.log(np.exp(exact).sum(-1))
    np.testing.assert_allclose(losses, -each.mean(1), rtol=1e-12)
    assert peak < 4 * 8 * 50 * 2000, "a few copies of a row of the eight"
