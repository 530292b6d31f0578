"""Devices and precision without a GPU: `meta` stands for one, whose tensors have a place and no values."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from method_examples import examples
from moods import rows
from small import LABELS, METHODS, start_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from verbs import edgepeft

from edgepeft.backbones.base import family_of
from edgepeft.backbones.config import config_of
from edgepeft.backbones.hooks import load_model
from edgepeft.bundle.delta import new_delta
from edgepeft.common.errors import DoesNotFit, EdgepeftError, UsageError
from edgepeft.data.batches import encode
from edgepeft.data.parts import task_data
from edgepeft.data.training_loop.engine import dropout_mask
from edgepeft.data.training_loop.run import Interrupted
from edgepeft.methods.base import methods
from edgepeft.options.verbs import TrainSettings
from edgepeft.tasks.classification import Classification
from edgepeft.training.devices import check_memory, device_of, fitting, use_threads
from edgepeft.training.engine import PyTorchEngine
from edgepeft.training.loop import train_delta

META = torch.device("meta")
MASKS = partial(dropout_mask, 0, 0)
OPTIONS = TrainSettings(task="mood", steps=6, batch_size=8, max_length=32, learning_rate=1e-3, save_every=3)
EXAMPLES = [example for method in methods().values() for example in examples(method)]


@pytest.fixture
def engine(small):
    def engine(method=METHODS["mood"], **how):
        torch.manual_seed(0)
        delta = new_delta(small, method, "mood", LABELS["mood"], max_length=32)
        encoded = encode(rows(24), Classification(LABELS["mood"]), small.encoder(), 32, 0)
        # Attention of which transformers first asks whether its mask hides anything: `meta` cannot tell.
        return PyTorchEngine(delta, load_model(small, "eager"), {"train": encoded}, (1e-3, 1e-2), 1.0, **how)

    return engine


class OnePlace(TorchDispatchMode):
    """Refuses what a GPU refuses: one operation on tensors of two devices, but for copies from one to the other."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        places = {t.device.type for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.dim()}
        assert len(places) < 2 or "copy" in str(func), func
        return func(*args, **kwargs or {})


def on_meta(small_engine):
    with OnePlace():
        small_engine._loss(range(8), MASKS).backward()
    return small_engine


@pytest.mark.parametrize("method", EXAMPLES, ids=lambda method: method.name)
def test_every_methods_step_is_computed_where_the_device_is(engine, method):
    moved = on_meta(engine(method, device=META, weights=[1.0, 2.0]))
    places = [t.device for t in (*moved.delta.parameters(), *moved.delta.buffers(), *moved.model.buffers())]
    assert set(places) == {META}
    assert all(tensor.grad.device == META for tensor in moved.delta.tensors().values())


def test_what_two_devices_would_mix_is_refused_by_this_files_own_check():
    with pytest.raises(AssertionError, match="mul"), OnePlace():
        torch.ones(2, device=META) * torch.ones(2)


def test_tables_of_intrinsic_said_move_with_their_delta_and_are_not_saved(engine):
    from edgepeft.methods.intrinsic_said import IntrinsicSAID

    one = engine(IntrinsicSAID(dimension=64))
    one._loss(range(8), MASKS).backward()  # makes the tables
    before = one.delta.logits(
        one.model, {n: torch.ones(1, 4, dtype=torch.int64) for n in ("input_ids", "attention_mask")}
    )
    assert before.isfinite().all()
    names = {name for name, _ in one.delta.generator.named_buffers()}
    assert {name.rsplit(".", 1)[1] for name in names} == {"index", "gaussian", "signs"}
    assert not names & set(one.delta.generator.state_dict())
    one.delta.to(META)
    one.model.to(META)
    one.device = META
    on_meta(one)


@pytest.mark.parametrize("read", ["logits", "states", "tensors", "state"])
def test_what_leaves_an_engine_is_copied_from_its_device_first(engine, read):
    arguments = ("train", range(8)) if read in ("logits", "states") else ()
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        getattr(engine(device=META), read)(*arguments)


def test_a_state_of_the_cpu_is_taken_up_where_the_parameters_are(engine):
    before, after = engine(), engine(device=META)
    before.step(range(8), 1.0, MASKS)
    after.load_state(before.state())
    for parameter, kept in after.optimizer.state.items():
        assert (kept["exp_avg"].device, kept["exp_avg_sq"].device, kept["step"].device.type) == (META, META, "cpu")
        assert kept["exp_avg"].shape == parameter.shape
    assert len(after.optimizer.state) == len(after.delta.tensors())


@pytest.mark.parametrize("method", EXAMPLES, ids=lambda method: method.name)
def test_under_bf16_a_step_multiplies_in_bfloat16_and_keeps_what_it_trains_in_float32(engine, method):
    one, seen = engine(method, bf16=True), []
    module = one.model.get_submodule("encoder.layer.1.attention.self.query")
    module.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    outcome = one.step(range(8), 1.0, MASKS)
    assert np.isfinite(outcome.loss) and np.isfinite(outcome.gradient_norm)
    moments = [v for kept in one.optimizer.state.values() for v in kept.values()]
    trained = one.delta.tensors().values()
    assert {t.dtype for t in (*trained, *(t.grad for t in trained), *moments)} == {torch.float32}
    one.logits("train", range(8))
    one.states("train", range(8))
    first, *later = seen or [torch.bfloat16, torch.float32]  # a delta may put something else in the module's place
    assert first == torch.bfloat16 and set(later) == {torch.float32}


def test_evaluations_are_the_same_with_bf16_and_without_and_losses_of_steps_are_near(engine, small):
    delta = start_of("mood", small)
    plain, half = (engine(bf16=bf16) for bf16 in (False, True))
    for one in (plain, half):
        one.delta.read(delta.tensors(), "the start")
    np.testing.assert_array_equal(half.logits("train", range(24)), plain.logits("train", range(24)))
    losses = [one._loss(range(24), MASKS).item() for one in (plain, half)]
    assert losses[0] != losses[1]
    # bfloat16 has 8 bits; of two layers about 20 roundings follow one another on the way to a logit.
    assert losses[1] == pytest.approx(
        losses[0], abs=20 * 2.0**-8 * float(np.abs(plain.logits("train", range(24))).max())
    )


def test_a_run_says_where_and_how_it_was_computed_and_resumes_elsewhere_but_not_otherwise(backbone, tmp_path):
    run = partial(train_delta, backbone, METHODS["mood"], task_data(rows()))
    calls = iter([False, False, True])
    with pytest.raises(Interrupted):
        run(OPTIONS.model_copy(update={"bf16": True, "device": "cpu"}), tmp_path / "out", stop=lambda: next(calls))
    with pytest.raises(UsageError, match=r"bf16 \(then true, now"):
        run(OPTIONS, tmp_path / "out", resume=True)
    result = run(OPTIONS.model_copy(update={"bf16": True, "device": "auto"}), tmp_path / "out", resume=True)
    assert (result.training["precision"], result.training["steps"]) == ("bfloat16", 6)
    whole = run(OPTIONS.model_copy(update={"device": "cpu"}), tmp_path / "whole")
    assert (whole.training["device"], whole.training["precision"]) == ("cpu", "float32")


@pytest.mark.parametrize(("found", "auto"), [(None, "cpu"), ("cuda", "cuda"), ("mps", "mps")])
def test_auto_is_the_accelerator_or_the_cpu(monkeypatch, found, auto):
    there = found and torch.device(found)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda check_available: there)
    assert device_of("auto").type == auto
    assert device_of("cpu").type == "cpu"
    if found:
        assert device_of(found) == there
    with pytest.raises(UsageError, match="device must be 'auto', 'cpu', 'cuda' or 'mps', found 'cud'"):
        TrainSettings(task="task", device="cud")


@pytest.mark.parametrize(("found", "finds"), [(None, "it finds cpu."), ("mps", "it finds cpu and mps.")])
def test_a_gpu_that_is_not_there_is_one_line_before_any_file_is_read(
    backbone_folder, tmp_path, monkeypatch, found, finds
):
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda check_available: found and torch.device(found))
    done = edgepeft(
        "train", "--backbone", backbone_folder, "--data", tmp_path / "none.csv", "--task", "mood", "--method", "lora",
        "--device", "cuda", "--out", tmp_path / "out",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: --device cuda: PyTorch ") and finds in line and "--device" in line


@pytest.mark.parametrize(
    "full",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has"),
        RuntimeError("MPS backend out of memory (MPS allocated: 8 GB)"),
    ],
)
def test_a_full_device_says_what_to_lower(backbone, tmp_path, monkeypatch, full):
    def step(*_):
        raise full

    monkeypatch.setattr(PyTorchEngine, "step", step)
    with pytest.raises(DoesNotFit) as raised:
        train_delta(
            backbone, METHODS["mood"], task_data(rows()), OPTIONS.model_copy(update={"device": "cpu"}), tmp_path / "out"
        )
    said = str(raised.value)
    assert said == "cpu is out of memory. Lower --batch-size (8) or --max-length (32), with --force."
    with pytest.raises(DoesNotFit, match=r"\(32\), or give --bf16, with"), fitting(torch.device("mps"), OPTIONS_OF_MPS):
        raise full


OPTIONS_OF_MPS = OPTIONS.model_copy(update={"device": "mps"})


def test_other_errors_stay_what_they_are():
    for error in (RuntimeError("shapes differ"), EdgepeftError("no space left")):
        with pytest.raises(type(error), match=str(error)), fitting(META, OPTIONS):
            raise error


def test_the_card_of_a_verb_names_the_device(backbone_folder, data_file, tmp_path):
    done = edgepeft(
        "train", "--backbone", backbone_folder, "--data", data_file, "--task", "mood", "--method", "bitfit", "--steps", 1,
        "--device", "cpu", "--bf16", "--out", tmp_path / "out",
    )  # fmt: skip
    assert "cpu, bfloat16" in done.stdout
    facts = json.loads((tmp_path / "out" / "delta.json").read_text())["training"]
    assert (facts["device"], facts["precision"]) == ("cpu", "bfloat16") and "bf16" not in facts


def test_what_a_method_takes_at_least_is_refused_before_the_work(monkeypatch):
    """XLM-R-XL's ``full``: weights of 13.9 GB, with a copy that is trained, its gradient, two moments and the best."""
    config = config_of("xlm-roberta-xl")
    large, cpu, lora = family_of(config).architecture(config), torch.device("cpu"), methods()["lora"]()
    n_bytes = 6 * 4 * large.n_parameters
    assert 83e9 < n_bytes < 84e9
    full = methods()["full"]()
    monkeypatch.setattr("edgepeft.training.devices.memory_bytes", lambda: n_bytes)
    check_memory(cpu, full, large)
    monkeypatch.setattr("edgepeft.training.devices.memory_bytes", lambda: n_bytes - 1)
    with pytest.raises(
        DoesNotFit, match=r"training full on this xlm-roberta-xl takes 83\.\d GB at least: .* has 83\.\d GB"
    ):
        check_memory(cpu, full, large)
    check_memory(cpu, lora, large)
    check_memory(META, full, large)


def test_train_refuses_it_before_it_reads_rows(small, tmp_path, monkeypatch):
    monkeypatch.setattr("edgepeft.training.devices.memory_bytes", lambda: 1000)
    with pytest.raises(DoesNotFit, match="training lora on this bert takes"):
        train_delta(small, "lora", task_data(rows()), OPTIONS, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_threads_are_those_asked_for_or_of_the_environment_or_the_cores_in_force(monkeypatch):
    before, taken = torch.get_num_threads(), []
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    monkeypatch.setattr("edgepeft.device.machine.usable_cores", lambda proc: 7)
    for value, asked in (("3", None), ("3", 2), (None, None), (None, 2), (None, 10**6)):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if value:
            monkeypatch.setenv("OMP_NUM_THREADS", value)  # which PyTorch has read
        use_threads(asked)
    assert taken == [2, 7, 2, 7] and torch.get_num_threads() == before
