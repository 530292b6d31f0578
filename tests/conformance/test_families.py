"""Every method on families unlike BERT, and its gradients there.

ModernBERT: norms stand first, nothing has a bias, and sites are parts of a product.  DeBERTa: queries and keys have rows
of distances too.  ALBERT: layers share their tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import suite
from method_examples import examples
from tiny import ROTARY, known

from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.delta import new_delta
from edgepeft.common.errors import UsageError
from edgepeft.methods.base import Method, methods
from edgepeft.methods.bitfit import BitFit

from .test_gradients import Tuned, require_pytorchs

FAMILIES = ("modernbert", "deberta-v2", "albert", "xlm-roberta-xl", "roformer", *known(*ROTARY))


def fits(method: Method) -> bool:
    """Not all have position embeddings to be moved."""
    return method.settings().get("place") != "embeddings"


QUICK = {"full", "lora", "pfeiffer", "prompt-t"}  # a way each to join a backbone: others are slow but for a few
NEAR_BERT = {
    "albert": {"full", "lora", "prefix"},
    "xlm-roberta-xl": {"full", "pfeiffer"},
    "roformer": {"lora"},
    "gte": {"lora"},
}  # whose graphs have but one thing that is new: all others are slow


def cases(quick: int) -> list[Any]:
    """Every family and fitting instance; all but the first of ``NEAR_BERT``, or ``QUICK`` and each ``quick``-th, are slow."""
    made = []
    for family in FAMILIES:
        for turn, name in enumerate(sorted(methods().keys() - suite.WITHOUT.get(family, set()))):
            for i, example in enumerate(filter(fits, examples(methods()[name]))):
                few = NEAR_BERT.get(family)
                is_quick = name in few if few else turn % quick == 0 or name in QUICK
                marks = [] if i == 0 and is_quick else [pytest.mark.slow]
                made.append(pytest.param((family, example), id=f"{family}-{name}-{i}", marks=marks))
    return made


@pytest.fixture
def case(tiny: Callable[..., Path], request: pytest.FixtureRequest) -> suite.Case:
    family, example = request.param
    return suite.Case(example, open_backbone(str(tiny(family))))


@pytest.mark.parametrize("case", cases(quick=4), indirect=True)
def test_it_conforms(case: suite.Case, tmp_path: Path):
    suite.conforms(case, tmp_path / "delta")


@pytest.mark.parametrize("case", cases(quick=8), indirect=True)
def test_its_gradients_are_pytorchs(case: suite.Case):
    tuned = Tuned(case)
    for batch, length in suite.SHAPES[1:]:
        require_pytorchs(tuned, batch, length)


@pytest.mark.parametrize("length", [128, 129, 200])
def test_gradients_of_every_tensor_are_pytorchs_over_one_block_of_a_row_and_over_several(
    tiny: Callable[..., Path], length: int
):
    """128 tokens are one block, 129 five of 32, of which the last has a single place; keys are read by up to three."""
    backbone = open_backbone(str(tiny("modernbert", max_position_embeddings=512)))
    require_pytorchs(Tuned(suite.Case(examples(methods()["full"])[0], backbone)), 2, length)


def test_bitfit_is_refused_by_name_for_there_is_no_bias_to_be_trained(tiny: Callable[..., Path]):
    backbone = open_backbone(str(tiny("modernbert")))
    with pytest.raises(UsageError, match=r"bitfit trains biases, and modernbert has none. .* layernorm"):
        new_delta(backbone, BitFit(), "task", ("no", "yes"))
