"""The comparisons: each gives rows with their samples."""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.browser.chromium import Chromium, Step
from bench.browser.prepare import NINE, OTHERS, SITES, TENTH, write_pages
from bench.suites._result import SuiteRow, Target, ratio_row, seconds_row, switch_row
from edgepeft.bench.planning.job import batches_of
from edgepeft.bench.planning.scenario import full_length, load_lengths
from edgepeft.common.errors import EdgepeftError

OWN, PEER = "edgepeft", "transformers"  # their workers' names too
_CLOSE = 1e-4  # of a score
_LONGEST = 128
_MB = 1e6
_SWITCHES = 1000  # requests of each kind: ten lie beyond a 99th percentile
_REOPENED = 12  # a multiple of both circles
_READINGS = 5
_SETTLED_MS = 2000  # until what was collected is the system's again
_INSTALLED_MS = 4000  # until the service worker has an update


@dataclass(frozen=True)
class Asked:
    """What every case is given."""

    work: Path
    browser: Chromium
    threads: int
    rounds: int

    def opened(self, site: str = "nine", sessions: int = 2) -> list[Step]:
        """Steps that open a page with our side."""
        options = {"site": site, "threads": self.threads, "sessions": sessions}
        return [["open", "bench/index.html"], ["do", "call", OWN, "open", options]]

    def theirs(self) -> list[Step]:
        """Steps that open a page with theirs."""
        return [["open", "bench/index.html"], ["do", "call", PEER, "open", {"threads": self.threads}]]


def texts_of(work: Path, batches: tuple[tuple[int, ...], ...]) -> list[list[str]]:
    """Texts of so many tokens: words that the tokenizer has whole, between two special tokens."""
    vocabulary = json.loads((work / "backbone" / "tokenizer.json").read_bytes())["model"]["vocab"]
    words = sorted(word for word in vocabulary if re.fullmatch("[a-z]{3,}", word))
    source = random.Random(0)
    return [[" ".join(source.choices(words, k=max(1, n - 2))) for n in batch] for batch in batches]


def apart(own: list[dict[str, float]], peer: list[dict[str, float]]) -> float:
    """The largest difference of a score."""
    a, b = (np.array([[scores[label] for label in sorted(scores)] for scores in side]) for side in (own, peer))
    apart = float(np.abs(a - b).max())
    if not apart <= _CLOSE or not np.ptp(a, axis=0).max() > 10 * _CLOSE:
        raise EdgepeftError(
            f"scores are {apart:.1e} apart: the two are not the same task, and their times say nothing."
        )
    return apart


def _raced(
    asked: Asked, what: str, batches: tuple[tuple[int, ...], ...], target: float, rounds: int
) -> Iterator[SuiteRow]:
    texts = texts_of(asked.work, batches)
    race = {"sides": [OWN, PEER], "requests": [[NINE[0], each] for each in texts], "rounds": rounds, "warmup": 2}
    compared = [["do", "call", side, "scores", NINE[0], texts[0]] for side in (OWN, PEER)]
    opened = [*asked.opened(), *asked.theirs()[1:]]
    *_, own, peer, seconds = asked.browser.steps(*opened, *compared, ["do", "race", race])
    note = f"scores are {apart(own['result'], peer['result']):.1e} apart at most"
    yield ratio_row(what, seconds, OWN, PEER, Target(target), of_totals=len(batches) > 1, note=note)


def full(asked: Asked) -> Iterator[SuiteRow]:
    """Rows without padding."""
    yield from _raced(asked, f"8 x {_LONGEST} tokens", (full_length(_LONGEST, 8).values,), 1.0, asked.rounds)


def lengths(asked: Asked) -> Iterator[SuiteRow]:
    """Rows as SST-2's come, every batch once."""
    batches = batches_of(load_lengths("sst2").clamped(_LONGEST).values, 32)
    what = "lengths of SST-2 in order of arrival, batches of 32"
    yield from _raced(asked, what, batches, 1.5, min(len(batches), 2 * asked.rounds))


def memory(asked: Asked) -> Iterator[SuiteRow]:
    """Nine tasks of one structure, and nine models."""
    own = _resident(asked, asked.opened(), OWN, NINE)
    yield _memory_row(f"nine tasks of one structure over one, {OWN}", None, own, Target(1.2, at_least=False))
    theirs = _resident(asked, asked.theirs(), PEER, NINE)
    yield _memory_row(f"nine tasks over one, {PEER}", PEER, theirs)
    samples = {OWN: [own[0]], PEER: [theirs[0]]}
    yield SuiteRow(f"one task, {OWN} over {PEER}", PEER, own[0] / theirs[0], unit="bytes ratio", samples=samples)


def mixed(asked: Asked) -> Iterator[SuiteRow]:
    """Nine tasks of five structures, with one session open at a time and with two."""
    goal = Target(1.2, at_least=False)
    for sessions in (1, 2):
        held = _resident(asked, asked.opened("mixed", sessions), OWN, SITES["mixed"])
        yield _memory_row(f"nine tasks of five structures over one, {sessions} open at a time, {OWN}", None, held, goal)


def _resident(asked: Asked, opened: list[Step], side: str, tasks: Sequence[str]) -> tuple[float, float]:
    """MB of the page's process: after a task has answered 8 x 128 tokens and some texts, and after the others have
    answered one each.  The least of some readings: what the browser compiles meanwhile takes memory for a while."""
    full, short = texts_of(asked.work, (full_length(_LONGEST, 8).values, (8,)))

    def answered(requests: Sequence[tuple[str, list[str]]]) -> list[Step]:
        reading: list[Step] = [["do", "call", side, "collect"], ["wait", _SETTLED_MS], ["memory"]]
        return [*(["do", "call", side, "scores", *request] for request in requests), *reading * _READINGS]

    one = answered([(tasks[0], full), *[(tasks[0], short)] * len(tasks[1:])])
    found = asked.browser.steps(*opened, *one, *answered([(task, short) for task in tasks[1:]]))
    readings = [each / _MB for each in found if isinstance(each, int)]
    return min(readings[:_READINGS]), min(readings[_READINGS:])


def _memory_row(what: str, peer: str | None, held: tuple[float, float], target: Target | None = None) -> SuiteRow:
    one, nine = held
    return SuiteRow(what, peer, nine / one, None, "bytes ratio", target, {"one": [one], "nine": [nine]}, "MB, PSS")


def switch(asked: Asked) -> Iterator[SuiteRow]:
    """One text of 8 tokens a request, to the task asked before or to another, in random order."""
    text, source = texts_of(asked.work, ((8,),))[0], random.Random(0)
    order = [0]
    while len(order) <= 2 * _SWITCHES:
        order.append(order[-1] if source.random() < 0.5 else source.choice([i for i in range(9) if i != order[-1]]))
    race = {"sides": [OWN], "requests": [[NINE[i], text] for i in order], "rounds": len(order), "warmup": 0}
    warm = [["do", "call", OWN, "scores", task, text] for task in NINE]
    seconds = asked.browser.steps(*asked.opened(), *warm, ["do", "race", race])[-1][OWN]
    kinds: Mapping[bool, list[float]] = {True: [], False: []}
    for before, now, took in zip(order, order[1:], seconds[1:], strict=False):
        kinds[before != now].append(took)
    what = "a request to another task beside one to the same, of one structure, 99th percentiles, added"
    yield switch_row(what, kinds[True], kinds[False], 5.0)


def reopen(asked: Asked) -> Iterator[SuiteRow]:
    """Requests to tasks of so many structures, in a circle, that none finds its session open."""
    text = texts_of(asked.work, ((8,),))[0]
    for sessions in (1, 2):
        first = [NINE[0], *OTHERS[:sessions]]
        requests = [[first[i % len(first)], text] for i in range(_REOPENED)]
        race = {"sides": [OWN], "requests": requests, "rounds": _REOPENED, "warmup": len(first)}
        took = asked.browser.steps(*asked.opened("mixed", sessions), ["do", "race", race])[-1][OWN]
        what = f"a request to a task of another structure whose session was closed, {sessions} at a time"
        yield seconds_row(what, took)


def reload(asked: Asked) -> Iterator[SuiteRow]:
    """From the start of a navigation to the first answer, of a page that was there before."""
    visits = [["first", path] for path in ("nine/first.html", "bench/first.html")]
    with tempfile.TemporaryDirectory(prefix="edgepeft-chromium-") as profile:
        asked.browser.steps(*visits * 2, profile=Path(profile))
        asked.browser.served.asked.clear()
        found = []
        for number in range(asked.rounds):  # a browser of its own each time, as after it was closed
            turn = 1 if number % 2 else -1
            found.append(asked.browser.steps(*visits[::turn], profile=Path(profile))[::turn])
    fetched = sum(n_bytes for _, _, n_bytes in asked.browser.served.asked) / asked.rounds / _MB
    samples = {side: [took[i] / 1e3 for took in found] for i, side in enumerate((OWN, PEER))}
    note = (
        f"medians: {np.median(samples[OWN]):.2f} and {np.median(samples[PEER]):.2f} s; {fetched:.2f} MB fetched a round"
    )
    yield ratio_row("the first answer after a reload from cache", samples, OWN, PEER, note=note)


def wire(asked: Asked) -> Iterator[SuiteRow]:
    """Bytes of bodies that a page fetches for one task more, with all others kept."""
    text = texts_of(asked.work, ((8,),))[0]
    theirs: list[list[Step]] = [[*asked.theirs(), ["do", "call", PEER, "scores", task, text]] for task in NINE[:2]]
    with tempfile.TemporaryDirectory(prefix="edgepeft-chromium-") as profile:
        write_pages(asked.work, "ten", NINE)
        asked.browser.steps(*[["first", "ten/first.html"]] * 2, *theirs[0], profile=Path(profile))
        write_pages(asked.work, "ten", (*NINE, TENTH))
        asked.browser.served.asked.clear()
        asked.browser.steps(["first", "ten/first.html"], ["wait", _INSTALLED_MS], profile=Path(profile))
        yield _fetched("a tenth task over the wire", None, asked)
        asked.browser.served.asked.clear()
        asked.browser.steps(*theirs[1], profile=Path(profile))
        yield _fetched("another model over the wire", PEER, asked)


def _fetched(what: str, peer: str | None, asked: Asked) -> SuiteRow:
    """Of pages, the bench's own are left out."""
    fetched = [(path, n) for path, _, n in asked.browser.served.asked if n and not path.startswith("/bench/")]
    note = ", ".join(f"{Path(path).name} {n:,}" for path, n in sorted(fetched, key=lambda each: -each[1]))
    sizes = [n for _, n in fetched]
    return SuiteRow(what, peer, sum(sizes) / _MB, unit="MB", samples={"bytes": sizes}, note=note)


CASES: dict[str, Callable[[Asked], Iterator[SuiteRow]]] = {
    each.__name__: each for each in (full, lengths, memory, mixed, switch, reopen, reload, wire)
}
