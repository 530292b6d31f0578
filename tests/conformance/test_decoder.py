"""Every method on a model of two stacks whose decoder scores the labels, and its gradients there."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import suite
from method_examples import examples

from edgepeft.backbones.base import family_of
from edgepeft.backbones.config import config_of
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.delta import new_delta
from edgepeft.methods.base import Method, methods

from .test_gradients import Tuned, require_pytorchs

KINDS: list[dict[str, Any]] = [{}, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}]
FITTING = [name for name in methods() if name not in suite.WITHOUT["t5"]]
# Each joins a backbone as another does that is not here: adapters at a site, by factors too, and updates of a matrix.
KIN = {"adapter-lowrank", "adapterdrop", "bottleneck", "compacter++", "loha", "lokr", "phm"}


def fits(method: Method) -> bool:
    """T5 has no position embeddings to be moved, and its projection of 66 tensors takes as many numbers more."""
    settings = method.settings()
    return settings.get("place") != "embeddings" and settings.get("dimension", 100) >= 100


def milder(method: Method) -> Method:
    """T5 does not scale its attention: large updates of every linear layer would leave softmax a single value."""
    return dataclasses.replace(method, alpha=2.0) if method.settings().get("rank_stabilised") else method


def cases(every: int = 1) -> list[Any]:
    """Of each ``every``-th method without ``KIN`` the first fitting instance, on one kind of T5 in turn; all others are slow."""
    made, turns = [], [name for name in FITTING if name not in KIN]
    for name in FITTING:
        turn = turns.index(name) if name in turns else None
        for i, example in enumerate(map(milder, filter(fits, examples(methods()[name])))):
            for kind, sizes in enumerate(KINDS):
                quick = turn is not None and turn % every == 0 and i == 0 and kind == turn // 2 % 2
                marks = [] if quick else [pytest.mark.slow]
                made.append(pytest.param(example, sizes, id=f"{name}-{i}-{kind}", marks=marks))
    return made


@pytest.mark.parametrize(("method", "sizes"), cases())
def test_it_conforms_on_both_stacks(tiny: Callable[..., Path], tmp_path: Path, method: Method, sizes: dict[str, Any]):
    case = suite.Case(method, open_backbone(str(tiny("t5", **sizes))))
    suite.conforms(case, tmp_path / "delta")


@pytest.mark.parametrize(("method", "sizes"), cases(every=2))
def test_its_gradients_are_pytorchs(tiny: Callable[..., Path], method: Method, sizes: dict[str, Any]):
    tuned = Tuned(suite.Case(method, open_backbone(str(tiny("t5", **sizes)))))
    for batch, length in suite.SHAPES[1:3]:
        require_pytorchs(tuned, batch, length)


@pytest.fixture(scope="module")
def t5_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """T5-base with a hole for weights, and a tokenizer that knows two labels."""
    from tokenizers import Tokenizer, models

    folder, config = tmp_path_factory.mktemp("t5-base"), config_of("t5-base")
    header, offset = {}, 0
    for tensor, shape in family_of(config).architecture(config).tensors.items():
        size = 4 * int(np.prod(shape))
        header[tensor] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    (folder / "config.json").write_text(json.dumps(config))
    Tokenizer(models.WordLevel({"no": 5, "yes": 6, "?": 7}, unk_token="?")).save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(
    ("method", "settings", "published"),
    [
        ("houlsby", {"bottleneck": 24}, 1_855_104),
        ("pfeiffer", {"bottleneck": 24, "norms": True, "placement": "attention"}, 951_360),
        ("adapterdrop", {"bottleneck": 24}, 1_101_984),
        ("adapter-lowrank", {"bottleneck": 24}, 161_664),
        ("phm", {"bottleneck": 24, "n": 12}, 398_976),
        ("compacter", {"bottleneck": 24, "n": 4}, 161_728),
        ("compacter++", {"bottleneck": 24, "n": 4}, 104_704),
        ("bitfit", {}, 280_932),
        ("prompt-r", {}, 76_800),
        ("layernorm", {}, 47_616),
        ("ia3", {}, 129_024),
    ],
)
def test_what_the_compacter_paper_counts_is_what_a_delta_on_t5_base_trains(
    t5_base: Path, method: str, settings: dict[str, Any], published: int
):
    backbone = open_backbone(str(t5_base))
    vars(backbone)["sha256"] = "0" * 64  # it would take a second to read the hole
    delta = new_delta(backbone, methods()[method].from_settings(settings), "t", ("no", "yes"))
    assert delta.n_parameters() == {"delta": published, "head": 0}
