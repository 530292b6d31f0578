from __future__ import annotations

import pytest
from configs import SMALL_BERT
from tokenizers import Tokenizer

from edgepeft.backbones.base import family_of
from edgepeft.backbones.config import config_of
from edgepeft.bench.planning.target import texts_of, write_random_checkpoint, write_random_tokenizer
from edgepeft.common.errors import UnknownName


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


def test_texts_have_as_many_tokens_as_asked_for_and_the_tokenizer_as_many_entries_as_the_embeddings(tmp_path):
    sizes = family_of(SMALL_BERT).architecture({**SMALL_BERT, "vocab_size": 300})
    write_random_tokenizer(sizes, tmp_path, seed=1)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 300
    assert [len(tokenizer.encode(text).ids) for text in texts_of([3, 17, 128])] == [3, 17, 128]
    assert tokenizer.token_to_id("<pad>") == sizes.pad_token_id
    with pytest.raises(ValueError, match="at least 3"):
        texts_of([2])
