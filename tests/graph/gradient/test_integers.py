"""The way back through products in integers: alone against its equation, in a whole model against PyTorch's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import suite
import torch
from method_examples import examples
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file
from tiny import with_outliers
from tolerance import error_of_sums
from torch import Tensor, nn
from torch.nn import functional

from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.emit import INT8_WEIGHTS_FILE, WEIGHTS_FILE, external_tensor
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.device.machine import saturates_in_8_bits
from edgepeft.graph.gradient import rule as gradient_rule
from edgepeft.graph.gradient.rule import INTEGER_PRODUCT, differentiate, rules
from edgepeft.graph.gradient.training import training_facts
from edgepeft.graph.quantise import quantise, quantised_tensors
from edgepeft.graph.shapes import value_specs
from edgepeft.methods.base import methods
from edgepeft.runtime.session import open_session
from edgepeft.training.exporting.backbone import write_backbone
from edgepeft.tuning.activation_cache import training_graph
from edgepeft.tuning.step import StepRows, TrainingStep
from edgepeft.tuning.target import deployed_graph

T, IN, OUT = 5, 24, 16
WORDS = "embeddings.word_embeddings.weight"
# A flipped rounding moves one value by a step, 1/255 of its row's range; a lost path, or a scale, is far more.
FLIPPED = 0.02


def product(folder: Path, dy: np.ndarray, backward: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The gradient of sum(dy * (x W^T)) by x, and what W is stored as."""
    source = np.random.default_rng(0)
    save_file({"w": source.normal(size=(OUT, IN)).astype(np.float32)}, folder / WEIGHTS_FILE)
    whole = Checkpoint.open(folder / WEIGHTS_FILE)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [T, IN])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [T, OUT])
    node = helper.make_node("Gemm", ["x", "w"], ["y"], name="y", transB=1)
    graph = helper.make_graph([node], "product", [x], [y], [external_tensor(whole.tensors["w"])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    stored = quantised_tensors(model.graph, whole)
    save_file(stored, folder / INT8_WEIGHTS_FILE)
    quantise(model, Checkpoint.open(folder / INT8_WEIGHTS_FILE))
    model.graph.initializer.append(numpy_helper.from_array(dy, "dy"))
    model.graph.node.append(helper.make_node("Mul", ["y", "dy"], ["weighted"]))
    model.graph.node.append(helper.make_node("ReduceSum", ["weighted"], ["loss"], keepdims=0))
    found = differentiate(model.graph, "loss", ["x"], [value_specs(model, {})], backward)
    model.graph.output.append(helper.make_tensor_value_info(found["x"], TensorProto.FLOAT, [T, IN]))
    (gradient,) = open_session(model, folder, 1).run([found["x"]], {"x": source.normal(size=(T, IN)).astype("f4")})
    return gradient, stored


def test_in_float32_it_is_the_product_with_what_the_8_bits_stand_for(tmp_path):
    dy = np.random.default_rng(1).normal(size=(T, OUT)).astype(np.float32)
    gradient, stored = product(tmp_path, dy, "fp32")
    terms = dy[:, :, None].astype(np.float64) * stored["w:scale"][:, None] * stored["w:int8:transposed"].T
    error = error_of_sums(OUT + 2, np.abs(terms).sum(1))
    np.testing.assert_allclose(gradient, terms.sum(1), rtol=0, atol=error)


@pytest.mark.parametrize("saturates", [True, False])
def test_in_integers_each_row_is_rounded_to_127_steps_of_its_own(tmp_path, monkeypatch, saturates):
    """Rows so that dy times the scales lies near the middle of a step, far from where rounding turns."""
    if not saturates and saturates_in_8_bits():
        pytest.skip("products of uint8 and int8 overflow on this processor")
    monkeypatch.setattr("edgepeft.graph.gradient.rules.products.saturates_in_8_bits", lambda: saturates)
    source, steps = np.random.default_rng(1), 10.0 ** np.arange(-3, T - 3)
    integers = source.integers(-127, 128, (T, OUT))
    integers[:, 0] = 127
    integers[3] = 0
    scale = np.abs(np.random.default_rng(0).normal(size=(OUT, IN)).astype("f4")).max(1) / np.float32(127)
    off = np.where(np.abs(integers) == 127, 0, source.uniform(-0.4, 0.4, (T, OUT))) * (integers != 0)
    dy = ((integers + off) * steps[:, None] / scale).astype(np.float32)
    gradient, stored = product(tmp_path, dy, "int8")
    expected = integers @ stored["w:int8:transposed"].T.astype(np.int64) * steps[:, None]
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=error_of_sums(8, np.abs(expected)))
    assert not gradient[3].any()


class Rounded(nn.Module):
    """A Linear as `edgepeft.graph.quantise` deploys it, straight through its rounding."""

    def __init__(self, weight: np.ndarray, bias: Tensor, zero: int, columns: np.ndarray | None) -> None:
        super().__init__()
        self.columns = None if columns is None else torch.from_numpy(columns).double()
        self.weight, self.bias = torch.from_numpy(weight).double(), nn.Parameter(bias.double(), requires_grad=False)
        self.zero = zero

    def forward(self, x: Tensor) -> Tensor:
        if self.columns is not None:  # one step for all rows
            fixed = torch.round(x * self.columns).clamp(-128, 127) / self.columns
            return functional.linear(x + (fixed - x).detach(), self.weight, self.bias)
        scale = torch.maximum(x.amax(-1) / (255 - self.zero), -x.amin(-1) / self.zero)[..., None].clamp(min=1e-30)
        rounded = (torch.round(x / scale) + self.zero).clamp(0, 255) - self.zero
        return functional.linear(x + (rounded * scale - x).detach(), self.weight, self.bias)


def rounded(model: nn.Module, stored: Checkpoint, method: str) -> nn.Module:
    """BERT with 8-bit projections and words, in float64."""
    in_attention = method in ("lora", "bitfit")  # which then has a step for each row
    model = copy.deepcopy(model).double()
    for name, module in list(model.encoder.named_modules()):
        if isinstance(module, nn.Linear):
            after_gelu = name.endswith("output.dense") and "attention" not in name
            path, _, last = name.rpartition(".")
            weight, zero = f"encoder.{name}.weight", 16 if after_gelu else 128
            columns = load_file(stored.path).get(f"{weight}:columns")
            if in_attention and name.endswith("attention.output.dense"):
                assert columns is not None and columns.shape == (1,)
                columns = None
            deployed = Rounded(stored.read(weight), module.bias.detach(), zero, columns)
            setattr(model.encoder.get_submodule(path), last, deployed)
    model.embeddings.word_embeddings.weight.data = torch.from_numpy(stored.read(WORDS)).double()
    return model


@pytest.fixture(scope="module")
def eight(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Bundle]:
    folder = tmp_path_factory.mktemp("eight")
    backbone = open_backbone(str(with_outliers(tiny("bert", vocab_size=1100), tmp_path_factory.mktemp("bert"))))
    write_backbone(backbone, folder, "int8")
    return backbone, Bundle(folder)


def gradients(eight: tuple[Any, Bundle], method: str, backward: Any) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(tensor, ours, PyTorch's), of a ragged batch."""
    backbone, bundle = eight
    case = suite.Case(examples(methods()[method])[0], backbone)
    rows, targets = case.rows(5, 9), torch.arange(5) % len(suite.LABELS)
    facts = training_facts(case.graph)
    whole = deployed_graph(case.graph, facts, bundle)
    graph, _ = training_graph(whole, facts, bundle.checkpoint, prefix_cache=False, backward=backward)
    step = TrainingStep(graph, facts, bundle.folder, 1)
    masks = [np.ones((5, width), np.float32) for _, width in facts.dropouts]
    given = {name: tensor.numpy() for name, tensor in rows.items()}
    found = step(facts.tensors(case.graph), StepRows(given, targets.numpy(), masks)).gradients
    delta = copy.deepcopy(case.moved).eval().double()
    functional.cross_entropy(delta.logits(rounded(case.model, bundle.checkpoint, method), rows), targets).backward()
    for name, parameter in delta.tensors().items():
        part, _, rest = name.partition("/")
        on_graph = f"override/{bundle.checkpoint.stored_name(rest)}" if part == "override" else name
        assert parameter.grad is not None
        yield name, found[on_graph], parameter.grad.numpy()


def require_alike(pairs: Iterable[tuple[str, np.ndarray, np.ndarray]]) -> None:
    found = list(pairs)
    largest = max(np.abs(theirs).max() for _, _, theirs in found)
    for name, ours, theirs in found:  # a key's bias moves no softmax: its gradient is 0, and float's noise of others'
        error = FLIPPED * np.abs(theirs).max() + 1e-6 * largest
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=error, err_msg=name)


@pytest.mark.parametrize("method", ["pfeiffer", "lora", "bitfit", "prompt-t"])
def test_a_whole_model_has_the_gradients_of_pytorch_straight_through_the_rounding(eight, method):
    require_alike(gradients(eight, method, "fp32"))


@pytest.mark.parametrize("method", ["pfeiffer", "lora"])
def test_in_integers_every_gradient_has_nearly_the_same_direction(eight, method):
    for name, ours, theirs in gradients(eight, method, "int8"):
        cosine = (ours * theirs).sum() / np.sqrt((ours**2).sum() * (theirs**2).sum())
        assert cosine > 0.98 and abs((ours**2).sum() / (theirs**2).sum() - 1) < 0.1, name


def test_a_rule_that_forgets_the_scales_is_found(eight, monkeypatch: pytest.MonkeyPatch):
    known = rules()

    def wrong(at: Any) -> Any:
        yield 0, at.op("Gemm", at.dy, at.op("Cast", at.node.input[1], to=TensorProto.FLOAT), transB=1)

    monkeypatch.setattr(gradient_rule, "rules", lambda: {**known, INTEGER_PRODUCT: wrong})
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        require_alike(gradients(eight, "pfeiffer", "fp32"))


def test_the_roundings_are_no_path_of_their_own(eight):
    """What finds a row's range and rounds it is in no gradient: the integers are read by nothing on the way back."""
    _, bundle = eight
    case = suite.Case(examples(methods()["pfeiffer"])[0], eight[0])
    facts = training_facts(case.graph)
    whole = deployed_graph(case.graph, facts, bundle)
    graph: onnx.ModelProto = training_graph(whole, facts, bundle.checkpoint, prefix_cache=False)[0]
    back = [node for node in graph.graph.node if node.name.startswith("back/")]
    read = {name for node in back for name in node.input}
    assert not any(name.endswith((":uint8", ":highest", ":lowest", ":int32", ":scales", ":bytes")) for name in read)
