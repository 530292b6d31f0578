"""What a backbone family states about itself: tensors, sites, sizes, and how its graph is built.

Nothing here imports torch: a board reads the same tables as a workstation.
"""

from __future__ import annotations

import math
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.common.errors import BundleError, UnknownName, UsageError
from edgepeft.common.registry import modules_of

if TYPE_CHECKING:
    import onnx

    from edgepeft.backbones.text import TextGraphs

NO_HEAD = "none"


class Role(StrEnum):
    """What a site is within its layer; methods choose the roles they attach to."""

    WORD_EMBEDDINGS = "word_embeddings"  # the table's rows, before they are added to the others
    POSITION_EMBEDDINGS = "position_embeddings"  # likewise
    POSITION_IDS = "position_ids"  # which of those rows each token takes, int64 [tokens]
    EMBEDDINGS = "embeddings"  # what the first layer reads: the sum, past its norm and projection
    QUERY = "query"  # outputs of self-attention's projections, bias included, before they are scaled or split
    KEY = "key"
    VALUE = "value"
    KEY_HEADS = (
        "key_heads"  # the same split, [batch, heads, places, e]: what is attended to, which a delta may lengthen
    )
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
    POOLED_LAST = "pooled.last"  # of a model that goes on with its text, the last token's, [batch, d]
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


class Helper(StrEnum):
    """What a delta graph may read besides sites: where the packed tokens stand, int64."""

    FIRST_TOKEN = "first_token"  # [batch], each row's first among the packed tokens
    POSITION = "token.position"  # [tokens], each token's place within its row
    ROW = "token.row"  # [tokens], the row that each token is of


# -> the value that ``Packing`` gives it.
HELPERS = {Helper.FIRST_TOKEN: "row.start", Helper.POSITION: "token.position", Helper.ROW: "token.row"}


class Pooling(StrEnum):
    """How a sentence head reads the tokens' last hidden states, or what a decoder makes of them for its labels."""

    FIRST = "first"
    MEAN = "mean"
    LAST = "last"
    LABELS = "labels"
    TOKENS = "tokens"  # not at all: each token's own state

    @property
    def site(self) -> str:
        """The pooled site of that kind; no site has the one of tokens, which are the last layer's."""
        return f"pooled.{self.value}"

    @property
    def embedding(self) -> str:
        """The pooled site, of a kind that makes one vector of a text.

        Raises:
            UsageError: it makes none.
        """
        if self not in (Pooling.FIRST, Pooling.MEAN):
            raise UsageError(f"an embedding is pooled as first or mean; {self.value} are what a task's head reads.")
        return self.site


@dataclass(frozen=True)
class Site:
    """A named value of the backbone where a delta may attach.

    ``module`` is the HF module whose output the site is (after the dropout that follows a sub-layer's
    projection); ``reads`` the module whose first input is ``x``; ``residual`` says where the value
    that will be added to ``y`` comes in: (module path, its positional argument); ``norm`` is the
    LayerNorm after that sum.  Pooled sites have no module; word and position embeddings are as wide as their tables.
    ``columns`` says which of its module's outputs the site is, from and up to, where one layer gives several values.
    ``shape`` is the value's where it is not one of tokens or texts [., out_features]; of a module's output
    [batch, places, d] it is the split one.  ``argument`` is the number of its module's argument that the site is, in
    torch, given by position or by name; ``others`` are further modules of which it is that one.
    ``heads`` is the axis of heads where its module's output has them apart, beside one of places, [batch, ., ., e].
    ``call`` says which of its module's calls in a forward pass the site is, and how many there are, where several
    layers are one set of tensors.
    """

    name: str
    role: Role
    layer: int | None
    in_features: int
    out_features: int
    module: str = ""
    reads: str = ""
    residual: tuple[str, int] | None = None
    norm: str | None = None
    enters: bool = False
    columns: tuple[int, int] | None = None
    shape: tuple[int | str, ...] = ()
    argument: int = 0
    others: tuple[str, ...] = ()
    heads: int = 0
    call: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class Attention:
    """How a layer attends: ``reach`` tokens to each side, None for all, and RoPE's base ``theta``.

    ``frequencies`` are RoPE's w, (e / 2), where they are scaled.
    """

    theta: float
    reach: int | None
    frequencies: tuple[float, ...] = ()

    def pairs(self, tokens: int) -> int:
        """How many pairs of a row's tokens attend to each other."""
        if self.reach is None or self.reach >= tokens:
            return tokens * tokens
        return tokens * (2 * self.reach + 1) - self.reach * (self.reach + 1)  # less what is beyond both ends


@dataclass(frozen=True)
class Distances:
    """How disentangled attention tells distances apart: ``span`` rows of a table to each side, none past ``furthest``.

    ``by_powers``: distances beyond half the span share rows, by powers.  ``shared``: their queries and keys are made by
    the modules that make those of tokens.
    """

    span: int
    furthest: int
    by_powers: bool
    shared: bool = True


@dataclass(frozen=True)
class Decoder:
    """What writes text: a second stack of layers, which reads the first one's output, or a model that has but one.

    Texts begin after the one token, or where that is None after the last that is read, and end with the other.  Logits
    are the table's products with its last hidden state times ``scale``.  Distances from ``max_distance`` on are one.
    """

    start_token_id: int | None
    end_token_id: int
    scale: float
    max_distance: int

    def starts(self, ids: NDArray[np.int64], mask: NDArray[Any]) -> NDArray[np.int64]:
        """int64 [B]: the token after which each row's text begins, of rows [B, S]."""
        if self.start_token_id is not None:
            return np.full(len(ids), self.start_token_id, np.int64)
        last = mask.shape[1] - 1 - (mask[:, ::-1] != 0).argmax(1) if len(ids) else np.empty(0, np.int64)
        starts: NDArray[np.int64] = ids[np.arange(len(ids)), last]
        return starts


@dataclass(frozen=True)
class Architecture:
    """A backbone's sizes, read from its config alone.

    ``tensors`` maps every parameter of the encoder, by its name in the HF base model, to its shape;
    ``pooler`` likewise for the pooler that some checkpoints carry (a head may read it).
    ``norms`` are the LayerNorms' module paths.  ``n_layers`` is of all stacks together.  ``absent_biases``
    are those that linear layers and norms lack, which BitFit adds as zeros.  ``head`` is the kind that a
    task gets, ``pooling`` what its authors pool by, ``words`` the table of word embeddings.  ``attention``
    is each layer's, empty where all see everything and learn positions otherwise, ``distances`` what attention is
    disentangled by.  ``foreign_head`` is what
    transformers' classifier has where no head of ours does.  ``aliases`` are tensors that a file may hold under
    another's name alone.  ``reference`` is the attention of transformers that exports are compared with,
    ``weights_dtype`` how they store the weights where nothing else is asked for.
    """

    family: str
    model_type: str
    hidden_size: int
    n_layers: int
    n_heads: int
    intermediate_size: int
    vocab_size: int
    max_length: int
    pad_token_id: int
    layer_norm_eps: float
    activation: str
    sites: tuple[Site, ...]
    tensors: Mapping[str, tuple[int, ...]]
    pooler: Mapping[str, tuple[int, ...]]
    norms: tuple[str, ...]
    inputs: tuple[str, ...]
    head: str
    absent_biases: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    words: str = "embeddings.word_embeddings.weight"
    decoder: Decoder | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    pooling: Pooling = Pooling.FIRST
    attention: tuple[Attention, ...] = ()
    distances: Distances | None = None
    foreign_head: str = ""
    reference: str = "eager"
    weights_dtype: Literal["fp32", "int8"] = "fp32"

    @property
    def placeholder_token_id(self) -> int:
        """A token for places whose embedding is overwritten; any will do that is not padding."""
        return 1 if self.pad_token_id == 0 else 0

    @property
    def goes_on(self) -> bool:
        """Whether it is a decoder alone: a text goes on with what was read, in the same layers."""
        return self.decoder is not None and self.decoder.start_token_id is None

    @property
    def n_parameters(self) -> int:
        """Parameters of the encoder, pooler not counted."""
        return sum(math.prod(shape) for shape in self.tensors.values())

    def site(self, name: str) -> Site:
        """The site of that name.

        Raises:
            UnknownName: there is none.
        """
        for site in self.sites:
            if site.name == name:
                return site
        raise UnknownName("site", name, (site.name for site in self.sites))

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


class Family(ABC):
    """Backbones that share one table and one graph builder."""

    name: ClassVar[str]
    model_types: ClassVar[tuple[str, ...]]
    limits: ClassVar[tuple[str, ...]]  # what of such models is not supported, as sentences
    own_values: ClassVar[Mapping[str, str]] = {}  # what else a delta may read -> value of the graph

    @abstractmethod
    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """Read sizes, tensors and sites from an HF ``config.json``."""

    @abstractmethod
    def checkpoint_prefix(self, architecture: Architecture) -> str:
        """What whole models, and transformers' classes, put before the base model's names, with its dot."""

    def modules_of_stored(self, name: str) -> tuple[str, ...]:
        """What files call a tensor -> its names in transformers' modules; several have its rows, in equal parts."""
        return (name,)

    def open_checkpoint(self, architecture: Architecture, weights: Path) -> Checkpoint:
        """Index a weights file by the base model's parameter names, be it the base model's or a whole model's.

        Raises:
            BundleError: not safetensors, truncated, or of another model.
        """
        prefixes = ("", self.checkpoint_prefix(architecture))
        stored = Checkpoint.open(weights).with_aliases(architecture.aliases)
        return stored.with_prefix_for(architecture.tensors, prefixes, architecture.model_type)

    @abstractmethod
    def build_graph(self, architecture: Architecture, checkpoint: Checkpoint) -> onnx.ModelProto:
        """Emit the packed-token graph whose initializers point into the checkpoint."""

    def text_graphs(self, architecture: Architecture, checkpoint: Checkpoint) -> TextGraphs | None:
        """Those that write text, over the same weights; None where the model has no decoder."""
        return None

    def teaching_graph(self, architecture: Architecture, checkpoint: Checkpoint) -> onnx.ModelProto:
        """What text is taught by: what is read, and what stands before each token of a target, -> that token's logits.

        Raises:
            BundleError: the model has no decoder.
        """
        raise BundleError(f"a {architecture.model_type} has no decoder that could be taught to write text.")

    @abstractmethod
    def neighbours(self, architecture: Architecture, site: Site) -> dict[str, str]:
        """``input``, ``residual`` and ``norm`` of a site -> value of the graph, those that it has."""

    def bindings(self, architecture: Architecture) -> dict[str, str]:
        """Site, ``<site>.input``, ``<site>.residual``, ``Helper`` and ``own_values`` -> value of the graph."""
        values = {helper.value: value for helper, value in HELPERS.items()} | dict(self.own_values)
        for site in architecture.sites:
            values[site.name], around = site.name, self.neighbours(architecture, site)
            values |= {f"{site.name}.{suffix}": value for suffix, value in around.items()}
        return values


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of this config's ``model_type``.

    Raises:
        UsageError: the config has no ``model_type``.
        UnknownName: no family has it.
    """
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
