"""What tasks can share when all of them answer one input: the layers below the lowest that a delta touches."""

from __future__ import annotations

from typing import NamedTuple

from edgepeft.backbones.base import Architecture, Role
from edgepeft.bundle.delta import Delta

__all__ = ["Untouched", "untouched_stages"]


class Untouched(NamedTuple):
    """The lowest ``layers`` are the backbone's own, ``embeddings`` says whether the embeddings are too.

    ``lowest`` is what the delta changes first, a site or a tensor; None where that follows the last layer.
    """

    layers: int
    embeddings: bool
    lowest: str | None

    def sentence(self, n_layers: int) -> str:
        """The same in words."""
        if not self.embeddings:
            return f"nothing below the first layer can be shared with other tasks: the delta has its own {self.lowest}"
        why = "it changes no layer" if self.lowest is None else f"its first change is {self.lowest}"
        return f"the embeddings and {self.layers} of {n_layers} layers can be computed once for all tasks: {why}"


def untouched_stages(delta: Delta) -> Untouched:
    """How far up a delta leaves the backbone as it is: the embeddings (stage 0), then layer by layer."""
    architecture = delta.architecture
    own = delta.override_tensors if delta.generator is None else dict.fromkeys(delta.generator.names)
    stages = {name: _stage_of_tensor(architecture, name) for name in own}
    stages |= {site: _stage_of_site(architecture, site) for site in delta.site_modules}
    last = architecture.n_layers + 1
    lowest = min(stages, key=lambda name: stages[name], default=None)
    first = last if lowest is None else stages[lowest]
    return Untouched(max(first - 1, 0), first > 0, None if first == last else lowest)


def _stage_of_site(architecture: Architecture, name: str) -> int:
    """0 before the layers, 1 + layer within them, 1 + their number after them."""
    if architecture.site(name).layer is not None:  # which counts from 0 in each stack
        ends = [site.name for site in architecture.sites_of(Role.LAYER_OUTPUT)]
        return 1 + ends.index(f"{name.rpartition('.')[0]}.{Role.LAYER_OUTPUT}")
    if name in (Role.ATTENTION_BIAS, Role.DISTANCE_BIAS):  # which the first layer reads, past the embeddings
        return 1
    return 1 + architecture.n_layers if name.startswith(("pooled.", Role.STACK_OUTPUT)) else 0


def _stage_of_tensor(architecture: Architecture, name: str) -> int:
    ends = [f"{site.module}." for site in architecture.sites_of(Role.STACK_OUTPUT) if architecture.decoder is None]
    if name not in architecture.tensors or name.startswith(tuple(ends)):  # the pooler's, or the norm's after the layers
        return 1 + architecture.n_layers
    paths = (architecture.layer_path(layer) for layer in range(architecture.n_layers))
    return next((1 + layer for layer, path in enumerate(paths) if name.startswith(path)), 0)
