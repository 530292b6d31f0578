"""The tensors and sites of a row's model, by its sizes: see ``_layouts.py``.

Letters: d hidden, f intermediate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgepeft.backbones._layouts import BUCKETS, ModelLayout, Sizes
from edgepeft.backbones.base import Role, Site


def layer_paths(layout: ModelLayout, sizes: Sizes) -> list[str]:
    """Each layer's, with its dot: those of a group are in one place (Lan et al., 2020, section 3.1)."""
    n, groups = sizes.num_hidden_layers, sizes.num_hidden_groups
    return [layout.layer.format(i=int(i / (n / groups))) for i in range(n)]  # in floats, as in transformers' code


def projection_of(layout: ModelLayout, sizes: Sizes) -> str:
    """The module between the embeddings and the first layer; nothing where there is none."""
    return layout.projection if layout.always_projects or sizes.embedding_size != sizes.hidden_size else ""


def modules_of(layout: ModelLayout, sizes: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(path, shape of its weight): norms are [d], linear layers [out, in]."""
    d, f, width = sizes.hidden_size, sizes.intermediate_size, sizes.embedding_size
    if layout.embeddings_norm:
        yield layout.embeddings_norm, (width,)
    if projection := projection_of(layout, sizes):
        yield projection, (d, width)
    attending, first = Counter((layout.query, layout.key, layout.value)), Counter((layout.gate, layout.up))
    for i, layer in enumerate(dict.fromkeys(layer_paths(layout, sizes))):
        yield from ((layer + module, (parts * d, d)) for module, parts in attending.items())
        yield layer + layout.attention_output, (d, d)
        if i or layout.first_norm:
            yield layer + layout.attention_norm, (d,)
        yield from ((layer + module, (parts * f, d)) for module, parts in first.items() if module)
        yield layer + layout.down, (d, f)
        yield layer + layout.ffn_norm, (d,)
    if layout.last_norm:
        yield layout.last_norm, (d,)


def tensors_of(layout: ModelLayout, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    rows = {layout.words: sizes.vocab_size}
    rows |= {"embeddings.position_embeddings": sizes.max_position_embeddings} if layout.positions else {}
    rows |= {"embeddings.token_type_embeddings": sizes.type_vocab_size} if layout.token_types else {}
    rows |= {"embeddings.task_type_embeddings": sizes.task_type_vocab_size} if sizes.task_type_vocab_size else {}
    tables = {f"{module}.weight": (n, sizes.embedding_size) for module, n in rows.items()}
    tables |= {layout.distances: (BUCKETS, sizes.num_attention_heads)} if layout.distances else {}
    parts = (
        (module, {"weight": shape} | ({} if module.endswith(layout.unbiased) else {"bias": shape[:1]}))
        for module, shape in modules_of(layout, sizes)
    )
    return {**tables, **{f"{module}.{part}": shape for module, both in parts for part, shape in both.items()}}


_POSITION_IDS = Site(
    Role.POSITION_IDS.value,
    Role.POSITION_IDS,
    None,
    1,
    1,
    "embeddings.position_embeddings",
    enters=True,
    shape=("tokens",),
)


def sites_of(layout: ModelLayout, sizes: Sizes) -> tuple[Site, ...]:
    d, width, norm = sizes.hidden_size, sizes.embedding_size, layout.last_norm
    tables = {Role.WORD_EMBEDDINGS: layout.words}
    tables |= {Role.POSITION_EMBEDDINGS: "embeddings.position_embeddings"} if layout.positions else {}
    module = projection_of(layout, sizes) or "embeddings"
    layers = layer_paths(layout, sizes)
    return (
        *(Site(role.value, role, None, width, width, table) for role, table in tables.items()),
        Site("embeddings", Role.EMBEDDINGS, None, d, d, module),
        *_lengthened_sites(layout, sizes, layers),
        *(site for i in range(len(layers)) for site in _layer_sites(layout, sizes, layers, i)),
        *([Site(Role.STACK_OUTPUT.value, Role.STACK_OUTPUT, None, d, d, norm, norm)] if norm else []),
        *(Site(role.value, role, None, d, d) for role in (Role.POOLED_FIRST, Role.POOLED_MEAN)),
    )


def _lengthened_sites(layout: ModelLayout, sizes: Sizes, layers: Sequence[str]) -> list[Site]:
    """What has to know of keys that are no tokens'."""
    if not layout.masked:
        return []
    role, shape = Role.ATTENTION_BIAS, ("batch", 1, 1, "places")
    sites = [_POSITION_IDS, Site(role.value, role, None, 1, 1, layout.masked, shape=shape, argument=1)]
    if layout.distances:
        module, argument = layout.distances_enter
        first, *others = (layer + module for layer in layers)
        role, across = Role.DISTANCE_BIAS, (sizes.num_attention_heads, "queries", "places")
        sites.append(Site(role.value, role, None, 1, 1, first, shape=across, argument=argument, others=tuple(others)))
    return sites


def _layer_sites(layout: ModelLayout, sizes: Sizes, layers: Sequence[str], i: int) -> list[Site]:
    d, f, layer = sizes.hidden_size, sizes.intermediate_size, layers[i]
    call = (layers[:i].count(layer), layers.count(layer))

    def at(role: Role, module: str, reads: str, inputs: int = d, outputs: int = d, **more: Any) -> Site:
        place, reader = (layer + module).rstrip("."), (layer + reads).rstrip(".")
        return Site(f"layer.{i}.{role}", role, i, inputs, outputs, place, reader, call=call, **more)

    def products(modules: Mapping[Role, str], width: int) -> Iterator[Site]:
        for role, module in modules.items():
            roles = [other for other in modules if modules[other] == module]  # whose values one product gives
            first = roles.index(role) * width
            columns = (first, first + width) if len(roles) > 1 else None
            yield at(role, module, module, outputs=width, columns=columns)

    def ends(residual: tuple[str, int], norm: str) -> dict[str, Any]:
        module, argument = residual
        found: dict[str, Any] = {"residual": ((layer + module).rstrip("."), argument)}
        return found if layout.last_norm else found | {"norm": layer + norm}

    def before(role: Role, norm: str) -> list[Site]:
        return [at(role, norm, norm)] if layout.last_norm else []

    attention = ends(layout.attention_residual, layout.attention_norm)
    split = ("batch", sizes.num_attention_heads, "places", d // sizes.num_attention_heads)
    heads = {Role.KEY_HEADS: layout.key, Role.VALUE_HEADS: layout.value} if layout.masked else {}
    first = {Role.FFN_GATE: layout.gate, Role.FFN_GATED: layout.up} if layout.gate else {Role.FFN_UP: layout.up}
    enters = bool(layout.gate) and not layout.gated  # what is gated may be no module's output, but what one reads
    activation = layout.gated or (layout.down if enters else layout.activation)
    return [
        *(before(Role.ATTENTION_NORM, layout.attention_norm) if i or layout.first_norm else []),
        *products({Role.QUERY: layout.query, Role.KEY: layout.key, Role.VALUE: layout.value}, d),
        *(
            Site(f"layer.{i}.{role}", role, i, d, d, layer + module, shape=split, call=call)
            for role, module in heads.items()
        ),
        at(Role.ATTENTION_OUTPUT, layout.attention_dropout, layout.attention_output, **attention),
        *before(Role.FFN_NORM, layout.ffn_norm),
        *products(first, f),
        at(Role.FFN_ACTIVATION, activation, layout.activation, f, f, enters=enters),
        at(Role.FFN_OUTPUT, layout.ffn_dropout, layout.down, f, **ends(layout.ffn_residual, layout.ffn_norm)),
        at(Role.LAYER_OUTPUT, layout.layer_end, layout.layer_end),
    ]


def neighbours(layout: ModelLayout, site: Site) -> dict[str, str]:
    """Suffix of a binding -> value of the graph: what a site's module reads, and what is added to its output."""
    layer, before = f"layer.{site.layer}.", bool(layout.last_norm)
    below = f"layer.{site.layer - 1}.layer_output" if site.layer else "embeddings"
    attends = f"{layer}attention_norm" if before and (site.layer or layout.first_norm) else below
    feeds, residual = ("ffn_norm", "attention_output.sum") if before else ("attention_norm", "attention_norm")
    around = {
        **{role: {"input": attends} for role in (Role.QUERY, Role.KEY, Role.VALUE)},
        Role.ATTENTION_OUTPUT: {"input": f"{layer}context", "residual": below},
        **{role: {"input": layer + feeds} for role in (Role.FFN_UP, Role.FFN_GATE, Role.FFN_GATED)},
        Role.FFN_ACTIVATION: {} if layout.gate else {"input": f"{layer}ffn_up"},  # what is gated has no one before it
        Role.FFN_OUTPUT: {"input": f"{layer}ffn_activation", "residual": layer + residual},
    }
    return around.get(site.role, {})
