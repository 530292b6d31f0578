"""BERT and its relatives: a row for each, in two tables.

Post-LN (Devlin et al., 2019), or pre-LN with a final norm (Xiong et al., 2020, arXiv:2002.04745).  MPNet (Song et al.,
2020, arXiv:2004.09297) also adds a relative position bias to attention, shared by all layers.
"""

from dataclasses import replace

from edgepeft.backbones.encoder import BUCKETS, ENCODERS, Encoder, ModelLayout

_ROBERTA = ModelLayout(prefix="roberta.", counted_positions=True, head="roberta", defaults={"pad_token_id": 1})
LAYOUTS = {
    "bert": ModelLayout(prefix="bert.", pooler="pooler.dense", head="bert-pooler"),
    "ernie": ModelLayout(prefix="ernie.", task_types=True, pooler="pooler.dense", head="bert-pooler"),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "data2vec-text": replace(_ROBERTA, prefix="data2vec_text."),
    "electra": ModelLayout(
        prefix="electra.", projection="embeddings_project", head="electra", defaults={"embedding_size": 128}
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
        attention_norm="attention.LayerNorm",
        up="ffn",
        activation="activation",
        down="ffn_output",
        ffn_norm="full_layer_layer_norm",
        projection="encoder.embedding_hidden_mapping_in",
        always_projects=True,
        pooler="pooler",
        head="albert-pooler",
        defaults={"embedding_size": 128, "activation": "gelu_new", "num_hidden_groups": 1},
        fixed={**ENCODERS, "inner_group_num": 1},
    ),
    "mpnet": ModelLayout(
        prefix="mpnet.",
        query="attention.attn.q",
        key="attention.attn.k",
        value="attention.attn.v",
        attention_output="attention.attn.o",
        attention_norm="attention.LayerNorm",
        token_types=False,
        counted_positions=True,
        distances="encoder.relative_attention_bias.weight",
        distances_enter=("attention.attn", 3),
        head="roberta",
        defaults={"pad_token_id": 1},
        fixed={**ENCODERS, "pad_token_id": 1, "relative_attention_num_buckets": BUCKETS},
    ),
    "distilbert": ModelLayout(
        prefix="distilbert.",
        layer="transformer.layer.{i}.",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        attention_output="attention.out_lin",
        attention_norm="sa_layer_norm",
        up="ffn.lin1",
        activation="ffn.activation",
        down="ffn.lin2",
        ffn_norm="output_layer_norm",
        token_types=False,
        masked="transformer",
        reference="sdpa",  # the eager one has as many keys as tokens, and so no prefix
        head="distilbert",
        keys={
            "hidden_size": "dim",
            "n_layers": "n_layers",
            "n_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "activation": "activation",
        },
    ),
}
_PRE_NORM = {
    "xlm-roberta-xl": replace(
        _ROBERTA,
        attention_norm="attention.self_attn_layer_norm",
        ffn_norm="LayerNorm",
        embeddings_norm="",
        last_norm="encoder.LayerNorm",
        defaults={"pad_token_id": 1, "layer_norm_eps": 1e-5, "type_vocab_size": 1},
    ),
    "roberta-prelayernorm": replace(
        _ROBERTA,
        prefix="roberta_prelayernorm.",
        attention_norm="attention.LayerNorm",
        ffn_norm="intermediate.LayerNorm",
        last_norm="LayerNorm",
    ),
    "megatron-bert": replace(
        LAYOUTS["bert"], attention_norm="attention.ln", ffn_norm="ln", embeddings_norm="", last_norm="encoder.ln"
    ),
}


FAMILY = Encoder(
    "bert",
    LAYOUTS,
    limits=(
        "Positions are learnt and absolute, MPNet's distances too: another position_embedding_type is refused.",
        "Encoders alone: is_decoder and add_cross_attention are refused.",
        "ALBERT: layers of a group are one set of tensors, and trained as one; inner_group_num above 1 is refused.",
        "ERNIE with use_task_id: texts are of its first task type, as in transformers where none is given.",
    ),
)
PRE_NORM = Encoder(
    "bert-pre-norm",
    _PRE_NORM,
    limits=(
        "Positions are learnt and absolute: another position_embedding_type is refused.",
        "Encoders alone: is_decoder and add_cross_attention are refused.",
    ),
)
