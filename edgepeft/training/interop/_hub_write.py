"""A delta as a folder of AdapterHub's: its config, and the tensors by the names that the importer reads them by.

The importer's conversion plan, in which only names differ, is inverted, so the mapping is written once.
Source: adapters 1.3.0, ``loading.py``, ``heads/base.py``.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from edgepeft.backbones.base import Role
from edgepeft.backbones.source import Backbone
from edgepeft.bundle.delta import Delta, write_tensors
from edgepeft.common.atomic import new_folder, write_json
from edgepeft.common.errors import UsageError
from edgepeft.methods._adapters import KroneckerAdapters
from edgepeft.methods.base import Method, PerLayer, method_named, methods
from edgepeft.methods.bottleneck import BottleneckAdapter
from edgepeft.methods.compacter import Compacter
from edgepeft.methods.houlsby import Houlsby
from edgepeft.methods.lora import LoRA
from edgepeft.methods.mam import MAM
from edgepeft.methods.pfeiffer import Pfeiffer
from edgepeft.methods.phm import PHM
from edgepeft.methods.prefix import PrefixTuning
from edgepeft.methods.prompt_r import PromptR
from edgepeft.training.interop._hub_adapter import ACTIVATION_NAMES, Places
from edgepeft.training.interop._hub_head import HEAD_CONFIG, HEAD_FILES, written_head
from edgepeft.training.interop.adapterhub import CONFIG_FILE, LORA_MATRICES, TENSORS_FILES, plan_of
from edgepeft.training.interop.classifier import Classifier

_VERSION = "adapters.1.3.0"  # whose names these are
# Of the classes that have any head; adapters has none for MPNet and ModernBERT.
_CLASSES = {
    "bert": "BertAdapterModel",
    "roberta": "RobertaAdapterModel",
    "xlm-roberta": "XLMRobertaAdapterModel",
    "distilbert": "DistilBertAdapterModel",
    "electra": "ElectraAdapterModel",
    "deberta-v2": "DebertaV2AdapterModel",
}
_KEEPS: Mapping[str, Any] = {"sublayer": True, "norm": False, "sum": "post_add"}
_ATTENTION, _FFN = str(Role.ATTENTION_OUTPUT), str(Role.FFN_OUTPUT)

Settings = dict[str, Any]


def write_adapterhub(delta: Delta, backbone: Backbone, folder: Path, *, force: bool = False) -> str:
    """Write a folder, whole or not at all, that AdapterHub loads with equal logits; gives what loads it, and where."""
    card, architecture = delta.card, backbone.architecture
    model = _CLASSES.get(architecture.model_type)
    if model is None:
        _refuse(delta, f"it is of a {architecture.model_type}", f"Backbones that can go: {', '.join(_CLASSES)}")
    name = re.sub(r"\W", "_", card.task)  # a module's name has no dots
    around = {"hidden_size": architecture.hidden_size, "model_class": model, "model_name": card.backbone.source}
    around |= {"model_type": architecture.model_type, "name": name, "version": _VERSION}
    head, places = written_head(delta)
    settings = _settings(delta)
    _, plan = plan_of(settings, Places(Classifier(backbone), name), folder / CONFIG_FILE)
    ours = delta.folded(backbone).tensors()
    adapter, of_method = plan.back(ours), {own for own in ours if own.partition("/")[0] != "head"}
    held = {own for _, own in plan.names}.union(*plan.joined.values())
    if adapter.keys() != plan.shapes.keys() or of_method - held:
        _refuse(delta, "it has modules where AdapterHub has none, or none where it has some", "Train other roles")
    of_head = {f"heads.{name}.{place}": ours[own] for place, own in places.items()}
    with new_folder(folder, force=force) as new:
        for file, tensors in ((TENSORS_FILES[0], adapter), (HEAD_FILES[0], of_head)):
            write_tensors({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, new / file)
        write_json(new / CONFIG_FILE, {**around, "config": settings})
        write_json(new / HEAD_CONFIG, {**around, "config": head})
    return f"adapters' load_adapter(FOLDER, use_safetensors=True) of a {model} of {backbone.source}"


def _settings(delta: Delta) -> Settings:
    method = method_named(delta.card.method).from_settings(delta.card.hyperparameters)
    said = next((say for kind, say in _SAID.items() if isinstance(method, kind)), None)
    if said is None:
        known = sorted(name for name, each in methods().items() if issubclass(each, tuple(_SAID)))
        _refuse(delta, f"it has no form for {method.name}", f"What can be: {', '.join(known)}")
    if getattr(method, "norms", False):
        _refuse(delta, "LayerNorms are trained too, which save_adapter leaves out", "Train it with --set norms=false")
    settings: Settings = said(delta, method)
    if isinstance(method, PerLayer):
        used = set(delta.adapted_layers())
        every = {site.layer for site in delta.architecture.sites_of(Role.LAYER_OUTPUT)}
        settings["leave_out"] = sorted(layer for layer in every if layer is not None and layer not in used)
    return settings


def _bottleneck(
    delta: Delta, method: Any, roles: Sequence[str], reads: str, keeps: str = "sublayer", **more: Any
) -> Settings:
    """What all adapters between layers have: m = d // reduction_factor, the forms of ``_hub_adapter``."""
    d, m = delta.architecture.hidden_size, method.bottleneck
    after_the_layer = str(Role.LAYER_OUTPUT) in roles
    if (reads != "norm" and keeps != "sublayer") or (after_the_layer and len(roles) > 1):
        at = ", ".join(roles)
        _refuse(delta, f"reads={reads} with keeps={keeps} at {at} is no form of its adapters", "Train it with another")
    return {
        "mh_adapter": _ATTENTION in roles,
        "output_adapter": _FFN in roles or after_the_layer,
        "cross_adapter": False,
        "reduction_factor": d // m if d % m == 0 else d / m if int(d // (d / m)) == m else d / (m + 0.5),
        "non_linearity": next(theirs for theirs, ours in ACTIVATION_NAMES.items() if ours == method.activation),
        "original_ln_before": reads == "norm" or after_the_layer,
        "original_ln_after": not after_the_layer,
        "residual_before_ln": not after_the_layer and _KEEPS[keeps],
        "is_parallel": reads == "residual",
        "scaling": 1.0,
        **more,
    }


def _general(delta: Delta, method: BottleneckAdapter) -> Settings:
    norms = {"ln_before": method.norm_before, "ln_after": method.norm_after != "none"}
    norms["adapter_residual_before_ln"] = method.norm_after == "sum"
    if method.norm_after == "sum" and method.reads == "residual":
        _refuse(delta, "norm_after=sum is no form of its parallel adapters", "Train it with norm_after=change")
    return _bottleneck(delta, method, method.roles, method.reads, method.keeps, **norms)


def _products(delta: Delta, method: KroneckerAdapters) -> Settings:
    """Compacter's rule is shared and its factors are of low rank; PHM's are neither."""
    low_rank = isinstance(method, Compacter)
    of_phm: Settings = {"phm_layer": True, "phm_dim": method.n, "phm_bias": True, "shared_phm_rule": low_rank}
    of_phm |= {"factorized_phm_W": low_rank, "phm_rank": method.rank if isinstance(method, Compacter) else 1}
    return _bottleneck(delta, method, method.roles, method.reads, **of_phm)


def _lora(delta: Delta, method: LoRA) -> Settings:
    known = {*LORA_MATRICES.values(), "ffn_up", "ffn_output"}
    if odd := [role for role in method.roles if role not in known]:
        _refuse(
            delta, f"its LoRA has no matrices at {', '.join(odd)}", f"Roles that can be: {', '.join(sorted(known))}"
        )
    if method.bias != "none" or method.whole:
        _refuse(delta, "tensors of the backbone are trained too", "Train it with --set bias=none, and no whole ones")
    return {
        "architecture": "lora",
        "r": method.rank,
        "alpha": method.alpha * (method.rank**0.5 if method.rank_stabilised else 1),  # theirs is divided by r
        "attn_matrices": [theirs for theirs, role in LORA_MATRICES.items() if role in method.roles],
        "selfattn_lora": not set(method.roles).isdisjoint(LORA_MATRICES.values()),
        "intermediate_lora": "ffn_up" in method.roles,
        "output_lora": "ffn_output" in method.roles,
        "composition_mode": "add",
    }


def _prompt(delta: Delta, method: PromptR) -> Settings:
    if method.place != "embeddings":
        _refuse(delta, "its prompts stand past positions and norm", "Train it with --set place=embeddings")
    return {"architecture": "prompt_tuning", "prompt_length": method.length, "combine": "prefix"}


def _prefix(delta: Delta, method: PrefixTuning) -> Settings:
    if method.text != "stays":
        _refuse(delta, "its texts begin behind the prefix", "Train it with --set text=stays")
    return {"architecture": "prefix_tuning", "prefix_length": method.length, "flat": True}


# Our method -> its settings; a method before what it is made of.
_SAID: Mapping[type[Method], Callable[[Delta, Any], Settings]] = {
    Houlsby: lambda delta, method: _bottleneck(delta, method, method.attaches_to(), "sublayer"),
    Pfeiffer: lambda delta, method: _bottleneck(
        delta, method, method.attaches_to(), "norm" if method.placement == "ffn" else "sublayer"
    ),
    BottleneckAdapter: _general,
    Compacter: _products,
    PHM: _products,
    LoRA: _lora,
    MAM: lambda delta, method: {
        "architecture": "union",
        "configs": [_prefix(delta, method), _general(delta, method.adapter)],
    },
    PrefixTuning: _prefix,
    PromptR: _prompt,
}


def _refuse(delta: Delta, why: str, remedy: str) -> NoReturn:
    raise UsageError(f"the task {delta.card.task!r} cannot be written for AdapterHub: {why}. {remedy}.")
