"""The operators of models whose latencies are published, as shape lists: what predictions are checked with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.published.graphs import densenet121, mobilenet_v1, mobilenet_v2, resnet, vgg, vit_b32_384, wmt_encoder
from bench.published.whisper import whisper_tiny_encoder
from edgepeft.common.errors import UnknownName
from edgepeft.common.operators import Work

_GRAPHS: Mapping[str, Callable[[], tuple[Work, ...]]] = {
    **{f"resnet-{depth}": lambda depth=depth: resnet(depth) for depth in (18, 34, 50, 101, 152)},  # type: ignore[misc]
    **{f"vgg-{depth}": lambda depth=depth: vgg(depth) for depth in (11, 13, 16, 19)},  # type: ignore[misc]
    "densenet-121": densenet121,
    "mobilenet-v1": mobilenet_v1,
    "mobilenet-v2": mobilenet_v2,
    "vit-b-32-384": vit_b32_384,
    "whisper-tiny-encoder": whisper_tiny_encoder,
}
FAMILIES = {
    "resnet": "ResNet",
    "vgg": "VGG",
    "densenet": "DenseNet",
    "mobilenet": "MobileNet",
    "vit": "ViT",
    "whisper": "Whisper's encoder",
    "wmt": "WMT encoder",
}


def works_of(graph: str) -> tuple[Work, ...]:
    """The operators of one run, batch 1; a WMT encoder's name is ``wmt-<width>-<mean feed-forward>``."""
    if graph.startswith("wmt-"):
        parts = graph.split("-")
        if len(parts) == 3 and parts[1].isdecimal() and parts[2].replace(".", "", 1).isdecimal():
            return wmt_encoder(int(parts[1]), float(parts[2]))
    if graph not in _GRAPHS:
        raise UnknownName("published graph", graph, [*_GRAPHS, "wmt-512-1706.7"])
    return _GRAPHS[graph]()


def family_named(graph: str) -> str:
    """The family of a graph, by its name; WMT encoders of one width are a family."""
    family, _, rest = graph.partition("-")
    return f"{FAMILIES[family]}, {rest.partition('-')[0]} wide" if family == "wmt" else FAMILIES[family]
