"""Adapter-LowRank, PHM and Compacter against the Compacter paper's equations in NumPy, its counts and its authors' inits."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from tolerance import error_of
from torch import nn

from edgepeft.backbones.base import Role, Site
from edgepeft.common.errors import UsageError
from edgepeft.methods.adapter_lowrank import AdapterLowRank
from edgepeft.methods.base import Method, method_named
from edgepeft.methods.compacter import Compacter
from edgepeft.methods.compacter_plus_plus import CompacterPlusPlus
from edgepeft.methods.phm import PHM

D = 12
FACTORED = [AdapterLowRank, PHM, Compacter, CompacterPlusPlus]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(3)


def sites(width: int, layers: int = 2) -> tuple[Site, ...]:
    roles = (Role.ATTENTION_OUTPUT, Role.FFN_OUTPUT)
    return tuple(Site(f"layer.{i}.{role}", role, i, width, width) for i in range(layers) for role in roles)


def randomised_adapter(method: Method) -> tuple[nn.Module, dict[str, np.ndarray]]:
    """An adapter with every parameter far from zero, and its parameters by all their names, shared ones included."""
    module = method.build(sites(D))["layer.1.ffn_output"]
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.7)
    named = module.named_parameters(remove_duplicate=False)
    return module, {name: parameter.detach().numpy().astype(np.float64) for name, parameter in named}


def tanh_gelu(z: np.ndarray) -> np.ndarray:
    return 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


def check_adapter(module: nn.Module, w: dict[str, np.ndarray], down: np.ndarray, up: np.ndarray) -> None:
    """Eq. 2: A(x) = U(gelu(D(x))) + x, the weights [in, out] as eqs. 4 and 5 write them."""
    y = torch.randn(2, 3, D)
    x = y.numpy().astype(np.float64)
    expected = x + tanh_gelu(x @ down + w["down.bias"]) @ up + w["up.bias"]
    np.testing.assert_allclose(module(y).detach().numpy(), expected, rtol=0, atol=error_of(module, y))


@pytest.mark.parametrize(("n", "m"), [(4, 8), (3, 6), (2, 8), (1, 5)])
def test_phm_is_an_adapter_whose_weights_are_sums_of_kronecker_products(n: int, m: int):
    module, w = randomised_adapter(PHM(n=n, bottleneck=m))
    h = {part: sum(np.kron(w[f"{part}.A"][i], w[f"{part}.B"][i]) for i in range(n)) for part in ("down", "up")}
    check_adapter(module, w, h["down"], h["up"])


@pytest.mark.parametrize("method", [Compacter, CompacterPlusPlus])
@pytest.mark.parametrize(("n", "m", "rank"), [(4, 8, 1), (3, 6, 2), (2, 8, 3)])
def test_compacter_is_the_same_with_low_rank_second_factors(method: type[Method], n: int, m: int, rank: int):
    module, w = randomised_adapter(method(n=n, bottleneck=m, rank=rank))

    def h(part: str) -> np.ndarray:
        return sum(np.kron(w[f"{part}.A"][i], w[f"{part}.s"][i] @ w[f"{part}.t"][i]) for i in range(n))

    assert w["down.s"].shape == (n, D // n, rank)
    check_adapter(module, w, h("down"), h("up"))


@pytest.mark.parametrize("method", [PHM, Compacter, CompacterPlusPlus])
def test_in_adapterhubs_form_it_reads_the_norm_and_adds_to_the_sub_layer(method: type[Method]):
    """sub + A(LN(sub + res)) with the settings' activation, A's own weights as above."""
    module, w = randomised_adapter(method(bottleneck=8, reads="norm", activation="relu"))
    norm, sub, res = nn.LayerNorm(D), torch.randn(2, 3, D), torch.randn(2, 3, D)

    def h(part: str) -> np.ndarray:
        second = w[f"{part}.B"] if f"{part}.B" in w else w[f"{part}.s"] @ w[f"{part}.t"]
        return sum(np.kron(w[f"{part}.A"][i], second[i]) for i in range(4))

    s = sub.numpy().astype(np.float64)
    z = s + res.numpy()
    z = (z - z.mean(-1, keepdims=True)) / np.sqrt(z.var(-1, keepdims=True) + 1e-5)
    expected = s + np.maximum(z @ h("down") + w["down.bias"], 0) @ h("up") + w["up.bias"]
    error = error_of(module, sub, res, norm)
    np.testing.assert_allclose(module(sub, res, norm).detach().numpy(), expected, rtol=0, atol=error)


def test_the_places_are_a_setting(named):
    compacter = Compacter.from_settings({"roles": "ffn_output"})
    assert compacter.sites(named("roberta-base")) == CompacterPlusPlus().sites(named("roberta-base"))
    with pytest.raises(UsageError, match="no role that phm can attach to is called 'query'"):
        PHM.from_settings({"roles": "query"})
    with pytest.raises(UsageError, match="needs at least one of attention_output, ffn_output as roles"):
        PHM(roles=())


@pytest.mark.parametrize("rank", [1, 3])
def test_adapter_lowrank_is_an_adapter_whose_weights_are_outer_products(rank: int):
    module, w = randomised_adapter(AdapterLowRank(bottleneck=5, rank=rank))

    def product(part: str) -> np.ndarray:
        return sum(np.outer(w[f"{part}.u"][:, r], w[f"{part}.v"][r]) for r in range(rank))

    check_adapter(module, w, product("down"), product("up"))


def rules(method: Method) -> list[nn.Parameter]:
    adapters = method.build(sites(D, layers=3)).values()
    return [linear.A for adapter in adapters for linear in (adapter.down, adapter.up)]


def test_compacters_rule_is_one_for_all_layers_and_phms_are_each_its_own():
    assert len({id(rule) for rule in rules(Compacter(bottleneck=8))}) == 1
    assert len({id(rule) for rule in rules(PHM(bottleneck=8))}) == 3 * 2 * 2


def test_two_deltas_of_one_compacter_share_nothing():
    method = Compacter(bottleneck=8)
    assert rules(method)[0] is not rules(method)[0]


def test_phm_and_compacter_stand_after_both_sub_layers_and_compacter_plus_plus_after_the_ffn(named):
    roberta = named("roberta-base")
    both = [f"layer.{i}.{role}" for i in range(12) for role in ("attention_output", "ffn_output")]
    for method in (AdapterLowRank(), PHM(), Compacter()):
        assert [site.name for site in method.sites(roberta)] == both
    assert [site.name for site in CompacterPlusPlus().sites(roberta)] == both[1::2]


def bound(rows: int, columns: int) -> float:
    """Of Xavier's uniform distribution with gain sqrt 2, for one matrix."""
    return math.sqrt(2) * math.sqrt(6 / (rows + columns))


def test_initial_values_are_those_of_the_authors_code():
    phm = PHM(n=4, bottleneck=24).build(sites(768, layers=8))
    layers = [module.down for module in phm.values()]
    rule = torch.stack([layer.A for layer in layers])
    assert rule.std().item() == pytest.approx(0.01, rel=0.1)  # of 16 x 64 values
    assert max(layer.B.abs().max().item() for layer in layers) == pytest.approx(bound(192, 6), rel=0.01)
    compacter = Compacter(n=4, bottleneck=24).build(sites(768, layers=8))
    layers = [module.down for module in compacter.values()]
    assert layers[0].A.std().item() == pytest.approx(1e-4, rel=0.4)  # of 64 values
    assert max(layer.s.abs().max().item() for layer in layers) == pytest.approx(bound(192, 1), rel=0.01)
    assert max(layer.t.abs().max().item() for layer in layers) == pytest.approx(bound(1, 6), rel=0.02)
    lowrank = AdapterLowRank(bottleneck=24).build(sites(768, layers=8))
    layers = [module.down for module in lowrank.values()]
    assert max(layer.u.abs().max().item() for layer in layers) == pytest.approx(bound(768, 1), rel=0.01)
    assert max(layer.v.abs().max().item() for layer in layers) == pytest.approx(bound(1, 24), rel=0.02)
    modules = [*phm.values(), *compacter.values(), *lowrank.values()]
    assert not any(linear.bias.any() for module in modules for linear in (module.down, module.up))


@pytest.mark.parametrize(
    ("method", "least", "most"), [(AdapterLowRank(), 0.05, 0.2), (PHM(), 0, 1e-2), (Compacter(), 0, 1e-6)]
)
def test_a_fresh_adapter_changes_its_input_as_much_as_the_authors_does(method: Method, least: float, most: float):
    """10 % of the input's norm for Adapter-LowRank, on average; the others start as the identity."""
    changes = []
    for module in method.build(sites(768, layers=20)).values():
        y = torch.randn(50, 768)
        changes.append(float((module(y) - y).detach().norm() / y.norm()))
    assert least <= np.mean(changes) <= most


@pytest.mark.parametrize(
    ("method", "count"),
    [
        (AdapterLowRank(), 24 * 3 * 792),
        (PHM(), 24 * (2 * (64 + 4608) + 792)),
        (Compacter(), 24 * 3 * 792 + 64),
        (CompacterPlusPlus(), 12 * 3 * 792 + 64),
        (CompacterPlusPlus(n=12, rank=2), 12 * (2 * 2 * 792 + 792) + 1728),
    ],
    ids=str,
)
@pytest.mark.parametrize("backbone", ["roberta-base", "bert-base-uncased"])
def test_counts_on_a_base_model_are_the_formulas_of_methods(named, backbone: str, method: Method, count: int):
    assert method.n_parameters(named(backbone)) == count + 38_400  # 25 LayerNorms of 2 x 768


def test_a_shared_rule_counts_once_however_many_layers_are_skipped(named):
    roberta = named("roberta-base")
    for skipped in (0, 5, 11):
        method = CompacterPlusPlus(norms=False, skip_layers=skipped)
        assert method.n_parameters(roberta) == (12 - skipped) * 3 * 792 + 64


@pytest.mark.parametrize("method", FACTORED)
def test_defaults_are_the_papers(method: type[Method]):
    default = method()
    assert (default.bottleneck, default.norms, default.learning_rate) == (24, True, 3e-3)
    assert getattr(default, "n", 4) == 4
    assert getattr(default, "rank", 1) == 1


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        *((name, {"bottleneck": "0"}, f"{name}'s bottleneck must be at least 1; found 0.")
          for name in ("adapter-lowrank", "phm", "compacter", "compacter++")),
        *((name, {"rank": "0"}, f"{name}'s rank must be at least 1; found 0.")
          for name in ("adapter-lowrank", "compacter", "compacter++")),
        *((name, {"n": "0"}, f"{name}'s n must be at least 1; found 0.") for name in ("phm", "compacter", "compacter++")),
        ("phm", {"std": "0"}, "phm's std must be positive; found 0.0."),
        ("compacter++", {"std": "-1"}, "compacter++'s std must be positive; found -1.0."),
        ("phm", {"n": "5"}, "phm's n must divide the bottleneck, 24; found 5. Nearest n that do: 4, 6; "
                            "nearest bottlenecks that n=5 divides: 25, 20."),
        ("compacter++", {"n": "100"}, "found 100. Nearest n that do: 24; nearest bottlenecks that n=100 divides: 100."),
        ("compacter", {"n": "2", "bottleneck": "1"}, "Nearest n that do: 1; nearest bottlenecks that n=2 divides: 2."),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_with_what_would_do(method: str, settings: dict, said: str):
    with pytest.raises(UsageError) as refusal:
        method_named(method).from_settings(settings)
    assert said in str(refusal.value)


@pytest.mark.parametrize("method", [PHM, Compacter, CompacterPlusPlus])
@pytest.mark.parametrize("use", [Method.sites, Method.n_parameters])
def test_an_n_that_does_not_divide_the_hidden_size_is_refused_wherever_it_would_be_used(named, method, use):
    chosen = method(n=5, bottleneck=25)
    said = (
        f"{method.name}'s n must divide the backbone's hidden size, 768; found 5. "
        "Nearest: n=4 with bottleneck=24, n=6 with bottleneck=24."
    )
    with pytest.raises(UsageError, match=f"^{re.escape(said)}$"):
        getattr(chosen, use.__name__)(named("roberta-base"))


@pytest.mark.parametrize(("n", "bottleneck"), [(5, 25), (7, 7), (9, 63), (769, 769), (1000, 3000)])
def test_what_is_offered_instead_is_accepted(named, n: int, bottleneck: int):
    roberta = named("roberta-base")
    with pytest.raises(UsageError) as refusal:
        PHM(n=n, bottleneck=bottleneck).sites(roberta)
    offers = re.findall(r"n=(\d+) with bottleneck=(\d+)", str(refusal.value))
    assert offers
    for offered, width in offers:
        assert PHM(n=int(offered), bottleneck=int(width)).n_parameters(roberta) > 0


@pytest.mark.parametrize(("n", "bottleneck"), [(5, 24), (7, 24), (30, 24), (4, 7), (6, 1)])
def test_the_n_and_the_bottlenecks_offered_instead_are_accepted(n: int, bottleneck: int):
    with pytest.raises(UsageError) as refusal:
        PHM(n=n, bottleneck=bottleneck)
    fitting, widths = re.search(r"do: ([\d, ]+); .*: ([\d, ]+)\.", str(refusal.value)).groups()
    assert all(PHM(n=int(offered), bottleneck=bottleneck) for offered in fitting.split(", "))
    assert all(PHM(n=n, bottleneck=int(offered)) for offered in widths.split(", "))
