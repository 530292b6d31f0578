"""The suite catches broken methods: each is planted here, and the check that is meant for it must fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import suite
import torch
from torch import Tensor, nn

from edgepeft.backbones.base import Architecture, Role, Site
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.methods.base import Method


class Shift(nn.Module):
    """y + b, correct; the planted ones change one thing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, y: Tensor) -> Tensor:
        return y + self.shift


class IgnoresItsSite(Shift):
    def forward(self, y: Tensor) -> Tensor:
        return y


class NegatesAtExport(Shift):
    def forward(self, y: Tensor) -> Tensor:
        return y - self.shift if torch.compiler.is_exporting() else y + self.shift


class MixesTokens(Shift):
    """Torch sees [batch, length, d] with padding, the board [tokens, d]."""

    def forward(self, y: Tensor) -> Tensor:
        return y + self.shift + y.mean(0, keepdim=True)


class FixedAtBuild(Shift):
    """A random constant that is not on disk."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.constant = torch.rand(width)

    def forward(self, y: Tensor) -> Tensor:
        return y + self.shift * self.constant


class StartsFarAway(Shift):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        nn.init.normal_(self.shift)


class CopiesTheBackbone(Shift):
    weight: ClassVar[Tensor]

    def forward(self, y: Tensor) -> Tensor:
        return y + self.shift + 0.1 * y @ self.weight


class DetachesItself(Shift):
    def forward(self, y: Tensor) -> Tensor:
        return y + self.shift.detach() + 0 * self.shift


class Planted(Method):
    """Planted (Nobody et al., never)."""

    name: ClassVar[str] = "planted"
    title: ClassVar[str] = "planted"
    paper: ClassVar[str] = "none"
    equation: ClassVar[str] = "y + b"
    near_identity: ClassVar[bool] = True
    learning_rate: ClassVar[float] = 1e-3
    learning_rate_source: ClassVar[str] = "none"
    module: ClassVar[type[Shift]] = Shift

    def sites(self, architecture: Architecture) -> tuple[Site, ...]:
        return architecture.sites_of(Role.FFN_OUTPUT)

    def build(self, sites: Sequence[Site]) -> dict[str, nn.Module]:
        return {site.name: self.module(site.out_features) for site in sites}


class Miscounted(Planted):
    def n_parameters(self, architecture: Architecture, reads: Iterable[str] = ()) -> int:
        return super().n_parameters(architecture, reads) + 1


@pytest.fixture
def backbone(tiny: Callable[..., Path]) -> Backbone:
    return open_backbone(str(tiny("distilbert")))


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, backbone: Backbone) -> Callable[..., suite.Case]:
    def planted(module: type[Shift] = Shift, method: type[Planted] = Planted) -> suite.Case:
        monkeypatch.setattr("edgepeft.bundle.delta.method_named", lambda _: method)
        monkeypatch.setattr(Planted, "module", module)
        return suite.Case(method(), backbone)

    return planted


def test_the_method_that_the_planted_ones_derive_from_passes(plant: Any, tmp_path: Path):
    case = plant()
    for check in (
        suite.settings_survive_json,
        suite.count_is_the_deltas,
        suite.near_identity_is_true,
        suite.gradients_are_the_deltas_alone,
        suite.torch_equals_onnxruntime,
        suite.graph_is_plain_and_its_own,
        suite.export_is_deterministic,
    ):
        check(case)
    suite.survives_disk(case, tmp_path / "delta")


@pytest.mark.parametrize("module", [IgnoresItsSite, NegatesAtExport, MixesTokens])
def test_a_wrong_value_on_either_side_is_caught(plant: Any, module: type[Shift]):
    with pytest.raises(AssertionError):
        suite.torch_equals_onnxruntime(plant(module))


def test_a_wrong_count_is_caught(plant: Any):
    with pytest.raises(AssertionError):
        suite.count_is_the_deltas(plant(method=Miscounted))


def test_a_false_near_identity_is_caught(plant: Any):
    with pytest.raises(AssertionError, match="changes the pooled value"):
        suite.near_identity_is_true(plant(StartsFarAway))


def test_a_part_without_gradient_is_caught(plant: Any):
    with pytest.raises(AssertionError, match="no gradient reaches"):
        suite.gradients_are_the_deltas_alone(plant(DetachesItself))


def test_state_that_is_not_saved_is_caught(plant: Any, tmp_path: Path):
    with pytest.raises(AssertionError):
        suite.survives_disk(plant(FixedAtBuild), tmp_path / "delta")


def test_a_weight_of_the_backbone_inside_the_delta_is_caught(
    plant: Any, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
):
    stored = backbone.checkpoint.read("transformer.layer.0.attention.q_lin.weight").copy()
    monkeypatch.setattr(CopiesTheBackbone, "weight", torch.from_numpy(stored), raising=False)
    with pytest.raises(AssertionError, match="is a weight of the backbone"):
        suite.graph_is_plain_and_its_own(plant(CopiesTheBackbone))
