"""transformers' class that gives logits: how it names what our sites, backbones and heads hold.

That is one of ``ENCODERS``, or ``...ForConditionalGeneration`` or ``...ForCausalLM`` of what has a decoder: its output
layer is the backbone's own, and no head.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from edgepeft.backbones.base import Architecture, Role, Site
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.source import Backbone
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import UsageError
from edgepeft.heads.base import head_named
from edgepeft.tasks.base import kinds

# How classes' names end.
SEQUENCES, TOKENS, ANSWERS = "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"
GENERATION, CAUSAL = "ForConditionalGeneration", "ForCausalLM"
VECTORS = "Model"  # the base model itself, for embeddings: it has no head, and what pools its states stands outside
ENCODERS = (SEQUENCES, TOKENS, ANSWERS)
_LAST = {ANSWERS: "qa_outputs"}  # what gives the logits, where it is not called as a head's ``places`` have it


@dataclass(frozen=True)
class Classifier:
    """The names in the class that ends so, for one backbone."""

    backbone: Backbone
    model: str = SEQUENCES

    def __post_init__(self) -> None:
        kind, why, foreign = self.architecture.model_type, "", self.architecture.foreign_head
        if foreign:
            why = f"transformers' classifier of a {kind} has {foreign} before its last layer, as no head of edgepeft's"
        elif shared := next((site.module for site in self.architecture.sites if site.call[1] > 1), None):
            why = f"layers of this {kind} share their modules ({shared}, ...), which other libraries adapt once for "
            why += "all of them and edgepeft in each layer"
        if why:
            raise UsageError(f"{why}: deltas neither come from other libraries nor go there. Train the task here.")

    @property
    def architecture(self) -> Architecture:
        return self.backbone.architecture

    @property
    def prefix(self) -> str:
        """Of the base model's tensors, with its dot."""
        return "" if self.model == VECTORS else self.architecture.prefix

    @property
    def head(self) -> str:
        if self.model == CAUSAL:
            return "text"
        of_model = (kind for kind in kinds().values() if kind.model == self.model)
        own = (kind.head for kind in of_model if kind.per_token or kind.gives_vectors)
        return next(own, None) or self.architecture.head

    @property
    def has_decoder(self) -> bool:
        """Whether answers are text, or labels that a decoder scores; checkpoints do not say which."""
        return head_named(self.head).decodes

    @property
    def head_modules(self) -> Mapping[str, str]:
        """Module of our head -> theirs."""
        places = head_named(self.head).places
        return {**places, **{ours: _LAST[self.model] for ours in list(places)[-1:] if self.model in _LAST}}

    @property
    def last(self) -> str:
        return list(self.head_modules.values())[-1]

    @cached_property
    def tensors(self) -> dict[str, str]:
        """Tensor of their encoder, and of the pooler where the class has one -> its name in the base model."""
        pooler = () if head_named(self.head).per_token or self.model == VECTORS else self.architecture.pooler
        names = (*self.architecture.tensors, *pooler)
        return {self.prefix + name: name for name in names}

    @property
    def shared_table(self) -> str | None:
        """Their table of words, where more than the embeddings reads it, which a module's copy of it does not reach."""
        if self.model not in (GENERATION, CAUSAL):
            return None
        (output,) = self.architecture.sites_of(Role.POOLED_LABELS)
        own = self.model == CAUSAL and f"{output.reads}.weight" in self.architecture.tensors
        return None if own else self.prefix + self.architecture.words

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """Every module of theirs that holds tensors, head included."""
        held = (name.rpartition(".")[0] for name in self.tensors)
        return tuple(dict.fromkeys((*held, *self.head_modules.values())))

    @cached_property
    def linear_sites(self) -> dict[str, Site]:
        """Their linear layer within a layer -> the site that is its output."""
        weights = {f"{site.reads}.weight": site for site in self.architecture.sites if site.layer is not None}
        linear = {name for name, shape in self.architecture.tensors.items() if len(shape) == 2}
        return {self.prefix + site.reads: site for weight, site in weights.items() if weight in linear}

    @cached_property
    def other_layers(self) -> dict[str, tuple[int, int]]:
        """Their linear layer that has no site, such as a pooler's -> out, in; only such layers have a bias beside."""
        matrices = {name: self.architecture.shape_of(own) for name, own in self.tensors.items()}
        modules = {name.removesuffix(".weight"): shape for name, shape in matrices.items() if len(shape) == 2}
        return {
            module: (shape[0], shape[1])
            for module, shape in modules.items()
            if module not in self.linear_sites and f"{module}.bias" in self.tensors
        }

    def modules_of(self, sites: Iterable[str]) -> dict[str, str]:
        """Site -> their linear layer whose output it is."""
        named = {site.name: module for module, site in self.linear_sites.items()}
        return {site: named[site] for site in sites}

    def overrides(self, tensors: Iterable[str]) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Their tensor -> (the override that replaces it in a delta, its shape)."""
        names = {theirs: self.tensors[theirs] for theirs in tensors}
        return {theirs: (f"override/{own}", self.architecture.shape_of(own)) for theirs, own in names.items()}

    def head_tensors(self, outputs: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Their head tensor -> (ours, its shape); none of a decoder."""
        if self.has_decoder:
            return {}
        with torch.device("meta"):  # shapes alone
            head = head_named(self.head)(self.architecture.hidden_size, outputs, 0.0)
        return {
            f"{theirs}.{part}": (f"head/{ours}.{part}", tuple(tensor.shape))
            for ours, theirs in self.head_modules.items()
            for part, tensor in head.get_submodule(ours).named_parameters()
        }

    def stored_head(self) -> dict[str, Tensor]:
        """The head's tensors that the backbone's own checkpoint holds, by their names."""
        whole = Checkpoint(self.backbone.weights, self.backbone.checkpoint.tensors)
        names = self.head_tensors(1)
        return {name: torch.from_numpy(whole.read(name).copy()) for name in names if whole.has(name)}


def check_head(delta: Delta, kinds: Sequence[str], library: str) -> None:
    """See that the delta's head is one of these kinds, which a library's model has, and reads what they read there."""
    card, theirs, prompt = delta.card, head_named(kinds[0]), delta.card.prompt_length
    of_text = "first_position" if prompt else "first_token"
    if delta.architecture.decoder_only and theirs.kind == delta.architecture.head:
        of_text = "last_token"
    if theirs.bare and card.head in kinds:
        return  # what pools stands outside of their model
    reads = "text" if theirs.writes else "labels" if theirs.decodes else "tokens" if theirs.per_token else of_text
    if card.head_reads == reads and (card.head in kinds or card.scores_words):
        return
    remedy = f"Train it with --head {card.head if card.head in kinds else kinds[0]}"
    if prompt and card.head_reads == "first_token":
        remedy = "A task of words has no such difference; or train another method"
    elif card.head_reads == "mean":
        remedy += " on a copy of the backbone's folder without 1_Pooling, whose config.json has heads read the mean"
    raise UsageError(
        f"{library}'s model has the head {' or '.join(kinds)} over the {reads.replace('_', ' ')}; the task "
        f"{card.task!r} has {card.head} over the {card.head_reads.replace('_', ' ')}, which it cannot hold. {remedy}."
    )
