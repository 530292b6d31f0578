"""Intrinsic-SAID: its generator against Python's integers, its projection against the paper's product of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard as scipys_hadamard
from tolerance import error_of_sums

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.delta import new_delta
from edgepeft.common.errors import UsageError
from edgepeft.common.frozen_random import Fastfood, splitmix64, walsh_hadamard
from edgepeft.methods.intrinsic_said import IntrinsicSAID, Projected

WORD = (1 << 64) - 1


class SplitMix64:
    """Vigna's splitmix64.c (public domain), in Python's integers."""

    def __init__(self, state: int) -> None:
        self.state = state

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & WORD
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
        return z ^ (z >> 31)

    def take(self, count: int) -> list[int]:
        return [self.next() for _ in range(count)]


def specified(seed: int, stream: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """B, G and p over 2^n entries, read off the specification one entry at a time."""
    signs_key, gauss_key, order_key = SplitMix64(SplitMix64(seed).take(stream + 1)[-1]).take(3)
    signs = [-1.0 if value >> 63 else 1.0 for value in SplitMix64(signs_key).take(1 << n)]
    gauss = [NormalDist().inv_cdf(((value >> 48) + 0.5) / 65536) for value in SplitMix64(gauss_key).take(1 << n)]
    keys = SplitMix64(order_key).take(8)
    order = []
    for place in range(1 << n):
        x = place
        for a, c in zip(keys[::2], keys[1::2], strict=True):
            x = ((1 + 2 * (a % 2**31)) * x + c % 2**32) % 2**n
            x ^= x >> -(-n // 2)
        order.append(x)
    return np.array(signs), np.array(gauss), np.array(order)


def papers_matrix(seed: int, stream: int, size: int, width: int) -> np.ndarray:
    """[H G Pi H B][:D] / (sqrt(LL sum G^2) sqrt(D / LL)) [D, width], of dense matrices in float64; 0 past LL."""
    n = math.ceil(math.log2(size))
    length = 2**n
    signs, gauss, order = specified(seed, stream, n)
    h = scipys_hadamard(length).astype(np.float64)
    product = h @ np.diag(gauss) @ np.eye(length)[order] @ h @ np.diag(signs)
    p = product[:size] / (math.sqrt(length * (gauss**2).sum()) * math.sqrt(size / length))
    return np.pad(p, ((0, 0), (0, max(0, width - length))))[:, :width]


def papers_product(seed: int, stream: int, size: int, vector: np.ndarray) -> np.ndarray:
    """P v."""
    return papers_matrix(seed, stream, size, len(vector)) @ vector


def error_of_projection(size: int, vector: np.ndarray) -> float:
    """Of two transforms of n additions each, five products and a scale: before the scale, a sum of |G| |v|."""
    n = math.ceil(math.log2(size))
    gauss = np.abs(specified(7, 0, n)[1])
    sizes = gauss.sum() * np.abs(vector).sum() / math.sqrt((gauss**2).sum() * size)
    return error_of_sums(2 * n + 6, sizes)


def test_the_generator_gives_the_published_numbers():
    """The first five of seed 1234567, as the language benchmarks and libraries of SplitMix64 list them."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert splitmix64(1234567, 0, 5).tolist() == published
    assert splitmix64(1234567, 3, 2).tolist() == published[3:]


@pytest.mark.parametrize(
    ("size", "width"), [(1, 3), (2, 1), (5, 3), (64, 20), (100, 7), (150, 256), (32, 90), (384, 33)]
)
def test_a_projection_equals_the_papers_product_of_matrices(size: int, width: int):
    vector = np.random.default_rng(size).standard_normal(width).astype(np.float32)
    found = Fastfood(7, 3, size, width).project(vector)
    expected = papers_product(7, 3, size, vector)
    np.testing.assert_allclose(found, expected, rtol=0, atol=error_of_projection(size, vector))


@pytest.mark.parametrize(
    ("size", "width"), [(1, 3), (2, 1), (5, 3), (64, 20), (100, 7), (300, 512), (32, 90), (768, 33)]
)
def test_the_way_back_equals_the_transposed_product_of_matrices(size: int, width: int):
    gradient = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    found = Fastfood(7, 3, size, width).back(gradient)
    p = papers_matrix(7, 3, size, width)
    n = math.ceil(math.log2(size))
    gauss = np.abs(specified(7, 3, n)[1])
    sizes = gauss.sum() * np.abs(gradient).sum() / math.sqrt((gauss**2).sum() * size)
    assert found.shape == (width,) and found.dtype == np.float32
    np.testing.assert_allclose(found, p.T @ gradient, rtol=0, atol=error_of_sums(2 * n + 6, sizes))


def test_the_way_back_over_many_blocks_is_the_adjoint():
    """<P v, g> = <v, P^T g>, for a tensor of seven blocks and a vector of two."""
    source, projection = np.random.default_rng(0), Fastfood(4, 1, 200_000, 60_000)
    vector, gradient = (source.standard_normal(n).astype(np.float32) for n in (60_000, 200_000))
    one = np.vdot(projection.project(vector).astype(np.float64), gradient)
    other = np.vdot(vector.astype(np.float64), projection.back(gradient))
    assert abs(one) > 1
    assert one == pytest.approx(other, rel=1e-4)


@pytest.mark.parametrize("size", [5, 64, 100, 300])
def test_torchs_projection_and_its_gradient_equal_the_papers_product(size: int):
    """The gradient is P's transpose; the authors' backward pass gives 1 / LL of it."""
    width, scale = 20, 1.7
    module = Projected({"w": (size,)}, width + 1, seed=7)
    vector = np.random.default_rng(size).standard_normal(width)
    module.theta.data, module.scales.data = torch.tensor(vector).float(), torch.tensor([scale])
    outer = np.random.default_rng(1).standard_normal(size)
    updated = module({"w": torch.full((size,), 3.0)})["w"]
    expected = papers_product(7, 0, size, vector)
    np.testing.assert_allclose(updated.detach().numpy(), 3 + scale * expected, atol=1e-5)
    (updated * torch.tensor(outer)).sum().backward()
    p = papers_matrix(7, 0, size, width)
    np.testing.assert_allclose(module.theta.grad.numpy(), scale * p.T @ outer, rtol=1e-4, atol=1e-5)
    assert module.scales.grad.item() == pytest.approx(expected @ outer, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("n", range(1, 13))
def test_the_reordering_takes_every_place_once(n: int):
    fastfood = Fastfood(11, 2, 1 << n, 1 << n)
    index, _, _ = fastfood.table()
    assert sorted(index.tolist()) == list(range(1 << n))


def test_blocks_continue_where_the_one_before_ended():
    """The last entries of a table of four blocks, from the specification."""
    n = 17
    index, gaussian, denominator = Fastfood(3, 1, (1 << n) - 5, 1 << n).table()
    signs, gauss, order = specified(3, 1, n)
    np.testing.assert_array_equal(index, order)
    np.testing.assert_allclose(gaussian, gauss, rtol=1e-6)
    np.testing.assert_array_equal(Fastfood(3, 1, 1 << n, 1 << n).signs(), signs)
    assert denominator == pytest.approx(math.sqrt((gauss**2).sum() * ((1 << n) - 5)))


def test_the_transform_is_scipys_at_every_size():
    for n in range(12):
        values = np.random.default_rng(n).standard_normal(1 << n).astype(np.float32)
        expected = scipys_hadamard(1 << n) @ values.astype(np.float64)
        error = error_of_sums(n + 1, np.abs(values).sum())
        np.testing.assert_allclose(walsh_hadamard(values.copy()), expected, rtol=0, atol=error)


@pytest.mark.parametrize("n", [15, 16, 19])
def test_the_transform_of_many_blocks_is_scipys_on_both_sides(n: int):
    """H of 2^n is the Kronecker product of H of 2^9 and of the rest: H_a X H_b on a matrix of that shape."""
    values = np.random.default_rng(n).standard_normal(1 << n).astype(np.float32)
    expected = scipys_hadamard(1 << (n - 9)) @ values.reshape(-1, 512).astype(np.float64) @ scipys_hadamard(512)
    error = error_of_sums(n + 1, np.abs(values).sum())
    np.testing.assert_allclose(walsh_hadamard(values), expected.reshape(-1), rtol=0, atol=error)


def test_torch_and_numpy_agree_on_a_tensor_of_many_blocks():
    size, width = 200_000, 3_000
    module = Projected({"w": (size,)}, width + 1, seed=4)
    module.theta.data.normal_(generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = module({"w": torch.zeros(size)})["w"].numpy()
    expected = Fastfood(4, 0, size, width).project(module.theta.detach().numpy())
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_projections_look_random():
    """Normal entries of the length of v; different tensors, seeds and directions are uncorrelated."""
    size = 50_000
    unit = np.eye(1, 500, dtype=np.float32)[0]
    other = np.roll(unit, 137)
    drawn = [
        Fastfood(0, 0, size, 500).project(unit),
        Fastfood(0, 1, size, 500).project(unit),
        Fastfood(1, 0, size, 500).project(unit),
        Fastfood(0, 0, size, 500).project(other),
    ]
    for values in drawn:
        scaled = values * math.sqrt(size)
        assert np.linalg.norm(values) == pytest.approx(1, rel=0.05)
        assert abs(scaled.mean()) < 0.05
        assert (scaled**4).mean() == pytest.approx(3, rel=0.1)  # a normal distribution's
    correlations = np.corrcoef(np.stack(drawn)) - np.eye(4)
    assert np.abs(correlations).max() < 0.03


def test_the_count_is_the_intrinsic_dimension_scales_included(named):
    """methods.md: d' in all, 20,000 by default; the Compacter paper's 0.009 % of T5-base."""
    for name in ("roberta-base", "bert-base-uncased"):
        assert IntrinsicSAID().n_parameters(named(name)) == 20_000
    reads = ("pooler.dense.weight", "pooler.dense.bias")
    assert IntrinsicSAID().n_parameters(named("bert-base-uncased"), reads) == 20_000
    assert len(Projected({"a": (3,), "b": (2, 2)}, 10, 0).theta) == 8


def test_the_same_seed_gives_the_same_tensors_and_another_seed_others(tiny: Callable[..., Path]):
    backbone = open_backbone(str(tiny("bert")))
    model = load_model(backbone)

    def word_embeddings(seed: int) -> torch.Tensor:
        delta = new_delta(backbone, IntrinsicSAID(dimension=64, seed=seed), "t", ("a", "b"))
        delta.generator.theta.data.fill_(1.0)
        with torch.no_grad():
            return delta.own_tensors(model)["embeddings.word_embeddings.weight"]

    assert torch.equal(word_embeddings(0), word_embeddings(0))
    assert not torch.allclose(word_embeddings(0), word_embeddings(1))


def test_evaluation_follows_every_change_of_the_parameters():
    """What is remembered between batches must not outlive a step of the optimizer or a loaded file."""
    module, pretrained = Projected({"w": (40,)}, 11, 0), {"w": torch.zeros(40)}

    def now() -> torch.Tensor:
        with torch.no_grad():
            return module(pretrained)["w"].clone()

    assert not now().any()
    module.theta.data.copy_(torch.ones(10))
    first = now()
    assert first.any()
    module.scales.data.mul_(2)
    torch.testing.assert_close(now(), 2 * first)
    torch.testing.assert_close(now(), module(pretrained)["w"].detach())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dimension": "0"}, "intrinsic-said's dimension must be at least 1; found 0"),
        ({"dimension": "-5"}, "intrinsic-said's dimension must be at least 1; found -5"),
        ({"seed": "-1"}, "intrinsic-said's seed must be from 0 to 2\\^63 - 1; found -1"),
        ({"dimension": "197"}, "must be at least 198: each of the 197 tensors takes one"),
    ],
)
def test_a_dimension_that_leaves_nothing_to_train_is_refused(named, settings: dict, said: str):
    with pytest.raises(UsageError, match=said):
        IntrinsicSAID.from_settings(settings).n_parameters(named("roberta-base"))
