"""PEFT's prompt tuning (``PROMPT_TUNING``).

Of a model with a decoder it stores as many vectors more, which its own ``forward`` does not read.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from edgepeft.backbones.base import Architecture, Role
from edgepeft.errors import BundleError
from edgepeft.interop.classifier import Classifier
from edgepeft.interop.conversion import ConversionPlan, StateDict
from edgepeft.interop.peft_methods.base import PeftConfig
from edgepeft.methods.prompt_r import PromptR

__all__ = ["PromptConfig", "VectorsConfig"]


class VectorsConfig(PeftConfig):
    """What the methods have that learn a model's vectors and wrap no module of it."""

    prefix: ClassVar[str] = "base_model."

    num_virtual_tokens: int = Field(ge=1, strict=True)
    token_dim: int
    num_layers: int
    num_transformer_submodules: int = Field(1, ge=1, le=2)

    def check_sizes(self, architecture: Architecture, folder: Path) -> None:
        """See that they are the backbone's.

        Raises:
            BundleError: they are not.
        """
        stacks = self.num_transformer_submodules
        if stacks == 2 and architecture.decoder is None:
            raise BundleError(f"{folder}: num_transformer_submodules = 2 is of a model with a decoder.")
        encoder = (site for site in architecture.sites_of(Role.LAYER_OUTPUT) if not site.name.startswith("decoder."))
        sizes = (architecture.hidden_size, len(list(encoder)))
        if (self.token_dim, self.num_layers) != sizes:
            raise BundleError(
                f"{folder} belongs to another architecture: hidden size {self.token_dim} and {self.num_layers} layers; "
                f"the backbone's are {sizes[0]} and {sizes[1]}."
            )


class PromptConfig(VectorsConfig):
    """The vectors; what they started from does not matter any more."""

    kind: ClassVar[str] = "PROMPT_TUNING"
    ignored: ClassVar[frozenset[str]] = PeftConfig.ignored | {
        "num_attention_heads",  # for prefixes
        "prompt_tuning_init",
        "prompt_tuning_init_text",
        "tokenizer_kwargs",
        "tokenizer_name_or_path",
    }

    def plan(self, classifier: Classifier, folder: Path) -> ConversionPlan:
        """As ``PeftConfig.plan``."""
        architecture, stacks = classifier.architecture, self.num_transformer_submodules
        self.check_sizes(architecture, folder)
        method = PromptR(length=self.num_virtual_tokens)
        (site,) = method.sites(architecture)

        def convert(state: StateDict) -> dict[str, Tensor]:
            return {f"{site.name}/vectors": state["prompt_embeddings"][: method.length]}

        return ConversionPlan(method, {"prompt_embeddings": (stacks * method.length, site.out_features)}, convert)
