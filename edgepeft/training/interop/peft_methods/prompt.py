"""PEFT's prompt tuning (``PROMPT_TUNING``).

Of a model with a decoder it stores as many vectors more, which its own ``forward`` does not read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from edgepeft.backbones.base import Architecture, Role
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.methods.prompt_r import PromptR
from edgepeft.methods.prompt_t import PromptT
from edgepeft.training.interop.classifier import Classifier
from edgepeft.training.interop.conversion import ConversionPlan, StateDict
from edgepeft.training.interop.peft_methods.base import PeftConfig

__all__ = ["PromptConfig", "VectorsConfig"]

_VECTORS = "prompt_embeddings"


class VectorsConfig(PeftConfig):
    """What the methods have that learn a model's vectors and wrap no module of it."""

    prefix: ClassVar[str] = "base_model."

    num_virtual_tokens: int = Field(ge=1, strict=True)
    token_dim: int
    num_layers: int
    num_transformer_submodules: int = Field(1, ge=1, le=2)

    @classmethod
    def stored_name(cls, name: str) -> str:
        """The vectors' has nothing in front."""
        return name if name == _VECTORS else super().stored_name(name)

    def check_sizes(self, architecture: Architecture, folder: Path) -> None:
        """See that they are the backbone's."""
        stacks = self.num_transformer_submodules
        if stacks == 2 and architecture.decoder is None:
            raise BundleError(f"{folder}: num_transformer_submodules = 2 is of a model with a decoder; use such a one.")
        sizes = (architecture.hidden_size, _layers(architecture))
        if (self.token_dim, self.num_layers) != sizes:
            raise BundleError(
                f"{folder} belongs to another architecture: hidden size {self.token_dim} and {self.num_layers} layers; "
                f"the backbone's are {sizes[0]} and {sizes[1]}. Use the one that it was trained on."
            )


class PromptConfig(VectorsConfig):
    """The vectors; what they started from does not matter any more."""

    kind: ClassVar[str] = "PROMPT_TUNING"
    ours: ClassVar[tuple[str, ...]] = (PromptR.name, PromptT.name)
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
            return {f"{site.name}/vectors": state[_VECTORS][: method.length]}

        return ConversionPlan(method, {_VECTORS: (stacks * method.length, site.out_features)}, convert)

    @classmethod
    def written(cls, delta: Delta, classifier: Classifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """As ``PeftConfig.written``."""
        architecture = classifier.architecture
        if delta.card.hyperparameters["place"] != "words":
            raise UsageError(
                f"the task {delta.card.task!r} has its prompt past positions and norm; PEFT's stands before them: "
                "train it with --set place=words."
            )
        (module,) = delta.site_modules.values()
        (vectors,) = module.parameters()
        settings = {
            "num_virtual_tokens": len(vectors),
            "token_dim": vectors.shape[1],
            "num_layers": _layers(architecture),
            "num_attention_heads": architecture.n_heads,
            "num_transformer_submodules": 1,
            "prompt_tuning_init": "RANDOM",
        }
        return settings, {_VECTORS: vectors}


def _layers(architecture: Architecture) -> int:
    """Of the encoder."""
    names = (site.name for site in architecture.sites_of(Role.LAYER_OUTPUT))
    return sum(not name.startswith("decoder.") for name in names)
