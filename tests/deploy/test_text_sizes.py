"""What an answer of text costs: its products are the architecture's, its caches what stands in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import SIZES
from verbs import edgepeft

from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import UsageError
from edgepeft.deploy.cost import bundle_cost
from edgepeft.device.profiles import load_profile
from edgepeft.runtime.decoding import Decoding
from edgepeft.tuning.fit import bundle_fit

T5 = SIZES["t5"]


@pytest.fixture(scope="module")
def bundle(several_texts: Path) -> Path:
    return several_texts


def products(rows: int, length: int, steps: int, beams: int) -> int:
    """Raffel et al.'s two stacks, an encoder without padding and a decoder with caches, by hand."""
    d, inner, f = T5["d_model"], T5["num_heads"] * T5["d_kv"], T5["d_ff"]
    tokens = rows * length
    encoder = T5["num_layers"] * (4 * d * inner * tokens + 2 * d * f * tokens + 2 * tokens * length * inner)
    cross = T5["num_decoder_layers"] * 2 * d * inner * tokens
    decoder = 0
    for step in range(steps):
        texts = rows if step == 0 else rows * beams
        layer = texts * (6 * d * inner + 2 * d * f + 2 * inner * (step + 1) + 2 * inner * length)
        decoder += T5["num_decoder_layers"] * layer + texts * d * T5["vocab_size"]
    return 2 * (encoder + cross + decoder)


@pytest.mark.parametrize(("rows", "length", "steps", "beams"), [(1, 5, 1, 1), (2, 7, 2, 1), (3, 9, 6, 1), (2, 4, 5, 3)])
def test_products_are_the_architectures(bundle: Path, rows: int, length: int, steps: int, beams: int):
    cost = bundle_cost(Bundle(bundle), "full", rows, length, Decoding(steps, beams))
    assert cost.product_flops == products(rows, length, steps, beams)
    assert cost.unknown == ()


def test_a_prompt_lengthens_what_is_read(bundle: Path):
    decoding = Decoding(4)
    prompt, plain = (bundle_cost(Bundle(bundle), "r-0", 1, n, decoding).product_flops for n in (5, 6))
    assert prompt > bundle_cost(Bundle(bundle), "full", 1, 5, decoding).product_flops
    assert plain - prompt == products(1, 9, 4, 1) - products(1, 8, 4, 1)  # three tokens in front of each


def test_caches_are_counted_per_token_and_beam(bundle: Path):
    opened, pi = Bundle(bundle), load_profile("rpi4")

    def parts(rows: int, length: int, decoding: Decoding) -> dict[str, int]:
        fit = bundle_fit(opened, pi, "lora-0", base=0, batch_size=rows, length=length, decoding=decoding)
        return fit.inference.parts

    of_a_token = 2 * 4 * T5["num_decoder_layers"] * T5["num_heads"] * T5["d_kv"]  # keys and values, float32
    short, long = parts(2, 6, Decoding(10, beams=3)), parts(4, 20, Decoding(30))
    of_a_source = of_a_token + 4  # and whether it is padding
    assert short["keys and values of the texts"] == 2 * 6 * of_a_source
    assert long["keys and values of the texts"] == 4 * 20 * of_a_source
    assert short["of what is written"] == 2 * 3 * 9 * of_a_token
    assert long["of what is written"] == 4 * 29 * of_a_token


def test_a_text_that_a_runtime_would_refuse_does_not_fit(bundle: Path):
    fit = bundle_fit(
        Bundle(bundle), load_profile("rpi4"), "lora-0", base=0, length=40, decoding=Decoding(10**6, beams=8)
    )
    assert not fit.inference.fits and fit.inference.largest_batch == 0
    with pytest.raises(UsageError, match="at most 1,048,576"):
        bundle_cost(Bundle(bundle), "lora-0", 1, 8, Decoding(10**9))


def test_the_verbs_say_how_much_is_written(bundle: Path):
    task = ("--task", "lora-0", "--length", 8, "--max-new-tokens", 5)
    document = json.loads(edgepeft("cost", bundle, *task, "--beams", 2, "--json").stdout)
    assert (document["tokens"], document["beams"]) == (5, 2)
    shown = edgepeft("fit", bundle, *task, "--profile", "rpi4")
    assert shown.returncode == 0, shown.stderr
    assert "8 tokens and 5 written, peak" in shown.stdout and "keys and values of the texts" in shown.stdout
    refused = edgepeft("cost", bundle, "--task", "mood", "--beams", 2)
    assert refused.returncode == 2 and "--beams is for tasks that write text" in refused.stderr
