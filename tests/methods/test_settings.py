"""Hyperparameters from texts: what is accepted, and what the refusal says."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pytest

from edgepeft.common.errors import UnknownName, UsageError
from edgepeft.methods.base import Method, method_named, methods, option
from edgepeft.methods.lora import LoRA
from edgepeft.methods.pfeiffer import Pfeiffer
from edgepeft.methods.spartan import Spartan


def test_texts_become_the_fields_types():
    texts = {"rank": "4", "alpha": "8", "roles": "query,key", "rank_stabilised": "true"}
    assert LoRA.from_settings(texts) == LoRA(rank=4, alpha=8.0, roles=("query", "key"), rank_stabilised=True)


def test_one_value_of_several_needs_no_list():
    assert LoRA.from_settings({"leave_out": 1}) == LoRA(leave_out=(1,))


@pytest.mark.parametrize("text", ["true", "True", "1", "yes"])
def test_truths_have_several_spellings(text: str):
    assert Pfeiffer.from_settings({"norms": text}).norms is True


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        ("lora", {"rank": "4.5"}, "lora's rank needs a value of type int; found '4.5'"),
        ("lora", {"rank": 4.5}, "lora's rank needs a value of type int; found 4.5"),
        ("lora", {"rank": True}, "lora's rank needs a value of type int; found True"),
        ("lora", {"rank": "0"}, "rank must be at least 1; found 0"),
        ("lora", {"rank": "9" * 20}, "lora's rank is at most 9,007,199,254,740,992; found '99999999999999999999'"),
        ("lora", {"alpha": "nan"}, "lora's alpha needs a value of type float; found 'nan'"),
        ("lora", {"roles": "query,vaule"}, "Did you mean 'value'"),
        ("lora", {"roles": ""}, "Known: attention_output, ffn_gate"),
        ("lora", {"leave_out": None}, "lora's leave_out needs a value of type int; found None"),
        ("lora", {"roles": "query,query"}, "names 'query' twice"),
        ("lora", {"rnk": "1"}, "no hyperparameter of lora is called 'rnk'. Did you mean 'rank'?"),
        ("pfeiffer", {"placement": "fnn"}, "pfeiffer's placement is one of ffn, attention; found 'fnn'"),
        ("pfeiffer", {"norms": "maybe"}, "pfeiffer's norms is true or false; found 'maybe'"),
        ("spartan", {"temperature": "inf"}, "spartan's temperature needs a value of type float; found 'inf'"),
        ("houlsby", {"bottleneck": "-3"}, "bottleneck must be at least 1; found -3"),
        ("houlsby", {"std": "nan"}, "houlsby's std needs a value of type float; found 'nan'"),
        ("houlsby", {"std": "-1"}, "std must be positive; found -1.0"),
        ("spartan", {"top_k": "17"}, "top_k must be between 1 and parents, 16; found 17"),
        ("spartan", {"temperature": "0"}, "temperature must be positive; found 0.0"),
        ("bitfit", {"x": "1"}, "no hyperparameter of bitfit is called 'x'. Known: none."),
    ],
)
def test_a_wrong_setting_is_refused_with_what_was_found(method: str, settings: dict, said: str):
    with pytest.raises(UsageError) as refusal:
        method_named(method).from_settings(settings)
    assert said in str(refusal.value)


def test_an_unknown_method_gets_the_nearest_known_one():
    with pytest.raises(UnknownName, match=r"no PE method is called 'spratan'\. Did you mean 'spartan'\?"):
        method_named("spratan")


def test_the_methods_of_this_release_are_found():
    assert set(methods()) >= {"houlsby", "pfeiffer", "spartan", "lora", "bitfit", "layernorm", "full"}


def test_defaults_are_the_published_ones_but_for_rates_that_were_measured():
    spartan = Spartan()
    assert (spartan.parents, spartan.children, spartan.top_k, spartan.temperature) == (16, 3, 8, 1.0)
    assert (LoRA().rank, LoRA().alpha, LoRA().roles) == (8, 16, ("query", "value"))
    assert (Pfeiffer().bottleneck, Pfeiffer().placement, Pfeiffer().norms) == (64, "ffn", False)
    rates = {name: method.learning_rate for name, method in methods().items()}
    published = {"bitfit": 1e-3, "compacter": 3e-3}
    measured = {"pfeiffer": 9e-4, "houlsby": 9e-4, "full": 6e-5, "bottleneck": 3e-4, "lora": 1.5e-3, "ia3": 9e-3}
    measured["spartan"] = 3e-3
    assert {name: rates[name] for name in published | measured} == published | measured


@pytest.mark.parametrize("decorator", [dataclasses.dataclass, dataclasses.dataclass(frozen=True, kw_only=True)])
def test_a_method_is_a_dataclass_and_a_decorator_is_refused_in_words(decorator):
    class Mine(Method):
        name: ClassVar[str] = "mine"
        rank: int = option(3, "r", least=1)

    assert dataclasses.asdict(Mine(rank=2)) == {"rank": 2}
    with pytest.raises(UsageError, match="Mine, a method, is a dataclass by its base: leave @dataclass out"):
        decorator(Mine)
