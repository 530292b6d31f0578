"""The forms whose instructions are counted answer alike, so that none is counted that leaves something out."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from bench.instructions import forms_of
from bench.suites._random_bundle import Structure
from edgepeft.bench.planning.job import random_batch
from edgepeft.bundle.bundle import Bundle
from edgepeft.runtime.session import plain_session


@pytest.mark.parametrize(
    ("weights", "forms", "tolerance"), [("fp32", 3, 1e-5), ("int8", 6, 0.05)], ids=["fp32", "int8"]
)
def test_every_form_of_a_tasks_graph_gives_the_logits_of_the_stored_one(tiny_run, weights, forms, tolerance):
    run = tiny_run("bert")
    bundle = Bundle(run.bundle("b", [Structure("pfeiffer", ["task"])], weights=weights))
    text = random_batch([9], vocab_size=bundle.architecture.vocab_size, pad_id=0, seed=0)
    logits = {}
    for name, graph in forms_of(bundle.graph("task"), bundle.weights):
        path = bundle.folder / "model.onnx"
        onnx.save(graph, path)
        session = plain_session(path, 1)
        (logits[name],) = session.run(["logits"], {each.name: text[each.name] for each in session.get_inputs()})
    assert len(logits) == forms
    for name, found in logits.items():
        np.testing.assert_allclose(found, logits["as stored"], atol=tolerance, err_msg=name)
