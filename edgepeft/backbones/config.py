"""JSON files that describe a model, without torch (``source.py`` may convert with it, and no board loads that).

The Hugging Face configs of architectures known by name are package data, without weights.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from edgepeft.common.errors import BundleError, UnknownName, UsageError
from edgepeft.common.resources import json_at, package_data

MAX_LAYERS = 1000
_LARGEST = 100_000_000  # no size of a model that exists; a damaged config must not fill the memory


def read_config(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        config = json_at(path)
    except OSError as error:
        raise BundleError(f"{path} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise BundleError(f"{path} cannot be read as JSON ({error}).") from error
    if not isinstance(config, dict):
        raise BundleError(f"{path} holds {type(config).__name__}; a JSON object was expected.")
    return config


def checked(key: str, value: Any, kind: type = int) -> Any:
    """A config's value, of ``kind`` int, float or str."""
    minimum = 0 if key.endswith("token_id") else 1
    wrong = not isinstance(value, (int, float) if kind is float else kind) or isinstance(value, bool)
    if wrong or (kind is int and not minimum <= value <= _LARGEST) or (kind is float and not 0 < value < 1):
        raise UsageError(f"the backbone's config.json needs {key} as a positive {kind.__name__}; found {value!r}.")
    return value


# How most configs call what is not called so there.
KEYS = {"n_layers": "num_hidden_layers", "n_heads": "num_attention_heads", "max_length": "max_position_embeddings"}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What every config says; a family's own has more, and what transformers takes where one is silent."""

    hidden_size: int
    n_layers: int
    n_heads: int
    intermediate_size: int
    vocab_size: int
    max_length: int
    pad_token_id: int
    layer_norm_eps: float
    activation: str

    @property
    def common(self) -> dict[str, Any]:
        """Those of every family."""
        return {each.name: getattr(self, each.name) for each in fields(Sizes)}


T = TypeVar("T", bound=Sizes)


def read_sizes(sizes: type[T], config: Mapping[str, Any], silent: Mapping[str, Any], keys: Mapping[str, str]) -> T:
    """Fill the dataclass from a config.

    ``silent``, before the fields' own defaults, has what stands for null and missing keys, ``keys`` how a config calls
    what it does not call as most do.
    """
    keys, values = {**KEYS, **keys}, dict[str, Any]()
    for name, kind in get_type_hints(sizes).items():
        value = config.get(keys.get(name, name))
        value = silent.get(name, getattr(sizes, name, None)) if value is None else value
        values[name] = checked(keys.get(name, name), value, kind)
    for name, value in values.items():
        if name.endswith("_layers") and value > MAX_LAYERS:
            raise UsageError(f"the config's {keys.get(name, name)} is {value}; at most {MAX_LAYERS} layers are built.")
        if name.endswith("_token_id") and value >= values["vocab_size"]:
            raise UsageError(f"the config's {name} is {value}, beyond its vocabulary of {values['vocab_size']}.")
    return sizes(**values)


def require_known(key: str, value: Any, known: Iterable[str]) -> None:
    """See that a config's value is one that is supported."""
    names = list(known)
    if not isinstance(value, str) or value not in names:
        raise UsageError(f"the config's {key} is {value!r}; supported: {', '.join(names)}.")


def require_switches(config: Mapping[str, Any], *keys: str) -> None:
    """See that these are true or false, where they are there."""
    for key in keys:
        if not isinstance(config.get(key, False), bool):
            raise UsageError(f"the config's {key} is {config[key]!r}; supported: true and false.")


def architecture_names() -> list[str]:
    """The names that ``config_of`` takes."""
    return sorted(path.stem for path in package_data("architectures").glob("*.json"))


def config_of(name: str) -> dict[str, Any]:
    """The Hugging Face config of a named architecture; an organisation before a slash may be left out."""
    known = {known.lower(): known for known in architecture_names()}
    key = name.rsplit("/", 1)[-1].lower()
    if key not in known:
        raise UnknownName("architecture", name, known.values())
    return read_config(package_data("architectures") / f"{known[key]}.json")


def rope_of(
    config: Mapping[str, Any],
    key: str = "rope_theta",
    default: float = 10_000.0,
    kind: str = "",
    *,
    instead: float | None = None,
    scaled: Sequence[str] = (),
) -> dict[str, Any]:
    """RoPE's settings, with ``rope_type`` and its base, ``rope_theta``.

    They stand in ``rope_parameters`` of transformers 5, there perhaps by ``kind`` of layers, or in ``rope_scaling``; a
    base that neither has by a ``key`` of its own.  ``default`` is for a config that is silent, ``instead`` for one that
    says null; ``scaled`` are the types that are known besides default.
    """
    scaling, whole = _mapping(config, "rope_scaling"), _mapping(config, "rope_parameters")
    own = _mapping(whole, kind, "rope_parameters") if kind else whole
    if kind and not any(isinstance(each, Mapping) for each in whole.values()):  # of layers that see all
        whole = own = whole if kind == GLOBAL else {}
    found: dict[str, Any] = {"rope_type": "default"}
    for name, given in (("rope_scaling", scaling), ("rope_parameters", {**whole, **own})):
        found |= {**given, "rope_type": given.get("rope_type", given.get("type", found["rope_type"]))}
        if found["rope_type"] not in ("default", *scaled):
            known = ", ".join(("default", *scaled)) if scaled else "default, which scales nothing"
            raise UsageError(f"the config's {name} has the rope_type {found['rope_type']!r}; supported: {known}.")
        if (part := given.get("partial_rotary_factor")) not in (None, 1):
            raise UsageError(f"the config's {name} has the partial_rotary_factor {part!r}; supported: 1.0.")
    theta: Any = {**scaling, **own}.get("rope_theta", config.get(key, default))
    theta = instead if theta is None else theta
    wrong = isinstance(theta, bool) or not isinstance(theta, (int, float))
    if wrong or not math.isfinite(theta) or theta < 1:
        place = key if key == "rope_theta" else f"{key} (or rope_theta)"
        raise UsageError(f"the config's {place} must be a number from 1 on; found {theta!r}.")
    return {**found, "rope_theta": float(theta)}


GLOBAL, LOCAL = "full_attention", "sliding_attention"


def layer_types(config: Mapping[str, Any], usual: Sequence[str]) -> list[str]:
    """Each layer's attention, ``GLOBAL`` or ``LOCAL``: the config's ``layer_types``, or the ``usual`` ones."""
    kinds = list(usual) if config.get("layer_types") is None else config["layer_types"]
    if not isinstance(kinds, list) or len(kinds) != len(usual):
        raise UsageError(f"the config's layer_types must name the attention of {len(usual)} layers; found {kinds!r}.")
    for kind in kinds:
        if kind not in (GLOBAL, LOCAL):
            raise UsageError(f"the config's layer_types has {kind!r}; supported: {GLOBAL}, {LOCAL}.")
    return kinds


def _mapping(config: Mapping[str, Any], key: str, called: str = "") -> Mapping[str, Any]:
    """A config's object, empty where there is none."""
    value = config.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(f"the config's {called or key} must be an object; found {value!r}.")
    return value or {}
