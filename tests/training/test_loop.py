"""Training a tiny model: what moves and what does not, what is kept, what a resumed run equals."""

import errno
import json
import multiprocessing
import signal
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from killed import train_until_killed
from moods import rows, texts
from tolerance import error_of_sums, exact_logits

from edgepeft.backbones.hooks import load_model
from edgepeft.bundle.delta import Delta, new_delta
from edgepeft.common.errors import BundleError, EdgepeftError, UsageError
from edgepeft.data.batches import encode
from edgepeft.data.parts import task_data
from edgepeft.data.rows import Row
from edgepeft.data.training_loop.checkpoint import Diverged
from edgepeft.data.training_loop.engine import Scored, score_rows
from edgepeft.data.training_loop.run import Interrupted
from edgepeft.methods.base import method_named
from edgepeft.options.verbs import TrainSettings
from edgepeft.tasks.classification import Classification
from edgepeft.training.curve import smaller
from edgepeft.training.engine import PyTorchEngine, logits_of, loss_of
from edgepeft.training.loop import train_delta
from edgepeft.training.settings import with_defaults

KIND = Classification(("bad", "good"))
OPTIONS = TrainSettings(task="mood", epochs=2, batch_size=8, max_length=32, learning_rate=1e-3, save_every=3)
HOULSBY = method_named("houlsby").from_settings({"bottleneck": 4})


@pytest.fixture
def run(backbone, tmp_path):
    def run(name="out", method=HOULSBY, data=None, options=OPTIONS, **more):
        return train_delta(backbone, method, data or task_data(rows()), options, tmp_path / name, **more)

    return run


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def after(steps):
    """A ``stop`` that says so after that many steps."""
    left = iter(range(steps - 1))
    return lambda: next(left, None) is None


def test_a_task_that_can_be_learnt_is_learnt_and_what_is_on_disk_scores_the_same(run, backbone, tmp_path):
    data = task_data(rows(240))
    result = run(data=data, options=OPTIONS.model_copy(update={"epochs": 4, "lr": 3e-3}))
    assert result.score >= 0.9  # two thirds is the majority's share
    loaded = Delta.load(tmp_path / "out", backbone)
    rows_of_test = encode(data.test, data.task_kind, backbone.encoder(), 32, 0)
    read = partial(logits_of, loaded, load_model(backbone), rows_of_test)
    scores = score_rows(read, rows_of_test, data.task_kind, "accuracy")
    assert scores.score == result.score == loaded.card.metrics["test"]
    assert loaded.card.labels == ("bad", "good")


def test_the_folder_holds_the_delta_and_nothing_of_the_run(run, tmp_path):
    run()
    assert set(content(tmp_path / "out")) == {"delta.json", "delta.safetensors", "evaluation.safetensors"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_numbers_are_predicted_by_a_regression(run):
    counted = [Row(text, None, str(n / 2), "f", i) for i, (text, _, n) in enumerate(texts(240))]
    data = task_data(counted, kind="regression")
    result = run(data=data, options=OPTIONS.model_copy(update={"regression": True, "epochs": 6, "lr": 3e-3}))
    assert result.metric == "pearson_spearman"
    assert result.score > 0.5
    assert result.delta.card.labels is None


def test_pairs_are_trained_as_pairs(run):
    pairs = [row._replace(sentence2="the day was fine") for row in rows()]
    assert run(data=task_data(pairs)).delta.card.pairs


def test_every_trained_tensor_moves_and_no_weight_of_the_backbone_does(run, backbone, monkeypatch):
    models = []
    monkeypatch.setattr(
        "edgepeft.training.loop.load_model", lambda *given: models.append(load_model(*given)) or models[0]
    )
    result = run()
    torch.manual_seed(OPTIONS.seed)
    fresh = new_delta(backbone, HOULSBY, "mood", ("bad", "good"), max_length=32).tensors()
    assert all(not torch.equal(tensor, fresh[name]) for name, tensor in result.delta.tensors().items())
    pristine = load_model(backbone).state_dict()
    assert all(torch.equal(tensor, pristine[name]) for name, tensor in models[0].state_dict().items())


def test_a_start_that_is_given_is_where_training_begins(run, backbone):
    torch.manual_seed(7)
    start = new_delta(backbone, HOULSBY, "other", ("bad", "good"), max_length=32).tensors()
    still = OPTIONS.model_copy(update={"epochs": None, "steps": 1, "lr": 1e-9, "head_lr": 1e-9})
    ended = run(options=still, start=start).delta.tensors()
    assert ended.keys() == start.keys()
    assert all(torch.allclose(tensor, start[name], atol=1e-8) for name, tensor in ended.items())


def test_a_start_of_another_method_is_refused(run, backbone):
    start = new_delta(
        backbone, method_named("lora").from_settings({}), "other", ("bad", "good"), max_length=32
    ).tensors()
    with pytest.raises(BundleError, match="the start does not hold the tensors of houlsby"):
        run(start=start)


def test_full_fine_tuning_trains_copies_and_leaves_the_model_as_it_was(run, backbone):
    result = run(
        method=method_named("full").from_settings({}), options=OPTIONS.model_copy(update={"steps": 2, "epochs": None})
    )
    trained = result.delta.override_tensors
    query = "encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(trained[query].detach(), load_model(backbone).state_dict()[query])


def test_the_head_has_a_rate_of_its_own_and_every_tensor_one_of_the_two(backbone):
    delta = new_delta(backbone, HOULSBY, "mood", ("bad", "good"), max_length=32)
    proper, head = PyTorchEngine(delta, torch.nn.Identity(), {}, (1e-3, 0.5), 1.0).optimizer.param_groups
    assert (proper["lr"], head["lr"]) == (1e-3, 0.5)
    assert {id(t) for t in head["params"]} == {id(t) for t in delta.head.parameters()}
    assert len(proper["params"]) + len(head["params"]) == len(list(delta.parameters()))


def test_the_method_gives_the_default_rate_and_a_mean_asks_for_a_faster_head(backbone):
    options = with_defaults(TrainSettings(task="t"), backbone, HOULSBY, KIND)
    assert options.lr == HOULSBY.learning_rate
    assert options.head_lr == 0.02
    assert (options.epochs, options.metric, options.head, options.max_length) == (None, "accuracy", "linear", 64)


def test_the_best_evaluation_is_kept_and_not_the_last(run, monkeypatch):
    scores, seen = iter([(0.5, 1.0), (0.9, 1.0), (0.7, 0.1)]), []

    def planned(read, *_, **__):
        seen.append(read.func.__self__.tensors())
        return Scored(*next(scores, (0.0, 0.0)), np.zeros(6, np.int64), np.zeros(6), KIND)

    monkeypatch.setattr("edgepeft.data.training_loop.engine.score_rows", planned)
    result = run(options=OPTIONS.model_copy(update={"epochs": 3}))
    assert (result.metrics["eval"], result.training["best_step"]) == (0.9, 12)  # 48 rows, 8 a step: 6 steps an epoch
    best = {name: tensor.detach().numpy() for name, tensor in result.delta.tensors().items()}
    for evaluated in (seen[1], seen[3]):
        assert all(
            np.array_equal(values, evaluated[name]) for name, values in best.items()
        )  # the reported score is of it


def test_equal_seeds_give_equal_bytes_and_others_do_not(run, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(name, options=OPTIONS.model_copy(update={"seed": seed}))
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert content(tmp_path / "a")["delta.safetensors"] != content(tmp_path / "c")["delta.safetensors"]


def test_training_leaves_torchs_generator_as_it_was(run):
    torch.manual_seed(5)
    run(options=OPTIONS.model_copy(update={"steps": 1, "epochs": None}))
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))


@pytest.mark.parametrize("steps", [1, 4, 6, 8])
def test_a_stopped_run_resumes_to_the_bytes_of_an_uninterrupted_one(run, tmp_path, steps):
    run("whole")
    with pytest.raises(Interrupted, match=f"after step {steps} of 12"):
        run("stopped", stop=after(steps))
    assert [path.name for path in (tmp_path / "stopped" / "checkpoint").iterdir()] == [f"{steps}.safetensors"]
    run("stopped", resume=True)
    assert content(tmp_path / "stopped") == content(tmp_path / "whole")


def test_a_killed_run_resumes_to_the_bytes_of_an_uninterrupted_one(run, backbone, tmp_path):
    run("whole")
    # Spawned, not forked: autograd's threads do not survive a fork. Checkpoints are written after 3, 6 (and its evaluation).
    child = multiprocessing.get_context("spawn").Process(
        target=train_until_killed,
        args=(str(backbone.folder), HOULSBY, OPTIONS, tmp_path / "killed"),
        kwargs={"step": 8, "threads": torch.get_num_threads()},
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "killed" / "checkpoint").iterdir()] == ["6.safetensors"]
    run("killed", resume=True)
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_a_full_disk_keeps_the_checkpoint_before_and_says_so(run, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(Interrupted):
        run(stop=after(3))
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(EdgepeftError, match="no space left"):
            run(resume=True)
    run(resume=True)
    run("whole")
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"options": OPTIONS.model_copy(update={"lr": 2e-3})}, r"learning_rate \(then 0.001, now 0.002\)"),
        ({"data": task_data(rows(61))}, "data "),
        ({"method": method_named("houlsby").from_settings({"bottleneck": 5})}, "hyperparameters"),
        ({"method": method_named("full").from_settings({})}, r"method \(then \"houlsby\", now \"full\"\)"),
    ],
)
def test_resuming_with_other_arguments_or_data_is_refused_and_says_what_differs(run, more, named):
    with pytest.raises(Interrupted):
        run(stop=after(2))
    with pytest.raises(UsageError, match=named):
        run(resume=True, **more)


def test_a_damaged_checkpoint_is_refused(run, tmp_path):
    with pytest.raises(Interrupted):
        run(stop=after(2))
    path = tmp_path / "out" / "checkpoint" / "2.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BundleError, match="damaged"):
        run(resume=True)


def test_an_output_folder_that_exists_is_refused_with_the_flag_that_would_help(run, tmp_path):
    with pytest.raises(Interrupted):
        run(stop=after(1))
    with pytest.raises(UsageError, match="--resume to continue it, or --force"):
        run()
    run(force=True)
    before = content(tmp_path / "out")
    with pytest.raises(UsageError, match=r"exists already\. Give --force"):
        run()
    with pytest.raises(UsageError, match=r"nothing to resume: .* a finished delta"):
        run(resume=True)
    assert content(tmp_path / "out") == before


def test_a_place_that_cannot_be_written_is_said_before_anything_is_loaded(tmp_path, monkeypatch):
    def ask(out):
        train_delta("none", "bitfit", "none.csv", TrainSettings(task="mood"), out)

    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file/out cannot be written: .*file is a file"):
        ask(tmp_path / "file" / "out")
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(EdgepeftError, match=r"out cannot be written: .* is not this user's to write"):
        ask(tmp_path / "out")


def test_even_force_deletes_no_folder_that_holds_something_else(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"holds thesis\.tex"):
        run(force=True)
    assert set(content(tmp_path / "out")) == {"thesis.tex"}


def test_a_mount_point_is_refused_before_training_and_not_when_the_delta_is_to_be_written(run, tmp_path, monkeypatch):
    monkeypatch.setattr("pathlib.Path.is_mount", lambda path: path == tmp_path / "out")
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="is a mount point"):
        run()
    assert not content(tmp_path / "out")


def test_an_interrupted_replacement_leaves_the_old_delta_whole(run, tmp_path):
    run()
    before = content(tmp_path / "out")
    with pytest.raises(Interrupted):
        run(options=OPTIONS.model_copy(update={"seed": 1}), force=True, stop=after(4))
    assert before.items() <= content(tmp_path / "out").items()


def test_a_run_that_diverges_says_which_rates_to_lower(run):
    with pytest.raises(EdgepeftError, match=r"Lower --lr \(1e\+30\)"):
        run(options=OPTIONS.model_copy(update={"lr": 1e30, "epochs": 3}))


def test_a_run_that_diverges_after_an_evaluation_leaves_its_best_tensors(run, backbone, tmp_path, monkeypatch):
    def broken(kind, logits, targets, *_, **__):
        broken.steps += 1
        return loss_of(kind, logits, targets) * (float("nan") if broken.steps > 8 else 1.0)

    broken.steps = 0
    run("six", options=OPTIONS.model_copy(update={"epochs": None, "steps": 6}))
    monkeypatch.setattr("edgepeft.training.engine.loss_of", broken)
    with pytest.raises(
        Diverged, match=r"nan in step 9: .* Lower --lr .*out holds its best tensors, of step 6 \(accuracy"
    ):
        run()
    card = Delta.load(tmp_path / "out", backbone).card
    assert (card.training["best_step"], card.training["steps"]) == (6, 8)
    assert "the loss became nan in step 9" in card.training["diverged"]
    assert card.metrics["n_test"] == 6
    with pytest.raises(UsageError, match="--force"):
        run()


def test_patience_ends_a_run_that_brings_nothing_more(run):
    still = OPTIONS.model_copy(update={"epochs": 9, "lr": 1e-12, "head_lr": 1e-12, "patience": 2})
    result = run(options=still)
    assert (result.training["best_step"], result.training["steps"]) == (6, 18)  # scored alike after 6, 12 and 18


def test_a_balanced_loss_is_the_mean_of_rows_weighed_by_their_labels(run, backbone, monkeypatch):
    data, seen = task_data(rows()), []
    monkeypatch.setattr("edgepeft.training.loop.new_delta", partial(new_delta, head_dropout=0.0))
    torch.manual_seed(1)
    start = new_delta(backbone, HOULSBY, "mood", data.labels, max_length=32)
    torch.nn.init.normal_(start.head.classifier.weight)  # a fresh head answers all rows alike, whatever they weigh
    balanced = OPTIONS.model_copy(update={"epochs": None, "steps": 1, "batch_size": 48, "balanced": True})
    watch = {"watch": lambda p: seen.append(p.loss) if p.phase == "train" else None, "start": start.tensors()}
    result = run(data=data, options=balanced, **watch)
    encoded = encode(data.train, data.task_kind, backbone.encoder(), 32, 0)
    inputs, targets = encoded.batch(range(48))
    logits = exact_logits(start, load_model(backbone), inputs)
    losses = np.log(np.exp(logits.value).sum(1)) - logits.value[np.arange(48), targets]
    weights = np.array([48 / (2 * 16), 48 / (2 * 32)])[targets]  # a third are bad
    error = 2 * logits.error + error_of_sums(48, np.abs(losses))  # a loss moves by at most two logits' errors
    assert result.training["class_weights"] == {"bad": 1.5, "good": 0.75}
    assert seen[0] == pytest.approx((weights * losses).sum() / weights.sum(), rel=0, abs=error)
    assert abs(losses.mean() - seen[0]) > 10 * error
    assert "class_weights" not in run("plain", options=balanced.model_copy(update={"balanced": False})).training


def test_a_learning_curve_scores_growing_parts_of_the_rows_and_leaves_the_delta_as_it_would_be(run, tmp_path):
    data = task_data(rows())
    whole = run("whole", data=data)
    result = run("curve", data=data, options=OPTIONS.model_copy(update={"curve": True}))
    curve = result.metrics["curve"]
    assert [point["rows"] for point in curve] == [5, 10, 19, 34, 48]
    assert curve[-1]["test"] == whole.score and set(curve[0]["baselines"]) == {"majority", "linear head"}
    parts = [*smaller(data, 0), data]
    lines = [{row.line for row in each.train} for each in parts]
    assert all(one < other for one, other in pairwise(lines))
    assert all({row.label for row in each.train} == {"bad", "good"} for each in parts)
    alone = run("alone", data=parts[1])
    assert {**curve[1], "baselines": None} == {
        "rows": 10, "eval": alone.metrics["eval"], "test": alone.score, "baselines": None
    }  # fmt: skip
    written = content(tmp_path / "curve")
    assert set(written) == {"delta.json", "delta.safetensors", "evaluation.safetensors", "curve.png", "curve.svg"}
    assert written["delta.safetensors"] == content(tmp_path / "whole")["delta.safetensors"]
    assert b"training rows" in written["curve.svg"] and b"linear head" in written["curve.svg"]


def test_a_run_that_is_stopped_in_its_curve_resumes_to_the_same_bytes(run, tmp_path):
    options = OPTIONS.model_copy(update={"curve": True})
    run("whole", options=options)
    with pytest.raises(Interrupted, match="after step 1 of 4"):  # 12 steps on all rows, 2 on five, 1 of ten
        run("stopped", options=options, stop=after(15))
    assert "delta.json" not in content(tmp_path / "stopped")
    phases = []
    run("stopped", options=options, resume=True, watch=lambda progress: phases.append(progress.phase))
    assert content(tmp_path / "stopped") == content(tmp_path / "whole")
    assert "train" not in phases and "train on 5 rows" not in phases and "train on 10 rows" in phases


def test_a_gradient_that_is_not_finite_is_never_taken_for_the_best_step(run, tmp_path, monkeypatch):
    def steep(kind, logits, targets, *_, **__):  # the loss itself, with the infinite slope of a root at zero
        loss = loss_of(kind, logits, targets)
        return loss + (loss - loss.detach()).sqrt()

    monkeypatch.setattr("edgepeft.training.engine.loss_of", steep)
    with pytest.raises(EdgepeftError, match=r"the gradients are not finite in step 1: .* Lower --lr \(0\.001\)"):
        run(options=OPTIONS.model_copy(update={"epochs": None, "steps": 1}))
    assert "delta.json" not in content(tmp_path / "out")


def test_a_length_beyond_the_backbones_positions_is_refused(run):
    with pytest.raises(UsageError, match="positions for 64 tokens"):
        run(options=OPTIONS.model_copy(update={"max_length": 65}))


def test_the_card_says_how_the_delta_came_about(run, tmp_path):
    run(data=task_data(rows(), few_shot=20, seed=3), options=OPTIONS.model_copy(update={"seed": 3}))
    card = json.loads((tmp_path / "out" / "delta.json").read_text())
    metrics = card["metrics"]
    assert (metrics["n_train"], metrics["n_eval"], metrics["n_test"]) == (20, 6, 6)
    assert "20 of 48 rows of memory.jsonl (stratified, seed 3)" in metrics["split"]
    assert (card["training"]["few_shot"], card["training"]["seed"], card["training"]["steps"]) == (20, 3, 6)
    found, expected = (version.partition("+")[0] for version in (card["versions"]["torch"], torch.__version__))
    assert found == expected  # what follows the + names a build, and PyPI's metadata leaves it out
