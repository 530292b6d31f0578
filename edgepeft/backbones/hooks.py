"""The torch side of sites: hooks turn a module's output into f(y, ...); the HF model stays pristine."""

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from edgepeft.backbones.base import Site
from edgepeft.backbones.source import Backbone
from edgepeft.backbones.trie import EDGES, Trie
from edgepeft.common.errors import BundleError

_INNER = "model"  # of transformers' classes of decoders alone, the module below the output layer


def load_model(backbone: Backbone, attention: str | None = None) -> nn.Module:
    """transformers' own base model with these weights, or the one that writes text, float32, frozen, in eval mode.

    ``attention`` is transformers' ``attn_implementation``: None takes the fast one where the model has it (ELECTRA
    has none in transformers 4), eager is the reference.
    """
    import transformers

    # Refuses weights that lack a tensor, which transformers would draw at random, unheard.
    backbone.architecture.open_checkpoint(backbone.weights)
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # it announces the unused pooler of every such checkpoint
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        of: Any = transformers.AutoModelForSeq2SeqLM if backbone.architecture.decoder else transformers.AutoModel
        of = transformers.AutoModelForCausalLM if backbone.architecture.decoder_only else of
        model: nn.Module = of.from_pretrained(str(backbone.folder), attn_implementation=attention, dtype=torch.float32)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, ImportError) as error:
        raise BundleError(f"transformers cannot load {backbone.folder}: {error}") from error
    return model.eval().requires_grad_(False)


def needs(module: nn.Module) -> tuple[str, ...]:
    """Which of y, x, residual, norm, weight, bias, position and token a PE module's ``forward`` names, in its order."""
    return tuple(inspect.signature(module.forward).parameters)


@contextlib.contextmanager
def attached(model: nn.Module, modules: Mapping[Site, nn.Module]) -> Iterator[None]:
    """Within the block, each site's value is its PE module's output; afterwards the model is as before."""
    with contextlib.ExitStack() as hooks:
        for site, module in modules.items():
            for handle in _hooked(model, site, module):
                hooks.enter_context(handle)
        yield


def _hooked(model: nn.Module, site: Site, module: nn.Module) -> Iterator[RemovableHandle]:
    seen: dict[str, Any] = {"norm": lambda z: z}
    wanted = needs(module)
    calls, (own, of) = itertools.count(), site.call
    if "norm" in wanted and site.norm is not None:
        norm = model.get_submodule(site.norm)
        assert isinstance(norm, nn.LayerNorm)
        # Its live parameters; calling the module would fire its hooks again.
        seen["norm"] = lambda z: functional.layer_norm(z, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    if "x" in wanted:
        yield _remember(model, site.reads, seen, "x")
    if "residual" in wanted and site.residual:
        yield _remember(model, site.residual, seen, "residual")

    def adapted(values: Any) -> Any:
        if next(calls) % of != own:
            return values  # of another layer, which is the same module
        whole, *rest = values if isinstance(values, tuple) else (values,)
        if site.heads:
            whole = whole.movedim(site.heads, 2).flatten(2)
        first, end = site.columns or (0, whole.shape[-1])
        y = whole[..., first:end]
        if "token" in wanted:  # of a decoder's logits: every word
            seen["token"] = torch.arange(y.shape[-1], device=y.device)
        if "weight" in wanted or "bias" in wanted:  # as they are now: a delta may have biases of its own
            linear, part = model.get_submodule(site.reads), slice(*(site.columns or (None,)))
            held = {name: getattr(linear, name) for name in ("weight", "bias")}
            seen.update({name: None if tensor is None else tensor[part] for name, tensor in held.items()})
        seen["position"] = torch.arange(y.shape[-2], device=y.device).expand(y.shape[:-1])
        if split := len(site.shape) == 4:
            y = y.unflatten(-1, (site.shape[1], -1)).transpose(1, 2)  # (B, h, S, e)
        y = module(y, **{name: seen[name] for name in wanted if name != "y"})
        if split:
            y = y.transpose(1, 2).flatten(2)
        if site.columns:
            y = torch.cat([whole[..., :first], y, whole[..., end:]], dim=-1)
        if site.heads:
            y = y.unflatten(-1, (values.shape[site.heads], -1)).movedim(2, site.heads)
        return (y, *rest) if isinstance(values, tuple) else y

    place = model.get_submodule(site.module)
    if site.argument:
        changed = partial(_argument, site.argument, module)
        for each in (place, *map(model.get_submodule, site.others)):
            yield each.register_forward_pre_hook(changed, with_kwargs=True)
    elif site.is_input:
        yield place.register_forward_pre_hook(lambda _, args: adapted(args))
    else:
        yield place.register_forward_hook(lambda _, __, output: adapted(output))


def _argument(
    index: int, module: nn.Module, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A pre-hook: the argument of that number adapted, if one is given; transformers 4 and 5 name some differently."""
    if index < len(args):
        given = args[index]
        return (*args[:index], given if given is None else module(given), *args[index + 1 :]), kwargs
    name = list(kwargs)[index - len(args)]
    return args, kwargs if kwargs[name] is None else {**kwargs, name: module(kwargs[name])}


def _remember(model: nn.Module, path: str, seen: dict[str, Any], name: str) -> RemovableHandle:
    def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen[name] = (*args, *kwargs.values())[0]  # transformers 4 and 5 pass the same one by position or by name

    return model.get_submodule(path).register_forward_pre_hook(keep, with_kwargs=True)


def causal_states(model: nn.Module, tensors: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> Tensor:
    """[batch, length, d]: the last hidden states of a decoder alone whose tensors are replaced by these."""
    inner = model.get_submodule(_INNER)  # Gemma's ``base_model`` is the whole one
    own = {name.removeprefix(f"{_INNER}."): t for name, t in tensors.items() if name.startswith(f"{_INNER}.")}
    places = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
    given = {**inputs, "position_ids": places, "use_cache": False}
    return torch.func.functional_call(inner, own, (), given, tie_weights=False).last_hidden_state


def states_of(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """[batch, length, d]: the last hidden states of the model, or of its encoder where it has a decoder too."""
    whole: Any = model
    if whole.config.is_encoder_decoder:
        read = whole.encoder
    else:
        read = whole.get_submodule(_INNER) if hasattr(whole, "lm_head") else whole.base_model
    return read(**inputs).last_hidden_state


def tied(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor under one name for every module that has it: T5's embeddings are read in up to four places.

    ``functional_call`` knows ties too, but takes one module of two names for two, and leaves the new tensor in it.
    A place whose own name has a tensor takes that: transformers 5 ties an output layer of which the delta has its own.
    """
    owners = {path: dict(module.named_parameters(recurse=False)) for path, module in model.named_modules()}
    known = {name: model.get_parameter(name) for name in tensors}
    found = {}
    for path, parts in owners.items():
        for part, parameter in parts.items():
            names = [name for name, original in known.items() if original is parameter]
            if names:
                place = f"{path}.{part}"
                found[place] = tensors[place if place in names else names[0]]
    return found


def prompted(inputs: Mapping[str, Tensor], length: int, token_id: int) -> Mapping[str, Tensor]:
    """Placeholder tokens in front of every row, as many as the prompt is long; a decoder's rows stay as they are."""
    if length == 0:
        return inputs
    fill = {"input_ids": token_id, "attention_mask": 1}
    return {
        name: rows if name.startswith("decoder_") else functional.pad(rows, (length, 0), value=fill.get(name, 0))
        for name, rows in inputs.items()
    }


def padded_in_front(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rows [batch, length] that all end in the last column; what a decoder reads besides stays as it is."""
    order = (inputs["attention_mask"] != 0).to(torch.int64).argsort(dim=1, stable=True)
    return {name: x if name.startswith("decoder_") else x.gather(1, order) for name, x in inputs.items()}


def causal_logits(run: Callable[..., Any], inputs: Mapping[str, Tensor]) -> Tensor:
    """[batch, n, words] of a decoder-only model; rows are padded in front.

    ``decoder_input_ids`` [batch, n] are what stands before each token that is asked for; their first is of no account:
    the row's own last token stands there.
    """
    written = inputs["decoder_input_ids"][:, 1:]
    ids = torch.cat([inputs["input_ids"], written], dim=1)
    mask = torch.cat([inputs["attention_mask"], torch.ones_like(written)], dim=1)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    kept = written.shape[1] + 1
    output = run(input_ids=ids, attention_mask=mask, position_ids=places, use_cache=False, logits_to_keep=kept)
    return output.logits


def causal_edges(run: Callable[..., Any], inputs: Mapping[str, Tensor], trie: Trie) -> Tensor:
    """As ``edge_logits``, of a decoder-only model; rows are padded in front."""
    ways, longest = trie.ways, max(map(len, trie.ways))
    before = torch.tensor([[trie.start, *way, *[trie.start] * (longest - len(way))] for way in ways])
    device, batch = inputs["input_ids"].device, len(inputs["input_ids"])
    each = {name: rows.repeat_interleave(len(ways), 0) for name, rows in inputs.items()}
    found = causal_logits(run, {**each, "decoder_input_ids": before.repeat(batch, 1).to(device)})
    edges = torch.from_numpy(trie.values[EDGES]).to(device)
    of_edges = found[..., edges].reshape(batch, len(ways), longest + 1, -1)  # (B, ways, longest + 1, e)
    places = [next(i for i, way in enumerate(ways) if way[: len(node)] == node) for node in trie.nodes]
    return torch.stack([of_edges[:, i, len(node)] for i, node in zip(places, trie.nodes, strict=True)], 1)


def edge_logits(run: Callable[..., Any], inputs: Mapping[str, Tensor], trie: Trie) -> Tensor:
    """[batch, n, e]: what the model gives each edge's token at each node; ``run`` is its forward pass."""
    device, batch = inputs["input_ids"].device, len(inputs["input_ids"])
    tokens, sees, places = (torch.from_numpy(values).to(device) for values in trie.side_by_side())
    hidden_from = torch.where(sees, 0.0, torch.finfo(torch.float32).min).expand(batch, 1, *sees.shape)
    output = run(
        **inputs, decoder_input_ids=tokens.expand(batch, -1), decoder_attention_mask=hidden_from, use_cache=False
    )
    edges = torch.from_numpy(trie.values[EDGES]).to(device)
    return output.logits[:, places][..., edges]
