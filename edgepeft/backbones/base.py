"""What a backbone family states about itself: tensors, sites, sizes, and how its graph is built.

Nothing here imports torch: a board reads the same tables as a workstation.
"""

from __future__ import annotations

import math
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.config import Sizes
from edgepeft.backbones.pooling import EMBEDDINGS, Pooling
from edgepeft.common.errors import BundleError, UnknownName, UsageError, look_up
from edgepeft.common.registry import modules_of

if TYPE_CHECKING:
    import onnx

    from edgepeft.backbones.text import TextGraphs

NO_HEAD = "none"
OUTPUT_LAYER = "lm_head.weight"  # what gives a decoder's logits, where the table of words does not
LEARNT = "embeddings.position_embeddings.weight"


class Role(StrEnum):
    """What a site is within its layer; methods choose the roles they attach to."""

    WORD_EMBEDDINGS = "word_embeddings"  # the table's rows, before they are added to the others
    POSITION_EMBEDDINGS = "position_embeddings"  # likewise
    POSITION_IDS = "position_ids"  # which of those rows each token takes, int64 [tokens]
    EMBEDDINGS = "embeddings"  # what the first layer reads: the sum, past its norm and projection
    QUERY = "query"  # outputs of self-attention's projections, bias included, before they are scaled or split
    KEY = "key"
    VALUE = "value"
    KEY_HEADS = "key_heads"  # the same split, [batch, heads, places, e]: what is read, which a delta may lengthen
    VALUE_HEADS = "value_heads"
    KEY_STATES = "key_states"  # a decoder's, [tokens, d]: past the heads' norm, before each is turned by its place
    VALUE_STATES = "value_states"
    ATTENTION_BIAS = "attention_bias"  # what leaves padding out of all layers' attention, [batch, 1, 1, places]
    DISTANCE_BIAS = "distance_bias"  # what all layers' attention adds for two tokens' distance, [heads, ., places]
    CROSS_QUERY = "cross_query"  # the same of a decoder's attention to the encoder
    CROSS_KEY = "cross_key"
    CROSS_VALUE = "cross_value"
    ATTENTION_OUTPUT = "attention_output"  # self-attention's output projection, before the residual sum
    CROSS_ATTENTION_OUTPUT = "cross_attention_output"
    ATTENTION_NORM = "attention_norm"  # where norms stand first, the norm before a sub-layer
    CROSS_ATTENTION_NORM = "cross_attention_norm"
    FFN_NORM = "ffn_norm"
    FFN_GATE = "ffn_gate"  # where the feed-forward has two first products, the one past which the activation comes
    FFN_GATED = "ffn_gated"  # and the one that is multiplied by it
    FFN_UP = "ffn_up"  # the feed-forward's first product, before its activation
    FFN_ACTIVATION = "ffn_activation"  # past the activation (and gate): the input of its second product
    FFN_OUTPUT = "ffn_output"  # the second product, before the residual sum
    LAYER_OUTPUT = "layer_output"  # what the next layer reads: past the layer's last norm, if one ends it
    STACK_OUTPUT = "output"  # past the norm that ends a stack, where norms stand first
    POOLED_FIRST = "pooled.first"  # the first token's last hidden state, [batch, d]
    POOLED_MEAN = "pooled.mean"  # the mean of the tokens' last hidden states, [batch, d]
    POOLED_LAST = "pooled.last"  # of a decoder-only model, the last token's, [batch, d]
    POOLED_LABELS = "pooled.labels"  # what a decoder gives the edges of a task's labels: see ``trie``


LINEAR_ROLES = (
    Role.QUERY,
    Role.KEY,
    Role.VALUE,
    Role.ATTENTION_OUTPUT,
    Role.FFN_UP,
    Role.FFN_GATE,
    Role.FFN_GATED,
    Role.FFN_OUTPUT,
)
"""Those of a layer that are a linear layer's output."""


class PackedIndex(StrEnum):
    """Values that a delta graph may read besides sites: where the packed tokens stand, int64."""

    FIRST_TOKEN = "first_token"  # [batch], each row's first among the packed tokens
    POSITION = "token.position"  # [tokens], each token's place within its row
    ROW = "token.row"  # [tokens], the row that each token is of


# -> the value that ``Packing`` gives it.
PACKED_INDICES = {
    PackedIndex.FIRST_TOKEN: "row.start",
    PackedIndex.POSITION: "token.position",
    PackedIndex.ROW: "token.row",
}


@dataclass(frozen=True)
class Site:
    """A named value of the backbone where a delta may attach."""

    name: str
    role: Role
    layer: int | None
    in_features: int
    out_features: int  # of word and position embeddings the width of their tables
    # The HF module whose output the site is (in eval mode, in which no dropout does anything); pooled have none.
    module: str = ""
    reads: str = ""  # the module whose first input is ``x``
    residual: str = ""  # the module whose first input will be added to ``y``
    norm: str | None = None  # the LayerNorm after that sum
    is_input: bool = False  # the site is what its module reads
    columns: tuple[int, int] | None = None  # of its module's outputs, from and up to, where one layer gives several
    # Where it is not one of tokens or texts [., out_features]; of a module's output [batch, places, d] the split one.
    shape: tuple[int | str, ...] = ()
    argument: int = 0  # the number of its module's argument that the site is, in torch, given by position or by name
    others: tuple[str, ...] = ()  # further modules of which it is that argument
    heads: int = 0  # the axis of heads where its module's output has them apart, beside one of places, [batch, ., ., e]
    call: tuple[int, int] = (0, 1)  # of its module's calls which, of how many, where several layers share tensors
    # In the graph: its value, where that is not called as the site is, what its module reads, and what is added to it.
    value: str = ""
    input: str = ""
    added: str = ""


def pooled_sites(width: int, poolings: Sequence[Pooling] = EMBEDDINGS) -> Iterator[Site]:
    """The sites of these poolings, of hidden states of that width."""
    return (Site(pooling.site, Role(pooling.site), None, width, width) for pooling in poolings)


@dataclass(frozen=True)
class Attention:
    """How a layer attends."""

    theta: float  # RoPE's base
    reach: int | None  # tokens to each side; None for all
    frequencies: tuple[float, ...] = ()  # RoPE's w, (e / 2), where they are scaled

    def pairs(self, tokens: int) -> int:
        """How many pairs of a row's tokens attend to each other."""
        if self.reach is None or self.reach >= tokens:
            return tokens * tokens
        return tokens * (2 * self.reach + 1) - self.reach * (self.reach + 1)  # less what is beyond both ends


@dataclass(frozen=True)
class Distances:
    """How disentangled attention tells distances apart."""

    span: int  # rows of a table to each side
    furthest: int  # past which there are none
    by_powers: bool  # distances beyond half the span share rows, by powers
    shared: bool = True  # their queries and keys are made by the modules that make those of tokens


@dataclass(frozen=True)
class Decoder:
    """The part that writes text: a second stack of layers, which reads the first one's output, or the whole model."""

    start_token_id: int | None  # after which texts begin; None: after the last token that is read
    end_token_id: int
    scale: float  # of its last hidden state, before the products with the table of words that are the logits
    max_distance: int  # from which on distances are one

    def starts(self, ids: NDArray[np.int64], mask: NDArray[Any]) -> NDArray[np.int64]:
        """int64 [B]: the token after which each row's text begins, of rows [B, S]."""
        if self.start_token_id is not None:
            return np.full(len(ids), self.start_token_id, np.int64)
        last = mask.shape[1] - 1 - (mask[:, ::-1] != 0).argmax(1) if len(ids) else np.empty(0, np.int64)
        return ids[np.arange(len(ids)), last]

    def read_before(self, ids: NDArray[np.int64]) -> tuple[int, ...]:
        """The tokens of a row [S] before its start; none where another stack reads them."""
        return () if self.start_token_id is not None else tuple(ids[:-1].tolist())


@dataclass(frozen=True, kw_only=True)
class Architecture(Sizes):
    """A backbone's sizes (layers of all stacks together), tensors and sites, read from its config alone, and graphs."""

    family: str
    model_type: str
    sites: tuple[Site, ...]
    tensors: Mapping[str, tuple[int, ...]]  # shapes of the encoder's parameters, by their names in the HF base model
    norms: tuple[str, ...]  # module paths of the LayerNorms
    head: str  # the kind that a task gets
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    # Shapes of the pooler's parameters, which some checkpoints carry; a head may read it.
    pooler: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # Those that linear layers and norms lack, which BitFit adds as zeros.
    absent_biases: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    prefix: str = ""  # of tensors' names in a checkpoint with a head, such as ``bert.``
    words: str = "embeddings.word_embeddings.weight"  # the table of word embeddings
    decoder: Decoder | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)  # tensors that a file may hold under another's name alone
    pooling: Pooling = Pooling.FIRST  # what its authors pool by
    attention: tuple[Attention, ...] = ()  # each layer's; empty where all see everything and positions are learnt
    distances: Distances | None = None  # what attention is disentangled by
    foreign_head: str = ""  # what transformers' classifier has where no head of ours does
    reference: str = "eager"  # the attention of transformers that exports are compared with
    weights_dtype: Literal["fp32", "int8"] = "fp32"  # how exports store the weights where nothing else is asked for
    own_values: tuple[str, ...] = ()  # values of the graph that a delta may read besides sites and packed indices
    # Of an architecture and its checkpoint what emits one graph; with a decoder it is a ``TextBuilder``.
    builder: Callable[[Architecture, Checkpoint], Any] = field(compare=False, repr=False)

    @property
    def placeholder_token_id(self) -> int:
        """A token for places whose embedding is overwritten; any will do that is not padding."""
        return 1 if self.pad_token_id == 0 else 0

    @property
    def decoder_only(self) -> bool:
        """Whether it is a causal language model without an encoder (Llama, not T5)."""
        return self.decoder is not None and self.decoder.start_token_id is None

    @property
    def n_parameters(self) -> int:
        """Parameters of the encoder, pooler not counted."""
        return sum(math.prod(shape) for shape in self.tensors.values())

    def site(self, name: str) -> Site:
        """The site of that name."""
        return look_up("site", name, {site.name: site for site in self.sites})

    def sites_of(self, *roles: Role) -> tuple[Site, ...]:
        """Sites of these roles, in the order of the layers."""
        return tuple(site for site in self.sites if site.role in roles)

    def shape_of(self, tensor: str) -> tuple[int, ...]:
        """Shape of an encoder or pooler tensor."""
        return self.tensors[tensor] if tensor in self.tensors else self.pooler[tensor]

    def layer_path(self, layer: int) -> str:
        """``encoder.layer.3.``: how the names of a layer's tensors begin, for that is what its sites' modules share.

        Layers of all stacks are counted on.
        """
        stem = self.sites_of(Role.LAYER_OUTPUT)[layer].name.removesuffix(Role.LAYER_OUTPUT)
        paths = (site.module.replace(".", "/") for site in self.sites if site.name.startswith(stem))
        return posixpath.commonpath(list(paths)).replace("/", ".") + "."

    def open_checkpoint(self, weights: Path) -> Checkpoint:
        """Index a weights file by the base model's parameter names, be it the base model's or a whole model's."""
        stored = Checkpoint.open(weights).with_aliases(self.aliases)
        found = stored.with_prefix_for(self.tensors, ("", self.prefix), self.model_type)
        if self.attention and found.has(LEARNT):  # it may have all other tensors that a rotary model asks for
            raise BundleError(
                f"{weights} has {LEARNT}, positions that were learnt, and the config's model_type is "
                f"{self.model_type!r}, which has none; weights and config do not belong together."
            )
        return found

    def graph(self, checkpoint: Checkpoint) -> onnx.ModelProto:
        """The packed-token graph, whose initializers point into the checkpoint.

        Its outputs are last_hidden_state [B, S, d], pooled values [B, d] and of a decoder its labels' edges [B, n, e].
        """
        return self.builder(self, checkpoint).model()

    def text_graphs(self, checkpoint: Checkpoint) -> TextGraphs | None:
        """The graphs that write text, over the same weights; None where the model has no decoder."""
        return self.builder(self, checkpoint).text_graphs() if self.decoder else None

    def teaching_graph(self, checkpoint: Checkpoint) -> onnx.ModelProto:
        """The graph that teaches text: a row, and what stands before each target token -> that token's logits."""
        if self.decoder is None:
            raise BundleError(f"a {self.model_type} has no decoder that could be taught to write text.")
        return self.builder(self, checkpoint).teaching()

    @property
    def bindings(self) -> dict[str, str]:
        """Site, ``<site>.input``, ``<site>.residual``, ``PackedIndex`` and ``own_values`` -> value of the graph."""
        values = {helper.value: value for helper, value in PACKED_INDICES.items()}
        values |= {name: name for name in self.own_values}
        for site in self.sites:
            own = {"": site.value or site.name, ".input": site.input, ".residual": site.added}
            values |= {site.name + suffix: value for suffix, value in own.items() if value}
        return values


class Family(ABC):
    """Backbones that share one table and one graph builder."""

    name: str
    model_types: tuple[str, ...]
    limits: tuple[str, ...]  # what of such models is not supported, as sentences

    @abstractmethod
    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """Read sizes, tensors and sites from an HF ``config.json``."""

    def modules_of_stored(self, name: str) -> tuple[str, ...]:
        """Map a tensor's name in files to those in transformers' modules; several have its rows, in equal parts."""
        return (name,)


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of this config's ``model_type``."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UsageError("the backbone's config.json has no model_type; it must be a Hugging Face config.")
    for family in _each_family():  # those behind the one that knows it are not imported
        if model_type in family.model_types:
            return family
    raise UnknownName("backbone type", model_type, families())


def families() -> dict[str, Family]:
    """Every family, by each of its model types."""
    return {known: family for family in _each_family() for known in family.model_types}


def _each_family() -> Iterator[Family]:
    for module in modules_of("edgepeft.backbones", skip=("hooks",)):  # the torch side; a board has none
        yield from (value for value in vars(module).values() if isinstance(value, Family))
