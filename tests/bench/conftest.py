"""A worker that costs no time: every step takes what the test says."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from edgepeft.bench.measuring.sampler import Sample
from edgepeft.common.errors import DoesNotFit
from edgepeft.device.placement import InForce

IN_FORCE = InForce("test", 2, 1_000_000, "full")


class FakeWorker:
    notes = ()
    in_force = IN_FORCE

    def __init__(self, label, job, seconds, log, too_large=False, throttled=None):
        self.throttled = {} if throttled is None else throttled
        self.label, self.job, self.seconds, self.log, self.too_large = label, job, seconds, log, too_large

    def ready(self):
        if self.too_large:
            raise DoesNotFit(f"{self.label} does not fit: 1000000 bytes are allowed")

    def step(self, batch):
        self.log.append((self.label, batch))
        seconds = self.seconds(self.label) if callable(self.seconds) else self.seconds
        return Sample(seconds, 2 * seconds)

    def throttle(self):
        self.throttled[self.label] = [label for label, _ in self.log].count(self.label)

    def finish(self):
        return 123_000_000


class FakeStart:
    """What ``run`` and ``measure`` start workers with; remembers who was open at the same time."""

    def __init__(self, seconds=1.0, too_large=()):
        self.seconds, self.too_large = seconds, too_large
        self.log, self.open, self.together = [], set(), []
        self.jobs, self.throttled = {}, {}  # throttled: after how many of its steps

    @contextmanager
    def __call__(self, label, job):
        self.open.add(label)
        self.together.append(frozenset(self.open))
        self.jobs[label] = job
        try:
            yield FakeWorker(label, job, self.seconds, self.log, label in self.too_large, self.throttled)
        finally:
            self.open.discard(label)


@pytest.fixture(scope="session")
def fake_start():
    """The class ``FakeStart``; a fixture because test files cannot import each other."""
    return FakeStart
