"""T5's table of shapes against transformers; it is counted, and refused wherever it would have to run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from typer.testing import CliRunner

from edgepeft.backbones.base import Role, family_of, table_of
from edgepeft.backbones.config import config_of
from edgepeft.backbones.source import open_backbone
from edgepeft.cli._main import app
from edgepeft.errors import UnknownName, UsageError
from edgepeft.methods.houlsby import Houlsby
from edgepeft.methods.lora import LoRA

SMALL = {
    "model_type": "t5",
    "d_model": 32,
    "d_kv": 6,
    "d_ff": 40,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 60,
    "relative_attention_num_buckets": 8,
}


@pytest.mark.parametrize(
    "config",
    [
        config_of("t5-base"),
        SMALL,
        SMALL | {"num_decoder_layers": 3},
        SMALL | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},  # as in T5 1.1 and Flan-T5
    ],
    ids=["t5-base", "small", "longer decoder", "gated, untied"],
)
def test_the_tensor_table_is_transformers(config: dict[str, Any]):
    with torch.device("meta"):
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**config))
    theirs = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    if not config.get("tie_word_embeddings", True) and model.config.tie_word_embeddings:
        theirs["lm_head.weight"] = theirs[
            "shared.weight"
        ]  # transformers 5 ties them all the same; checkpoints have both
    architecture = table_of(config).architecture(config)
    assert dict(architecture.tensors) == theirs
    norms = [name for name, module in model.named_modules() if type(module).__name__ == "T5LayerNorm"]
    assert set(architecture.norms) == set(norms)


def test_every_linear_layer_and_every_norm_within_a_layer_lacks_a_bias():
    config = SMALL | {"num_decoder_layers": 3}
    with torch.device("meta"):
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**config))
    expected = {f"{n}.bias": m.out_features for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    expected |= {f"{n}.bias": 32 for n, _ in model.named_modules() if n.endswith(".layer_norm")}
    assert {n: width for n, (width,) in table_of(config).architecture(config).absent_biases.items()} == expected


def test_t5_base_has_the_parameters_of_the_compacter_paper():
    architecture = table_of(config_of("t5-base")).architecture(config_of("t5-base"))
    assert architecture.n_parameters == 222_882_048
    assert (len(architecture.norms), architecture.n_norm_parameters) == (62, 62 * 768)


def test_both_stacks_have_the_sites_of_self_attention_and_feed_forward():
    config = SMALL | {"num_decoder_layers": 3}
    architecture = table_of(config).architecture(config)
    up = architecture.sites_of(Role.FFN_UP)
    assert [site.name for site in up] == [
        f"{s}.layer.{i}.ffn_up" for s, n in (("encoder", 2), ("decoder", 3)) for i in range(n)
    ]
    widths = {site.role: (site.in_features, site.out_features) for site in architecture.sites}
    assert widths[Role.QUERY] == (32, 24)
    assert widths[Role.ATTENTION_OUTPUT] == (24, 32)
    assert (widths[Role.FFN_UP], widths[Role.FFN_OUTPUT]) == ((32, 40), (40, 32))
    assert widths[Role.FFN_ACTIVATION] == (40, 40)
    cross = architecture.sites_of(Role.CROSS_KEY, Role.CROSS_VALUE)
    assert [site.name for site in cross] == [
        f"decoder.layer.{i}.cross_{part}" for i in range(3) for part in ("key", "value")
    ]
    gated = config | {"feed_forward_proj": "gated-gelu"}
    assert not table_of(gated).architecture(gated).sites_of(Role.FFN_UP)
    with pytest.raises(UsageError, match="lora attaches to ffn_up; t5 has no such site"):
        LoRA(roles=("ffn_up",)).n_parameters(table_of(gated).architecture(gated))


def test_the_lowest_layers_of_both_stacks_are_skipped():
    config = SMALL | {"num_decoder_layers": 3}
    architecture = table_of(config).architecture(config)
    left = [site.name for site in Houlsby(skip_layers=1).sites(architecture)]
    places = [("encoder", 1), ("decoder", 1), ("decoder", 2)]
    assert left == [f"{s}.layer.{i}.{role}" for s, i in places for role in ("attention_output", "ffn_output")]


def test_a_family_that_runs_it_is_refused_by_name():
    with pytest.raises(UsageError, match=r"type t5 can be counted \(edgepeft count\), but not .*run.*bert, distilbert"):
        family_of(SMALL)


def test_opening_it_is_refused_before_its_weights_are_looked_for(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    with pytest.raises(UsageError, match="can be counted"):
        open_backbone(str(tmp_path))


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "--backbone", "t5-base", "--profile", "rpi4"),
        ("export", "--backbone", "{t5}", "--delta", "{t5}", "--out", "{out}"),
        ("train", "--backbone", "{t5}", "--data", "{data}", "--task", "t", "--method", "lora", "--out", "{out}"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_verb_that_would_run_it_says_so(tmp_path: Path, arguments: tuple[str, ...]):
    paths = {"t5": tmp_path / "t5", "out": tmp_path / "out", "data": tmp_path / "data.csv"}
    paths["t5"].mkdir()
    (paths["t5"] / "config.json").write_text(json.dumps(SMALL))
    paths["data"].write_text("sentence1,label\n" + "a,1\nb,0\n" * 20)
    result = CliRunner().invoke(app, [word.format(**paths) for word in arguments])
    assert isinstance(result.exception, UsageError), result.output
    assert "can be counted (edgepeft count), but not trained, exported or run" in str(result.exception)
    assert not paths["out"].exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"d_model": None}, "d_model"),
        ({"d_kv": "64"}, "d_kv"),
        ({"num_layers": 10**12}, "num_layers"),
        ({"num_layers": 10**6}, "1000"),
        ({"num_decoder_layers": 10**6}, "1000"),
        ({"feed_forward_proj": 3}, "feed_forward_proj"),
    ],
)
def test_a_damaged_config_is_refused(changed: dict[str, Any], said: str):
    config = SMALL | changed
    with pytest.raises(UsageError, match=said):
        table_of(config).architecture(config)


def test_an_unknown_type_is_still_unknown():
    with pytest.raises(UnknownName, match="t5"):
        table_of({"model_type": "t55"})


def test_the_table_needs_no_torch():
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None;"
        "from edgepeft.backbones.base import table_of; from edgepeft.backbones.config import config_of;"
        "print(table_of(config_of('t5-base')).architecture(config_of('t5-base')).n_parameters)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 222_882_048
