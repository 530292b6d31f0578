"""AdapterHub's AdapterFusion: a folder of ``save_adapter_setup`` with a Fuse of adapters, each in a folder of its own.

Theirs computes k + sum_i p_i V A_i(z), p = softmax_i((Q z) . (K A_i(z))), of adapters in Pfeiffer's form, with the last
one's z and k.  V before or after the sum is the same.  Source: adapters 1.3.0, ``methods/modeling.py``, ``BertFusion``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict
from torch import Tensor
from torch.nn import functional

from edgepeft.backbones.config import read_config
from edgepeft.common.errors import BundleError
from edgepeft.methods.fusion import Fusion
from edgepeft.methods.pfeiffer import Pfeiffer
from edgepeft.training.interop._hub_bottleneck import Places
from edgepeft.training.interop._hub_config import MethodConfig
from edgepeft.training.interop.conversion import ConversionPlan, StateDict, parsed

__all__ = ["FUSION_FILES", "SETUP_FILE", "FusionConfig", "fusion_plan", "parts_of"]

SETUP_FILE = "adapter_setup.json"
FUSION_FILES = ("model_adapter_fusion.safetensors", "pytorch_model_adapter_fusion.bin")


class _Setup(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    adapter_setup: dict[str, Any]
    head_setup: Any = None


class FusionConfig(MethodConfig):
    """Its settings; what is ignored is of training, or the same by another way."""

    ignored: ClassVar[frozenset[str]] = MethodConfig.ignored | {
        "dropout_prob",
        "regularization",
        "value_before_softmax",
        "value_initialized",
    }

    query: bool
    key: bool
    value: bool
    query_before_ln: bool = False
    residual_before: bool = False
    temperature: bool = False

    def checks(self) -> dict[str, bool]:
        """As its base has them: a softmax over what Q and K make of the norm's output."""
        asked = {"query": self.query, "key": self.key}
        odd = ("query_before_ln", "residual_before", "temperature")
        return asked | {name: not getattr(self, name) for name in odd}


def parts_of(folder: Path) -> tuple[list[Path], Path, Path]:
    """The folders of the adapters in order, of the fusion, and of the head."""
    path = folder / SETUP_FILE
    setup = parsed(_Setup, read_config(path), path)
    children = setup.adapter_setup.get("children") or []
    single = [each.get("children") for each in children if isinstance(each, dict) and each.get("type") == "single"]
    names = [name for each in single if isinstance(each, list) for name in each]
    if setup.adapter_setup.get("type") != "Fuse" or len(names) != len(children) or not all(map(_is_name, names)):
        kind = setup.adapter_setup.get("type")
        raise BundleError(
            f"{path}: a composition of type {kind} with these parts is no delta; what can be is a Fuse of adapters. A "
            "folder of save_adapter, with one adapter, can be imported too."
        )
    head = setup.head_setup
    return [folder / name for name in names], folder / ",".join(names), folder / head if _is_name(head) else folder


def _is_name(value: object) -> bool:
    """Whether it is a folder's in the setup's, and no path to another place."""
    return isinstance(value, str) and value not in ("", ".", "..") and not {"/", "\\", "\0"} & set(value)


def fusion_plan(config: FusionConfig, parts: Sequence[ConversionPlan], places: Places) -> ConversionPlan:
    """The adapters' plans and the fusion's tensors as one; ``places`` are the fusion's."""
    adapters = [part.method for part in parts if isinstance(part.method, Pfeiffer) and part.method.placement == "ffn"]
    if len(adapters) != len(parts) or len({replace(each, bottleneck=1) for each in adapters}) != 1:
        found = "; ".join(f"{part.method.title} {part.method.settings()}" for part in parts)
        raise BundleError(
            "adapters that are fused must all be in Pfeiffer's form (seq_bn) with one activation, in the same layers; "
            f"found {found}. Train a fusion of such, or import one adapter."
        )
    first, width = adapters[0], max(each.bottleneck for each in adapters)
    own = {"adapters": len(parts), "bottleneck": width, "value": config.value, "activation": first.activation}
    layers = {"skip_layers": first.skip_layers, "leave_out": first.leave_out}
    method, architecture = Fusion.from_settings({**own, **layers}), places.classifier.architecture
    used = {site.name for site in method.sites(architecture)}
    names: dict[str, tuple[str, tuple[int, ...]]] = {}
    for site in Fusion.from_settings(own).sites(architecture):  # theirs has it in layers without adapters, too
        d, start = site.out_features, places.of_fusion(site)
        for part in ("query", "key", *(["value"] if config.value else [])):
            names[f"{start}{part}.weight"] = (f"{site.name}/{part}.weight", (d, d))
        names |= {f"{start}{part}.bias": (f"{site.name}/{part}.bias", (d,)) for part in ("query", "key")}

    def convert(state: StateDict) -> dict[str, Tensor]:
        values = {ours: state[theirs] for theirs, (ours, _) in names.items() if ours.partition("/")[0] in used}
        for i, (adapter, part) in enumerate(zip(adapters, parts, strict=True)):
            more = width - adapter.bottleneck  # zeros fill up to the widest
            filled = {"down.weight": (0, 0, 0, more), "down.bias": (0, more), "up.weight": (0, more), "up.bias": (0, 0)}
            for name, tensor in part.convert(state).items():
                site_name, _, of = name.partition("/")
                values[f"{site_name}/adapters.{i}.{of}"] = functional.pad(tensor, filled[of])
        return values

    shapes = {theirs: shape for theirs, (_, shape) in names.items()}
    return ConversionPlan(method, shapes | {name: s for part in parts for name, s in part.shapes.items()}, convert)
