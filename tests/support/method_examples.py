"""Small instances of every PE method, by its name: what the suites try; one that is not here is tried as it is."""

from __future__ import annotations

from typing import Any

from edgepeft.backbones.base import LINEAR_ROLES
from edgepeft.methods.base import Method
from edgepeft.methods.ia3 import ROLES

_EVERY = tuple(map(str, LINEAR_ROLES))
_PROMPTS = ({"length": 4}, {"length": 1})

_SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    # The paper's rank, and a higher one with frozen norms.
    "adapter-lowrank": ({"bottleneck": 8}, {"bottleneck": 5, "rank": 3, "norms": False}),
    "adapterdrop": ({"bottleneck": 8, "skip_layers": 1}, {"bottleneck": 3, "skip_layers": 1, "norms": False}),
    # The parallel form, Adapter+'s place, each thing to keep, and each norm of its own.
    "bottleneck": (
        {"bottleneck": 8, "roles": ("attention_output", "ffn_output")},
        {
            "bottleneck": 4,
            "roles": ("layer_output",),
            "reads": "sublayer",
            "norm_before": True,
            "norm_after": "change",
        },
        {"bottleneck": 4, "reads": "norm", "keeps": "norm", "activation": "mish"},
        {"bottleneck": 4, "keeps": "sum", "activation": "quick-gelu", "norm_after": "sum", "norms": True},
    ),
    "compacter": ({"bottleneck": 8}, {"bottleneck": 6, "n": 2, "rank": 3, "norms": False}),
    # The second is AdapterHub's form of it.
    "compacter++": (
        {"bottleneck": 8},
        {"bottleneck": 6, "n": 2, "rank": 3, "reads": "norm", "activation": "gelu", "norms": False},
    ),
    "dora": ({"rank": 4}, {"rank": 2, "roles": _EVERY, "rank_stabilised": True, "bias": "lora_only"}),
    "fusion": ({"bottleneck": 4}, {"adapters": 3, "bottleneck": 3, "value": False, "activation": "gelu"}),
    "houlsby": ({"bottleneck": 8}, {"bottleneck": 3, "norms": False, "activation": "silu"}),
    # The paper's three, and everything that can be scaled above the lowest layer.
    "ia3": ({}, {"roles": tuple(map(str, ROLES)), "skip_layers": 1}),
    # A theta shorter than every tensor, and one longer than most vectors.
    "intrinsic-said": ({"dimension": 64}, {"dimension": 400, "seed": 5}),
    # As a LoRA of rank 9, and as a whole product.
    "loha": ({"rank": 3, "alpha": 30.0}, {"rank": 6, "alpha": 30.0, "roles": ("ffn_up", "ffn_output")}),
    # One pair of factors, and two with layers of several widths; then whole matrices.
    "lokr": (
        {"rank": 2},
        {"rank": 1, "alpha": 3.0, "both": True, "factor": 3, "roles": ("key", "ffn_up", "ffn_output")},
        {"rank": 8, "roles": ("attention_output",)},
    ),
    "lora": (
        {"rank": 4},
        {"rank": 2, "roles": _EVERY, "rank_stabilised": True},
        {"rank": 2, "bias": "all"},
        {"rank": 2, "roles": ("key", "ffn_output"), "bias": "lora_only"},
    ),
    # Trained vectors, and vectors that an MLP makes.
    "mam": ({"length": 3, "bottleneck": 8}, {"length": 4, "projection": 8, "bottleneck": 5, "activation": "gelu"}),
    "pfeiffer": (
        {"bottleneck": 8},
        {"bottleneck": 4, "norms": True},
        {"bottleneck": 3, "placement": "attention", "activation": "leaky-relu"},
    ),
    "phm": (
        {"bottleneck": 8},
        {"bottleneck": 6, "n": 2, "roles": ("attention_output",), "reads": "norm", "norms": False},
    ),
    "prefix": ({"length": 4}, {"length": 3, "projection": 8, "text": "follows"}),
    "prompt-r": (*_PROMPTS, {"length": 6, "place": "embeddings"}),
    "prompt-t": _PROMPTS,
    # A sparse one; one that keeps every parent, an only child.
    "spartan": (
        {"parents": 5, "children": 3, "top_k": 2},
        {"parents": 3, "children": 1, "top_k": 3, "temperature": 1.6, "norms": False},
    ),
    "top-k": ({"layers": 1}, {"layers": 2}),
    "vera": ({"rank": 24, "initial": 1.0}, {"rank": 5, "roles": ("key", "ffn_up", "ffn_output"), "seed": 7}),
}


def examples(method: type[Method]) -> tuple[Method, ...]:
    """Its small instances."""
    return tuple(method(**settings) for settings in _SETTINGS.get(method.name, ({},)))
