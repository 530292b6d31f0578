"""Each pooling's forms agree with the definition, computed text by text in NumPy."""

import copy
import pickle

import numpy as np
import pytest
import torch

from edgepeft.backbones.base import Role
from edgepeft.backbones.pooling import EMBEDDINGS, READS, SKIP_PROMPT, Pooling
from edgepeft.common.errors import UsageError

LENGTHS, SKIP = (5, 1, 3), 1
HIDDEN = np.random.default_rng(0).standard_normal((3, 7, 4)).astype(np.float32)
DEFINED = {
    Pooling.FIRST: lambda text: text[0],
    Pooling.MEAN: lambda text: text.mean(0),
    Pooling.LAST: lambda text: text[-1],
}


@pytest.mark.parametrize("in_front", [False, True])
@pytest.mark.parametrize("pooling", DEFINED, ids=str)
def test_padded_states_are_pooled_by_their_real_tokens_wherever_padding_stands(pooling, in_front):
    starts = [7 - n if in_front else 0 for n in LENGTHS]
    mask = np.array([[start <= i < start + n for i in range(7)] for start, n in zip(starts, LENGTHS, strict=True)])
    expected = [DEFINED[pooling](HIDDEN[row][mask[row]]) for row in range(3)]
    found = pooling.of_states(torch.from_numpy(HIDDEN), torch.from_numpy(mask.astype(np.int64)))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    if pooling in EMBEDDINGS and not in_front:
        np.testing.assert_allclose(pooling.of_arrays(HIDDEN, mask[..., None].astype(np.float32)), expected, rtol=1e-6)


@pytest.mark.parametrize("pooling", [READS[name] for name in SKIP_PROMPT if name != "tokens"], ids=str)
def test_behind_a_prompt_its_tokens_are_left_out(pooling):
    lengths = [SKIP + n for n in LENGTHS]
    first = np.cumsum([0, *lengths[:-1]])
    states = np.concatenate([HIDDEN[row, :n] for row, n in enumerate(lengths)])
    row = np.repeat(np.arange(3), lengths)
    found = pooling.behind_prompt(torch.arange, SKIP, *map(torch.from_numpy, (states, first, row)))
    expected = [DEFINED[pooling](HIDDEN[i, SKIP:n]) for i, n in enumerate(lengths)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_each_pooled_site_has_a_role_and_others_than_those_of_a_text_make_no_embedding():
    assert {pooling.site for pooling in DEFINED} <= {role.value for role in Role}
    with pytest.raises(UsageError, match="an embedding is pooled as first or mean; last are what"):
        _ = Pooling.LAST.embedding


@pytest.mark.parametrize("pooling", [*EMBEDDINGS, Pooling.LAST, Pooling.LABELS, Pooling.TOKENS], ids=str)
def test_a_copy_is_the_pooling_itself(pooling):
    assert pickle.loads(pickle.dumps(pooling)) is copy.deepcopy(pooling) is pooling
