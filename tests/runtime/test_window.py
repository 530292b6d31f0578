"""A decoder that goes on with what it reads: prompt and text share its positions, and a long prompt keeps its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltas import TEXTS
from once import made_once
from writing import END, export_several

from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.tokens import Text
from edgepeft.common.errors import UsageError
from edgepeft.deploy.verify import audit
from edgepeft.methods.base import method_named
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.runtime import Runtime
from edgepeft.tasks.base import kind_named
from edgepeft.training.settings import TrainSettings, with_defaults

POSITIONS = 64  # of the tiny model


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory) -> Path:
    backbone = tiny("llama", eos_token_id=END)
    return made_once(tmp_path_factory, "several-texts-in-a-window", lambda folder: export_several(backbone, folder))


def test_every_site_that_the_manifest_names_is_in_one_of_the_graphs(folder):
    assert [finding.problem for finding in audit(folder / "bundle")] == [""] * 9


def test_a_text_ends_with_the_positions_and_says_that_it_was_cut(folder):
    with Runtime(folder / "bundle", threads=1, cache=False) as runtime:
        word = TEXTS[5].first
        read = len(runtime.bundle.encoder().encode([Text(word)], POSITIONS).encodings[0].ids)
        short = runtime.write("full", word, Decoding(POSITIONS - read - 1, ends=False))
        whole = runtime.write("full", word, Decoding(500, ends=False))
        alone = runtime.generator.write(
            "full", runtime.bundle.encoder().encode([Text(word)], POSITIONS).inputs, Decoding(500, ends=False)
        )
    assert len(alone[0].tokens) == POSITIONS - read and not whole[0].ended
    assert whole[0].text.startswith(short[0].text) and not alone[0].ended


def test_a_prompt_without_a_position_to_write_at_is_refused(folder):
    with Runtime(folder / "bundle", threads=1, cache=False) as runtime:
        many = runtime.bundle.encoder().encode([Text(" ".join(["yes"] * 99))], POSITIONS)
        assert many.inputs["input_ids"].shape == (1, POSITIONS)
        with pytest.raises(UsageError, match="leaves nothing of the 64 positions"):
            runtime.generator.write(None, many.inputs, Decoding(4))


def test_a_long_prompt_keeps_its_end(folder, tiny):
    for encoder in (open_backbone(str(tiny("llama"))).encoder(), open_backbone(str(folder / "bundle")).encoder()):
        text = " ".join(text.first for text in TEXTS)
        whole = encoder.encode([Text(text)], 10_000).encodings[0].ids
        cut = encoder.encode([Text(text)], 8)
        special = 8 - encoder.room(8, pairs=False)
        assert cut.truncated == 1 and cut.encodings[0].ids[special:] == whole[-(8 - special) :]


def test_training_leaves_positions_for_the_target(tiny):
    backbone, kind = open_backbone(str(tiny("llama"))), kind_named("text")()
    lora = method_named("lora").from_settings({})
    found = with_defaults(TrainSettings(task="mood", kind="text"), backbone, lora, kind, longest_target=10)
    assert (found.max_length, found.max_target_length) == (POSITIONS - 10, 10)
    with pytest.raises(UsageError, match=r"54 of the 64 positions of .* are left to read with"):
        with_defaults(TrainSettings(task="mood", kind="text", max_length=60), backbone, lora, kind, longest_target=10)


@pytest.mark.parametrize(
    ("kind", "head", "message"),
    [
        ("text", "score", "leave --head out"),
        ("tokens", None, "is an encoder's; use BERT"),
        ("embedding", None, "is an encoder's; use BERT"),
    ],
)
def test_what_an_encoder_does_is_refused_with_what_to_do(tiny, kind, head, message):
    from edgepeft.bundle.delta import new_delta

    backbone, lora = open_backbone(str(tiny("llama"))), method_named("lora").from_settings({})
    labels = None if kind in ("text", "embedding") else ("O", "B-x")
    with pytest.raises(UsageError, match=message):
        new_delta(backbone, lora, "mood", labels, kind=kind, head=head)
