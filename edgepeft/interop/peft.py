"""PEFT's checkpoints (LoRA with its variants of scale, bias and pattern; LayerNorm and prompt tuning), without peft.

Source of the names: peft 0.21.2, ``utils/save_and_load.py``; the golden checkpoints of ``tests/interop`` are its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from edgepeft import __version__
from edgepeft.backbones.config import read_config
from edgepeft.backbones.source import Backbone
from edgepeft.delta import Delta, new_delta
from edgepeft.errors import BundleError
from edgepeft.interop._peft_config import (
    CONFIG_FILE,
    TENSORS_FILE,
    LoraConfig,
    NormConfig,
    PeftConfig,
    PromptConfig,
    WrapConfig,
    read_peft_config,
)
from edgepeft.interop._tensors import check_tensors
from edgepeft.interop.base import Importer, ImportRequest
from edgepeft.interop.classifier import Classifier
from edgepeft.interop.state_dict import read_state_dict
from edgepeft.methods.base import Method
from edgepeft.methods.layernorm import LayerNormTuning
from edgepeft.methods.lora import ROLES, LoRA
from edgepeft.methods.prompt_r import PromptR

__all__ = ["IMPORTER", "Peft"]

_SAVED, _ORIGINAL = ".modules_to_save.", ".original_module."


@dataclass(frozen=True)
class _Entry:
    """Where a tensor of theirs goes: our name, the shape it must have; a factor and zeros at the ends of its dims."""

    name: str
    shape: tuple[int, ...]
    factor: float = 1.0
    padding: tuple[int, ...] = ()

    def value(self, stored: Tensor) -> Tensor:
        """Theirs as ours."""
        return functional.pad(stored * self.factor, self.padding) if self.padding else stored


@dataclass(frozen=True)
class _Plan:
    """Our method, and its tensors by their names."""

    method: Method
    entries: Mapping[str, _Entry]


class Peft(Importer):
    """Folders of ``PeftModel.save_pretrained``."""

    library: ClassVar[str] = "PEFT"
    needs: ClassVar[str] = f"{CONFIG_FILE} with peft_type, {TENSORS_FILE} or .bin"

    def recognises(self, folder: Path) -> bool:
        """By a config that names a ``peft_type``."""
        path = folder / CONFIG_FILE
        return path.is_file() and "peft_type" in read_config(path)

    def read(self, folder: Path, backbone: Backbone, request: ImportRequest) -> Delta:
        """As ``Importer.read``; the head reads the first position, as transformers' does, be it a prompt's."""
        config = read_peft_config(folder)
        classifier = Classifier(backbone)
        _check_saved_modules(config, classifier, folder)
        plan = _plan(config, classifier, folder)
        stored = read_state_dict(folder, TENSORS_FILE, "adapter_model.bin")
        state = _canonical(stored, config, classifier, folder)
        outputs = _outputs(state, classifier, folder)
        heads = {theirs: _Entry(*ours) for theirs, ours in classifier.head_tensors(outputs).items()}
        entries = {**plan.entries, **heads}
        check_tensors(state, {name: entry.shape for name, entry in entries.items()}, folder)
        values = {entry.name: entry.value(state[name]) for name, entry in entries.items()}
        delta = new_delta(
            backbone,
            plan.method,
            request.task,
            request.labels_for(outputs, backbone),
            head=classifier.head,
            max_length=request.length_for(backbone, plan.method.prompt_length),
        )
        delta.read(_completed(delta, values), str(folder))
        reads = "first_position" if plan.method.prompt_length else "first_token"
        delta.card = delta.card.model_copy(update={"head_reads": reads} | _origin(config, folder))
        return delta.eval()


IMPORTER = Peft()


def _plan(config: PeftConfig, classifier: Classifier, folder: Path) -> _Plan:
    if isinstance(config, PromptConfig):
        return _prompt_plan(config, classifier, folder)
    assert isinstance(config, WrapConfig)
    targets = config.targets(classifier.modules)
    known = classifier.norms if isinstance(config, NormConfig) else classifier.linear_sites
    odd = [module for module in targets if module not in known]
    if odd:
        kind = "LayerNorm" if isinstance(config, NormConfig) else "linear layer with a site"
        raise BundleError(f"{folder} adapts what is no {kind} of this backbone: {', '.join(odd)}.")
    if not targets:
        where = f"{classifier.architecture.model_type} has modules such as {next(iter(known))}"
        raise BundleError(f"{folder}: target_modules = {config.target_modules!r} matches nothing; {where}.")
    if isinstance(config, LoraConfig):
        return _lora_plan(config, targets, classifier)
    norms = [f"{module}.{part}" for module in targets for part in ("weight", "bias")]
    return _Plan(LayerNormTuning(), _override_entries(norms, classifier))


def _lora_plan(config: LoraConfig, targets: tuple[str, ...], classifier: Classifier) -> _Plan:
    """Where ranks differ, zeros fill up to the largest; where scales differ, B takes the factor: B A x is the same."""
    sites = {module: classifier.linear_sites[module] for module in targets}
    rank = max(config.rank(module) for module in targets)
    alpha = max((config.alpha(module) for module in targets), key=abs) or 1.0
    roles = tuple(str(role) for role in ROLES if any(site.role is role for site in sites.values()))
    method = LoRA(rank=rank, alpha=alpha, roles=roles, rank_stabilised=config.use_rslora, bias=config.bias)
    scale = alpha / (rank**0.5 if config.use_rslora else rank)
    entries: dict[str, _Entry] = {}
    for module, site in sites.items():
        own, factor = config.rank(module), config.scale(module) / scale
        rows, columns = (0, 0, 0, rank - own), (0, rank - own)
        a, b = (own, site.in_features), (site.out_features, own)
        entries[f"{module}.lora_A.weight"] = _Entry(f"{site.name}/A", a, padding=rows)
        entries[f"{module}.lora_B.weight"] = _Entry(f"{site.name}/B", b, factor, columns)
    every = [name for name in classifier.tensors if name.endswith(".bias")]
    biases = {"none": [], "lora_only": [f"{module}.bias" for module in targets], "all": every}
    return _Plan(method, entries | _override_entries(biases[config.bias], classifier))


def _prompt_plan(config: PromptConfig, classifier: Classifier, folder: Path) -> _Plan:
    """The vectors; what the method started from does not matter any more."""
    architecture = classifier.architecture
    sizes = (architecture.hidden_size, architecture.n_layers)
    if (config.token_dim, config.num_layers) != sizes:
        raise BundleError(
            f"{folder} belongs to another architecture: hidden size {config.token_dim} and {config.num_layers} layers; "
            f"the backbone's are {sizes[0]} and {sizes[1]}."
        )
    method = PromptR(length=config.num_virtual_tokens)
    (site,) = method.sites(architecture)
    entry = _Entry(f"{site.name}/vectors", (method.length, site.out_features))
    return _Plan(method, {"prompt_embeddings": entry})


def _override_entries(names: list[str], classifier: Classifier) -> dict[str, _Entry]:
    ours = {name: classifier.tensors[name] for name in names}
    return {name: _Entry(f"override/{own}", classifier.architecture.shape_of(own)) for name, own in ours.items()}


def _check_saved_modules(config: PeftConfig, classifier: Classifier, folder: Path) -> None:
    head = set(classifier.head_modules.values())
    odd = [module for module in classifier.modules if module not in head and config.saves(module)]
    if odd:
        raise BundleError(
            f"{folder}: modules_to_save has more than the head, which no delta can represent: {', '.join(odd)}."
        )


def _canonical(
    stored: Mapping[str, Tensor], config: PeftConfig, classifier: Classifier, folder: Path
) -> dict[str, Tensor]:
    """The tensors by their names in the model without PEFT's wrappers; what the head lacks comes from the backbone."""
    if isinstance(config, WrapConfig):
        _check_architecture(stored, config.prefix, classifier, folder)
    found = classifier.stored_head()
    # Wrapped copies first, so that the plain name, which is what PEFT reads, has the last word.
    for key in sorted(stored, key=lambda key: _SAVED not in key):
        if _ORIGINAL in key:
            continue  # with bias="all" the untrained head is written too, and not read back
        name = key.removeprefix(config.prefix).replace(".base_layer.", ".").replace(".ln_tuning_layers.", ".")
        if _SAVED in name:
            module, _, rest = name.partition(_SAVED)
            name = (
                f"{module}.{rest}"
                if f"{module}.{rest}" in _head_names(classifier)
                else f"{module}.{rest.partition('.')[2]}"
            )
        found[name] = stored[key]
    return found


def _head_names(classifier: Classifier) -> set[str]:
    return set(classifier.head_tensors(1))


def _check_architecture(stored: Mapping[str, Tensor], prefix: str, classifier: Classifier, folder: Path) -> None:
    encoder = [key for key in stored if not key.startswith(tuple(prefix + name for name in _tops(classifier)))]
    if any(key.startswith(prefix + classifier.prefix) for key in stored):
        return
    shown = f" (for example {encoder[0]})" if encoder else ""
    raise BundleError(
        f"{folder} belongs to another architecture: the backbone is {classifier.architecture.model_type}, whose "
        f"tensors PEFT stores as {prefix}{classifier.prefix}*; the checkpoint has none{shown}."
    )


def _tops(classifier: Classifier) -> set[str]:
    return {name.partition(".")[0] + "." for name in classifier.head_modules.values()}


def _outputs(state: Mapping[str, Tensor], classifier: Classifier, folder: Path) -> int:
    weight = state.get(f"{classifier.last}.weight")
    if weight is None or weight.dim() != 2 or len(weight) == 0:
        raise BundleError(
            f"{folder} has no {classifier.last}.weight [labels, {classifier.architecture.hidden_size}], and the "
            "backbone has none either; without a head nothing is answered (PEFT's modules_to_save keeps it)."
        )
    return len(weight)


def _completed(delta: Delta, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """With zeros where LoRA leaves a layer alone, and the backbone's own values for norms that were not tuned."""
    untouched = {
        name: tensor.detach() if name.startswith("override/") else torch.zeros_like(tensor)
        for name, tensor in delta.tensors().items()
    }
    return {**untouched, **values}


def _origin(config: PeftConfig, folder: Path) -> dict[str, Any]:
    return {
        "training": {"imported_from": "PEFT", "folder": folder.resolve().name, "peft_type": config.peft_type},
        "versions": {"edgepeft": __version__, "peft": config.peft_version},
    }
