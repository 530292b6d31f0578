"""A delta: one task's trained modules, head included, and the card that says what they are.

On disk a folder: ``delta.safetensors`` (``<site>/<parameter>``, ``override/<tensor>``, ``generator/<parameter>``,
``head/<parameter>``) and ``delta.json``.  It holds no backbone weight that was not trained.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from edgepeft.backbones import hooks
from edgepeft.backbones.base import Architecture
from edgepeft.backbones.checkpoint import check_header
from edgepeft.backbones.pooling import HeadReads, reads_of
from edgepeft.backbones.source import Backbone
from edgepeft.backbones.text import BEFORE
from edgepeft.backbones.trie import EDGES
from edgepeft.bundle.card import CARD_FILE, TENSORS_FILE, BackboneCard, DeltaCard, read_card
from edgepeft.common.atomic import new_folder, write_json
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.heads.base import Head, head_named
from edgepeft.methods.base import Folding, Method, method_named, weight_at
from edgepeft.tasks.base import TaskType, kind_from_card, kind_named

MAX_LENGTH = 128  # tokens of a text where none are given, as in GLUE's usual settings


class Delta(nn.Module):
    """The trained part of a task; its parameters are all that training changes.

    ``sites`` are PE modules by site name, ``overrides`` own copies of backbone tensors by their name
    in the HF base model, ``generator`` what makes them where they are not copies.
    """

    def __init__(self, card: DeltaCard, architecture: Architecture, backbone: Backbone) -> None:
        super().__init__()
        self.card, self.architecture = card, architecture
        method = method_named(card.method).from_settings(card.hyperparameters)
        head = head_named(card.head)
        # nn.ModuleDict refuses dots in its keys, and site names have them.
        built = method.build(method.sites(architecture))
        self.modules_by_site = nn.ModuleDict({_key(site): module for site, module in built.items()})
        scored = head.decodes and not head.writes
        self.trie = backbone.trie(card.targets or card.labels or ()) if scored else None
        labels = () if self.trie is None else (self.trie,)
        self.head = head(architecture.hidden_size, card.n_outputs, card.head_dropout, *labels)
        own = method.own_tensors(architecture, head.reads)
        self.generator = method.generator(own)
        trained = own if self.generator is None else {}
        self.overrides = nn.ParameterDict({_key(name): nn.Parameter(pretrained(backbone, name)) for name in trained})
        self.reads = nn.Module()  # buffers: functional_call can put others in their place
        for name in head.reads:
            if name not in trained:
                self.reads.register_buffer(_key(name), pretrained(backbone, name), persistent=False)

    @property
    def site_modules(self) -> dict[str, nn.Module]:
        """PE modules by site name."""
        return {_name(key): module for key, module in self.modules_by_site.items()}

    @property
    def override_tensors(self) -> dict[str, Tensor]:
        """Trained copies of backbone tensors, by the tensor's name in the HF base model."""
        return {_name(key): tensor for key, tensor in self.overrides.items()}

    @property
    def frozen_reads(self) -> dict[str, Tensor]:
        """The backbone tensors that the head reads and the delta does not train."""
        return {_name(key): tensor for key, tensor in self.reads.named_buffers()}

    def own_tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """What takes the place of backbone tensors, by their name in the HF base model."""
        if self.generator is None:
            return self.override_tensors
        names = self.generator.names
        reads = self.frozen_reads
        pretrained = {n: reads[n] if n in reads else model.get_parameter(n) for n in names}
        return self.generator(pretrained)

    @property
    def trains_head_alone(self) -> bool:
        """Whether the head reads what the bare backbone gives."""
        return not (self.modules_by_site or self.overrides or self.generator or self.card.prompt_length)

    def folded(self, backbone: Backbone) -> Delta:
        """As it answers and is tuned on a board: each module in the form that it folds into; itself where none does."""
        if not any(isinstance(module, Folding) for module in self.modules_by_site.values()):
            return self
        folded, built, own = copy.copy(self), nn.ModuleDict(), self.override_tensors

        def read(tensor: str) -> Tensor:
            return own[tensor].detach() if tensor in own else pretrained(backbone, tensor)

        for name, module in self.site_modules.items():
            weight = partial(weight_at, self.architecture.site(name), read)
            built[_key(name)] = module.folded(weight) if isinstance(module, Folding) else module
        folded._modules = {**self._modules, "modules_by_site": built}
        return folded

    def adapted_layers(self) -> tuple[int, ...]:
        """The layers that have a module, from the lowest."""
        layers = {self.architecture.site(name).layer for name in self.site_modules}
        return tuple(sorted(layer for layer in layers if layer is not None))

    @contextlib.contextmanager
    def without_layers(self, layers: Container[int]) -> Iterator[None]:
        """Within the block those layers' modules are left out; what replaces backbone tensors (LayerNorms) stays."""
        whole = self.modules_by_site
        kept = {key: m for key, m in whole.items() if self.architecture.site(_name(key)).layer not in layers}
        self.modules_by_site = nn.ModuleDict(kept)
        try:
            yield
        finally:
            self.modules_by_site = whole

    def n_parameters(self) -> dict[str, int]:
        """Trained parameters of the delta proper and of the head; shared ones count once."""
        head = sum(p.numel() for p in self.head.parameters())
        return {"delta": sum(p.numel() for p in self.parameters()) - head, "head": head}

    def logits(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        """[batch, outputs] from the frozen model with this delta attached; of a text [batch, target length, words],
        of tokens [batch, length, outputs].  Where labels are scored as words, ``decoder_input_ids`` ask for the text's.

        ``inputs`` are input_ids, attention_mask and, where the model has them, token_type_ids: [batch, length].  Where
        text is written, decoder_input_ids [batch, target length] are what stands there already (teacher forcing).
        """
        own = self.own_tensors(model)
        pooled = self._pooled(model, inputs, own)
        return pooled if self.card.writes and BEFORE in inputs else self.read_out(pooled, own)

    def _pooled(self, model: nn.Module, inputs: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Tensor:
        """[batch, d], or [batch, nodes, edges] of labels, or [batch, target length, words]: what the head reads."""
        inputs = self.prompted(inputs)
        with self.within(model, own) as overrides:

            def run(**given: Any) -> Any:
                return torch.func.functional_call(model, overrides, (), given, tie_weights=False)

            if self.card.writes and self.architecture.decoder_only:
                if self.trie is None or BEFORE in inputs:
                    return hooks.causal_logits(run, inputs)
                return hooks.causal_edges(run, inputs, self.trie)
            if self.card.writes:
                return run(**inputs, use_cache=False).logits
            if self.trie is not None:
                pooled = hooks.edge_logits(run, inputs, self.trie)
            else:
                mask, skip = inputs["attention_mask"], self.card.skipped_tokens
                if self.architecture.decoder_only:
                    hidden = hooks.causal_states(model, overrides, inputs)
                else:
                    hidden = run(**inputs).last_hidden_state
                pooled = self.card.pooling.of_states(hidden, functional.pad(mask[:, skip:], (skip, 0)))
                pooled = pooled[:, skip:] if self.head.per_token else pooled
        if (module := self.site_modules.get(self.card.pooling.site)) is None:
            return pooled
        tokens = {"token": self.edge_tokens(pooled.device)} if "token" in hooks.needs(module) else {}
        return module(pooled, **tokens)

    def prompted(self, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The inputs with room for the prompt in front, ending in the last column where text goes on with them."""
        inputs = hooks.padded_in_front(inputs) if self.architecture.decoder_only else inputs
        return hooks.prompted(inputs, self.card.prompt_length, self.architecture.placeholder_token_id)

    @contextlib.contextmanager
    def within(self, model: nn.Module, own: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """Within the block the modules act in the model; yields what ``functional_call`` puts in its tensors' place.

        What is adapted past the model is left out, but for the logits of text: those the model gives itself.
        """
        sites = {self.architecture.site(name): module for name, module in self.site_modules.items()}
        if self.card.writes:
            sites = {replace(site, module=site.module or site.reads): module for site, module in sites.items()}
        with hooks.attached(model, {site: module for site, module in sites.items() if site.module}):
            yield hooks.tied(model, {name: own[name] for name in own if name in self.architecture.tensors})

    def edge_tokens(self, device: torch.device | None = None) -> Tensor:
        """int64 [edges]: the tokens of the labels' edges; where text is written, every token."""
        if self.trie is None:
            return torch.arange(self.architecture.vocab_size, device=device)
        return torch.from_numpy(self.trie.values[EDGES]).to(device)

    def read_out(self, pooled: Tensor, own: Mapping[str, Tensor] = MappingProxyType({})) -> Tensor:
        """The head's logits [batch, outputs] of [batch, d]; ``own`` takes the place of backbone tensors."""
        return self.head(pooled, *({**self.frozen_reads, **own}[name] for name in self.head.reads))

    def tensors(self) -> dict[str, Tensor]:
        """Every trained tensor by its name on disk; a shared one appears once."""
        modules = self.site_modules.items()
        named: dict[str, Tensor] = {f"{site}/{n}": p for site, module in modules for n, p in module.named_parameters()}
        named |= {f"override/{name}": tensor for name, tensor in self.override_tensors.items()}
        if self.generator is not None:
            named |= {f"generator/{name}": p for name, p in self.generator.named_parameters()}
        named |= {f"head/{name}": p for name, p in self.head.named_parameters()}
        first = {id(tensor): name for name, tensor in reversed(named.items())}
        return {name: tensor for name, tensor in named.items() if first[id(tensor)] == name}

    def save(self, folder: Path, *, force: bool = False) -> None:
        """Write the delta's folder, whole or not at all."""
        with new_folder(folder, force=force) as new:
            self.write(new)

    def write(self, folder: Path) -> None:
        """Write both files into an existing folder."""
        tensors = {name: tensor.detach().contiguous() for name, tensor in self.tensors().items()}
        save_file(tensors, folder / TENSORS_FILE, metadata={"format": "pt"})
        write_json(folder / CARD_FILE, self.card.model_dump(mode="json"))

    def read(self, tensors: Mapping[str, Tensor], where: str) -> None:
        """Take over saved values."""
        own = self.tensors()
        if set(own) != set(tensors):
            odd = sorted(set(own) ^ set(tensors))
            raise BundleError(
                f"{where} does not hold the tensors of {self.card.method}; they differ in {odd[0]}. "
                "Train it again with this version."
            )
        for name, tensor in own.items():
            if tensor.shape != tensors[name].shape:
                stored, wanted = list(tensors[name].shape), list(tensor.shape)
                raise BundleError(f"{where}: {name} has shape {stored}; {self.card.method} needs {wanted}.")
            tensor.data.copy_(tensors[name])

    @classmethod
    def load(cls, folder: Path, backbone: Backbone) -> Delta:
        """Read a delta's folder for the backbone that it was trained on."""
        card = read_card(folder)
        if card.backbone.sha256 != backbone.sha256:
            raise BundleError(
                f"{folder} was trained on {card.backbone.source} (weights {card.backbone.sha256[:12]}), not on "
                f"{backbone.source} (weights {backbone.sha256[:12]}). Use the backbone that it was trained on."
            )
        delta = cls(card, backbone.architecture, backbone)
        path = folder / TENSORS_FILE
        try:
            check_header(path, path)
            tensors = load_file(path)
        except (SafetensorError, OSError) as error:
            raise BundleError(f"{path} is missing or damaged ({error}).") from error
        delta.read(tensors, str(path))
        return delta.eval()


def new_delta(
    backbone: Backbone,
    method: Method,
    task: str,
    labels: tuple[str, ...] | None,
    *,
    pairs: bool = False,
    head: str | None = None,
    max_length: int = MAX_LENGTH,
    head_dropout: float = 0.1,
    template: Mapping[str, Any] = MappingProxyType({}),
    kind: str | None = None,
    stride: int | None = None,
) -> Delta:
    """A fresh delta of ``method``; its random parts come from torch's global generator.

    ``labels`` are None where the kind of task has none.  ``head`` and ``kind`` go by name; None takes the head that
    the kind needs, or the backbone's own, and the kind that has such labels.  ``template`` are the card's facts of a
    task posed as text, ``stride`` is how many tokens windows of long texts share, of which None cuts them.
    """
    read_by = head_named(head or (kind and kind_named(kind).head) or backbone.head)
    reads = _reads(read_by, backbone)
    of_task = kind_from_card(kind, labels, reads)
    _require_fitting(backbone, read_by, of_task)
    prompt, taken = method.prompt_length(backbone.architecture), method.positions(backbone.architecture)
    positions = backbone.architecture.max_length
    if taken and taken + max_length > positions:
        raise UsageError(
            f"a {'prompt' if prompt else 'prefix'} of {taken} and texts of {max_length} tokens do not fit into the "
            f"{positions} positions of {backbone.source}; texts may have {max(0, positions - taken)}."
        )
    shared = {} if stride is None else {"stride": stride}
    chosen = {**of_task.initial_choices(backbone.architecture.hidden_size), **shared}
    card = DeltaCard(
        task=task,
        method=method.name,
        hyperparameters=json.loads(json.dumps(method.settings())),
        labels=labels,
        pairs=pairs,
        kind=of_task.name,
        chosen=chosen,
        head=read_by.kind,
        head_reads=reads,
        head_dropout=head_dropout,
        max_length=max_length,
        **template,
        prompt_length=prompt,
        backbone=BackboneCard(
            source=backbone.source,
            family=backbone.architecture.family,
            model_type=backbone.architecture.model_type,
            sha256=backbone.sha256,
        ),
    )
    delta = Delta(card, backbone.architecture, backbone)
    method.start(delta.site_modules, backbone.architecture, partial(pretrained, backbone))
    if not (trained := sum(delta.n_parameters().values())):
        raise UsageError(f"{method.name} trains the head alone, and the head {read_by.kind!r} has nothing to train.")
    delta.card = card.model_copy(update={"trainable_parameters": trained})
    return delta


def _reads(head: type[Head], backbone: Backbone) -> HeadReads:
    if head.decodes:
        return "text" if head.writes or backbone.architecture.decoder_only else "labels"
    if head.per_token:
        return "tokens"
    return reads_of(backbone.pooling)


def _require_fitting(backbone: Backbone, head: type[Head], kind: TaskType) -> None:
    if head.writes:
        if backbone.architecture.decoder is None:
            raise UsageError(f"{backbone.source} has no decoder to write text with; use a T5 or a decoder.")
        if not kind.writes:
            raise UsageError(f"the head {head.kind!r} writes text and has no labels; leave --head out.")
        return
    if backbone.architecture.decoder is not None and (head.per_token or head.bare):
        raise UsageError(
            f"{backbone.source} has a decoder, and {kind.title} is an encoder's; use BERT or one of its kin."
        )
    if backbone.architecture.decoder_only and kind.writes:
        raise UsageError(
            f"{backbone.source} has no head {head.kind!r} for {kind.title}: leave --head out, and a linear layer reads "
            "the last token, or give --kind text with --source and --target."
        )
    if backbone.architecture.decoder is not None and not (head.decodes or backbone.architecture.decoder_only):
        raise UsageError(f"{backbone.source} scores labels with its decoder, by the head 'labels', not {head.kind!r}.")
    head.check_reads(backbone.architecture)
    if head.bare != kind.gives_vectors:
        raise UsageError(f"the head {head.kind!r} is of another kind of task than {kind.title}; leave --head out.")
    if head.per_token != kind.per_token:
        one, other = ("each token", "a text") if head.per_token else ("a text", "each token")
        raise UsageError(f"the head {head.kind!r} answers for {one}, and {kind.title} has an answer for {other}.")
    if head.decodes and not kind.one_label:
        raise UsageError(
            f"{backbone.source} scores labels with its decoder, of which one is right; {kind.title} has none such. "
            "Use an encoder."
        )


def pretrained(backbone: Backbone, tensor: str) -> Tensor:
    """A tensor of the backbone by its name in the HF base model, to be written to."""
    return torch.from_numpy(backbone.checkpoint.read(tensor).copy())


def _key(name: str) -> str:
    return name.replace(".", "/")


def _name(key: str) -> str:
    return key.replace("/", ".")
