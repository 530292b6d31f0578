"""What a stranger can do to ``edgepeft serve``, and what it holds: memory, health checks, the other tasks.  Loopback only.

    python tests/support/attack.py [BUNDLE] [--only NAME ...]

Beside each attack of ``attacks.py`` health checks are sent every 20 ms on connections of their own; after it every task is asked.
Then bundles with a task that cannot be opened, SIGTERM while a native call hangs, and bundles that name a file of the host.
Prints one JSON document, and a table on standard error; exit 1 where a limit did not hold.  Without BUNDLE: a tiny random backbone.  Linux only: the peak of memory is read from /proc.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from attacks import ATTACKS, Attack
from bad_tasks import arriving, at_start, hung
from file_attacks import show
from hostile import naming_files
from service import start
from subject import subject, writer
from text_attacks import TEXT_ATTACKS

MAX_MB = 500.0
MAX_P99_MS = 100.0
MAX_MS = 250.0
EVERY_S = 0.02
AGAIN_S = 3.0  # that an attack is repeated


def peak_mb(process: int) -> float:
    """The most memory that it has held since ``reset_peak``."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def reset_peak(process: int) -> None:
    Path(f"/proc/{process}/clear_refs").write_text("5")


def get(port: int, path: str, timeout: float = 5.0) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def answering(port: int) -> tuple[int, int]:
    """(tasks that answer, all tasks)."""
    tasks = [task["name"] for task in json.loads(get(port, "/v1/tasks", 60)[1])["tasks"]]
    n_good = 0
    for task in tasks:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", f"/v1/tasks/{task}:predict", b'{"text":"w5"}', {"Content-Type": "application/json"})
        n_good += connection.getresponse().status == 200
        connection.close()
    return n_good, len(tasks)


def again_and_again(attack: Attack, port: int) -> None:
    """Once, and again while there is time; giving way, since an attacker's own work is not done by the service's cores."""
    os.nice(10)
    until = time.monotonic() + AGAIN_S
    attack(port)
    while time.monotonic() < until:
        attack(port)


def under(attack: Attack, port: int, process: int) -> dict[str, Any]:
    """Run it in a process of its own, with health checks beside it."""
    reset_peak(process)
    attacker = multiprocessing.get_context("fork").Process(target=again_and_again, args=(attack, port), daemon=True)
    attacker.start()
    times, n_failed = [], 0
    while attacker.is_alive() or not times:
        begin = time.perf_counter()
        try:
            n_failed += get(port, "/healthz")[0] != 200
        except (OSError, http.client.HTTPException):
            n_failed += 1
        times.append(1000 * (time.perf_counter() - begin))
        time.sleep(EVERY_S)
    times.sort()
    p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
    good, total = answering(port)
    return {
        "attack": attack.__name__,
        "peak_mb": round(peak_mb(process), 1),
        "health_checks": len(times),
        "health_checks_failed": n_failed,
        "health_p99_ms": round(p99, 1),
        "health_max_ms": round(times[-1], 1),
        "tasks_answering": good,
        "tasks": total,
        "held": not n_failed
        and p99 < MAX_P99_MS
        and times[-1] < MAX_MS
        and good == total
        and peak_mb(process) < MAX_MB,
    }


def attacked(bundle: Path, attacks: Sequence[Attack], folder: Path) -> tuple[float, int, list[dict[str, Any]]]:
    """What a service of that bundle holds at rest, its exit code, and what each attack in turn did to it."""
    process, address = start(bundle, folder / "serve.log", ["--no-cache", "--no-watch", "--allow-tuning"])
    port, rows = int(address.rpartition(":")[2]), []
    try:
        good, total = answering(port)
        reset_peak(process.pid)
        rest_mb = round(peak_mb(process.pid), 1)
        print(f"at rest: {rest_mb} MB, {good} of {total} tasks answer", file=sys.stderr)
        for attack in attacks:
            rows.append(under(attack, port, process.pid))
            print(json.dumps(rows[-1]), file=sys.stderr)
    finally:
        process.terminate()
        code = process.wait(60)
    return rest_mb, code, rows


def main() -> None:
    """Every attack in turn, on a service of tasks with labels and on one of tasks that write text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path, nargs="?")
    parser.add_argument("--only", nargs="*", help="attacks by name")
    parser.add_argument("--http-only", action="store_true", help="leave out the bundles")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="edgepeft-attack."))
    subjects = [(asked.bundle or subject(folder / "subject"), ATTACKS), (writer(folder / "writer"), TEXT_ATTACKS)]
    rows, rests_mb, codes = [], [], []
    for bundle, attacks in subjects:
        if chosen := [attack for attack in attacks if not asked.only or attack.__name__ in asked.only]:
            rest_mb, code, found = attacked(bundle, chosen, folder)
            rests_mb.append(rest_mb)
            codes.append(code)
            rows += found
    if not asked.http_only:
        tiny = subject(folder / "subject")
        for case in chain(
            at_start(tiny, folder), arriving(tiny, folder), [hung(tiny, folder)], naming_files(tiny, folder)
        ):
            rows.append(case)
            print(json.dumps(case), file=sys.stderr)
    bound = f"{MAX_MB:g} MB, {MAX_P99_MS:g} ms (p99), {MAX_MS:g} ms"
    show(rows, {"peak_mb": "MB", "health_p99_ms": "ms", "health_max_ms": "ms"}, bound)
    print(json.dumps({"at_rest_mb": rests_mb, "exit_codes": codes, "attacks": rows}, indent=2))
    sys.exit(0 if all(row["held"] for row in rows) and not any(codes) else 1)


if __name__ == "__main__":
    main()
