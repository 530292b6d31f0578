"""AdapterDrop's idea on every method that attaches per layer: the lowest layers stay the backbone's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import suite
import torch
from method_examples import examples

from edgepeft.backbones.base import Role
from edgepeft.backbones.hooks import attached
from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import UsageError
from edgepeft.methods.base import Method, PerLayer, method_named, methods
from edgepeft.methods.houlsby import Houlsby
from edgepeft.methods.lora import LoRA
from edgepeft.methods.pfeiffer import Pfeiffer
from edgepeft.methods.spartan import Spartan

PER_LAYER = {name: method for name, method in methods().items() if issubclass(method, PerLayer)}
EXPORTED = {"compacter", "lora", "pfeiffer", "spartan"}  # one of each structure; that of the others is slow


@pytest.fixture(scope="module", params=PER_LAYER)
def case(request: pytest.FixtureRequest, tiny: Callable[..., Path]) -> suite.Case:
    """Its first example on three layers, two of them skipped."""
    method = dataclasses.replace(examples(PER_LAYER[request.param])[0], skip_layers=2)
    return suite.Case(method, open_backbone(str(tiny("roberta", num_hidden_layers=3))))


@pytest.mark.parametrize("method", methods().values(), ids=methods())
def test_a_method_with_modules_in_layers_has_the_setting(named, method: type[Method]):
    sites = method().sites(named("bert-base-uncased"))
    in_layers = any(site.layer is not None for site in sites)
    in_layers &= not any(site.role is Role.ATTENTION_BIAS for site in sites)  # which all layers read
    assert ("skip_layers" in {field.name for field in dataclasses.fields(method)}) == in_layers


def test_the_skipped_layers_have_no_module_and_the_others_all_of_theirs(case: suite.Case):
    every = dataclasses.replace(case.method, skip_layers=0).sites(case.architecture)
    assert {site.layer for site in every} == {0, 1, 2}
    assert set(case.fresh().site_modules) == {site.name for site in every if site.layer == 2}


def test_the_count_is_that_of_what_is_left(case: suite.Case):
    suite.count_is_the_deltas(case)


def test_gradients_reach_what_is_left(case: suite.Case):
    suite.gradients_are_the_deltas_alone(case)


@pytest.mark.parametrize(
    "case",
    [pytest.param(name, marks=[] if name in EXPORTED else [pytest.mark.slow]) for name in PER_LAYER],
    indirect=True,
)
def test_the_exported_graph_is_spliced_into_the_upper_layers(case: suite.Case):
    suite.torch_equals_onnxruntime(case)


def test_what_lies_below_is_the_backbones_to_the_bit(case: suite.Case):
    rows = case.rows(5, 9)
    modules = {case.architecture.site(name): module for name, module in case.moved.site_modules.items()}
    with torch.no_grad():
        bare = case.model(**rows, output_hidden_states=True).hidden_states
        with attached(case.model, modules):
            adapted = case.model(**rows, output_hidden_states=True).hidden_states
    assert all(torch.equal(*both) for both in zip(bare[:3], adapted[:3], strict=True))  # embeddings, layers 0 and 1
    assert not torch.allclose(bare[3], adapted[3])


@pytest.mark.parametrize("name", PER_LAYER)
@pytest.mark.parametrize("skipped", [12, -1])
def test_as_many_as_there_are_or_fewer_than_none_is_refused(named, name: str, skipped: int):
    method = method_named(name).from_settings({"skip_layers": str(skipped)})
    said = rf"{name}'s skip_layers must be between 0 and 11, for this roberta has 12 layers; found {skipped}\."
    for asked in (method.sites, method.n_parameters):
        with pytest.raises(UsageError, match=said.replace("+", r"\+")):
            asked(named("roberta-base"))


@pytest.mark.parametrize(
    ("method", "count"),
    [
        (Houlsby(skip_layers=5, norms=False), 7 * 2 * (2 * 64 * 768 + 64 + 768)),
        (Houlsby(skip_layers=5), 7 * 2 * (2 * 64 * 768 + 64 + 768) + 38_400),  # the norms of the lower layers too
        (Pfeiffer(skip_layers=11), 2 * 64 * 768 + 64 + 768),
        (Spartan(skip_layers=3, norms=False), 9 * 16 * 7 * 768),
        (LoRA(skip_layers=6), 6 * 2 * 8 * (768 + 768)),
    ],
    ids=str,
)
def test_a_skipped_layer_costs_nothing(named, method: PerLayer, count: int):
    assert method.n_parameters(named("roberta-base")) == count


def test_adapterdrop_is_houlsbys_adapters_without_the_five_lowest_layers(named):
    dropped = method_named("adapterdrop")()
    roberta = named("roberta-base")
    assert dropped.sites(roberta) == Houlsby(skip_layers=5).sites(roberta)
    assert dropped.n_parameters(roberta) == 14 * (2 * 64 * 768 + 64 + 768) + 38_400
    assert dropped.overrides(roberta) == Houlsby().overrides(roberta)


@pytest.mark.parametrize("name", PER_LAYER)
def test_any_set_of_layers_can_be_left_out(named, name: str):
    method = method_named(name).from_settings({"skip_layers": "2", "leave_out": "7,4,11"})
    assert {site.layer for site in method.sites(named("roberta-base"))} == {2, 3, 5, 6, 8, 9, 10}


def test_a_layer_left_out_costs_nothing(named):
    left = Houlsby(leave_out=(0, 5, 5), norms=False)
    assert left.n_parameters(named("roberta-base")) == 10 * 2 * (2 * 64 * 768 + 64 + 768)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"leave_out": "12"}, r"houlsby's leave_out names layers from 0 to 11; found 12\."),
        ({"leave_out": "3,-1"}, r"found -1\."),
        ({"skip_layers": "9", "leave_out": "9,10,11"}, "leave no layer of 12 with a module"),
        ({"leave_out": "first"}, "houlsby's leave_out needs a value of type int; found 'first'"),
    ],
)
def test_layers_that_are_not_there_and_all_of_them_cannot_be_left_out(named, settings: dict, said: str):
    with pytest.raises(UsageError, match=said):
        Houlsby.from_settings(settings).sites(named("roberta-base"))
