"""The torch side of sites: hooks turn a module's output into f(y, ...); the HF model stays pristine."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from edgepeft.backbones.base import Pooling, Site
from edgepeft.backbones.source import Backbone
from edgepeft.errors import BundleError

__all__ = ["attached", "load_model", "needs", "pool"]


def load_model(backbone: Backbone, attention: str | None = None) -> nn.Module:
    """transformers' own base model with these weights, float32, frozen, in eval mode.

    ``attention`` is transformers' ``attn_implementation``: None takes the fast one where the model has it (ELECTRA
    has none in transformers 4), eager is the reference.

    Raises:
        BundleError: transformers cannot read the folder.
    """
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # it announces the unused pooler of every such checkpoint
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model: nn.Module = transformers.AutoModel.from_pretrained(
            str(backbone.folder), attn_implementation=attention, dtype=torch.float32
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise BundleError(f"transformers cannot load {backbone.folder}: {error}") from error
    return model.eval().requires_grad_(False)


def needs(module: nn.Module) -> tuple[str, ...]:
    """Which of y, x, residual, norm and position a PE module's ``forward`` names, in its order."""
    return tuple(inspect.signature(module.forward).parameters)


@contextlib.contextmanager
def attached(model: nn.Module, modules: Mapping[Site, nn.Module]) -> Iterator[None]:
    """Within the block, each site's value is its PE module's output; afterwards the model is as before."""
    handles: list[RemovableHandle] = []
    try:
        for site, module in modules.items():
            handles += _hook(model, site, module)
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook(model: nn.Module, site: Site, module: nn.Module) -> list[RemovableHandle]:
    seen: dict[str, Any] = {}
    wanted = needs(module)
    handles = []
    if "norm" in wanted and site.norm is not None:
        norm = model.get_submodule(site.norm)
        assert isinstance(norm, nn.LayerNorm)
        # Its live parameters; calling the module would fire its hooks again.
        seen["norm"] = lambda z: functional.layer_norm(z, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    if "x" in wanted:
        handles.append(_remember(model, site.reads, 0, seen, "x"))
    if "residual" in wanted and site.residual is not None:
        handles.append(_remember(model, *site.residual, seen, "residual"))

    def adapt(_: nn.Module, __: Any, output: Any) -> Any:
        y, *rest = output if isinstance(output, tuple) else (output,)
        seen["position"] = torch.arange(y.shape[-2], device=y.device).expand(y.shape[:-1])
        adapted = module(y, **{name: seen[name] for name in wanted if name != "y"})
        return (adapted, *rest) if isinstance(output, tuple) else adapted

    handles.append(model.get_submodule(site.module).register_forward_hook(adapt))
    return handles


def _remember(model: nn.Module, path: str, index: int, seen: dict[str, Any], name: str) -> RemovableHandle:
    def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # transformers 4 and 5 pass the same argument by position or by name.
        seen[name] = args[index] if index < len(args) else list(kwargs.values())[index - len(args)]

    return model.get_submodule(path).register_forward_pre_hook(keep, with_kwargs=True)


def pool(hidden: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """[batch, length, d] -> [batch, d]: the first real token, or the mean of the real ones."""
    if pooling is Pooling.FIRST:
        first = mask.to(torch.int64).argmax(dim=1)
        return hidden[torch.arange(hidden.shape[0], device=hidden.device), first]
    weights = mask.to(hidden.dtype).unsqueeze(-1)
    return (hidden * weights).sum(1) / weights.sum(1)
