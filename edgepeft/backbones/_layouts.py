"""How BERT's relatives name their modules, and what else differs: a row each.

Most name them as BERT does; ALBERT, DistilBERT and MPNet do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["BUCKETS", "FURTHEST", "LAYOUTS", "ModelLayout"]

BUCKETS, FURTHEST = 32, 128  # of distances, in MPNet's code


@dataclass(frozen=True)
class ModelLayout:
    """Where a model type keeps its parts: module paths, config keys, and what else differs."""

    prefix: str  # of the base model in checkpoints of whole models
    layer: str = "encoder.layer.{i}."
    shares_layers: bool = False  # several may be one set of tensors, and ``i`` then counts these
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    attention_output: str = "attention.output.dense"
    attention_dropout: str = "attention.output.dropout"
    attention_norm: str = "attention.output.LayerNorm"
    attention_residual: tuple[str, int] = ("attention.output", 1)
    up: str = "intermediate.dense"
    gate: str = ""  # where there are two first products, the one past which the activation comes; ``up`` is the other
    activation: str = "intermediate.intermediate_act_fn"
    down: str = "output.dense"
    ffn_dropout: str = "output.dropout"
    ffn_residual: tuple[str, int] = ("output", 1)
    ffn_norm: str = "output.LayerNorm"
    layer_end: str = "output"
    unbiased: tuple[str, ...] = ()  # linear layers without a bias
    positions: bool = True  # a table of them, added to the words'
    token_types: bool = True
    counted_positions: bool = False  # from the count of ids != pad, not from the column
    distances: str = ""  # the table of what is added to attention for a distance between two tokens
    distances_enter: tuple[str, int] = ("", 0)  # a layer's module, and which of its arguments that is
    task_types: bool = False  # a table of them, all texts being of the first, where use_task_id says so
    projection: str = ""  # from the embeddings' own size to the layers', where there is one
    always_projects: bool = False  # of equal sizes too
    embeddings_norm: bool = True
    last_norm: str = ""  # past the last layer, where norms stand before sub-layers, not after the sums
    pooler: str = ""
    head: str = "linear"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)  # our name -> the config's
    masked: str = "encoder"  # the module whose second argument is the mask; none if keys must be as many as tokens
    reference: str = "eager"  # the attention that ours is compared with
    fixed: Mapping[str, Any] = field(default_factory=dict)  # of these keys no other value is supported


_ROBERTA = ModelLayout(prefix="roberta.", counted_positions=True, head="roberta", defaults={"pad_token_id": 1})
LAYOUTS = {
    "bert": ModelLayout(prefix="bert.", pooler="pooler.dense", head="bert-pooler"),
    "ernie": ModelLayout(
        prefix="ernie.",
        task_types=True,
        pooler="pooler.dense",
        head="bert-pooler",
        defaults={"task_type_vocab_size": 3},
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "data2vec-text": replace(_ROBERTA, prefix="data2vec_text."),
    "electra": ModelLayout(
        prefix="electra.",
        projection="embeddings_project",
        head="electra",
        defaults={"embedding_size": 128},
    ),
    "rembert": ModelLayout(
        prefix="rembert.",
        projection="encoder.embedding_hidden_mapping_in",
        always_projects=True,
        pooler="pooler.dense",
        head="bert-pooler",
        keys={"embedding_size": "input_embedding_size"},
        defaults={"embedding_size": 256},
    ),
    "albert": ModelLayout(
        prefix="albert.",
        layer="encoder.albert_layer_groups.{i}.albert_layers.0.",
        shares_layers=True,
        query="attention.query",
        key="attention.key",
        value="attention.value",
        attention_output="attention.dense",
        attention_dropout="attention.output_dropout",
        attention_norm="attention.LayerNorm",
        attention_residual=("attention", 0),
        up="ffn",
        activation="activation",
        down="ffn_output",
        ffn_dropout="ffn_output",  # no dropout follows
        ffn_residual=("ffn", 0),
        ffn_norm="full_layer_layer_norm",
        layer_end="full_layer_layer_norm",
        projection="encoder.embedding_hidden_mapping_in",
        always_projects=True,
        pooler="pooler",
        head="albert-pooler",
        defaults={"embedding_size": 128, "hidden_act": "gelu_new", "num_hidden_groups": 1},
        fixed={"inner_group_num": 1},
    ),
    "mpnet": ModelLayout(
        prefix="mpnet.",
        query="attention.attn.q",
        key="attention.attn.k",
        value="attention.attn.v",
        attention_output="attention.attn.o",
        attention_dropout="attention.dropout",
        attention_norm="attention.LayerNorm",
        attention_residual=("attention", 0),
        token_types=False,
        counted_positions=True,
        distances="encoder.relative_attention_bias.weight",
        distances_enter=("attention.attn", 3),
        head="roberta",
        defaults={"pad_token_id": 1},
        fixed={"pad_token_id": 1, "relative_attention_num_buckets": BUCKETS},
    ),
    "distilbert": ModelLayout(
        prefix="distilbert.",
        layer="transformer.layer.{i}.",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        attention_output="attention.out_lin",
        attention_dropout="attention.out_lin",  # no dropout follows
        attention_norm="sa_layer_norm",
        attention_residual=("", 0),
        up="ffn.lin1",
        activation="ffn.activation",
        down="ffn.lin2",
        ffn_dropout="ffn.dropout",
        ffn_residual=("ffn", 0),
        ffn_norm="output_layer_norm",
        layer_end="output_layer_norm",
        token_types=False,
        masked="transformer",
        reference="sdpa",  # the eager one has as many keys as tokens, and so no prefix
        head="distilbert",
        keys={
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
        },
    ),
}
