"""T5's table of shapes, its graph, its sites and the scores of labels, against transformers' own eager model."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from graphs import Both, build, session
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import load_file, save_file
from tiny import SIZES, ragged
from tolerance import Exact, exactly
from transformers.models.t5.modeling_t5 import T5Attention

from edgepeft.backbones.base import Role, family_of
from edgepeft.backbones.config import config_of
from edgepeft.backbones.packing import buckets
from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.tokens import Text
from edgepeft.common.errors import BundleError, UnknownName, UsageError
from edgepeft.methods.houlsby import Houlsby
from edgepeft.methods.lora import LoRA

SMALL = {
    "model_type": "t5",
    "d_model": 32,
    "d_kv": 6,
    "d_ff": 40,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 60,
    "relative_attention_num_buckets": 8,
}


@pytest.mark.parametrize(
    "config",
    [
        config_of("t5-base"),
        SMALL,
        SMALL | {"num_decoder_layers": 3},
        SMALL | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},  # as in T5 1.1 and Flan-T5
    ],
    ids=["t5-base", "small", "longer decoder", "gated, untied"],
)
def test_the_tensor_table_is_transformers(config: dict[str, Any]):
    with torch.device("meta"):
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**config))
    theirs = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    if not config.get("tie_word_embeddings", True) and model.config.tie_word_embeddings:
        theirs["lm_head.weight"] = theirs[
            "shared.weight"
        ]  # transformers 5 ties them all the same; checkpoints have both
    architecture = family_of(config).architecture(config)
    assert dict(architecture.tensors) == theirs
    norms = [name for name, module in model.named_modules() if type(module).__name__ == "T5LayerNorm"]
    assert set(architecture.norms) == set(norms)


def test_every_linear_layer_and_every_norm_within_a_layer_lacks_a_bias():
    config = SMALL | {"num_decoder_layers": 3}
    with torch.device("meta"):
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**config))
    expected = {f"{n}.bias": m.out_features for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    expected |= {f"{n}.bias": 32 for n, _ in model.named_modules() if n.endswith(".layer_norm")}
    assert {n: width for n, (width,) in family_of(config).architecture(config).absent_biases.items()} == expected


def test_t5_base_has_the_parameters_of_the_compacter_paper():
    architecture = family_of(config_of("t5-base")).architecture(config_of("t5-base"))
    assert architecture.n_parameters == 222_882_048
    assert [architecture.shape_of(f"{norm}.weight") for norm in architecture.norms] == [(768,)] * 62


def test_both_stacks_have_the_sites_of_self_attention_and_feed_forward():
    config = SMALL | {"num_decoder_layers": 3}
    architecture = family_of(config).architecture(config)
    up = architecture.sites_of(Role.FFN_UP)
    assert [site.name for site in up] == [
        f"{s}.layer.{i}.ffn_up" for s, n in (("encoder", 2), ("decoder", 3)) for i in range(n)
    ]
    widths = {site.role: (site.in_features, site.out_features) for site in architecture.sites}
    assert widths[Role.QUERY] == (32, 24)
    assert widths[Role.ATTENTION_OUTPUT] == (24, 32)
    assert (widths[Role.FFN_UP], widths[Role.FFN_OUTPUT]) == ((32, 40), (40, 32))
    assert widths[Role.FFN_ACTIVATION] == (40, 40)
    cross = architecture.sites_of(Role.CROSS_KEY, Role.CROSS_VALUE)
    assert [site.name for site in cross] == [
        f"decoder.layer.{i}.cross_{part}" for i in range(3) for part in ("key", "value")
    ]
    gated = config | {"feed_forward_proj": "gated-gelu"}
    assert not family_of(gated).architecture(gated).sites_of(Role.FFN_UP)
    with pytest.raises(UsageError, match="lora attaches to ffn_up; t5 has no such site"):
        LoRA(roles=("ffn_up",)).n_parameters(family_of(gated).architecture(gated))


def test_the_lowest_layers_of_both_stacks_are_skipped():
    config = SMALL | {"num_decoder_layers": 3}
    architecture = family_of(config).architecture(config)
    left = [site.name for site in Houlsby(skip_layers=1).sites(architecture)]
    places = [("encoder", 1), ("decoder", 1), ("decoder", 2)]
    assert left == [f"{s}.layer.{i}.{role}" for s, i in places for role in ("attention_output", "ffn_output")]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"d_model": None}, "d_model"),
        ({"d_kv": "64"}, "d_kv"),
        ({"num_layers": 10**12}, "num_layers"),
        ({"num_layers": 10**6}, "num_layers is 1000000; at most 1000"),
        ({"num_decoder_layers": 10**6}, "num_decoder_layers is 1000000; at most 1000"),
        ({"feed_forward_proj": 3}, "feed_forward_proj"),
        ({"feed_forward_proj": "gated-silu"}, "supported: relu, gelu, gated-gelu"),
        ({"relative_attention_max_distance": 3}, "max_distance is 3; supported with its 8 .*: more than 4"),
        ({"relative_attention_max_distance": 4000}, "max_distance is 4000; .* at most 4"),
        (
            {"relative_attention_num_buckets": 300, "relative_attention_max_distance": 200},
            "num_buckets is 300; at most 256",
        ),
        ({"eos_token_id": 60}, "eos_token_id is 60, beyond its vocabulary of 60"),
    ],
)
def test_a_damaged_config_is_refused(changed: dict[str, Any], said: str):
    config = SMALL | changed
    with pytest.raises(UsageError, match=said):
        family_of(config).architecture(config)


VARIANTS: dict[str, dict[str, Any]] = {
    "relu, tied": {},
    "gated, untied": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "deeper encoder, one decoder layer": {"num_layers": 3, "num_decoder_layers": 1, "d_kv": 9},
    "exact gelu": {"feed_forward_proj": "gelu", "num_heads": 1, "d_kv": 32},
}
SHAPES = [(1, 1), (1, 9), (5, 4), (3, 30)]
LABELS = ("not no", "not yes", "perhaps", "not")
RELATIVE = 1e-5


class Scored(Both):
    """The graph with a task's labels in it, beside the model that writes text."""

    def __init__(self, folder: Path, labels: tuple[str, ...] = LABELS) -> None:
        super().__init__(folder)
        self.trie = self.backbone.trie(labels)
        model = build(self.backbone)
        for tensor in model.graph.initializer:
            name = tensor.name.removesuffix(".none")
            if name in self.trie.values:
                tensor.CopyFrom(numpy_helper.from_array(self.trie.values[name], tensor.name))
        self.graph, self.session = model, session(model, self.backbone.folder)

    def exactly(self, rows: dict[str, np.ndarray]) -> dict[str, Exact]:
        """The encoder's states, and for each node what a decoder that reads nothing but its tokens gives the edges."""
        model = copy.deepcopy(self.model).double()
        inputs = {name: torch.from_numpy(rows[name]) for name in self.backbone.architecture.inputs}
        edges = torch.from_numpy(self.trie.values["label.edges"])

        def compute() -> dict[str, torch.Tensor]:
            given = []
            for node in self.trie.nodes:
                tokens = torch.tensor([[self.trie.start, *node]]).expand(len(rows["input_ids"]), -1)
                output = model(**inputs, decoder_input_ids=tokens)
                given.append(output.logits[:, -1][:, edges])
            return {"hidden": output.encoder_last_hidden_state, "labels": torch.stack(given, 1)}

        with torch.no_grad():
            return exactly(compute)

    def require(self, rows: dict[str, np.ndarray]) -> None:
        ours, exact, real = self.ours(rows), self.exactly(rows), rows["attention_mask"].astype(bool)
        hidden = exact["hidden"]
        np.testing.assert_allclose(ours["last_hidden_state"][real], hidden.value[real], rtol=0, atol=hidden.error)
        exact["labels"].require(ours["pooled.labels"])
        for name, found, value in (
            ("hidden", ours["last_hidden_state"][real], hidden.value[real]),
            ("labels", ours["pooled.labels"], exact["labels"].value),
        ):
            assert np.abs(found - value).max() <= RELATIVE * np.abs(value).max(), name


@pytest.mark.numerical
@pytest.mark.parametrize("sizes", VARIANTS.values(), ids=VARIANTS)
def test_states_and_label_scores_equal_transformers_on_ragged_rows(tiny: Callable[..., Path], sizes: dict[str, Any]):
    both = Scored(tiny("t5", **sizes))
    for seed, (batch, length) in enumerate(SHAPES):
        both.require(ragged(batch, length, SIZES["t5"], seed))


def test_a_file_without_an_output_layer_has_the_embeddings_where_transformers_5_says_so(tiny, tmp_path):
    """It writes such a model as tied and not scaled; transformers 4 knows it with its table twice."""
    plain = tiny("t5", tie_word_embeddings=False)
    tensors, config = load_file(plain / "model.safetensors"), json.loads((plain / "config.json").read_text())
    tensors.pop("lm_head.weight", None)
    for name, more, sizes in (
        ("twice", {"lm_head.weight": tensors["shared.weight"].clone()}, {"tie_word_embeddings": False}),
        ("once", {}, {"tie_word_embeddings": True, "scale_decoder_outputs": False}),
    ):
        shutil.copytree(plain, tmp_path / name)
        save_file({**tensors, **more}, tmp_path / name / "model.safetensors", metadata={"format": "pt"})
        (tmp_path / name / "config.json").write_text(json.dumps({**config, **sizes}))
    rows = ragged(3, 9, SIZES["t5"])
    exact, once = Scored(tmp_path / "twice").exactly(rows), Scored(tmp_path / "once")
    exact["labels"].require(once.ours(rows)["pooled.labels"])
    (tmp_path / "once" / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(BundleError, match=r"lacks 1 of the tensors .*\(lm_head.weight"):
        _ = open_backbone(str(tmp_path / "once")).checkpoint


def test_padding_on_the_left_and_holes_in_the_mask_are_masked_tokens_too(tiny: Callable[..., Path]):
    rows = ragged(4, 9, SIZES["t5"])
    rows["attention_mask"] = np.array(
        [[0, 0, 1, 1, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 1, 1, 0, 0], [0] * 8 + [1], [1] * 9]
    )
    rows["input_ids"] = np.random.default_rng(1).integers(5, 55, (4, 9))
    Scored(tiny("t5")).require(rows)


def test_the_best_label_is_what_a_greedy_decoder_writes_wherever_it_writes_a_label(tiny: Callable[..., Path]):
    both = Scored(tiny("t5"))
    rows = ragged(60, 12, SIZES["t5"])
    inputs = {name: torch.from_numpy(rows[name]) for name in both.backbone.architecture.inputs}
    steps = max(map(len, both.trie.targets))
    children = {target[:n] for target in both.trie.targets for n in range(1, len(target) + 1)}

    def among_labels(_: int, written: torch.Tensor) -> list[int]:
        prefix = tuple(written.tolist()[1:])
        ends = both.backbone.architecture.decoder.end_token_id
        return sorted({c[-1] for c in children if c[:-1] == prefix}) or [ends]

    more = {
        "do_sample": False,
        "num_beams": 1,
        "max_new_tokens": steps,
        "use_cache": False,
    }  # 4.57 miscounts its layers
    with torch.no_grad():
        written = both.model.generate(**inputs, **more, prefix_allowed_tokens_fn=among_labels).tolist()
    given, edges = both.ours(rows)["pooled.labels"], list(both.trie.edges)
    for row, tokens in zip(given, written, strict=True):
        walked: tuple[int, ...] = ()
        while walked not in both.trie.targets:
            going_on = sorted({c[len(walked)] for c in both.trie.targets if c[: len(walked)] == walked})
            if len(going_on) > 1:
                node = both.trie.nodes.index(walked)
                going_on.sort(key=lambda token, at=walked, n=node: -row[n, edges.index((at, token))])
            walked = (*walked, going_on[0])
        assert tuple(tokens[1 : 1 + len(walked)]) == walked


@pytest.mark.parametrize("sizes", list(VARIANTS.values())[:2], ids=list(VARIANTS)[:2])
def test_every_site_its_input_and_residual_are_what_the_modules_see(tiny: Callable[..., Path], sizes: dict[str, Any]):
    both = Scored(tiny("t5", **sizes), ("yes", "no"))  # a single node: the module sees what the graph has
    seen: dict[str, torch.Tensor] = {}

    def keep(name: str, values: Any) -> None:
        seen[name] = (values[0] if isinstance(values, tuple) else values).detach()

    architecture = both.backbone.architecture
    bindings = architecture.bindings
    for site in architecture.sites:
        if site.is_input:
            both.model.get_submodule(site.module).register_forward_pre_hook(lambda _, args, n=site.name: keep(n, args))
        elif site.module:
            both.model.get_submodule(site.module).register_forward_hook(lambda _, __, y, n=site.name: keep(n, y))
        if f"{site.name}.input" in bindings:
            reads = both.model.get_submodule(site.reads)
            reads.register_forward_pre_hook(lambda _, args, n=f"{site.name}.input": keep(n, args))
        if site.residual:
            around = both.model.get_submodule(site.residual)
            around.register_forward_pre_hook(lambda _, args, n=f"{site.name}.residual": keep(n, args))
    rows = ragged(4, 7, SIZES["t5"])
    inputs = {name: torch.from_numpy(rows[name]) for name in architecture.inputs}
    start = torch.zeros(4, 1, dtype=torch.int64)
    both.model.double()
    exact = exactly(lambda: {"last": both.model(**inputs, decoder_input_ids=start).logits} | seen)
    model = both.graph
    del model.graph.output[:]
    values = sorted({bindings[name] for name in seen})
    model.graph.output.extend(helper.make_tensor_value_info(v, TensorProto.FLOAT, None) for v in values)
    feed = {name: rows[name] for name in architecture.inputs}
    found = dict(zip(values, session(model, both.backbone.folder).run(values, feed), strict=True))
    real = rows["attention_mask"].astype(bool)
    assert {site.name for site in architecture.sites if site.module} <= seen.keys()
    assert {f"decoder.layer.0.cross_{part}.input" for part in ("query", "key", "value")} <= seen.keys()
    for name in seen:
        value = exact[name].value
        rows_of = value[real] if value.shape[:2] == real.shape else value[:, 0]
        np.testing.assert_allclose(found[bindings[name]], rows_of, rtol=0, atol=exact[name].error, err_msg=name)


@pytest.mark.parametrize("sizes", list(VARIANTS.values())[:2], ids=list(VARIANTS)[:2])
def test_weights_are_the_unchanged_files_own_and_a_tied_table_stands_once(tiny: Callable[..., Path], sizes: Any):
    backbone = open_backbone(str(tiny("t5", **sizes)))
    weights = [i for i in build(backbone).graph.initializer if i.data_location == TensorProto.EXTERNAL]
    assert {tensor.name for tensor in weights} == set(backbone.architecture.tensors)
    assert len(weights) == len({tensor.name for tensor in weights})
    assert ("lm_head.weight" in backbone.architecture.tensors) == bool(sizes)
    inline = [i for i in build(backbone).graph.initializer if i.data_location != TensorProto.EXTERNAL]
    assert all(np.prod(i.dims, dtype=int) <= 2 * 20 + 1 for i in inline)


@pytest.mark.parametrize(("n", "largest"), [(32, 128), (8, 20), (16, 64), (32, 20), (10, 33)])
@pytest.mark.parametrize("both_ways", [True, False])
def test_distances_fall_into_transformers_buckets(n: int, largest: int, both_ways: bool):
    distances = torch.arange(-largest - 5 if both_ways else 0, largest + 6)
    expected = T5Attention._relative_position_bucket(
        distances if both_ways else -distances, bidirectional=both_ways, num_buckets=n, max_distance=largest
    )
    found = buckets(n, largest, both_ways=both_ways)
    place = np.clip(distances.numpy() + (largest if both_ways else 0), 0, len(found) - 1)
    np.testing.assert_array_equal(found[place], expected.numpy())


@pytest.mark.parametrize(
    ("config", "tied", "scale"),
    [
        ({}, True, 32**-0.5),
        ({"tie_word_embeddings": False}, False, 1.0),
        ({"scale_decoder_outputs": True}, True, 32**-0.5),
        (
            {"tie_word_embeddings": True, "scale_decoder_outputs": False},
            False,
            1.0,
        ),  # T5 1.1, as transformers 5 writes it
        ({"model_type": "mt5", "feed_forward_proj": None, "tie_word_embeddings": None}, False, 1.0),
    ],
)
def test_whether_the_output_is_tied_and_scaled_is_read_from_what_the_config_says(config: Any, tied: bool, scale: float):
    whole = {name: value for name, value in (SMALL | config).items() if value is not None}
    architecture = family_of(whole).architecture(whole)
    assert ("lm_head.weight" not in architecture.tensors, architecture.decoder.scale) == (tied, scale)


MINI = Path(__file__).parents[2].parent / "shared" / "data" / "backbones" / "t5-mini"


@pytest.mark.skipif(
    not MINI.is_dir(), reason=f"{MINI.name}, a small T5 with learnt weights, is not beside the repository"
)
def test_learnt_weights_score_labels_as_transformers_does():
    both = Scored(MINI, ("positive", "negative"))
    texts = [Text("mr sentence1: a wonderful film"), Text("mr sentence1: dull , long and without any sense of wit")]
    rows = both.backbone.encoder().encode(texts, 40).inputs
    both.require(rows)
    assert both.ours(rows)["pooled.labels"][:, 0].argmax(1).tolist() == [0, 1]


def test_labels_that_cannot_be_told_apart_are_refused_by_name(tiny: Callable[..., Path]):
    backbone = open_backbone(str(tiny("t5")))
    with pytest.raises(UsageError, match=r"labels 'spam' and 'ham' are the same tokens .* rename one"):
        backbone.trie(("spam", "ham"))
    with pytest.raises(UsageError, match="found 1, where two are needed"):
        backbone.trie(("yes",))
    with pytest.raises(UsageError, match="label '' cannot be scored"):
        backbone.trie(("yes", ""))
    with pytest.raises(UsageError, match="has no decoder to score labels with"):
        open_backbone(str(tiny("bert"))).trie(("yes", "no"))


def test_an_unknown_type_is_still_unknown():
    with pytest.raises(UnknownName, match="t5"):
        family_of({"model_type": "t55"})


def test_the_table_needs_no_torch():
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None;"
        "from edgepeft.backbones.base import family_of; from edgepeft.backbones.config import config_of;"
        "print(family_of(config_of('t5-base')).architecture(config_of('t5-base')).n_parameters)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 222_882_048
