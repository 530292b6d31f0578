"""PEFT's prompt tuning (``PROMPT_TUNING``) and prefix tuning (``PREFIX_TUNING``).

Of a model with a decoder the first stores as many vectors more, which its own ``forward`` does not read.  A prefix is
keys and values, folded if an MLP made them; texts stand behind it.  A decoder's keys are as its cache holds them,
turned by their places; a delta's are turned with all others.

Source: peft 0.21.2, ``peft_model.py`` (``get_prompt``): a row of a prefix has each layer's key, then its value.
"""

import inspect
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from edgepeft.backbones.base import Architecture, Role, Site
from edgepeft.backbones.packing import frequencies
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.methods.prefix import PrefixTuning
from edgepeft.methods.prompt_r import PromptR
from edgepeft.methods.prompt_t import PromptT
from edgepeft.training.interop.base import ConversionPlan, StateDict
from edgepeft.training.interop.classifier import Classifier
from edgepeft.training.interop.peft_methods.base import PeftConfig

_VECTORS = "prompt_embeddings"


class VectorsConfig(PeftConfig):
    """What the methods have that learn a model's vectors and wrap no module of it."""

    prefix: ClassVar[str] = "base_model."
    unprefixed: ClassVar[Collection[str]] = (_VECTORS,)

    num_virtual_tokens: int = Field(ge=1, strict=True)
    token_dim: int
    num_layers: int
    num_transformer_submodules: int = Field(1, ge=1, le=2)

    def check_sizes(self, architecture: Architecture, folder: Path, width: int) -> None:
        """See that they are the backbone's, whose vectors have that width."""
        stacks = self.num_transformer_submodules
        if stacks == 2 and architecture.decoder is None:
            raise BundleError(f"{folder}: num_transformer_submodules = 2 is of a model with a decoder; use such a one.")
        what = "hidden size" if width == architecture.hidden_size else "vectors of width"
        sizes = (width, _layers(architecture))
        if (self.token_dim, self.num_layers) != sizes:
            raise BundleError(
                f"{folder} belongs to another architecture: {what} {self.token_dim} and {self.num_layers} layers; "
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
        architecture, stacks = classifier.architecture, self.num_transformer_submodules
        method = PromptR(length=self.num_virtual_tokens)
        (site,) = method.sites(architecture)
        self.check_sizes(architecture, folder, site.out_features)

        def convert(state: StateDict) -> dict[str, Tensor]:
            return {f"{site.name}/vectors": state[_VECTORS][: method.length]}

        return ConversionPlan(method, {_VECTORS: (stacks * method.length, site.out_features)}, convert)

    @classmethod
    def written(cls, delta: Delta, method: Any, classifier: Classifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
        architecture = classifier.architecture
        if method.place != "words":
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


class PrefixConfig(VectorsConfig):
    """Vectors of all layers side by side, [p, 2 L d]."""

    kind: ClassVar[str] = "PREFIX_TUNING"
    ours: ClassVar[tuple[str, ...]] = (PrefixTuning.name,)
    ignored: ClassVar[frozenset[str]] = PeftConfig.ignored | {
        "encoder_hidden_size",
        "init_weights",
        "num_attention_heads",
        "prefix_projection",
    }

    def plan(self, classifier: Classifier, folder: Path) -> ConversionPlan:
        method, architecture = PrefixTuning(length=self.num_virtual_tokens, text="follows"), classifier.architecture
        sites = [site for site in method.sites(architecture) if site.layer is not None]
        width = sites[0].out_features
        self.check_sizes(architecture, folder, width)

        def convert(state: StateDict) -> dict[str, Tensor]:
            parts = zip(sites, torch.split(state[_VECTORS], width, dim=1), strict=True)
            return {f"{site.name}/vectors": _turned(part, site, architecture, -1) for site, part in parts}

        return ConversionPlan(method, {_VECTORS: (method.length, width * len(sites))}, convert)

    @classmethod
    def written(cls, delta: Delta, method: Any, classifier: Classifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
        import transformers

        architecture = classifier.architecture
        base: Any = transformers.MODEL_MAPPING[transformers.CONFIG_MAPPING[architecture.model_type]]
        if "past_key_values" not in inspect.signature(base.forward).parameters:
            raise UsageError(
                f"PEFT gives a prefix to a model as past_key_values, which transformers' {architecture.model_type} "
                "does not take: a task with one cannot go there. Train it by lora, or on BERT or its kin."
            )
        if method.text != "follows" and not architecture.decoder_only:
            raise UsageError(
                f"the texts of the task {delta.card.task!r} stay at their positions, and PEFT's begin behind the "
                "prefix: it would give other logits. A task that is to go there is trained with --set text=follows."
            )
        vectors = delta.folded(classifier.backbone).tensors()
        pairs = [site for site in method.sites(architecture) if f"{site.name}/vectors" in vectors]
        (query,), width = architecture.sites_of(Role.QUERY)[:1], pairs[0].out_features
        settings = {
            "num_virtual_tokens": method.length,
            "token_dim": width,
            "num_layers": architecture.n_layers,
            "num_attention_heads": architecture.n_heads * width // query.out_features,
            "num_transformer_submodules": 1,
            "encoder_hidden_size": width,
            "prefix_projection": False,
        }
        parts = [_turned(vectors[f"{site.name}/vectors"], site, architecture, 1) for site in pairs]
        return settings, {_VECTORS: torch.cat(parts, dim=1)}


def _turned(vectors: Tensor, site: Site, architecture: Architecture, way: int) -> Tensor:
    """A decoder's keys [p, k e] turned by their places, or back where ``way`` is -1; any others as they are."""
    if site.role is not Role.KEY_STATES:
        return vectors
    assert site.layer is not None, "keys are a layer's"
    e = architecture.sites_of(Role.QUERY)[0].out_features // architecture.n_heads
    kind = architecture.attention[site.layer]
    w = torch.tensor(kind.frequencies) if kind.frequencies else torch.from_numpy(frequencies(kind.theta, e))
    angles = (torch.arange(len(vectors))[:, None] * w).double()[:, None]  # (p, 1, e / 2)
    one, other = vectors.detach().double().view(len(vectors), -1, e).chunk(2, dim=-1)
    cosine, sine = angles.cos(), way * angles.sin()
    turned = torch.cat([one * cosine - other * sine, other * cosine + one * sine], dim=-1)
    return turned.view_as(vectors).float()
