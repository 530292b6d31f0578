"""The server's part: Flower's strategies ask the boards and average; the result becomes the bundle's task, verified.

Answers that cannot be tensors of the task (values that are not finite, other shapes or names) are left out before a
strategy sees them, and the round goes on with the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from client_app import to_record, to_tensors, tuner_of
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord
from flwr.serverapp import Grid, ServerApp, strategy
from flwr.serverapp.strategy import FedAvg, Strategy

from edgepeft import LocalTuner
from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.tuning.federated import average_products, checked_tensors

app = ServerApp()


def _single(message: Message) -> Message:
    """With tensors in float32: some strategies give float64, which boards would be sent at twice the bytes."""
    tensors = to_tensors(message.content["arrays"])
    if any(tensor.dtype != np.float32 for tensor in tensors.values()):
        message.content["arrays"] = to_record({name: tensor.astype(np.float32) for name, tensor in tensors.items()})
    return message


class SoundReplies:
    """A grid that passes on what boards answer where it can be used, and says what it leaves out."""

    def __init__(self, grid: Grid, tensors: Mapping[str, Any]) -> None:
        self._grid, self._tensors, self.refused = grid, dict(tensors), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Flower's, less the answers that are no tensors of the task, or of no rows."""
        asked = [_single(message) for message in messages]
        return [each for each in self._grid.send_and_receive(asked, timeout=timeout) if self._sound(each)]

    def _sound(self, reply: Message) -> bool:
        if reply.has_error():
            return True  # Flower says so and goes on
        try:
            who = f"the tensors of board {reply.metadata.src_node_id}"
            rows = reply.content["metrics"]["num-examples"]
            if not (isinstance(rows, int) and rows > 0):
                raise UsageError(f"{who} are of {rows!r} rows; it must be a number of at least 1.")
            if reply.metadata.message_type == MessageType.TRAIN:
                checked_tensors(to_tensors(reply.content["arrays"]), self._tensors, who)
        except (EdgepeftError, KeyError, TypeError, ValueError) as error:
            self.refused += 1
            print(f"left out of the round: {error}")
            return False
        return True


class ByProduct(FedAvg):
    """FedAvg, but for LoRA's factors, whose product is averaged."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Flower's mean of all, and the factors of the mean product in their place."""
        replies = list(replies)
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is None:
            return arrays, metrics
        sound = [reply.content for reply in replies if not reply.has_error()]
        weights = [float(content["metrics"][self.weighted_by_key]) for content in sound]
        found = average_products([to_tensors(content["arrays"]) for content in sound], weights)
        print(
            f"round {server_round}: of the mean product the rank loses {found.lost:.2%}; factors averaged apart would "
            f"be {found.apart:.2%} off"
        )
        return to_record({**to_tensors(arrays), **found.tensors}), metrics


def strategy_of(run: Mapping[str, Any]) -> Strategy:
    """The strategy that a run asks for.

    Raises:
        UsageError: there is none of that name, or it does not go with the rest.
    """
    name, boards = str(run["strategy"]), int(run["boards"])
    known = [each for each in strategy.__all__ if issubclass(getattr(strategy, each), FedAvg)]
    if name not in known:
        raise UsageError(f"strategy {name!r} is none that averages tensors; Flower has {', '.join(known)}.")
    if run["aggregate"] not in {"mean", "product"}:
        raise UsageError(f"aggregate {run['aggregate']!r}: it is mean or product.")
    if run["aggregate"] == "product" and name != "FedAvg":
        raise UsageError(f"aggregate 'product' is a mean, which FedAvg takes; {name} goes another step. Leave one out.")
    clip, noise, epsilon = (float(run[f"private-{each}"]) for each in ("clip", "noise", "epsilon"))
    if (noise or epsilon) and (not clip or (noise and epsilon)):
        raise UsageError("privacy needs private-clip and one of private-noise (central) and private-epsilon (local).")
    kind = ByProduct if run["aggregate"] == "product" else getattr(strategy, name)
    options: dict[str, Any] = {f"min_{each}_nodes": boards for each in ("train", "evaluate", "available")}
    if noise:  # accounting holds for boards that weigh alike
        options["weighted_by_key"] = "boards"
    try:
        made: Strategy = kind(**{**options, **json.loads(run["strategy-options"])})
    except (TypeError, ValueError) as error:
        raise UsageError(f"strategy-options {run['strategy-options']!r} of {name}: {error}.") from error
    if not noise:
        return made
    return strategy.DifferentialPrivacyServerSideFixedClipping(made, noise, clip, boards, accountant=_accountant(run))


def _accountant(run: Mapping[str, Any]) -> Any:
    from flwr.serverapp import NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod

    config = PrivacyConfig(
        target_delta=float(run["private-delta"]),
        population_size=int(run["boards"]),
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        sampling_method=SamplingMethod.NO_AMPLIFICATION,
    )
    return RdpAccountant(config)


def _privacy(run: Mapping[str, Any], used: Strategy) -> dict[str, Any]:
    """What the card says of it."""
    spent = getattr(used, "privacy_spent", lambda: None)()
    if spent is not None:
        noise = {"clip": run["private-clip"], "noise": run["private-noise"]}
        return {"privacy": {**noise, "epsilon": spent.epsilon, "delta": spent.delta, "of": "a board's updates"}}
    if run["private-epsilon"]:
        keys = ("clip", "epsilon", "delta")
        return {"privacy": {**{key: run[f"private-{key}"] for key in keys}, "of": "a board's update, each round"}}
    return {}


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Rounds, each scored on the server's own rows; then the task's next version in the server's bundle."""
    run = context.run_config
    tuner, used = tuner_of(run, run), strategy_of(run)
    checked = SoundReplies(grid, tuner.tensors)

    def score(_: int, arrays: ArrayRecord) -> MetricRecord:
        found = tuner.score(to_tensors(arrays))
        return MetricRecord({"score": found.score, "loss": found.loss})

    rounds, timeout = int(run["rounds"]), float(run["timeout"])
    done = used.start(checked, to_record(tuner.tensors), rounds, timeout, ConfigRecord(), ConfigRecord(), score)
    account = {
        "rounds": rounds,
        **{name.replace("-", "_"): run[name] for name in ("steps", "strategy", "aggregate", "boards", "freeze")},
        "refused": checked.refused,
        "train": {str(number): dict(each) for number, each in done.train_metrics_clientapp.items()},
        "evaluate": {str(number): dict(each) for number, each in done.evaluate_metrics_clientapp.items()},
        **_privacy(run, used),
    }
    _put_in_force(tuner, done.arrays, account)


def _put_in_force(tuner: LocalTuner, arrays: ArrayRecord | None, account: Mapping[str, Any]) -> None:
    if not arrays:
        print("no board gave anything to average; the task is as it was.")
        return
    result = tuner.put_in_force(to_tensors(arrays), {"federated": account})
    metrics = result.metrics
    print(f"{metrics['metric']} {metrics['test']:.4f} on {metrics['n_test']} test rows, {metrics['before']:.4f} before")
    print("in force now" if result.entry else "no better than what was there; the task is as it was.")
