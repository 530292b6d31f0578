"""What only a GPU can tell: its logits, its losses under the CPU's dropout, resuming across, bfloat16, its full memory.

`make test-gpu` runs these.
"""

from functools import partial

import numpy as np
import pytest
import torch
from method_examples import examples
from moods import rows
from small import LABELS, METHODS, start_of
from tolerance import exact_logits

from edgepeft.backbones.hooks import load_model
from edgepeft.bundle.delta import Delta, new_delta
from edgepeft.common.errors import DoesNotFit
from edgepeft.data.batches import encode
from edgepeft.data.parts import task_data
from edgepeft.data.training_loop.engine import dropout_mask
from edgepeft.data.training_loop.run import Interrupted
from edgepeft.methods.base import methods
from edgepeft.options.verbs import TrainSettings
from edgepeft.tasks.classification import Classification
from edgepeft.training.engine import CPU, PyTorchEngine
from edgepeft.training.loop import train_delta

pytestmark = pytest.mark.gpu

OPTIONS = TrainSettings(task="mood", steps=12, batch_size=8, max_length=32, learning_rate=1e-3, save_every=3)
EXAMPLES = [example for method in methods().values() for example in examples(method)]


@pytest.fixture(scope="module")
def gpu():
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        pytest.skip("PyTorch finds no GPU on this machine")
    return found


@pytest.fixture
def engine(small):
    def engine(delta, device, **how):
        encoded = encode(rows(24), Classification(LABELS["mood"]), small.encoder(), 32, 0)
        return PyTorchEngine(delta, load_model(small), {"train": encoded}, (1e-3, 1e-2), 1.0, device=device, **how)

    return engine


@pytest.mark.parametrize("method", EXAMPLES, ids=lambda method: method.name)
def test_logits_are_exact_but_for_float32s_rounding_and_a_step_moves_every_tensor(gpu, small, engine, method):
    torch.manual_seed(0)
    delta = new_delta(small, method, "mood", LABELS["mood"], max_length=32)
    encoded = encode(rows(24), Classification(LABELS["mood"]), small.encoder(), 32, 0)
    exact = exact_logits(delta, load_model(small), encoded.batch(range(24))[0])
    one = engine(delta, gpu)
    exact.require(one.logits("train", range(24)))
    before = one.tensors()
    one.step(range(8), 1.0, partial(dropout_mask, 0, 0))
    assert any(not np.array_equal(values, before[name]) for name, values in one.tensors().items())


def test_dropout_is_that_of_the_cpu(gpu, small, engine):
    masks = partial(dropout_mask, 3, 7)
    losses = [engine(start_of("mood", small), place)._loss(range(8), masks).item() for place in (CPU, gpu)]
    plain = engine(start_of("mood", small), CPU)
    logits = plain.logits("train", range(8))
    unit = float(np.finfo(np.float32).eps)
    assert losses[1] == pytest.approx(losses[0], rel=0, abs=1000 * unit * float(np.abs(logits).max()))
    assert abs(losses[0] - plain._loss(range(8), partial(dropout_mask, 3, 8)).item()) > 1e-3


@pytest.mark.parametrize("first", ["cpu", "gpu"])
def test_a_run_is_resumed_on_the_other_device(gpu, small, tmp_path, first):
    places = {"cpu": "cpu", "gpu": gpu.type}
    begun, ended = (places[first], places["gpu" if first == "cpu" else "cpu"])
    run = partial(train_delta, small, METHODS["mood"], task_data(rows(240)))
    whole = run(OPTIONS.model_copy(update={"device": "cpu"}), tmp_path / "whole")
    calls = iter([False] * 4 + [True])
    with pytest.raises(Interrupted):
        run(OPTIONS.model_copy(update={"device": begun}), tmp_path / "out", stop=lambda: next(calls))
    result = run(OPTIONS.model_copy(update={"device": ended}), tmp_path / "out", resume=True)
    assert result.training["device"].startswith(ended) and result.training["steps"] == 12
    assert next(result.delta.parameters()).device.type == "cpu"
    Delta.load(tmp_path / "out", small)
    torch.manual_seed(OPTIONS.seed)
    start = new_delta(small, METHODS["mood"], "mood", LABELS["mood"], max_length=32).tensors()
    moved = max(np.abs(values - start[name].detach().numpy()).max() for name, values in whole.tensors.items())
    apart = max(np.abs(values - whole.tensors[name]).max() for name, values in result.tensors.items())
    assert apart < moved / 100  # twelve steps of AdamW amplify rounding where a gradient is near zero


@pytest.mark.parametrize("method", EXAMPLES, ids=lambda method: method.name)
def test_under_bf16_what_is_trained_stays_float32(gpu, small, engine, method):
    torch.manual_seed(0)
    one = engine(new_delta(small, method, "mood", LABELS["mood"], max_length=32), gpu, bf16=True)
    assert np.isfinite(one.step(range(8), 1.0, partial(dropout_mask, 0, 0)).loss)
    moments = [v for kept in one.optimizer.state.values() for v in kept.values()]
    assert {t.dtype for t in (*one.delta.tensors().values(), *moments)} == {torch.float32}


def test_a_full_gpu_says_what_to_lower(gpu, small, tmp_path):
    if gpu.type != "cuda":
        pytest.skip("only CUDA's memory can be bounded for a test")
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-6)
    try:
        with pytest.raises(DoesNotFit, match=r"^cuda .* is out of memory\. Lower --batch-size"):
            train_delta(
                small,
                METHODS["mood"],
                task_data(rows()),
                OPTIONS.model_copy(update={"device": "cuda"}),
                tmp_path / "out",
            )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
