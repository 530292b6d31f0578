"""PEFT's LoRA and DoRA (``LORA``), with its variants of scale, bias and pattern.

Where ranks differ, zeros fill up to the largest; where scales differ, B takes the factor: B A x is the same.  A layer
without a site, such as BERT's pooler, which "all-linear" names, becomes the task's own W + s B A.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, FiniteFloat
from torch import Tensor
from torch.nn import functional

from edgepeft.backbones.base import Site
from edgepeft.bundle.delta import Delta, pretrained
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.methods.base import weight_at
from edgepeft.methods.dora import Decomposed, DoRA
from edgepeft.methods.lora import Factors, LoRA
from edgepeft.training.interop.base import ConversionPlan, StateDict
from edgepeft.training.interop.classifier import Classifier
from edgepeft.training.interop.peft_methods.base import PeftConfig, RankedConfig

_MAGNITUDE = "lora_magnitude_vector"  # of DoRA


class LoraConfig(RankedConfig):
    """Pairs of factors, and biases."""

    kind: ClassVar[str] = "LORA"
    ours: ClassVar[tuple[str, ...]] = (LoRA.name, DoRA.name)
    keeps_whole: ClassVar[bool] = True
    ignored: ClassVar[frozenset[str]] = PeftConfig.ignored | {
        "lora_dropout",
        "fan_in_fan_out",  # of GPT-2's Conv1D; PEFT itself turns it off on a linear layer
        "megatron_core",  # a module's name, used with megatron_config only
        "qalora_group_size",  # with use_qalora only
        "ensure_weight_tying",
        "eva_config",
        "runtime_config",
    }

    alpha: FiniteFloat = Field(alias="lora_alpha")
    use_rslora: bool = False
    use_dora: bool = False
    bias: Literal["none", "all", "lora_only"] = "none"
    # Starts that leave the base model's weights alone; the others (pissa, olora, loftq, ...) change those too.
    init_lora_weights: Literal[True, False, "gaussian", "eva", "orthogonal"] | None = True

    def plan(self, classifier: Classifier, folder: Path) -> ConversionPlan:
        """Zeros where a layer that has modules lacks one of the chosen roles."""
        known = {**classifier.linear_sites, **classifier.other_layers}
        targets = self.adapted(classifier, known, "linear layer", folder)
        sites = {module: classifier.linear_sites[module] for module in targets if module in classifier.linear_sites}
        if not sites:
            raise BundleError(
                f"{folder} adapts {', '.join(targets)} alone, and no linear layer of the encoder's own layers; have it "
                "adapt one of those too (target_modules)."
            )
        merged = [module for module in targets if module not in sites]
        kept = {name for name in classifier.tensors if self.saves(name.rpartition(".")[0])}
        if classifier.shared_table in kept:
            raise BundleError(
                f"{folder}: modules_to_save has {classifier.shared_table}, which the model reads in other places too: "
                "there PEFT leaves it as it was, and a delta replaces it everywhere. Train it without."
            )
        every = {name for name in classifier.tensors if name.endswith(".bias")}
        trained = {"none": set(), "lora_only": {f"{module}.bias" for module in targets}, "all": every}[self.bias]
        stored = classifier.overrides(name for name in classifier.tensors if name in trained | kept)  # T5 has no biases
        parts = ("weight", "bias") if self.bias == "lora_only" else ("weight",)
        method = self._method(sites, classifier, {f"{module}.{part}" for module in merged for part in parts} | kept)
        rank, backbone = method.rank, classifier.backbone
        shapes = {theirs: shape for theirs, (_, shape) in stored.items()}
        for module in targets:
            site = sites.get(module)
            rows, columns = (site.out_features, site.in_features) if site else classifier.other_layers[module]
            shapes[f"{module}.lora_A.weight"] = (self.rank_at(module), columns)
            shapes[f"{module}.lora_B.weight"] = (rows, self.rank_at(module))
            shapes |= {f"{module}.{_MAGNITUDE}": (rows,)} if self.use_dora else {}

        def convert(state: StateDict) -> dict[str, Tensor]:
            values = {ours: state[theirs] for theirs, (ours, _) in stored.items()}

            def read(tensor: str) -> Tensor:  # as the task has it
                return values.get(f"override/{tensor}", pretrained(backbone, tensor))

            for site in method.sites(classifier.architecture):
                values[f"{site.name}/A"] = torch.zeros(rank, site.in_features)
                values[f"{site.name}/B"] = torch.zeros(site.out_features, rank)
                if self.use_dora:
                    values[f"{site.name}/magnitude"] = weight_at(site, read).norm(dim=1)
            for module, site in sites.items():
                more, factor = rank - self.rank_at(module), self.scale_at(module) / method.scale
                values[f"{site.name}/A"] = functional.pad(state[f"{module}.lora_A.weight"], (0, 0, 0, more))
                values[f"{site.name}/B"] = functional.pad(state[f"{module}.lora_B.weight"] * factor, (0, more))
                if self.use_dora:
                    values[f"{site.name}/magnitude"] = state[f"{module}.{_MAGNITUDE}"]
            for module in merged:
                own = classifier.tensors[f"{module}.weight"]
                change = state[f"{module}.lora_B.weight"] @ state[f"{module}.lora_A.weight"]
                weight = pretrained(backbone, own) + self.scale_at(module) * change
                if self.use_dora:
                    weight *= (state[f"{module}.{_MAGNITUDE}"] / weight.norm(dim=1))[:, None]
                values[f"override/{own}"] = weight
            return values

        return ConversionPlan(method, shapes, convert)

    def _method(self, sites: Mapping[str, Site], classifier: Classifier, whole: Collection[str]) -> LoRA:
        """Ours, with the largest rank and scale of the sites; ``whole`` are their names of what is trained so."""
        return (DoRA if self.use_dora else LoRA)(
            rank=max(map(self.rank_at, sites)),
            alpha=max(map(self.alpha_at, sites), key=abs) or 1.0,
            rank_stabilised=self.use_rslora,
            bias=self.bias,
            whole=tuple(own for theirs, own in classifier.tensors.items() if theirs in whole),
            **self.places(sites.values(), classifier),
        )

    def scale_at(self, module: str) -> float:
        rank = self.rank_at(module)
        return self.alpha_at(module) / (rank**0.5 if self.use_rslora else rank)

    @classmethod
    def written(cls, delta: Delta, method: Any, classifier: Classifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What is trained whole is stored with its module."""
        modules = classifier.modules_of(delta.site_modules)
        saved = {name.rpartition(".")[0] for name in method.whole}
        merged = _merged(delta, {site: modules[site] for site in modules if _reads(delta, site) in saved}, classifier)
        modules = {site: module for site, module in modules.items() if f"{module}.weight" not in merged}
        if not modules:
            raise UsageError(
                f"every linear layer that the task {delta.card.task!r} has factors of is trained whole too, and PEFT "
                "has either for a layer. Train it without --set whole of these."
            )
        parts = {"A": "lora_A.weight", "B": "lora_B.weight", "magnitude": _MAGNITUDE}
        names = {f"{site}/{ours}": f"{module}.{parts[ours]}" for site, module in modules.items() for ours in parts}
        tensors = {}
        for theirs, ours in classifier.tensors.items():
            module, _, part = theirs.rpartition(".")
            names[f"override/{ours}"] = f"{module}.base_layer.{part}" if module in modules.values() else theirs
            if ours.rpartition(".")[0] in saved:
                tensors[theirs] = torch.from_numpy(classifier.backbone.checkpoint.read(ours).copy())
        if classifier.shared_table in tensors:
            raise UsageError(
                f"the task {delta.card.task!r} replaces {classifier.shared_table} wherever the model reads it; PEFT "
                "would replace it as embeddings alone. Train it without --set whole of this one."
            )
        settings = {
            "r": method.rank,
            "lora_alpha": int(method.alpha) if method.alpha.is_integer() else method.alpha,
            "use_rslora": method.rank_stabilised,
            "use_dora": isinstance(method, DoRA),
            "bias": method.bias,
            # By whole names: an end such as output.dense means two of them.
            "target_modules": list(modules.values()),
            "modules_to_save": sorted({theirs.rpartition(".")[0] for theirs in tensors}),
            "lora_dropout": 0.0,
            "fan_in_fan_out": False,
            "init_lora_weights": True,
        }
        held = {names[name]: tensor for name, tensor in delta.tensors().items() if name in names}
        return settings, tensors | held | merged


def _reads(delta: Delta, site: str) -> str:
    return delta.architecture.site(site).reads


@torch.no_grad()
def _merged(delta: Delta, sites: Mapping[str, str], classifier: Classifier) -> dict[str, Tensor]:
    """The weights of linear layers that are trained whole with their updates: PEFT has no factors beside such."""
    own, found = delta.override_tensors, dict[str, Tensor]()
    for site, module in sites.items():
        name, factors = f"{_reads(delta, site)}.weight", delta.site_modules[site]
        assert isinstance(factors, Factors)
        weight = own[name] if name in own else pretrained(classifier.backbone, name)
        updated = weight + factors.scale * factors.B @ factors.A
        found[f"{module}.weight"] = (
            updated * factors.factor(weight)[:, None] if isinstance(factors, Decomposed) else updated
        )
    return found
