"""``edgepeft backbones``: what it lists is what opens, and what it says of one is transformers'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from configs import SMALL_BERT
from verbs import edgepeft

from edgepeft.backbones.base import families
from edgepeft.backbones.config import architecture_names, config_of
from edgepeft.cli.backbones import _config


def document(*arguments: str) -> Any:
    return json.loads(edgepeft("backbones", *arguments, "--json").stdout)


def test_every_family_is_listed_with_its_model_types_and_the_architectures_that_have_names():
    rows = {row["family"]: row for row in document()["backbones"]}
    assert set(rows["t5"]["model_types"]) == {"t5", "mt5"} and rows["t5"]["limits"]
    assert sorted(name for row in rows.values() for name in row["architectures"]) == architecture_names()
    for name in architecture_names():
        family = next(row for row in rows.values() if name in row["architectures"])
        assert config_of(name)["model_type"] in family["model_types"]
    shown = edgepeft("backbones").stdout
    assert all(family in shown for family in rows)


@pytest.mark.parametrize(
    "name",
    [
        "roberta-base",
        "camembert-base",
        "albert-base-v2",
        "xlm-roberta-xl",
        "deberta-v3-base",
        "google/electra-small-discriminator",
    ],
)
def test_one_has_transformers_sizes(name: str):
    found, config = document(name), transformers.AutoConfig.for_model(**config_of(name))
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config)
    n = sum(p.numel() for path, p in model.named_parameters() if not path.startswith("pooler."))
    assert (found["n_parameters"], found["n_layers"]) == (n, config.num_hidden_layers)
    assert found["config"]["hidden_size"] == found["hidden_size"] == config.hidden_size


def test_a_model_type_without_an_architecture_is_shown_with_its_familys():
    found = document("mt5")
    assert (found["model_type"], found["sizes_of"]) == ("mt5", "t5-base")
    assert "edgepeft" not in edgepeft("backbones", "mt5").stderr


@pytest.mark.parametrize(
    ("model_type", "of"), [("camembert", "camembert-base"), ("data2vec-text", "bert-base-uncased")]
)
def test_a_model_type_has_its_own_architectures_sizes_or_those_that_the_family_began_with(model_type: str, of: str):
    assert _config(model_type) == ({**config_of(of), "model_type": model_type}, of)


def test_every_model_type_is_read_as_some_architecture():
    for model_type, family in families().items():
        config, name = _config(model_type)
        assert family.architecture(config).model_type == model_type, name


def test_a_key_that_is_read_is_listed_and_another_is_not(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL_BERT | {"favourite_colour": "green"}))
    found = document(str(tmp_path))
    assert found["config"]["num_hidden_layers"] == 2 and "favourite_colour" not in found["config"]
    assert "intermediate_size" in edgepeft("backbones", str(tmp_path)).stdout


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "debrta-v2"}, "Did you mean 'deberta-v2'"),
        ({}, "no model_type"),
        (None, "cannot be read (No such file"),
    ],
)
def test_a_folder_that_is_none_is_refused_in_one_line(tmp_path: Path, config: Any, said: str):
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    refused = edgepeft("backbones", str(tmp_path))
    assert refused.returncode and said in refused.stderr and "Traceback" not in refused.stderr


def test_an_unknown_name_gets_the_nearest():
    refused = edgepeft("backbones", "roberta-bse")
    assert refused.returncode == 2 and "Did you mean 'roberta-base'" in refused.stderr
