"""Bundles of random weights: a task for every method that there is."""

from __future__ import annotations

import pytest
from configs import SMALL_BERT
from tiny import SIZES

from edgepeft.backbones.base import family_of
from edgepeft.backbones.config import config_of
from edgepeft.bench.planning import target as subject
from edgepeft.common.errors import UsageError
from edgepeft.methods.base import methods
from edgepeft.runtime.runtime import Runtime

TINY = SMALL_BERT | {"hidden_size": 24}


@pytest.mark.parametrize("method", ["compacter", "compacter++"])
def test_a_method_whose_name_is_no_task_name_still_gets_a_task(method: str, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subject, "config_of", lambda _: TINY)
    found = subject.random_subject("tiny", tmp_path, methods=(method,))
    (task,) = found.tasks
    assert task.method == method
    assert Runtime(tmp_path).session(task.name).shared.get_outputs()[0].name == "logits"


def test_a_task_that_trains_everything_is_known_by_what_its_method_says(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subject, "config_of", lambda _: TINY)
    found = subject.random_subject("tiny", tmp_path, methods=("full", "intrinsic-said", "lora"))
    assert [task.method for task in found.tasks if task.trains_everything] == ["full"]


def test_a_model_with_a_decoder_gets_labels_that_it_can_write(tmp_path, monkeypatch: pytest.MonkeyPatch):
    config = SIZES["t5"] | {"model_type": "t5", "vocab_size": 80}
    monkeypatch.setattr(subject, "config_of", lambda _: config)
    subject.random_subject("tiny", tmp_path, methods=("houlsby",))
    (prediction,) = Runtime(tmp_path, cache=False).predict("houlsby", ["a b c"])
    assert sorted(prediction.scores) == ["0", "1"]


@pytest.mark.parametrize("name", methods())
def test_a_method_says_truly_whether_it_trains_everything(name: str):
    config = config_of("bert-base-uncased")
    architecture = family_of(config).architecture(config)
    method = methods()[name]
    assert method.trains_everything == (method().n_parameters(architecture) == architecture.n_parameters)


def test_settings_without_a_method_are_refused(tmp_path):
    with pytest.raises(UsageError, match="name the method with --method"):
        subject.random_subject("roberta-base", tmp_path, settings={"n": "4"})
