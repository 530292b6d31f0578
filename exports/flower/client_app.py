"""A board's part of a round: steps on its own rows, from the server's tensors; their score on rows that it held out.

``flower-supernode --node-config 'bundle="/srv/bundle" data="/srv/rows.csv"'`` says where both are; optional are
``work``, a folder for what is computed once of the rows, ``threads`` and ``memory``, as of `edgepeft tune`.  What
leaves the board are tensors, losses, scores and numbers of rows.  A board that Flower simulates has the server's
bundle, and the rows that ``simulated-data`` of the run names.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.clientapp.typing import ClientAppCallable

from edgepeft import LocalTuner, TuneSettings
from edgepeft.common.errors import UsageError

app = ClientApp()


@lru_cache(maxsize=1)  # a process has one board; one that simulates many has them one after the other
def _opened(place: tuple[str, str, str, str], freeze: str, threads: int | None, options: TuneSettings) -> LocalTuner:
    bundle, task, data, work = place
    kept = Path(work) / task if work else None  # Flower has a process for each message: the next ones read it
    return LocalTuner(bundle, task, data, options, freeze=freeze.split(), work=kept, threads=threads)


def tuner_of(run: Mapping[str, Any], here: Mapping[str, Any]) -> LocalTuner:
    """The run's task with the bundle and the rows of a place, a board or the server; opened once in a process.

    Raises:
        UsageError: a name is not given, or something is as `edgepeft tune` would refuse it.
        DataError: the rows cannot be used.
    """
    for name, given in (("task", run["task"]), ("bundle", here.get("bundle")), ("data", here.get("data"))):
        if not given:
            raise UsageError(f"no {name} is given; a run needs task, bundle and data, a board bundle and data.")
    options = TuneSettings(
        steps=int(run["rounds"]) * int(run["steps"]),
        learning_rate=float(run["learning-rate"]) or None,
        head_learning_rate=float(run["head-learning-rate"]) or None,
        batch_size=int(run["batch-size"]) or None,
        seed=int(run["seed"]),
        memory=str(here.get("memory") or "") or None,
    )
    threads = int(here.get("threads") or 0) or None
    place = (str(here["bundle"]), str(run["task"]), str(here["data"]), str(here.get("work") or ""))
    return _opened(place, str(run["freeze"]), threads, options)


def _here(context: Context) -> Mapping[str, Any]:
    """A board's place: as its SuperNode was told, or by its number where it is simulated."""
    here, run = context.node_config, context.run_config
    if "partition-id" not in here:
        return here
    data = str(run["simulated-data"]).replace("{}", str(here["partition-id"]))
    return {"bundle": run["bundle"], "data": data, **here}


def to_record(tensors: Mapping[str, Any]) -> ArrayRecord:
    """Arrays by name, as Flower sends them."""
    return ArrayRecord({name: Array(np.ascontiguousarray(tensor)) for name, tensor in tensors.items()})


def to_tensors(record: ArrayRecord) -> dict[str, Any]:
    """What ``to_record`` made a record of."""
    return {name: array.numpy() for name, array in record.items()}


def _private(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Flower's local differential privacy, where the run asks for it."""
    run = context.run_config
    clip, epsilon, delta = (float(run[f"private-{name}"]) for name in ("clip", "epsilon", "delta"))
    if not epsilon:
        return call_next(message, context)
    # Other rows of the board's may give an update that is twice the largest norm away.
    return LocalDpMod(clip, 2 * clip, epsilon, delta)(message, context, call_next)


@app.train(mods=[_private])
def train(message: Message, context: Context) -> Message:
    """A round's steps."""
    tuner, config = tuner_of(context.run_config, _here(context)), message.content["config"]
    steps, number = int(context.run_config["steps"]), int(config["server-round"])
    mu = float(config.get("proximal-mu", 0.0))
    done = tuner.steps(to_tensors(message.content["arrays"]), steps, first=(number - 1) * steps, mu=mu)
    metrics = {"num-examples": done.n_rows, "boards": 1, "loss": float(np.mean(done.losses))}
    content = {"arrays": to_record(done.tensors), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """The server's tensors on the board's rows that do not train."""
    tuner = tuner_of(context.run_config, _here(context))
    scored = tuner.score(to_tensors(message.content["arrays"]))
    metrics = {"num-examples": len(scored.losses), "boards": 1, "score": scored.score, "loss": scored.loss}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
