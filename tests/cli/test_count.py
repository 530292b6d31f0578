"""`edgepeft count`: figures that can be checked by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edgepeft.backbones.base import Architecture, family_of
from edgepeft.backbones.config import config_of
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.delta import new_delta
from edgepeft.cli._main import app
from edgepeft.common.errors import UsageError
from edgepeft.methods.base import count as counting
from edgepeft.methods.full import Full
from edgepeft.methods.spartan import Spartan


def count(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["count", "--json", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_nine_tasks_of_spartan_beside_nine_fine_tuned_models():
    found = count("--backbone", "roberta-base", "--method", "spartan", "--set", "norms=false", "--tasks", "9")
    backbone, delta, head = 124_055_040, 1_032_192, 768 * 768 + 768 + 2 * 768 + 2
    assert found["trained_parameters"] == {"delta": delta, "head": head, "total": delta + head}
    assert found["percent_of_backbone"] == pytest.approx(100 * delta / backbone, abs=1e-4)
    assert found["total_parameters"] == backbone + 9 * (delta + head)
    assert found["full_models_parameters"] == 9 * (backbone + head)
    assert found["bytes"]["full_models"] == 4 * 9 * (backbone + head)


def test_labels_and_head_change_the_heads_count_alone():
    common = ("--backbone", "bert-base-uncased", "--method", "lora")
    two, five = count(*common), count(*common, "--labels", "5", "--head", "roberta")
    assert two["trained_parameters"]["head"] == 2 * 768 + 2
    assert five["trained_parameters"]["head"] == 768 * 768 + 768 + 5 * 768 + 5
    assert two["trained_parameters"]["delta"] == five["trained_parameters"]["delta"] == 294_912


def test_what_a_task_does_not_share_is_said_in_bytes():
    """All of roberta-base for full and Intrinsic-SAID, k layers of 7,087,872 parameters for top-k, nothing for LoRA."""
    private = {
        name: count("--backbone", "roberta-base", "--method", name)["bytes"]["private"]
        for name in ("full", "intrinsic-said", "top-k", "lora")
    }
    whole = 4 * 124_055_040
    assert private == {"full": whole, "intrinsic-said": whole, "top-k": 4 * 3 * 7_087_872, "lora": 0}
    shown = CliRunner().invoke(app, ["count", "--backbone", "roberta-base", "--method", "intrinsic-said"]).stdout
    assert "496.22 MB" in next(line for line in shown.splitlines() if "its own backbone tensors" in line)
    shown = CliRunner().invoke(app, ["count", "--backbone", "roberta-base", "--method", "lora"]).stdout
    assert "its own backbone tensors" not in shown


def test_a_pooler_that_the_head_reads_belongs_to_the_backbone():
    common = ("--backbone", "bert-base-uncased", "--method", "full")
    assert count(*common)["backbone_parameters"] == 109_482_240  # transformers' BertModel
    assert count(*common, "--head", "linear")["backbone_parameters"] == 108_891_648


@pytest.mark.parametrize("mean", [False, True])
def test_a_folders_count_is_that_of_the_delta_trained_on_it(tiny: Callable[..., Path], mean: bool):
    folder = tiny("bert", mean=mean)
    method = Spartan(parents=5, children=2, top_k=2)
    delta = new_delta(open_backbone(str(folder)), method, "t", ("a", "b", "c"))
    settings = [word for name in ("parents=5", "children=2", "top_k=2") for word in ("--set", name)]
    found = count("--backbone", str(folder), "--method", "spartan", "--labels", "3", *settings)
    assert found["head"] == delta.card.head
    assert found["trained_parameters"] == {**delta.n_parameters(), "total": delta.card.trainable_parameters}


def test_a_config_alone_is_enough(tiny: Callable[..., Path], tmp_path: Path):
    (tmp_path / "config.json").write_bytes((tiny("roberta") / "config.json").read_bytes())
    assert count("--backbone", str(tmp_path), "--method", "layernorm")["trained_parameters"]["delta"] == 5 * 2 * 32


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--backbone", "roberta-bse", "--method", "lora"), "Did you mean 'roberta-base'?"),
        (("--backbone", "./nowhere", "--method", "lora"), "no folder"),
        (("--backbone", "roberta-base", "--method", "lroa"), "Did you mean 'lora'?"),
        (("--backbone", "roberta-base", "--method", "lora", "--set", "rank"), "name=value"),
        (("--backbone", "roberta-base", "--method", "lora", "--head", "bert-pooler"), "pooler.dense.weight"),
        (("--backbone", "{empty}", "--method", "lora"), "no config.json"),
        (("--backbone", "t5-base", "--method", "lora", "--head", "bert-pooler"), "which t5 does not have"),
        (
            ("--backbone", "roberta-base", "--method", "lora", "--method", "full", "--set", "rank=2"),
            "--set lora.rank=2",
        ),
        (("--backbone", "roberta-base", "--method", "lora", "--set", "spartan.top_k=2"), "is for spartan"),
        (("--backbone", "roberta-base", "--method", "houlsby", "--set", "skip_layers=12"), "between 0 and 11"),
    ],
)
def test_a_wrong_command_says_what_was_wrong(tmp_path: Path, arguments: tuple[str, ...], said: str):
    filled = [word.replace("{empty}", str(tmp_path)) for word in arguments]
    result = CliRunner().invoke(app, ["count", *filled])
    assert isinstance(result.exception, UsageError)
    assert said in str(result.exception)


def test_the_table_names_every_part():
    result = CliRunner().invoke(app, ["count", "--backbone", "roberta-base", "--method", "lora", "--tasks", "5"])
    for part in ("294,912", "124,055,040", "backbone and 5 tasks", "5 fine-tuned models", "496.22 MB"):
        assert part in result.stdout


def test_settings_of_several_methods_name_theirs():
    found = count(
        "--backbone", "roberta-base", "--method", "lora", "--method", "spartan",
        "--set", "lora.rank=4", "--set", "spartan.norms=false", "--tasks", "2", "--head", "none",
    )  # fmt: skip
    assert {row["method"]: row["trained_parameters"]["total"] for row in found["counts"]} == {
        "lora": 294_912 // 2,
        "spartan": 1_032_192,
    }
    assert (found["backbone"], found["tasks"]) == ("roberta-base", 2)


def test_a_methods_own_name_before_a_setting_is_fine_with_one_method():
    common = ("--backbone", "roberta-base", "--method", "lora", "--set")
    assert count(*common, "lora.rank=4") == count(*common, "rank=4")


def test_fully_fine_tuned_tasks_share_nothing_and_others_do():
    full = count("--backbone", "roberta-base", "--method", "full", "--tasks", "9")
    assert not full["shares_backbone"]
    assert full["total_parameters"] == full["full_models_parameters"]
    biases = count("--backbone", "roberta-base", "--method", "bitfit", "--tasks", "9", "--head", "none")
    assert biases["total_parameters"] == 124_055_040 + 9 * 102_144


def test_a_method_that_makes_every_tensor_from_a_few_numbers_shares_the_pretrained_ones():
    class Few(Full):
        def n_parameters(self, architecture: Architecture, reads: Iterable[str] = ()) -> int:
            return 20_000

    config = config_of("roberta-base")
    found = counting(family_of(config).architecture(config), Few(), "none", tasks=9)
    assert found["total_parameters"] == 124_055_040 + 9 * 20_000


def test_without_a_head_nothing_of_it_counts():
    found = count("--backbone", "bert-base-uncased", "--method", "lora", "--head", "none", "--labels", "7")
    assert found["trained_parameters"] == {"delta": 294_912, "head": 0, "total": 294_912}
    assert found["backbone_parameters"] == 108_891_648  # and no pooler, which only a head reads


@pytest.mark.parametrize(
    ("name", "expected"),  # of the published safetensors files, a tied output counted once
    [
        ("SmolLM2-135M", 134_515_008),
        ("SmolLM2-360M", 361_821_120),
        ("Qwen2.5-0.5B", 494_032_768),
        ("Qwen3-0.6B", 596_049_920),
        ("gemma-3-270m", 268_098_176),
        ("Llama-3.2-1B", 1_235_814_400),
    ],
)
def test_decoders_known_by_name_have_as_many_parameters_as_were_published(name, expected):
    config = config_of(name)
    assert family_of(config).architecture(config).n_parameters == expected
