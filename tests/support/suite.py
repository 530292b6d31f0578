"""What every PE method must do: functions that assert it of one instance, so that planted failures can prove them."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from once import made_beside
from onnx import numpy_helper
from tiny import REFERENCES, ragged
from tolerance import Exact, exact_logits
from torch import Tensor, nn

from edgepeft.backbones.hooks import edge_logits, load_model, states_of
from edgepeft.backbones.source import Backbone
from edgepeft.bundle.delta import Delta, new_delta
from edgepeft.graph.one_row import for_one_row
from edgepeft.graph.protos import copied
from edgepeft.graph.prune_last_layer import drop_unread_rows
from edgepeft.graph.splice import splice
from edgepeft.heads.base import head_named
from edgepeft.methods.base import Method, methods
from edgepeft.training.exporting.delta import export_delta

LABELS = ("not no", "not yes", "perhaps")  # of several words, for decoders
# Model type -> methods that its backbones refuse in words.
WITHOUT: dict[str, set[str]] = {
    "modernbert": {"bitfit", "mam", "prefix"},
    "deberta-v2": {"mam", "prefix"},
    "roformer": {"mam", "prefix"},
    "nomic_bert": {"mam", "prefix"},
    "gte": {"mam", "prefix"},
    "t5": {"linear", "mam", "prefix", "top-k"},  # a head that trains nothing, and two stacks of layers
}
# Of BERT's family, no two alike: what depends on the family is seen on one of them a method, in turn.
RELATIVES: list[tuple[str, dict[str, Any]]] = [
    ("roberta", {}),
    ("distilbert", {}),
    ("electra", {"embedding_size": 20}),
    ("xlm-roberta", {"mean": True}),
    ("mpnet", {}),
]
SHAPES = [(1, 1), (1, 9), (5, 3), (7, 13)]
METHODS = frozenset(methods().values())
NEAR = 0.1  # of the pooled value's norm


def has_what_it_reads(head: str) -> str:
    """A model type that has what a kind of head reads."""
    return "albert" if "pooler.weight" in head_named(head).reads else "bert"


def relative_of(name: str, example: int) -> tuple[str, dict[str, Any]]:
    """Of those that do not refuse the method, the one that an instance of it is put on: exports are shared."""
    fitting = [relative for relative in RELATIVES if name not in WITHOUT.get(relative[0], ())]
    return fitting[(list(methods()).index(name) + example) % len(fitting)]


class Case:
    """One instance of a method on one backbone, with what several checks share, made once."""

    def __init__(self, method: Method, backbone: Backbone) -> None:
        self.method, self.backbone, self.architecture = method, backbone, backbone.architecture
        self.config = {"pad_token_id": self.architecture.pad_token_id, "vocab_size": self.architecture.vocab_size}
        self.config["type_vocab_size"] = 2 if "token_type_ids" in self.architecture.inputs else 1

    def fresh(self) -> Delta:
        torch.manual_seed(0)
        return new_delta(self.backbone, self.method, "task", LABELS, max_length=32).eval()

    @functools.cached_property
    def model(self) -> nn.Module:
        return load_model(self.backbone, REFERENCES.get(self.architecture.model_type, self.architecture.reference))

    @functools.cached_property
    def moved(self) -> Delta:
        """Every parameter far from where it started: a fresh delta is the identity and would hide an unspliced one."""
        delta = self.fresh()
        generator = torch.Generator().manual_seed(1)
        for parameter in delta.parameters():
            scale = 1.5 * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3
            parameter.data = parameter.data + scale * torch.randn(parameter.shape, generator=generator)
        return delta

    @functools.cached_property
    def graph(self) -> onnx.ModelProto:
        planted = type(self.method) not in METHODS  # which may export otherwise what it keeps alike
        return export_delta(self.moved, self.backbone) if planted else exported_once(self.moved, self.backbone)

    @functools.cached_property
    def session(self) -> ort.InferenceSession:
        return self._session(self.spliced)

    @functools.cached_property
    def session_of_one_row(self) -> ort.InferenceSession | None:
        """None for what the pass leaves as it is."""
        model = copied(self.spliced)
        return self._session(model) if for_one_row(model) else None

    @functools.cached_property
    def spliced(self) -> onnx.ModelProto:
        checkpoint = self.backbone.checkpoint
        backbone = self.architecture.graph(checkpoint)
        model = splice(backbone, self.graph, self.architecture.bindings, checkpoint)
        drop_unread_rows(model)
        return model

    def _session(self, model: onnx.ModelProto) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        folder = str(self.backbone.folder)
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def rows(self, batch: int, length: int) -> dict[str, Tensor]:
        found = ragged(batch, length, self.config, seed=batch * 100 + length)
        return {name: torch.from_numpy(found[name]) for name in self.architecture.inputs}

    def logits(self, delta: Delta, rows: dict[str, Tensor]) -> np.ndarray:
        with torch.no_grad():
            return delta.logits(self.model, rows).numpy()

    def exact(self, rows: dict[str, Tensor]) -> Exact:
        """The logits of `moved` in float64, and what float32 may make of them."""
        return exact_logits(self.moved, self.model, rows)

    def bare(self, rows: dict[str, Tensor]) -> Tensor:
        """What the head reads when nothing is attached."""
        with torch.no_grad():
            if self.moved.trie is not None:
                return edge_logits(self.model, rows, self.moved.trie)
            hidden = states_of(self.model, rows)
        return self.moved.card.pooling.of_states(hidden, rows["attention_mask"])


def exported_once(delta: Delta, backbone: Backbone) -> onnx.ModelProto:
    """The delta's graph; one on a model that ``tiny`` wrote is exported by the first test that asks, whatever its file and worker."""
    if not backbone.folder.with_name(f"{backbone.folder.name}.whole").exists():
        return export_delta(delta, backbone)
    content = hashlib.sha256(delta.card.model_dump_json().encode())
    for name, tensor in sorted(delta.tensors().items()):
        content.update(name.encode() + tensor.detach().numpy().tobytes())
    kept = made_beside(
        backbone.folder.with_name(f"{backbone.folder.name}-{content.hexdigest()[:16]}"),
        lambda folder: onnx.save(export_delta(delta, backbone), folder / "delta.onnx"),
    )
    return onnx.load(kept / "delta.onnx")


def first_quick(instances: Sequence[tuple[str, Method]]) -> list[Any]:
    """The number of each method's instance; those of a method's further ones are slow."""
    names = [name for name, _ in instances]
    return [pytest.param(i, marks=[] if names.index(name) == i else [pytest.mark.slow]) for i, name in enumerate(names)]


def conforms(case: Case, folder: Path) -> None:
    """What is asked of a method on every further family; ``folder`` is one that is not there yet."""
    count_is_the_deltas(case)
    near_identity_is_true(case)
    gradients_are_the_deltas_alone(case)
    survives_disk(case, folder)
    torch_equals_onnxruntime(case)
    graph_is_plain_and_its_own(case)


def settings_survive_json(case: Case) -> None:
    method = case.method
    assert type(method).from_settings(json.loads(json.dumps(method.settings()))) == method


def documented(case: Case) -> None:
    method = type(case.method)
    opening = (inspect.getdoc(inspect.getmodule(method)) or "").splitlines()[0]
    assert "et al." in opening, "a method's file opens with its paper"
    assert all(field.metadata.get("doc") for field in dataclasses.fields(method))
    assert method.title and method.paper and method.equation and method.learning_rate_source
    assert 0 < method.learning_rate < 1


def count_is_the_deltas(case: Case) -> None:
    """The tensors on disk, the parameters in memory and the count before any is made agree."""
    delta = case.fresh()
    head = type(delta.head)
    expected = {
        "delta": case.method.n_parameters(case.architecture, head.reads),
        "head": head.n_parameters(case.architecture, len(LABELS)),
    }
    assert delta.n_parameters() == expected
    assert sum(tensor.numel() for tensor in delta.tensors().values()) == sum(expected.values())
    assert delta.card.trainable_parameters == sum(expected.values())


def near_identity_is_true(case: Case) -> None:
    delta, rows = case.fresh(), case.rows(7, 13)
    delta.head = _Pooled()
    with torch.no_grad():
        adapted = delta.logits(case.model, rows)
    bare = case.bare(rows)
    change = float((adapted - bare).norm() / bare.norm())
    given = case.method.settings()  # the fact is of the defaults: another sum, or a fresh norm on it, scales the output
    scales = given.get("keeps", "sublayer") != "sublayer" or given.get("norm_after", "none") != "none"
    expected = case.method.near_identity and not scales
    assert (change < NEAR) == expected, f"a fresh delta changes the pooled value by {change:.1%}"


def gradients_are_the_deltas_alone(case: Case) -> None:
    """Every trained tensor is reached, each part has a gradient that is not zero, the model has none at all."""
    delta = copy.deepcopy(case.moved)
    before = {name: tensor.clone() for name, tensor in case.model.state_dict().items()}
    targets = torch.arange(7) % len(LABELS)
    nn.functional.cross_entropy(delta.logits(case.model, case.rows(7, 13)), targets).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in delta.parameters())
    others = {"overrides": delta.overrides, "generator": delta.generator or nn.Module(), "head": delta.head}
    for name, part in (*delta.site_modules.items(), *others.items()):
        parameters = list(part.parameters())
        assert not parameters or any(p.grad.any() for p in parameters), f"no gradient reaches {name}"
    assert all(p.grad is None for p in case.model.parameters())
    torch.optim.SGD(delta.parameters(), lr=0.1).step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in case.model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in case.model.modules())


def survives_disk(case: Case, folder: Path) -> None:
    case.moved.save(folder)
    loaded, rows = Delta.load(folder, case.backbone), case.rows(5, 9)
    assert loaded.card == case.moved.card
    np.testing.assert_array_equal(case.logits(loaded, rows), case.logits(case.moved, rows))


def moves_the_logits(case: Case) -> None:
    """As far as ONNX Runtime's rounding could not; a head alone reads what the bare backbone gives."""
    rows = case.rows(7, 13)
    names = case.moved.head.reads
    weights = [torch.from_numpy(case.backbone.checkpoint.read(name).copy()) for name in names]
    with torch.no_grad():
        bare = case.moved.head(case.bare(rows), *weights).numpy()
    moves = np.abs(case.logits(case.moved, rows) - bare).max(1)  # of each row
    if case.moved.trains_head_alone:
        assert np.median(moves) == 0
        return
    least = 0.1 if case.moved.trie is None else 0.05  # probabilities of labels move less
    assert np.median(moves) >= least, f"the delta moves the logits by {np.median(moves):.2g} only"


def torch_equals_onnxruntime(case: Case) -> None:
    moves_the_logits(case)
    for batch, length in SHAPES:
        rows = case.rows(batch, length)
        expected = case.exact(rows)
        feed = {name: tensor.numpy() for name, tensor in rows.items()}
        (found,) = case.session.run(["logits"], {i.name: feed[i.name] for i in case.session.get_inputs()})
        expected.require(case.logits(case.moved, rows), "PyTorch")
        expected.require(found, "ONNX Runtime")
        if batch == 1 and case.session_of_one_row is not None:
            names = [i.name for i in case.session_of_one_row.get_inputs()]
            (found,) = case.session_of_one_row.run(["logits"], {name: feed[name] for name in names})
            expected.require(found, "ONNX Runtime, by the graph for one row")


def graph_is_plain_and_its_own(case: Case) -> None:
    """Standard operators, the delta's tensors and small constants; no weight of the backbone, no path."""
    graph = case.graph
    onnx.checker.check_model(graph, full_check=True)
    assert graph.ir_version == 10
    assert [(opset.domain, opset.version) for opset in graph.opset_import] == [("", 20)]
    assert not graph.functions
    stored = case.backbone.checkpoint
    tensors = case.moved.folded(case.backbone).tensors().values()
    trained = {tensor.detach().numpy().tobytes() for tensor in tensors}
    frozen = {stored.read(name).tobytes() for name in {**case.architecture.tensors, **case.architecture.pooler}}
    for initializer in graph.graph.initializer:
        content = numpy_helper.to_array(initializer).tobytes()
        assert content not in frozen, f"{initializer.name} is a weight of the backbone"
        assert content in trained or len(content) <= 64, f"{initializer.name} is no trained tensor"
    everything = graph.SerializeToString()
    assert all(text not in everything for text in (b"site-packages", b".py", str(Path.cwd()).encode()))


def export_is_deterministic(case: Case) -> None:
    again = export_delta(case.moved, case.backbone)
    assert again.SerializeToString() == case.graph.SerializeToString()


class _Pooled(nn.Module):
    """In a head's place: gives back what the head reads."""

    reads, per_token = (), False

    def forward(self, pooled: Tensor, *_: Tensor) -> Tensor:
        return pooled
