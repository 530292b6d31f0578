"""What averaging LoRA's B and A apart costs: rounds in one process, without Flower, beside alone and all in one place.

    python -m bench.averaging BUNDLE --task mood --data train.jsonl --test test.jsonl [--rows 450] [--skew 0.5]

Three ways from the same start on the same boards: the mean of each factor, the mean of their product (by a singular
value decomposition), and A frozen as FFA-LoRA has it.  All scores are of --test.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.federated import split
from edgepeft import LocalTuner, TuneOptions
from edgepeft.data.course.engine import Arrays
from edgepeft.errors import EdgepeftError
from edgepeft.host.machine import host_facts
from edgepeft.runtime.tuning.low_rank import average_products
from edgepeft.runtime.tuning.subject import Files

WAYS = {"mean": (), "product": (), "ffa": ("*/A",)}


def rounds(boards: list[LocalTuner], n: int, steps: int, *, product: bool) -> tuple[Arrays, list[tuple[float, float]]]:
    """The tensors after ``n`` rounds; of each, the shares of the mean product that its rank loses, and that factors
    averaged apart are off."""
    tensors, shares = boards[0].tensors, list[tuple[float, float]]()
    for number in range(n):
        done = [board.steps(tensors, steps, first=number * steps) for board in boards]
        weights = np.array([each.n_rows for each in done]) / sum(each.n_rows for each in done)
        tensors = {
            name: np.average([each.tensors[name] for each in done], axis=0, weights=weights).astype(np.float32)
            for name in tensors
        }
        if product:
            found = average_products([each.tensors for each in done], weights.tolist())
            tensors |= found.tensors
            shares.append((found.lost, found.apart))
    return tensors, shares


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Scores by way, of boards alone, and of all rows in one place."""
    rows = [json.loads(line) for line in args.data.read_text().splitlines()][: args.rows]
    parts = split(rows, args.boards, args.skew, args.seed)
    length = args.rounds * args.steps

    with tempfile.TemporaryDirectory() as folder:

        def tuner(name: str, part: list[dict[str, Any]], steps: int, freeze: tuple[str, ...] = ()) -> LocalTuner:
            path = Path(folder) / f"{name}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in part))
            options = TuneOptions(steps=steps, seed=args.seed)
            return LocalTuner(args.bundle, args.task, Files(path, None, args.test), options, freeze=freeze)

        def score(tuner: LocalTuner, tensors: Arrays) -> float:
            return tuner.score(tensors, "test").score

        boards = [tuner(f"board-{i}", part, length) for i, part in enumerate(parts)]
        found: dict[str, Any] = {"rows": [len(part) for part in parts], "before": score(boards[0], boards[0].tensors)}
        for way, freeze in WAYS.items():
            own = [tuner(f"{way}-{i}", part, length, freeze) for i, part in enumerate(parts)] if freeze else boards
            tensors, shares = rounds(own, args.rounds, args.steps, product=way == "product")
            found |= {way: score(own[0], tensors), **({"lost_and_apart": shares} if shares else {})}
            found[f"{way}_bytes"] = sum(tensor.nbytes for tensor in tensors.values())
        found["alone"] = [score(board, board.steps(board.tensors, length).tensors) for board in boards]
        together = tuner("all", [row for part in parts for row in part], length * args.boards)
        found["central"] = score(together, together.steps(together.tensors, together.n_steps).tensors)
    return found


def main() -> None:
    """Print the result as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--task", required=True)
    for name in ("data", "test"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name, default in (("boards", 3), ("rows", 450), ("rounds", 3), ("steps", 15), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--skew", type=float, help="of the Dirichlet distribution; left out: even")
    try:
        found = measure(parser.parse_args())
    except (EdgepeftError, OSError, ValueError) as error:
        parser.error(str(error))
    print(json.dumps({"host": host_facts(), **found}, indent=1))


if __name__ == "__main__":
    main()
