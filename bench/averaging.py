"""Federated averaging in one process, without Flower: several splits, beside boards alone and all rows in one place.

    python -m bench.averaging BUNDLE --task mood --data train.jsonl --test test.jsonl --out done.jsonl \\
        [--seeds 0 1 2] [--boards 5] [--rows 1000] [--skew 0.5] [--ways mean alone central]

A seed draws rows, split and loop.  From one start: ``mean`` averages each factor, ``product`` LoRA's B A (by a
singular value decomposition), ``ffa`` has A frozen; ``alone`` is each board by itself, for as many steps as it has in
all rounds; ``central`` is all rows in one place, for as many as all boards together.  Boards hold out of their rows
what they hold out under Flower; all scores are of --test.  Each way that is done is a line of --out, and is not done
again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from edgepeft import LocalTuner, TuneSettings
from edgepeft.common.errors import EdgepeftError
from edgepeft.data.training_loop.engine import Arrays
from edgepeft.device.machine import host_facts
from edgepeft.tuning.federated import average_products
from edgepeft.tuning.target import Files

FROZEN = {"ffa": ("*/A",)}
WAYS = ("start", "mean", "product", "ffa", "alone", "central")
_MAY_DIFFER = {"data", "test", "out", "seeds", "ways"}  # between runs that go on with the same lines


def split(rows: list[dict[str, Any]], boards: int, skew: float | None, seed: int) -> list[list[dict[str, Any]]]:
    """Rows a board: evenly, or of each label by shares from a Dirichlet distribution (Hsu et al., 2019,
    arXiv:1909.06335)."""
    draw, parts = np.random.default_rng(seed), [list[dict[str, Any]]() for _ in range(boards)]
    for label in sorted({row["label"] for row in rows}):
        own = [row for row in rows if row["label"] == label]
        shares = np.full(boards, 1 / boards) if skew is None else draw.dirichlet([skew] * boards)
        ends = (np.cumsum(shares) * len(own)).round().astype(int)
        for part, start, end in zip(parts, [0, *ends], ends, strict=False):
            part.extend(own[start:end])
    for part in parts:
        draw.shuffle(part)
    return parts


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """As a file of JSON lines; the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class Boards:
    """Boards with a file of rows each, from the task as ``bundle`` has it; ``options`` are of the whole training loop.

    What lies below the trained modules stays in the folder ``kept``, for the next process on the same rows.
    """

    def __init__(
        self,
        bundle: Path,
        task: str,
        rows: Sequence[Path],
        *,
        test: Path,
        rounds: int,
        options: TuneSettings,
        kept: Path | None = None,
    ) -> None:
        self._bundle, self._task, self._rows, self._options = bundle, task, rows, options
        self._rounds, self._steps, self._kept = rounds, (options.steps or 0) // rounds, kept
        self._opened = dict[tuple[str, ...], list[LocalTuner]]()
        # As rows that an evaluation has, and no test: of these alone is kept what lies below the trained modules.
        self._judge = LocalTuner(bundle, task, Files(rows[0], test), work=kept and kept / "test")

    def score(self, tensors: Arrays) -> float:
        """On the test rows; what is not given is as at the start."""
        return self._judge.score({**self._judge.tensors, **tensors}).score

    def start(self) -> dict[str, Any]:
        """The task as it is."""
        return {"score": self.score({})}

    def alone(self) -> dict[str, Any]:
        """Each board by itself; ``score`` is their mean, ``weighted`` by the rows that train."""
        done = [board.steps(board.tensors, self._options.steps or 0) for board in self._boards(())]
        scores = [self.score(each.tensors) for each in done]
        return {
            "score": mean(scores), "scores": scores, "best": max(scores),
            "weighted": float(np.average(scores, weights=[each.n_rows for each in done])),
        }  # fmt: skip

    def central(self) -> dict[str, Any]:
        """All rows in one place."""
        with tempfile.TemporaryDirectory() as folder:
            together = Path(folder) / f"{self._rows[0].stem}-and-others.jsonl"
            together.write_text("".join(path.read_text() for path in self._rows))
            steps = (self._options.steps or 0) * len(self._rows)
            tuner = self._tuner(together, (), steps)
            return {"score": self.score(tuner.steps(tuner.tensors, steps).tensors)}

    def averaged(self, way: str) -> dict[str, Any]:
        """By rounds; ``lost_and_apart`` of each is what `average_products` says of it."""
        done = [*self.rounds(FROZEN.get(way, ()), product=way == "product")]
        tensors, shares = done[-1][0], [share for _, share in done if share]
        more = {"lost_and_apart": shares} if shares else {}
        return {"score": self.score(tensors), "bytes": sum(tensor.nbytes for tensor in tensors.values()), **more}

    def rounds(
        self, freeze: tuple[str, ...] = (), *, product: bool = False
    ) -> Iterator[tuple[Arrays, tuple[float, float] | None]]:
        """The mean after each; by product, with the shares of it that the rank loses and factors averaged apart are
        off."""
        boards = self._boards(freeze)
        tensors = boards[0].tensors
        for number in range(self._rounds):
            done = [board.steps(tensors, self._steps, first=number * self._steps) for board in boards]
            weights = np.array([each.n_rows for each in done]) / sum(each.n_rows for each in done)
            tensors = {
                name: np.average([each.tensors[name] for each in done], axis=0, weights=weights).astype(np.float32)
                for name in tensors
            }
            if not product:
                yield tensors, None
                continue
            found = average_products([each.tensors for each in done], weights.tolist())
            tensors |= found.tensors
            yield tensors, (found.lost, found.apart)

    def _boards(self, freeze: tuple[str, ...]) -> list[LocalTuner]:
        """Opened once: what lies below the trained modules is the same in every way."""
        if freeze not in self._opened:
            self._opened[freeze] = [self._tuner(path, freeze, self._options.steps or 0) for path in self._rows]
        return self._opened[freeze]

    def _tuner(self, rows: Path, freeze: tuple[str, ...], steps: int) -> LocalTuner:
        options = self._options.model_copy(update={"steps": steps})
        kept = self._kept and self._kept / "-".join([rows.stem, *freeze]).replace("/", "")
        return LocalTuner(self._bundle, self._task, rows, options, freeze=freeze, work=kept)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """What --out says of these settings in the end."""
    given = {name: value for name, value in vars(args).items() if name not in _MAY_DIFFER}
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    known = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    known = [line for line in known if line["settings"] == settings]
    all_rows = [json.loads(line) for line in args.data.read_text().splitlines()]
    for seed in args.seeds:
        left = [way for way in args.ways if not any((seed, way) == (each["seed"], each["way"]) for each in known)]
        chosen = np.random.default_rng(seed).permutation(len(all_rows))[: args.rows]
        parts = split([all_rows[i] for i in chosen], args.boards, args.skew, seed)
        options = TuneSettings(
            steps=args.rounds * args.steps, seed=seed, batch_size=args.batch_size,
            lr=args.learning_rate, head_lr=args.head_learning_rate,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            paths = [write_rows(Path(folder) / f"{seed}-{args.skew}-{i}.jsonl", part) for i, part in enumerate(parts)]
            kept = args.out.with_suffix(".kept")
            for way in left:
                if way == left[0]:
                    boards = Boards(
                        args.bundle, args.task, paths, test=args.test, rounds=args.rounds, options=options, kept=kept
                    )
                done = getattr(boards, way)() if hasattr(Boards, way) else boards.averaged(way)
                known.append({"seed": seed, "way": way, **done, "of": [*map(len, parts)], "settings": settings})
                with args.out.open("a") as file:
                    file.write(json.dumps(known[-1]) + "\n")
    return {"seeds": summary([line for line in known if line["seed"] in args.seeds]), "settings": settings}


def summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each way the mean over seeds and its deviation; of each mean of boards, what it is above the others."""
    scores = {way: {line["seed"]: line["score"] for line in done if line["way"] == way} for way in WAYS}
    found: dict[str, Any] = {way: _spread([*of.values()]) for way, of in scores.items() if of}
    for way in ("mean", "product", "ffa"):
        for other in ("alone", "central"):
            both = scores[way].keys() & scores[other].keys()
            if both:
                above = [scores[way][seed] - scores[other][seed] for seed in sorted(both)]
                found[f"{way} above {other}"] = _spread(above)
    return found


def _spread(values: list[float]) -> dict[str, Any]:
    return {"mean": mean(values), "deviation": stdev(values) if len(values) > 1 else None, "of": values}


def parser_of(about: str | None, paths: Sequence[str], numbers: Mapping[str, int]) -> argparse.ArgumentParser:
    """What measures a federation takes: a bundle's task, how its rows are split, these paths and numbers."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--task", required=True)
    for name in paths:
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--skew", type=float, help="of the Dirichlet distribution; left out: even")
    return parser


def print_measured(parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace], dict[str, Any]]) -> None:
    """Measure as the command line says, and print that as JSON."""
    try:
        found = measure(parser.parse_args())
    except (EdgepeftError, OSError, ValueError) as error:
        parser.error(str(error))
    print(json.dumps({"host": host_facts(), **found}, indent=1))


def main() -> None:
    """Print what the lines of --out say."""
    numbers = {"boards": 5, "rows": 1000, "rounds": 5, "steps": 10}
    parser = parser_of(__doc__, ("data", "test", "out"), numbers)
    parser.add_argument("--batch-size", type=int, help="left out: 16")
    for name in ("learning-rate", "head-learning-rate"):
        parser.add_argument(f"--{name}", type=float, help="left out: as of the method and the task")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["start", "mean", "alone", "central"])
    print_measured(parser, measure)


if __name__ == "__main__":
    main()
