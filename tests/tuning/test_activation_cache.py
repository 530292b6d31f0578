"""What lies below the trained modules is computed once; and rows at a time change nothing."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
import torch
from deltas import TEXTS
from tiny import write_model
from tuned import tune_task
from verbs import edgepeft

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.delta import new_delta
from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.data.training_loop.run import Interrupted
from edgepeft.graph.prune_last_layer import picked_rows_name
from edgepeft.methods.base import method_named
from edgepeft.options.verbs import TuneSettings
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.tuning import activation_cache as hidden
from edgepeft.tuning import step
from edgepeft.tuning.activation_cache import HiddenStates
from edgepeft.tuning.target import Files, from_task
from edgepeft.tuning.tune import TuningRun

# Method, settings, and where the deployed graph must be cut: read off the architecture, not off the code.  Of the last
# layer the head reads one row of each text.
CASES = {
    "top": ("top-k", {"layers": 1}, {"layer.1.layer_output"}),
    "ffn": ("pfeiffer", {"bottleneck": 4, "skip_layers": 1}, {"layer.1.ffn_output", "layer.1.attention_norm"}),
    "query": (
        "lora",
        {"rank": 2, "skip_layers": 2, "roles": ["query"]},
        {*map(picked_rows_name, ("layer.1.layer_output", "layer.2.query")), "layer.2.key", "layer.2.value"},
    ),
    "inner": (
        "lora",
        {"rank": 2, "skip_layers": 2, "roles": ["ffn_output"]},
        {*map(picked_rows_name, ("layer.2.ffn_activation", "layer.2.ffn_output", "layer.2.attention_norm"))},
    ),
    "context": (
        "lora",
        {"rank": 2, "skip_layers": 1, "roles": ["attention_output"]},
        {"layer.0.layer_output", "layer.1.context", "layer.1.attention_output"},
    ),
    "norms": ("layernorm", {}, set()),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Three layers, a pooler that a mean does not read, and a task for each case."""
    folder = tmp_path_factory.mktemp("hidden")
    backbone = open_backbone(str(write_model(folder / "roberta", "roberta", num_hidden_layers=3)))
    for task, (method, settings, _) in CASES.items():
        torch.manual_seed(0)
        made = method_named(method).from_settings(settings)
        new_delta(backbone, made, task, ("bad", "good"), max_length=40).save(folder / task)
    deltas = [folder / task for task in CASES]
    export_bundle(backbone, deltas, folder / "bundle", texts=TEXTS)
    return folder / "bundle"


def run_of(bundle, task, data, work, **more):
    options = TuneSettings(steps=6, learning_rate=3e-3, head_learning_rate=1e-2, batch_size=8, **more)
    opened = Bundle(bundle)
    run = TuningRun(opened, from_task(opened, task, Files(data), options), options, work, threads=1)
    return run, run.layout.notes


def losses_of(run, steps=6):
    loop = run.loop
    losses, order = [], list(range(len(loop.rows["train"].targets)))
    for number in range(steps):
        loop.update(order[8 * number % 40 :][:8])
        losses.append(loop.loss)
    return losses


@pytest.mark.parametrize("task", CASES)
def test_the_cut_is_at_the_lowest_trained_or_adapted_site_and_the_losses_are_the_same(source, moods, tmp_path, task):
    kept, told = run_of(source, task, moods, tmp_path)
    whole, nothing = run_of(source, task, moods, tmp_path, prefix_cache=False)
    split = kept.layout.split
    assert ({state.name for state in split.states} if split else set()) == CASES[task][2]
    assert bool(told) == (task == "norms") and not nothing
    np.testing.assert_allclose(losses_of(kept), losses_of(whole), rtol=1e-5)
    # A key's bias changes no softmax: its gradient is noise, which AdamW makes a step of.
    for name, tensor in ((n, t) for n, t in kept.engine.trained.items() if not n.endswith("key.bias")):
        np.testing.assert_allclose(tensor, whole.engine.trained[name], atol=2e-5, err_msg=name)
    for run in (kept, whole):
        run.engine.prepare()
    kept.engine.trained = whole.engine.trained
    one, other = (run.loop.score("eval") for run in (kept, whole))
    assert one.score == other.score and one.loss == pytest.approx(other.loss, abs=1e-5)


@pytest.mark.parametrize(("model_type", "kept_at"), [("bert", "pooler"), ("roberta", "layer.1.layer_output")])
def test_where_the_head_alone_is_trained_a_row_keeps_what_the_head_reads(tmp_path, moods, model_type, kept_at):
    """A LoRA's tensors stay as they are here.  BERT's frozen pooler gives one vector a row."""
    backbone = open_backbone(str(write_model(tmp_path / "model", model_type)))
    made = method_named("lora").from_settings({"rank": "2", "skip_layers": "1"})
    new_delta(backbone, made, "mood", ("bad", "good"), max_length=40).save(tmp_path / "mood")
    export_bundle(backbone, [tmp_path / "mood"], tmp_path / "bundle", texts=TEXTS)
    opened, options = Bundle(tmp_path / "bundle"), TuneSettings(steps=6, batch_size=8, learning_rate=1e-2)
    target = head_only(from_task(opened, "mood", Files(moods), options))
    kept = TuningRun(opened, target, options, tmp_path, threads=1)
    whole = TuningRun(opened, target, options.model_copy(update={"prefix_cache": False}), tmp_path, threads=1)
    (state,) = kept.layout.split.states
    assert state.by_row and (kept_at == "pooler" or state.name == picked_rows_name(kept_at))
    assert kept.engine.trained.keys() == {name for name in kept.engine.trained if name.startswith("head/")}
    np.testing.assert_allclose(losses_of(kept), losses_of(whole), rtol=1e-5)
    whole.engine.trained = kept.engine.trained
    assert kept.loop.score("eval").loss == pytest.approx(whole.loop.score("eval").loss, abs=1e-5)


def head_only(target):
    """The same task with the head's tensors trained alone."""
    kept = tuple(name for name in target.facts.trained if name.startswith("head/"))
    assert 0 < len(kept) < len(target.facts.trained)
    return dataclasses.replace(target, facts=dataclasses.replace(target.facts, trained=kept))


def test_what_is_kept_is_transformers_own_hidden_state_without_padding(source, moods, tmp_path):
    run, _ = run_of(source, "top", moods, tmp_path)
    rows = run.loop.rows["train"]
    states = HiddenStates(run.layout.split.states, rows, None)
    assert sum(states.fill(run.layout.split.below, source, rows, 1)) == len(rows.targets)
    model = load_model(open_backbone(str(source)), "eager")
    chosen = [5, 0, 17]
    inputs, _ = rows.batch(chosen)
    with torch.no_grad():
        given = {name: torch.from_numpy(values) for name, values in inputs.items()}
        expected = model(**given, output_hidden_states=True).hidden_states[2].numpy()
    (packed,) = states.packed(chosen).values()
    np.testing.assert_allclose(packed, expected[inputs["attention_mask"] == 1], atol=2e-5)


def test_a_file_holds_what_memory_holds_and_has_no_name(source, moods, tmp_path):
    run, _ = run_of(source, "ffn", moods, tmp_path)
    rows, split = run.loop.rows["train"], run.layout.split
    both = [HiddenStates(split.states, rows, folder) for folder in (None, tmp_path)]
    for states in both:
        list(states.fill(split.below, source, rows, 1))
    assert [path.name for path in tmp_path.iterdir()] == ["moods.jsonl"]
    for name, values in both[0].packed([3, 1, 4]).items():
        np.testing.assert_array_equal(values, both[1].packed([3, 1, 4])[name])


def test_a_full_disk_is_told_before_anything_is_mapped(source, moods, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hidden.os, "posix_fallocate", full)
    run, _ = run_of(source, "ffn", moods, tmp_path)
    with pytest.raises(EdgepeftError, match=r"no room for .* MB of hidden states .*--no-prefix-cache"):
        HiddenStates(run.layout.split.states, run.loop.rows["train"], tmp_path)


@pytest.mark.parametrize(("size", "tokens"), [(1, 1024), (3, 1024), (7, 1024), (None, 20), (2, 40)])
def test_parts_of_a_step_give_the_gradients_of_the_whole_batch(source, moods, tmp_path, monkeypatch, size, tokens):
    """Rows of many lengths, a last part that is smaller, and a dropout mask for each row."""
    whole, _ = run_of(source, "ffn", moods, tmp_path)
    parts, _ = run_of(source, "ffn", moods, tmp_path, micro_batch=size)
    chosen, generator = [0, 9, 3, 21, 14, 30, 2, 8], np.random.default_rng(0)
    masks = [(generator.random((8, width)) > 0.3).astype(np.float32) / 0.7 for _, width in whole.target.facts.dropouts]
    assert masks
    one = whole.engine.gradients(chosen, masks)
    monkeypatch.setattr(step, "PASS_TOKENS", tokens)
    computed, run = [], step.TrainingStep.run
    monkeypatch.setattr(step.TrainingStep, "run", lambda self, *given: computed.append(given[2]) or run(self, *given))
    other = parts.engine.gradients(chosen, masks)
    shapes = [given["input_ids"].shape for given in computed]
    assert len(shapes) > 1 and sum(rows for rows, _ in shapes) == len(chosen)
    assert all(rows <= (size or 8) and (rows == 1 or rows * length <= tokens) for rows, length in shapes)
    assert other.loss == pytest.approx(one.loss, rel=1e-5)
    for name, gradient in one.gradients.items():
        np.testing.assert_allclose(other.gradients[name], gradient, atol=1e-5 * max(1e-3, np.abs(gradient).max()))


def test_a_run_that_is_stopped_while_they_are_computed_goes_on_to_the_same_weights(source, moods, tmp_path):
    one, other = (shutil.copytree(source, tmp_path / name) for name in ("one", "other"))
    options, phases = TuneSettings(steps=4, batch_size=8), []
    with pytest.raises(Interrupted, match="after step 0 of 4"):
        tune_task(
            one, "ffn", Files(moods), options, threads=1, stop=lambda: True, watch=lambda p: phases.append(p.phase)
        )
    assert set(phases) == {"prefix"}
    done = [tune_task(folder, "ffn", Files(moods), options, threads=1, resume=folder == one) for folder in (one, other)]
    assert done[0].history == done[1].history
    assert Bundle(one).entry("ffn").sha256 == Bundle(other).entry("ffn").sha256
    assert not (one / ".tune").exists()


def test_a_resumed_run_wants_the_same_rows_at_a_time(source, moods, tmp_path):
    bundle = shutil.copytree(source, tmp_path / "bundle")
    with pytest.raises(Interrupted):
        tune_task(bundle, "ffn", Files(moods), TuneSettings(steps=4, batch_size=8), threads=1, stop=lambda: True)
    for changed in ({"micro_batch": 3}, {"prefix_cache": False}):
        options = TuneSettings(steps=4, batch_size=8, **changed)
        with pytest.raises(UsageError, match=rf"{next(iter(changed))} \(then .*--resume"):
            tune_task(bundle, "ffn", Files(moods), options, threads=1, resume=True)


def test_a_run_says_how_its_steps_were_computed(source, moods, tmp_path):
    bundle = shutil.copytree(source, tmp_path / "bundle")
    done = edgepeft("tune", bundle, "--task", "norms", "--data", moods, "--steps", 2, "--micro-batch", 3)
    assert done.returncode == 0 and "layernorm trains or adapts the embeddings" in " ".join(done.stderr.split())
    options = TuneSettings(steps=2, batch_size=8, micro_batch=3)
    tuned = tune_task(bundle, "top", Files(moods), options, threads=1)
    assert (tuned.training["micro_batch"], tuned.training["prefix_cache"]) == (3, True)
    with pytest.raises(UsageError, match="--micro-batch 9 is more than the 8 rows"):
        tune_task(bundle, "top", Files(moods), options.model_copy(update={"micro_batch": 9}), threads=1)
