"""Bundles of random weights: a task for every method that there is."""

from __future__ import annotations

import pytest

from edgepeft.bench import subject
from edgepeft.errors import UsageError
from edgepeft.runtime.runtime import Runtime

TINY = {
    "model_type": "bert",
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 60,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "pad_token_id": 0,
    "hidden_act": "gelu",
}


@pytest.mark.parametrize("method", ["compacter", "compacter++"])
def test_a_method_whose_name_is_no_task_name_still_gets_a_task(method: str, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subject, "config_of", lambda _: TINY)
    found = subject.random_subject("tiny", tmp_path, methods=(method,))
    (task,) = found.model.tasks
    assert task.method == method
    assert Runtime(tmp_path).session(task.name).get_outputs()[0].name == "logits"


def test_settings_without_a_method_are_refused(tmp_path):
    with pytest.raises(UsageError, match="name the method with --method"):
        subject.random_subject("roberta-base", tmp_path, settings={"n": "4"})
