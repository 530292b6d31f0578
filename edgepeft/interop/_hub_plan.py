"""How one of AdapterHub's methods comes in: our method, the tensors that the file must hold, and what they become."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from edgepeft.backbones.base import Role, Site
from edgepeft.interop.classifier import Classifier
from edgepeft.methods.base import Method

__all__ = ["ConversionPlan", "Places", "StateDict"]

StateDict = Mapping[str, Tensor]

# Model type -> the modules of a layer that hold adapters; BERT's and its relatives' unless named.
_HOLDERS = {
    "distilbert": {
        "attention": "transformer.layer.{i}.attention_adapters",
        "output": "transformer.layer.{i}.output_adapters",
    }
}
_BERT = {"attention": "encoder.layer.{i}.attention.output", "output": "encoder.layer.{i}.output"}


@dataclass(frozen=True)
class ConversionPlan:
    """``shapes`` by their names; ``convert`` gives our tensors by our names."""

    method: Method
    shapes: Mapping[str, tuple[int, ...]]
    convert: Callable[[StateDict], dict[str, Tensor]]


@dataclass(frozen=True)
class Places:
    """Where the tensors of the adapter of that name stand."""

    classifier: Classifier
    adapter: str

    def of_adapter(self, site: Site) -> str:
        """The start of a bottleneck adapter's names."""
        holders = _HOLDERS.get(self.classifier.architecture.model_type, _BERT)
        holder = holders["attention" if site.role is Role.ATTENTION_OUTPUT else "output"].format(i=site.layer)
        return f"{self.classifier.prefix}{holder}.adapters.{self.adapter}."

    def of_lora(self, site: Site) -> str:
        """The start of a LoRA's names."""
        return f"{self.classifier.prefix}{site.reads}.loras.{self.adapter}."

    @property
    def shared(self) -> str:
        """The start of the names of what all adapters share."""
        return f"{self.classifier.prefix}shared_parameters.{self.adapter}."
