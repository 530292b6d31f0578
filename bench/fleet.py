"""A fleet of simulated boards against one static server: requests and bytes a board, time to 99 %, what many cost.

    python -m bench.fleet BUNDLE [--boards 1000] [--period 30] [--other BUNDLE] [--json result.json]

Every board is a thread that does what ``edgepeft pull`` does up to the verified files, by the same code, over loopback;
the replay of a delta's check, which costs the server nothing, is left out.  Four rounds: a first pull (``--first``
boards), no change, one more task, and a refresh that all come for at once; with ``--other`` a fifth, in which that
bundle, of another backbone, takes the channel's place.  ``--period`` seconds stand for the time between two pulls, in
which moments are drawn as ``--every`` does.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bench.static_server import Served, serving
from edgepeft.bundle.manifest import Manifest
from edgepeft.common.atomic import write_json
from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.device.machine import host_facts
from edgepeft.fleet.publish import publish, refresh, withdraw
from edgepeft.fleet.pull import moments
from edgepeft.fleet.remote import Remote

_THREADS = 32
_DAY_S = 86_400
_MANY = 100_000


class Board:
    """One that has what it trusts, and the hashes of what it has fetched."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root = folder, root
        self.has: set[str] = set()

    def pull(self, address: str) -> tuple[int, int]:
        """Fetch what is new; requests and bytes of bodies."""
        remote = Remote(address, self.folder, "stable", self.root.read_bytes())
        for target in remote.published().targets.values():
            if (sha256 := target.hashes["sha256"]) not in self.has:
                remote.fetch(target).unlink()
                self.has.add(sha256)
        return remote.fetcher.requests, remote.fetcher.n_bytes


@dataclass(frozen=True)
class Round:
    """Of each board, in the order of ``ended_s``, seconds since the beginning; the period is ``period_s`` long."""

    what: str
    boards: int
    period_s: float
    requests: tuple[int, ...]
    n_bytes: tuple[int, ...]
    took_s: tuple[float, ...]
    ended_s: tuple[float, ...]

    def share_s(self, share: float) -> float:
        """When that share of the boards had it."""
        return self.ended_s[max(0, int(share * self.boards) - 1)]


def play(what: str, served: Served, boards: Sequence[Board], at_s: Sequence[float], period_s: float) -> Round:
    """Every board pulls at its moment, at most some at once."""
    began = time.monotonic()

    def one(board: Board) -> tuple[float, float, int, int]:
        start = time.monotonic()
        requests, n_bytes = board.pull(served.address)
        end = time.monotonic()
        return end - began, end - start, requests, n_bytes

    with ThreadPoolExecutor(_THREADS) as pool:
        pending = []
        for at, index in sorted(zip(at_s, range(len(boards)), strict=True)):
            time.sleep(max(0.0, began + at - time.monotonic()))
            pending.append(pool.submit(one, boards[index]))
        done = sorted(each.result() for each in pending)
    ended, took, requests, n_bytes = zip(*done, strict=True)
    return Round(what, len(boards), period_s, requests, n_bytes, took, ended)


def drawn(number: int, period_s: float, seed: int) -> list[float]:
    """When each board comes in a period, as ``edgepeft pull --every`` draws it."""
    chance = random.Random(seed)
    waits: list[float] = []
    for _ in range(number):
        next(moments(period_s, waits.append, lambda _: None, chance.random))
    return waits


def simulate(options: argparse.Namespace) -> list[Round]:
    """The rounds, on a repository that is made for it."""
    bundle, number, first, period_s, seed = (
        getattr(options, name) for name in ("bundle", "boards", "first", "period", "seed")
    )
    *before, last = Manifest.read(bundle).tasks
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="edgepeft-fleet.")))
        repository, keys = folder / "repository", folder / "keys"
        publish(bundle, repository, keys, tasks=before)
        root = repository / "metadata" / "1.root.json"
        served = held.enter_context(serving(repository))
        boards = [Board(folder / "boards" / str(n), root) for n in range(number)]
        rounds = [play("first pull", served, boards[:first], [0.0] * first, 0.0)]
        for board in boards[first:]:  # as the first, without its download
            shutil.copytree(boards[0].folder, board.folder, symlinks=True)
            board.has = set(boards[0].has)
        rounds.append(play("no change", served, boards, drawn(number, period_s, seed), period_s))
        publish(bundle, repository, keys, tasks=[last])
        rounds.append(play("one more task", served, boards, drawn(number, period_s, seed + 1), period_s))
        refresh(repository, keys)
        rounds.append(play("a refresh, all at once", served, boards, [0.0] * number, 0.0))
        if options.other is not None:
            withdraw(repository, keys, [*before, last])
            publish(options.other, repository, keys)
            rounds.append(play("another backbone", served, boards, drawn(number, period_s, seed + 2), period_s))
    return rounds


def table(rounds: Sequence[Round]) -> str:
    """Medians, and the moments at which a half and 99 % were done."""
    lines = ["round                   boards  requests     bytes  s a pull   half at   99 % at"]
    for each in rounds:
        figures = f"{median(each.requests):9.0f} {median(each.n_bytes):9,.0f} {median(each.took_s):9.3f}"
        lines.append(
            f"{each.what:23} {each.boards:6} {figures} {each.share_s(0.5):7.1f} s {each.share_s(0.99):7.1f} s"
            + (f" of {each.period_s:g} s" if each.period_s else "")
        )
    idle, delta = median(rounds[1].n_bytes), median(rounds[2].n_bytes)
    for name, pulls in (("hour", 24), ("day", 1)):
        n_bytes, requests = _MANY * (pulls * idle + delta), _MANY * pulls * median(rounds[1].requests)
        lines.append(
            f"{_MANY:,} boards, a pull each {name}, one new task a day: {n_bytes / 1e9:.2f} GB of bodies and "
            f"{requests / 1e6:.1f} million requests a day, {requests / _DAY_S:.0f} a second (computed)"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Simulate and print; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bundle", type=Path, help="one with two tasks or more; the last is what is published later")
    parser.add_argument("--boards", type=int, default=1000)
    parser.add_argument("--first", type=int, default=20, help="boards that download all of it")
    parser.add_argument(
        "--period", type=float, default=30.0, help="seconds that the time between two pulls is played in"
    )
    parser.add_argument("--other", type=Path, help="a bundle of another backbone, which is published last")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="every board's figures")
    options = parser.parse_args(arguments)
    try:
        if len(Manifest.read(options.bundle).tasks) < 2 or not 0 < options.first <= options.boards:
            raise UsageError("a bundle with two tasks or more is needed, and --first is at most --boards.")
        rounds = simulate(options)
    except EdgepeftError as error:
        parser.error(str(error))
    host = host_facts()
    print(table(rounds))
    print(f"host: {host['cpu']}, without limits; the server and the boards, {_THREADS} threads, are both on it")
    if options.json is not None:
        write_json(options.json, {"host": host, "threads": _THREADS, "rounds": [asdict(each) for each in rounds]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
