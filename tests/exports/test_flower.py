"""exports/flower: what the server lets through and asks for; and, where Flower is, rounds over loopback."""

from __future__ import annotations

import json
import shutil
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

APP = Path(__file__).resolve().parents[2] / "exports" / "flower"
flower = pytest.importorskip("flwr", reason="pip install flwr==1.41.0, in an environment of its own")
pytestmark = pytest.mark.slow

RUN = {
    "strategy": "FedAvg", "strategy-options": "{}", "aggregate": "mean", "boards": 2,
    "private-clip": 0.0, "private-noise": 0.0, "private-epsilon": 0.0, "private-delta": 1e-5,
}  # fmt: skip


@pytest.fixture(scope="module")
def server():
    sys.path.insert(0, str(APP))
    import server_app

    yield server_app
    sys.path.remove(str(APP))


def reply(server, tensors, rows=10, node=1):
    """What a board answers with, as a grid gives it."""
    from client_app import to_record
    from flwr.app import Message, MetricRecord, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.task_id = 1
    TaskIdentity.node_id = node  # who speaks
    asked = Message(RecordDict(), dst_node_id=node, message_type="train")
    metrics = MetricRecord({"num-examples": rows, "boards": 1, "loss": 1.0})
    return Message(RecordDict({"arrays": to_record(tensors), "metrics": metrics}), reply_to=asked)


class Grid:
    def __init__(self, replies):
        self.replies = replies

    def send_and_receive(self, messages, *, timeout=None):
        self.asked = messages
        return self.replies

    def get_node_ids(self):
        return [1, 2]


def tensors(seed, rank=2):
    draw = np.random.default_rng(seed).standard_normal
    shapes = {"q/A": (rank, 5), "q/B": (4, rank), "head/bias": (3,)}
    return {name: draw(shape).astype(np.float32) for name, shape in shapes.items()}


def test_answers_that_are_no_tensors_of_the_task_are_left_out_and_the_round_goes_on(server, capsys):
    own = tensors(0)
    bad = [
        reply(server, {**own, "q/A": own["q/A"] * np.nan}, node=2),
        reply(server, {**own, "q/A": own["q/A"][:1]}, node=3),
        reply(server, {"q/A": own["q/A"]}, node=4),
        reply(server, own, rows=0, node=5),
        reply(server, own, rows=float("nan"), node=6),
    ]
    good = [reply(server, tensors(1), 30), reply(server, tensors(2), 10, node=7)]
    grid = server.SoundReplies(Grid([*bad, *good]), own)
    sound = grid.send_and_receive([], timeout=1)
    assert sound == good and grid.refused == 5
    said = capsys.readouterr().out
    assert all(f"of board {node}" in said for node in (2, 3, 4, 5, 6)) and "not finite" in said
    arrays, _ = server.strategy_of(RUN).aggregate_train(1, sound)
    for name in own:
        expected = 0.75 * tensors(1)[name] + 0.25 * tensors(2)[name]  # weighted by rows
        np.testing.assert_allclose(arrays[name].numpy(), expected, atol=1e-6)


def test_what_goes_to_boards_is_float32_whatever_the_strategy_made_of_it(server):
    from client_app import to_record
    from flwr.app import ConfigRecord

    adam, grid = server.strategy_of({**RUN, "strategy": "FedAdam"}), Grid([])
    arrays = to_record(tensors(0))
    for number in (1, 2):
        asked = adam.configure_train(number, arrays, ConfigRecord(), grid)
        server.SoundReplies(grid, tensors(0)).send_and_receive(asked)
        sent = [message.content["arrays"]["q/A"] for message in grid.asked]
        assert [(array.dtype, len(array.data)) for array in sent] == [("float32", len(sent[0].data))] * 2
        arrays, _ = adam.aggregate_train(number, [reply(server, tensors(seed), 10, seed) for seed in (1, 2)])
    assert arrays["q/A"].dtype == "float64"  # what this is about


def test_the_mean_product_is_that_of_the_boards(server):
    sound = [reply(server, tensors(seed), rows, seed) for seed, rows in ((1, 30), (2, 10))]
    for each, seed in zip(sound, (1, 2), strict=True):  # one A for all: rank 2 holds the mean exactly
        shared = {**tensors(seed), "q/A": tensors(0)["q/A"]}
        from client_app import to_record

        each.content["arrays"] = to_record(shared)
    arrays, _ = server.strategy_of({**RUN, "aggregate": "product"}).aggregate_train(1, sound)
    expected = (0.75 * tensors(1)["q/B"] + 0.25 * tensors(2)["q/B"]) @ tensors(0)["q/A"]
    np.testing.assert_allclose(arrays["q/B"].numpy() @ arrays["q/A"].numpy(), expected, atol=1e-5)
    mean = 0.75 * tensors(1)["head/bias"] + 0.25 * tensors(2)["head/bias"]
    np.testing.assert_allclose(arrays["head/bias"].numpy(), mean, atol=1e-6)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"strategy": "FedAverage"}, "strategy 'FedAverage' is none that averages tensors; Flower has"),
        ({"aggregate": "sum"}, "aggregate 'sum': it is mean or product"),
        ({"aggregate": "product", "strategy": "FedAdam"}, "which FedAvg takes; FedAdam goes another step"),
        ({"strategy": "FedProx", "strategy-options": '{"mu": 1}'}, "of FedProx: "),
        ({"strategy-options": "{"}, "strategy-options '{' of FedAvg"),
        ({"private-noise": 1.0}, "privacy needs private-clip"),
        ({"private-clip": 1.0, "private-noise": 1.0, "private-epsilon": 1.0}, "privacy needs private-clip and one of"),
    ],
)
def test_a_run_that_cannot_be_is_refused_in_a_sentence(server, asked, said):
    from edgepeft.common.errors import UsageError

    with pytest.raises(UsageError) as raised:
        server.strategy_of({**RUN, **asked})
    assert said in str(raised.value)


def test_a_board_that_flower_simulates_has_the_runs_bundle_and_rows_by_its_number(server):
    import client_app
    from flwr.app import Context, RecordDict

    run = {"bundle": "/srv/bundle", "simulated-data": "/srv/rows-{}.jsonl"}
    for told, data in (({"partition-id": 7}, "/srv/rows-7.jsonl"), ({"partition-id": 7, "data": "own"}, "own")):
        context = Context(run_id=1, node_id=1, node_config=told, state=RecordDict(), run_config=run)
        assert client_app._here(context)["data"] == data and client_app._here(context)["bundle"] == "/srv/bundle"
    context = Context(run_id=1, node_id=1, node_config={"bundle": "b"}, state=RecordDict(), run_config=run)
    assert client_app._here(context) == {"bundle": "b"}


def test_flowers_strategies_are_taken_as_they_are(server):
    from flwr.serverapp import strategy

    assert type(server.strategy_of(RUN)) is strategy.FedAvg
    proximal = server.strategy_of({**RUN, "strategy": "FedProx", "strategy-options": '{"proximal_mu": 0.5}'})
    assert (type(proximal), proximal.proximal_mu) == (strategy.FedProx, 0.5)


@pytest.mark.parametrize("fault", [None, "nan"])
def test_rounds_over_loopback_with_tls_and_keys_give_a_task_that_is_verified(trainable, tmp_path, fault):
    from runtime.tuning.conftest import write_moods

    from bench.federated import measure
    from edgepeft import LocalTuner

    for name, seed in (("data", 0), ("server", 1), ("test", 2)):
        write_moods(tmp_path / f"{name}.jsonl", seed=seed)
    bundle = shutil.copytree(trainable, tmp_path / "bundle")
    files = {name: tmp_path / f"{name}.jsonl" for name in ("data", "server", "test")}
    config = ["learning-rate=0.01", "head-learning-rate=0.05"]
    numbers = {
        "boards": 2,
        "rows": 60,
        "rounds": 2,
        "steps": 4,
        "seed": 0,
        "timeout": 300,
        "skew": None,
        "alone": False,
        "profile": "rpi4",
    }
    flower = Path(sys.executable).parent
    asked = Namespace(bundle=bundle, task="mood", **files, **numbers, fault=fault, flower=flower, config=config)
    found = measure(asked)
    assert found["account"]["rounds"] == 2 and found["problems"] == []
    assert found["answers"] == [(("1" if fault else "2"), "0")] * 2
    tensors = sum(t.nbytes for t in LocalTuner(bundle, "mood", files["server"]).tensors.values())
    assert found["bytes_a_round"]["up"] > tensors  # its own, and what goes around them
    assert all(node["peak_bytes"] > 50e6 and not node["killed_for_memory"] for node in found["nodes"])
    assert len(found["refused"]) == (2 if fault else 0), json.dumps(found["refused"])
    assert ("evaluate" in found["account"]) and found["account"]["train"].keys() == {"1", "2"}
