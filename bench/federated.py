"""Federated tuning by Flower, over loopback or simulated, beside the same rounds in one process.

    python -m bench.federated BUNDLE --task mood --data train.jsonl --server server.jsonl --test test.jsonl \\
        --flower VENV/bin [--boards 5] [--rows 500] [--skew 0.5] [--profile rpi4:memory=1GB] [--alone] \\
        [--config 'aggregate="product"'] [--fault nan] [--a-round 10 [--actors 2]]

A SuperLink and a SuperNode a board, started anew, each with a key of its own and under the profile's limits, run
exports/flower.  ``--alone`` does the same rounds without Flower, and what they are compared with (bench.averaging).
All scores are of --test, by the tensors that are there last.  The first board errs: ``--fault nan`` or ``shape`` has it
answer so, ``kill`` kills it in round 2, ``late`` has it answer round 2 after --timeout.

With ``--a-round`` there are no nodes: Ray simulates the boards in --actors processes of this machine, and a round asks
so many of them, drawn anew each time.  ``--flower`` is then an environment with flwr[simulation].
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from bench.averaging import Boards, parser_of, print_measured
from bench.flower import Federation, SuperLink, prepared, problem
from edgepeft import Bundle, LocalTuner, TuneSettings
from edgepeft.deploy.verify import audit
from edgepeft.device.placement import Limits
from edgepeft.device.profiles import load_profile

_FAULTY = '''

_sound = tuner_of


def tuner_of(run, here):
    """What a broken board gives."""
    import dataclasses, time, types
    tuner, fault = _sound(run, here), here.get("fault")
    broken = {"nan": lambda tensor: tensor * np.nan, "shape": lambda tensor: tensor[:1], "late": np.asarray}.get(fault)
    if broken is None:
        return tuner

    def steps(*args, first, **more):
        done = tuner.steps(*args, first=first, **more)
        if fault == "late" and first == int(run["steps"]):
            time.sleep(float(run["timeout"]) + 10)
        return dataclasses.replace(done, tensors={name: broken(tensor) for name, tensor in done.tensors.items()})

    return types.SimpleNamespace(steps=steps, score=tuner.score)
'''


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """One federation, and what it is compared with."""
    with tempfile.TemporaryDirectory(prefix="federated-") as name:
        paths, app, config = prepared(args, work := Path(name))
        config["timeout"] = args.timeout
        begun = time.monotonic()
        printed, of_nodes = (_simulated if args.a_round else _over_loopback)(args, work, paths, app, config)
        seconds = time.monotonic() - begun
        entry = Bundle(work / "bundle").entry(args.task)
        if "federated" not in entry.training and "as it was" not in printed:
            raise problem(work, printed)
        loop = TuneSettings(
            steps=args.rounds * args.steps, seed=args.seed, batch_size=config.get("batch-size"),
            lr=config.get("learning-rate"), head_lr=config.get("head-learning-rate"),
        )  # fmt: skip
        same = Boards(args.bundle, args.task, paths, test=args.test, rounds=args.rounds, options=loop)
        last = LocalTuner(work / "bundle", args.task, args.server).tensors
        return {
            "rows": [len(path.read_text().splitlines()) for path in paths],
            "before": same.score({}), "federated": same.score(last), "seconds": round(seconds), **of_nodes,
            "answers": re.findall(r"aggregate_train: Received (\d+) results and (\d+) failures", printed),
            "config": config,
            "problems": [finding.problem for finding in audit(work / "bundle") if finding.problem],
            "account": entry.training.get("federated"), "lost": re.findall(r"round \d+: of the mean .*", printed),
            "refused": re.findall(r"left out of the round: .*", printed),
            **(_compared(same, last) if args.alone else {}),
        }  # fmt: skip


def _over_loopback(
    args: argparse.Namespace, work: Path, paths: list[Path], app: Path, config: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """What a run printed, and the memory and bytes of its nodes."""
    nodes: list[dict[str, Any]] = []
    for i, path in enumerate(paths):
        bundle = shutil.copytree(args.bundle, work / f"bundle-{i}")
        nodes.append({"bundle": str(bundle), "data": str(path), "work": f"{work}/work-{i}", "threads": 1})
    if args.fault and args.fault != "kill":
        nodes[0]["fault"] = args.fault
    with (app / "client_app.py").open("a") as file:
        file.write(_FAULTY)
    config |= {"boards": args.boards - (args.fault == "kill"), **tomllib.loads("\n".join(args.config))}
    limits = load_profile(args.profile).limits() if args.profile else Limits()
    with Federation(work, args.flower, nodes, limits) as federation:
        printed = federation.rounds(app, config, 0 if args.fault == "kill" else None)
        found = {"nodes": [node.account() for node in federation.nodes], "program_bytes": federation.programs}
    return printed, {**found, "bytes_a_round": federation.bytes_a_round()}


def _simulated(
    args: argparse.Namespace, work: Path, paths: list[Path], app: Path, config: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """What a run printed whose boards are Ray's tasks."""
    fractions = {"fraction_train": args.a_round / args.boards, "fraction_evaluate": args.a_round / args.boards}
    config |= {"simulated-data": f"{work}/rows-{{}}.jsonl", "boards": args.a_round}
    config |= {"strategy-options": json.dumps(fractions), **tomllib.loads("\n".join(args.config))}
    many = f"num-supernodes={len(paths)} init-args-num-cpus={args.actors} client-resources-num-cpus=1"
    with SuperLink(work, args.flower, ["--insecure", "--simulation"], "insecure = true") as superlink:
        return superlink.run(app, config, "--federation-config", many), {}


def _compared(same: Boards, last: dict[str, Any]) -> dict[str, Any]:
    """The mean by the same rounds here, how far off the tensors are from it; boards alone, all rows in one place."""
    *_, (tensors, _) = same.rounds()
    off = max(float(np.abs(tensors[name] - last[name]).max()) for name in tensors)
    mean = {"score": same.score(tensors), "off": off, "largest": max(float(np.abs(t).max()) for t in tensors.values())}
    return {"mean": mean, "alone": same.alone(), "central": same.central()}


def main() -> None:
    """Print the result as JSON."""
    numbers = {"boards": 5, "rows": 500, "rounds": 3, "steps": 10, "seed": 0, "timeout": 600, "a-round": 0, "actors": 2}
    parser = parser_of(__doc__, ("data", "server", "test", "flower"), numbers)
    parser.add_argument("--profile", help="whose limits each node has, such as rpi4:memory=1GB; left out: none")
    parser.add_argument("--fault", choices=["nan", "shape", "kill", "late"])
    parser.add_argument("--alone", action="store_true", help="measure what it is compared with too")
    parser.add_argument("--config", action="append", default=[], help="a line of the run's configuration")
    print_measured(parser, lambda args: {"threads": 1, **measure(args)})


if __name__ == "__main__":
    main()
