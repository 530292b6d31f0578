"""Rows of several tasks in one batch: each answers as it does alone, tasks of one structure in one run."""

from dataclasses import asdict

import numpy as np
import pytest
from deltas import TEXTS, random_delta, saved

from edgepeft.backbones.base import Pooling
from edgepeft.backbones.source import open_backbone
from edgepeft.errors import BundleError, UnknownName, UsageError
from edgepeft.export.bundle import export_bundle
from edgepeft.methods.base import methods
from edgepeft.runtime import mixed, weights
from edgepeft.runtime.runtime import Runtime

LABELS = (("no", "yes"), ("a", "b", "c"), None, tuple("pqrst"), ("no", "yes"))
SMALL = {
    "adapterdrop": {"skip_layers": 1},
    "top-k": {"layers": 1},
    "prompt-t": {"length": 3},
    "prompt-r": {"length": 3},
}
ONE_RUN = sorted(set(methods()) - {"full", "intrinsic-said", "top-k"})


@pytest.fixture(scope="module")
def several(tiny, tmp_path_factory):
    """``several("pfeiffer")`` -> a bundle with five tasks of one structure and other values and labels."""
    folder = tmp_path_factory.mktemp("mixed")
    written = {}

    def bundle(name, model_type="bert", settings=None):
        key = f"{name}-{model_type}-{len(written)}"
        backbone = open_backbone(str(tiny(model_type)))
        settings = settings if settings is not None else asdict(methods()[name].examples()[0]) | SMALL.get(name, {})
        deltas = [random_delta(backbone, name, f"t{i}", LABELS[i], seed=i, settings=settings) for i in range(5)]
        paths = [saved(delta, folder / f"{key}-{i}") for i, delta in enumerate(deltas)]
        export_bundle(backbone, paths, folder / key, texts=TEXTS[:20])
        return written.setdefault((name, model_type), folder / key)

    return lambda name, model_type="bert", **more: written.get((name, model_type)) or bundle(name, model_type, **more)


@pytest.fixture
def runs(monkeypatch):
    """Counts the runs of sessions on whole models."""
    found = []

    class Counted:
        def __init__(self, session):
            self.session = session

        def __getattr__(self, name):
            if name in ("run", "run_with_ort_values"):
                found.append(name)
            return getattr(self.session, name)

    plain = weights.Weights._open
    monkeypatch.setattr(weights.Weights, "_open", lambda self, model: Counted(plain(self, model)))
    return found


def numbers(prediction):
    return [prediction.score, *prediction.scores.values()]


def check(runtime, tasks, texts):
    """The mixed answers, compared with those of each row's task alone."""
    found = runtime.predict_mixed(tasks, texts)
    for task, text, answer in zip(tasks, texts, found, strict=True):
        alone = runtime.predict(task, [text])[0]
        assert (answer.task, answer.label, list(answer.scores)) == (task, alone.label, list(alone.scores))
        np.testing.assert_allclose(numbers(answer), numbers(alone), atol=1e-5)
    return found


def rows(n, seed=0):
    return [f"t{i}" for i in np.random.default_rng(seed).integers(0, 5, n)]


@pytest.mark.parametrize("method", sorted(methods()))
def test_each_row_answers_as_its_task_does_alone(several, runs, method):
    with Runtime(several(method), threads=1, cache=False) as runtime:
        for n in (1, 2, 13):
            check(runtime, rows(n), TEXTS[3 : 3 + n])
        runs.clear()
        runtime.predict_mixed([f"t{i % 5}" for i in range(11)], TEXTS[:11])
    assert len(runs) == (1 if method in ONE_RUN else 5)
