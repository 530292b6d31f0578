"""Where AdapterHub's checkpoints keep the tensors of an adapter."""

from __future__ import annotations

from dataclasses import dataclass

from edgepeft.backbones.base import Role, Site
from edgepeft.interop.classifier import Classifier

__all__ = ["Places"]

# Model type -> the modules of a layer that hold adapters; BERT's and its relatives' unless named.
_HOLDERS = {
    "distilbert": {
        "attention": "transformer.layer.{i}.attention_adapters",
        "output": "transformer.layer.{i}.output_adapters",
    }
}
_BERT = {"attention": "encoder.layer.{i}.attention.output", "output": "encoder.layer.{i}.output"}


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
