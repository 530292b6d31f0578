from __future__ import annotations

import pytest
from configs import SMALL_BERT

from edgepeft.backbones.named import config_of
from edgepeft.bench.planning.random_weights import write_random_checkpoint
from edgepeft.errors import UnknownName


def test_a_name_is_found_with_and_without_its_organisation():
    assert config_of("google/electra-small-discriminator") == config_of("electra-small-discriminator")
    assert config_of("sentence-transformers/all-MiniLM-L6-v2")["hidden_size"] == 384


def test_an_unknown_architecture_offers_the_nearest():
    with pytest.raises(UnknownName, match="Did you mean 'roberta-base'"):
        config_of("roberta-bas")


def test_transformers_reads_the_random_checkpoint_without_a_missing_tensor(tmp_path):
    from transformers import AutoModel

    write_random_checkpoint(SMALL_BERT, tmp_path)
    _, info = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]


def test_the_same_seed_writes_the_same_bytes(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        write_random_checkpoint(SMALL_BERT, folder, seed=3)
    one, two = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert one == two
