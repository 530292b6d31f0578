"""Mutated bundles and requests: no crash, no hang, no file outside the folder, no altered byte taken for sound.

A case may take 2 s of a processor, or a minute of the clock.

    python tests/support/fuzz.py --cases 100000

Each target runs in a child process, which writes the case that it is about to try into shared memory first: what kills it is
known.  ``--engine atheris`` guides the mutations by coverage where atheris is installed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from structured import checkpoint_file, json_document, onnx_graph, plan_file, safetensors_header
from subject import subject
from targets import Target, targets

from edgepeft.common.progress import shown_steps

HANG_S = 2.0  # of a processor
SILENT_S = 60.0  # of the clock: what waits and does not compute
_ROOTS_HOME = f"{Path('~root').expanduser()}/"
# Share of the cases.  Opening a session takes ten times what reading a manifest does.
MUTATIONS = {
    "onnx-delta": onnx_graph,
    "onnx-backbone": onnx_graph,
    "onnx-training": onnx_graph,
    "check": safetensors_header,
    "tokenizer": json_document,
    "checkpoint": checkpoint_file,
    "plan": plan_file,
}
SHARES = {
    "onnx-delta": 0.02,
    "onnx-backbone": 0.02,
    "onnx-training": 0.03,
    "check": 0.02,
    "tokenizer": 0.04,
    "manifest": 0.2,
    "request": 0.4,
    "delta": 0.1,
    "profile": 0.07,
    "bench": 0.07,
    "session": 0.02,
    "rows": 0.1,
    "plan": 0.05,
    "checkpoint": 0.02,
    "wire": 0.05,
}
ALTERED_SHARE = 0.008
_SHOWN_EVERY = 100  # cases
_WORDS = [b"../", b"/etc/passwd", b"\x00", b"\xff", b"null", b"-1", b"1e999", b"NaN", b"[" * 500, b'{"a":' * 200, b"\\ud800", b"9" * 400, b"true", b'""', b"%2e%2e%2f"]  # fmt: skip


def mutate(source: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One to four small changes of a seed."""
    data = bytearray(source.choice(seeds))
    for _ in range(source.randrange(1, 5)):
        at = source.randrange(len(data) + 1)
        match source.randrange(7):
            case 0 if data:
                data[at % len(data)] ^= 1 << source.randrange(8)
            case 1 if data:
                data[at % len(data)] = source.randrange(256)
            case 2:
                del data[at : at + source.randrange(1, 40)]
            case 3:
                data[at:at] = source.choice(_WORDS)
            case 4:
                data = data[:at]
            case 5:
                begin = source.randrange(len(data) + 1)
                data[at:at] = data[begin : begin + source.randrange(1, 200)]
            case _:
                data[at : at + source.randrange(1, 9)] = source.randbytes(source.randrange(1, 9))
    return bytes(data)


class Watch:
    """Python-level openings for writing outside of the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.outside = str(folder), 0
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str | bytes) or not isinstance(arguments[2], int):
            return
        path = os.path.abspath(os.fsdecode(arguments[0]))  # noqa: PTH100 (no file is touched)
        writes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if (writes and not path.startswith((self.folder, "/dev/null"))) or path.startswith(
            ("/etc/passwd", _ROOTS_HOME)
        ):
            self.outside += not path.startswith((self.folder, sys.prefix, sys.base_prefix)) and ".py" not in path


def child(
    name: str, bundle: Path, folder: Path, plan: tuple[int, int, int], engine: str, pipe: Connection, case: Any
) -> None:
    """``plan``: seed of the source, cases to skip, cases to run."""
    watch = Watch(folder)
    seeds, target = targets(bundle, folder)[name]()
    if engine == "atheris":
        import atheris

        atheris.instrument_all()  # takes a minute, so before it is said to be ready
    pipe.send(None)
    seed, skip, cases = plan
    report = _reporting(target, pipe, case, watch)
    if engine == "atheris":
        _guided(report, seeds, cases, folder / f"corpus-{name}")
        return
    source = random.Random(seed)
    for i in range(cases):
        data = MUTATIONS.get(name, mutate)(source, seeds)
        if i >= skip:
            report(data)


def _tried(target: Target, data: bytes) -> tuple[str, float]:
    """How it ended, and the processor's seconds that it took: of the clock's a busy host takes any number."""
    begin = time.process_time()
    try:
        outcome = target(data)
    except BaseException as error:  # what is looked for
        outcome = f"FINDING {type(error).__name__}: {error}\n{''.join(traceback.format_tb(error.__traceback__)[-3:])}"
    return outcome, time.process_time() - begin


def _reporting(target: Target, pipe: Connection, case: Any, watch: Watch) -> Callable[[bytes], None]:
    def report(data: bytes) -> None:
        kept = data[: len(case) - 8]
        case[8 : 8 + len(kept)] = kept
        case[:8] = len(kept).to_bytes(8, "little")
        before = watch.outside
        outcome, took = _tried(target, data)
        if watch.outside != before:
            outcome = "FINDING a file outside the folder was opened"
        pipe.send((outcome, took))

    return report


def _guided(report: Callable[[bytes], None], seeds: Sequence[bytes], cases: int, corpus: Path) -> None:
    import atheris

    corpus.mkdir(exist_ok=True)
    for i, each in enumerate(seeds):
        (corpus / f"seed-{i}").write_bytes(each)
    largest = 4 * max(map(len, seeds))
    atheris.Setup([sys.argv[0], f"-runs={cases}", f"-max_len={largest}", "-verbosity=0", str(corpus)], report)
    atheris.Fuzz()


def run_target(
    name: str,
    bundle: Path,
    folder: Path,
    cases: int,
    seed: int,
    engine: str,
    show: Callable[[str, int, int | None], None] = lambda *_: None,
) -> dict[str, Any]:
    """All cases of one target, with a new child after each one that died."""
    context = multiprocessing.get_context("spawn")
    outcomes: Counter[str] = Counter()
    findings: list[dict[str, Any]] = []
    slowest, done = 0.0, 0
    while done < cases and len(findings) < 20:
        case = context.Array("c", 1 << 20, lock=False)
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=child, args=(name, bundle, folder, (seed, done, cases), engine, theirs, case))
        process.start()
        theirs.close()
        try:
            ours.recv()  # it is ready
            while done < cases:
                if not ours.poll(SILENT_S):
                    process.kill()
                    findings.append(_finding(folder, name, case, "hang"))
                    done += 1
                    break
                outcome, took = ours.recv()
                done += 1
                slowest = max(slowest, took)
                if took > HANG_S:
                    findings.append(_finding(folder, name, case, f"took {took:.1f} s"))
                if outcome.startswith("FINDING"):
                    findings.append(_finding(folder, name, case, outcome))
                    outcome = "finding"
                outcomes[outcome] += 1
                if done % _SHOWN_EVERY == 0:
                    show(name, done, cases)
        except EOFError:
            process.join()
            if engine == "atheris" and process.exitcode == 0:
                break
            how = signal.Signals(-process.exitcode).name if (process.exitcode or 0) < 0 else f"exit {process.exitcode}"
            findings.append(_finding(folder, name, case, f"the process died: {how}"))
            outcomes["died"] += 1
            done += 1
        finally:
            process.kill()
            process.join()
    return {"cases": done, "outcomes": dict(outcomes), "slowest_s": round(slowest, 3), "findings": findings}


def _finding(folder: Path, name: str, case: Any, what: str) -> dict[str, Any]:
    """The case is kept in a file."""
    length = int.from_bytes(case[:8], "little")
    path = folder / f"finding-{name}-{time.monotonic_ns()}"
    path.write_bytes(case[8 : 8 + length])
    print(f"{name}: {what} ({path})", file=sys.stderr, flush=True)
    return {"what": what, "case": str(path)}


def main() -> None:
    """Prints one JSON document; exit 1 where there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--target", action="append", help="only this one; may repeat")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("mutate", "atheris"), default="mutate")
    parser.add_argument("--folder", type=Path, help="where bundle and findings lie; default: a temporary one")
    asked = parser.parse_args()
    folder = (asked.folder or Path(tempfile.mkdtemp(prefix="edgepeft-fuzz."))).resolve()
    bundle = subject(folder / "subject")
    names = asked.target or list(targets(bundle, folder))
    shares = {name: SHARES.get(name, ALTERED_SHARE) for name in names}
    found = {}
    for name in names:
        cases = max(1, round(asked.cases * shares[name] / sum(shares.values())))
        begin = time.monotonic()
        with shown_steps() as show:
            found[name] = run_target(name, bundle, folder, cases, asked.seed, asked.engine, show)
        found[name]["seconds"] = round(time.monotonic() - begin, 1)
        print(f"{name}: {found[name]['cases']} cases, {len(found[name]['findings'])} findings", file=sys.stderr)
    total = sum(each["cases"] for each in found.values())
    findings = sum(len(each["findings"]) for each in found.values())
    print(json.dumps({"engine": asked.engine, "cases": total, "findings": findings, "targets": found}, indent=2))
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
