"""Each method's module against its paper's equation in NumPy, token by token."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import onnxruntime as ort
import pytest
import torch
from tolerance import error_of
from torch import nn

from edgepeft.backbones.base import Role, Site
from edgepeft.backbones.hooks import needs
from edgepeft.common.errors import UsageError
from edgepeft.methods._adapters import ACTIVATIONS, Activation
from edgepeft.methods.bottleneck import BottleneckAdapter
from edgepeft.methods.houlsby import Houlsby
from edgepeft.methods.lora import LoRA, LowRank
from edgepeft.methods.pfeiffer import Pfeiffer
from edgepeft.methods.spartan import Memory

D, M = 12, 5


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(3)


def randomised(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def arrays(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().astype(np.float64) for name, p in module.named_parameters()}


def tanh_gelu(z: np.ndarray) -> np.ndarray:
    return 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


def layer_norm(z: np.ndarray, gain: np.ndarray, bias: np.ndarray, epsilon: float) -> np.ndarray:
    return gain * (z - z.mean(-1, keepdims=True)) / np.sqrt(z.var(-1, keepdims=True) + epsilon) + bias


def check(expected: np.ndarray, module: nn.Module, *inputs: torch.Tensor | nn.Module, **named: Any) -> None:
    found, error = module(*inputs, **named), error_of(module, *inputs, **named)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=0, atol=error)


def adapter(method: Houlsby | Pfeiffer, d: int = D) -> nn.Module:
    """What the method puts at a site of that width."""
    return method.build_at(Site("encoder.layer.0.ffn_output", Role.FFN_OUTPUT, 0, d, d))


def test_houlsby_adds_a_bottleneck_with_tanh_gelu():
    module, y = randomised(adapter(Houlsby(bottleneck=M))), torch.randn(2, 3, D)
    w, z = arrays(module), y.numpy().astype(np.float64)
    expected = z + tanh_gelu(z @ w["down.weight"].T + w["down.bias"]) @ w["up.weight"].T + w["up.bias"]
    check(expected, module, y)


class Sublayer(nn.Module):
    """LN(y' + res) of an adapter that gives y'."""

    def __init__(self, adapter: nn.Module) -> None:
        super().__init__()
        self.adapter = adapter

    def forward(self, sub: torch.Tensor, res: torch.Tensor, norm: nn.Module) -> torch.Tensor:
        return norm(self.adapter(sub, res, norm) + res)


def test_pfeiffer_in_adapterhubs_form_gives_the_layer_its_equation():
    """LN(y' + res) must be LN(sub + A(LN(sub + res)) + res): both sides with the layer's own norm."""
    module, norm = randomised(adapter(Pfeiffer(bottleneck=M))), randomised(nn.LayerNorm(D, eps=1e-5))
    sub, res = torch.randn(2, 3, D), torch.randn(2, 3, D)
    w, n = arrays(module), arrays(norm)
    s, r = sub.numpy().astype(np.float64), res.numpy().astype(np.float64)
    inner = layer_norm(s + r, n["weight"], n["bias"], 1e-5)
    change = np.maximum(inner @ w["down.weight"].T + w["down.bias"], 0) @ w["up.weight"].T + w["up.bias"]
    check(layer_norm(s + change + r, n["weight"], n["bias"], 1e-5), Sublayer(module), sub, res, norm)


def test_pfeiffer_in_compacters_form_reads_the_sub_layer_alone():
    module, y = randomised(adapter(Pfeiffer(bottleneck=M, placement="attention"))), torch.randn(4, D)
    w, z = arrays(module), y.numpy().astype(np.float64)
    check(z + np.maximum(z @ w["down.weight"].T + w["down.bias"], 0) @ w["up.weight"].T + w["up.bias"], module, y)


GELU = np.vectorize(lambda z: 0.5 * z * (1 + math.erf(z / math.sqrt(2))))
SIGMOID = lambda z: 1 / (1 + np.exp(-z))  # noqa: E731
# The definitions, written here once more: Hendrycks & Gimpel, 2016 (three GELUs, SiLU); Misra, 2019 (Mish).
ACTIVATION_EQUATIONS = {
    "relu": lambda z: np.maximum(z, 0),
    "gelu": GELU,
    "tanh-gelu": tanh_gelu,
    "quick-gelu": lambda z: z * SIGMOID(1.702 * z),
    "silu": lambda z: z * SIGMOID(z),
    "mish": lambda z: z * np.tanh(np.log1p(np.exp(z))),
    "tanh": np.tanh,
    "sigmoid": SIGMOID,
    "relu6": lambda z: np.clip(z, 0, 6),
    "leaky-relu": lambda z: np.where(z > 0, z, 0.01 * z),
    "linear": lambda z: z,
}


def test_every_activation_has_its_equation():
    assert set(ACTIVATIONS) == set(ACTIVATION_EQUATIONS) == set(get_args(Activation))


@pytest.mark.parametrize("name", ACTIVATION_EQUATIONS)
def test_an_activation_is_its_equation_in_torch_and_in_onnxruntime(name: str):
    """Between -8 and 8, so that RELU6 is cut and each tail is seen."""
    module, y = randomised(adapter(Houlsby(bottleneck=M, activation=name))), 2 * torch.randn(40, D)
    w, z = arrays(module), y.numpy().astype(np.float64)
    hidden = z @ w["down.weight"].T + w["down.bias"]
    assert hidden.min() < -4 and hidden.max() > 6.5
    expected = z + ACTIVATION_EQUATIONS[name](hidden) @ w["up.weight"].T + w["up.bias"]
    check(expected, module, y)
    error = error_of(module, y)
    program = torch.onnx.export(module.eval(), (y,), dynamo=True, optimize=False, opset_version=20, verbose=False)
    assert program is not None and {node.domain for node in program.model_proto.graph.node} == {""}
    session = ort.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: y.numpy()})
    np.testing.assert_allclose(found, expected, rtol=0, atol=error)


@pytest.mark.parametrize("norm_after", ["none", "change", "sum"])
@pytest.mark.parametrize("keeps", ["sublayer", "sum", "norm"])
@pytest.mark.parametrize("reads", ["sublayer", "residual", "norm"])
@pytest.mark.parametrize("norm_before", [False, True])
def test_the_general_bottleneck_is_its_equation_in_each_form(
    tiny_sites, reads: str, keeps: str, norm_before: bool, norm_after: str
):
    method = BottleneckAdapter(bottleneck=M, reads=reads, keeps=keeps, norm_before=norm_before, norm_after=norm_after)
    module = randomised(method.build(tiny_sites)[tiny_sites[0].name])
    d = tiny_sites[0].out_features
    norm, sub, res = randomised(nn.LayerNorm(d)), torch.randn(2, 3, d), torch.randn(2, 3, d)
    w, n = arrays(module), arrays(norm)
    s, r = sub.numpy().astype(np.float64), res.numpy().astype(np.float64)
    layer = layer_norm(s + r, n["weight"], n["bias"], 1e-5)
    values = {"sublayer": s, "residual": r, "sum": s + r, "norm": layer}

    def own(which: str, z: np.ndarray) -> np.ndarray:
        return layer_norm(z, w[f"{which}.weight"], w[f"{which}.bias"], 1e-5)

    z = own("norm_before", values[reads]) if norm_before else values[reads]
    change = np.maximum(z @ w["down.weight"].T + w["down.bias"], 0) @ w["up.weight"].T + w["up.bias"]
    expected = {
        "none": lambda: values[keeps] + change,
        "change": lambda: values[keeps] + own("norm_after", change),
        "sum": lambda: own("norm_after", values[keeps] + change),
    }[norm_after]()
    given = {"y": sub, "residual": res, "norm": norm}
    check(expected, module, **{name: given[name] for name in needs(module)})


def test_a_bottleneck_past_the_layers_norm_has_no_residual_to_read():
    with pytest.raises(UsageError, match=r"layer_output: there bottleneck needs reads=sublayer.*found reads=norm"):
        BottleneckAdapter(roles=("ffn_output", "layer_output"), reads="norm")


def softmax(z: np.ndarray) -> np.ndarray:
    powers = np.exp(z - z.max())
    return powers / powers.sum()


def spartan_of_one_token(h: np.ndarray, w: dict[str, np.ndarray], top_k: int, temperature: float) -> np.ndarray:
    """Equations 1 to 3 as the paper writes them: parents chosen first, children of those alone."""
    g = softmax(w["parents"] @ h)
    kept = np.argsort(-g, kind="stable")[:top_k]
    v_o = np.zeros_like(h)
    for i in kept:
        keys, values = w["keys"][:, i], w["values"][:, i]  # [C, d] each
        v_o += g[i] * values.T @ softmax(keys @ h / temperature)
    return h + v_o / g[kept].sum()


@pytest.mark.parametrize(
    ("parents", "children", "top_k", "temperature"), [(7, 3, 2, 1.6), (4, 1, 4, 1.0), (5, 2, 1, 1.0)]
)
def test_spartan_equals_the_papers_equations(parents: int, children: int, top_k: int, temperature: float):
    sizes = {"parents": parents, "children": children, "top_k": top_k}
    module = randomised(Memory(D, **sizes, temperature=temperature, std=0.02))
    h = torch.randn(2, 9, D)
    w = arrays(module)
    expected = [[spartan_of_one_token(t.astype(np.float64), w, top_k, temperature) for t in row] for row in h.numpy()]
    check(np.array(expected), module, h)


def test_spartan_keeps_exactly_k_parents_and_their_shares_sum_to_one():
    module = randomised(Memory(D, parents=16, children=3, top_k=8, temperature=1.0, std=0.02))
    shares = module.parent_weights(torch.randn(50, D))
    assert ((shares > 0).sum(-1) == 8).all()
    torch.testing.assert_close(shares.sum(-1), torch.ones(50))


def test_spartan_keeps_all_parents_that_tie_with_the_last_kept():
    module = Memory(D, parents=6, children=2, top_k=2, temperature=1.0, std=0.02)
    module.parents.data = torch.eye(6, D)
    y = torch.tensor([[3.0, 1.0, 1.0, 1.0, 0.0, -1.0] + [0.0] * 6])
    assert (module.parent_weights(y) > 0).tolist() == [[True, True, True, True, False, False]]


class Linear(nn.Module):
    """A linear layer with its LoRA."""

    def __init__(self, linear: nn.Linear, lora: nn.Module) -> None:
        super().__init__()
        self.linear, self.lora = linear, lora

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lora(self.linear(x), x)


def test_lora_equals_a_linear_layer_with_merged_weight():
    linear, x = nn.Linear(D, 7), torch.randn(2, 3, D)
    module = randomised(LowRank(D, 7, rank=4, scale=16 / 4))
    w = arrays(module)
    w0, bias = linear.weight.detach().numpy(), linear.bias.detach().numpy()
    merged = w0 + 16 / 4 * (w["B"] @ w["A"])
    check(x.numpy() @ merged.T + bias, Linear(linear, module), x)


@pytest.mark.parametrize(("stabilised", "expected"), [(False, 16 / 4), (True, 16 / 2)])
def test_lora_scales_by_alpha_over_rank_and_rank_stabilised_by_its_root(tiny_sites, stabilised: bool, expected: float):
    method = LoRA(rank=4, alpha=16, rank_stabilised=stabilised)
    assert [module.scale for module in method.build(tiny_sites).values()] == [expected] * len(tiny_sites)


def test_initial_values_are_the_published_ones(tiny_sites):
    """Spreads of large samples: methods.md's table of inits; the bound of Kaiming-uniform(sqrt 5) is 1 / sqrt(in)."""
    houlsby = adapter(Houlsby(), 768)
    assert houlsby.down.weight.abs().max() <= 2e-3
    assert houlsby.down.weight.std().item() == pytest.approx(0.88e-3, rel=0.02)  # a normal truncated at two sigma
    pfeiffer = adapter(Pfeiffer(), 768)
    assert pfeiffer.up.weight.std().item() == pytest.approx(0.02, rel=0.02)
    spartan = Memory(768, parents=16, children=3, top_k=8, temperature=1.0, std=0.02)
    assert all(p.std().item() == pytest.approx(0.02, rel=0.03) for p in spartan.parameters())
    lora = LowRank(768, 768, 8, 2.0)
    assert not lora.B.any()
    assert lora.A.abs().max().item() == pytest.approx(768**-0.5, rel=0.01)
    biases = [p for m in (houlsby, pfeiffer) for n, p in m.named_parameters() if n.endswith("bias")]
    assert not any(bias.any() for bias in biases)
