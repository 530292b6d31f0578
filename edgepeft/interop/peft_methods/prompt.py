"""PEFT's prompt tuning (``PROMPT_TUNING``)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from edgepeft.errors import BundleError
from edgepeft.interop.classifier import Classifier
from edgepeft.interop.conversion import ConversionPlan
from edgepeft.interop.peft_methods.base import PeftConfig
from edgepeft.methods.prompt_r import PromptR

__all__ = ["PromptConfig"]


class PromptConfig(PeftConfig):
    """The vectors; what they started from does not matter any more."""

    kind: ClassVar[str] = "PROMPT_TUNING"
    prefix: ClassVar[str] = "base_model."
    ignored: ClassVar[frozenset[str]] = PeftConfig.ignored | {
        "num_attention_heads",  # for prefixes
        "prompt_tuning_init",
        "prompt_tuning_init_text",
        "tokenizer_kwargs",
        "tokenizer_name_or_path",
    }

    num_virtual_tokens: int = Field(ge=1, strict=True)
    token_dim: int
    num_layers: int
    num_transformer_submodules: Literal[1] = 1

    def plan(self, classifier: Classifier, folder: Path) -> ConversionPlan:
        """As ``PeftConfig.plan``."""
        architecture = classifier.architecture
        sizes = (architecture.hidden_size, architecture.n_layers)
        if (self.token_dim, self.num_layers) != sizes:
            raise BundleError(
                f"{folder} belongs to another architecture: hidden size {self.token_dim} and {self.num_layers} layers; "
                f"the backbone's are {sizes[0]} and {sizes[1]}."
            )
        method = PromptR(length=self.num_virtual_tokens)
        (site,) = method.sites(architecture)
        vectors = (f"{site.name}/vectors", (method.length, site.out_features))
        return ConversionPlan.renaming(method, {"prompt_embeddings": vectors})
