from __future__ import annotations

import pytest
from configs import SMALL_BERT
from tokenizers import Tokenizer

from edgepeft.backbones.base import family_of
from edgepeft.bench.planning.random_tokenizer import texts_of, write_random_tokenizer


def test_texts_have_as_many_tokens_as_asked_for_and_the_tokenizer_as_many_entries_as_the_embeddings(tmp_path):
    sizes = family_of(SMALL_BERT).architecture({**SMALL_BERT, "vocab_size": 300})
    write_random_tokenizer(sizes, tmp_path, seed=1)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 300
    assert [len(tokenizer.encode(text).ids) for text in texts_of([3, 17, 128])] == [3, 17, 128]
    assert tokenizer.token_to_id("<pad>") == sizes.pad_token_id
    with pytest.raises(ValueError, match="at least 3"):
        texts_of([2])
