"""What the service counts: for Prometheus, and for its own page."""

from collections import deque
from collections.abc import Callable, Sequence
from statistics import quantiles
from time import monotonic

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64)
_RECENT_S = 10.0
_MAX_RECENT = 10_000


class ServiceMetrics:
    """Counters of one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # the platform's collector would show versions
        # Not RESTRICT labels: routes and statuses are few, tasks are those of the bundle.
        self.requests = Counter("edgepeft_requests", "Requests.", ["route", "status"], registry=self.registry)
        self.seconds = Histogram(
            "edgepeft_request_seconds", "From headers to answer.", ["route"], buckets=_SECONDS, registry=self.registry
        )
        self.rows = Counter("edgepeft_rows", "Rows answered.", ["task"], registry=self.registry)
        self.batch_rows = Histogram("edgepeft_batch_rows", "Rows run together.", buckets=_ROWS, registry=self.registry)
        self.batch_seconds = Histogram(
            "edgepeft_batch_seconds", "Of a batch.", buckets=_SECONDS, registry=self.registry
        )
        self.reloads = Counter("edgepeft_reloads", "Bundle read again.", ["result"], registry=self.registry)
        self.started = monotonic()
        self.total_rows = 0
        self._recent: deque[tuple[float, int, float]] = deque(maxlen=_MAX_RECENT)  # when, rows, seconds

    def gauge(self, name: str, about: str, value: Callable[[], float]) -> None:
        """A value that is asked for when the metrics are."""
        Gauge(name, about, registry=self.registry).set_function(value)

    def batch(self, rows: int, seconds: float) -> None:
        """A batch has run; from the batches' thread."""
        self.batch_rows.observe(rows)
        self.batch_seconds.observe(seconds)

    def answered(self, tasks: Sequence[str], seconds: float) -> None:
        """A request has its answer: each row's task, empty for an embedding."""
        for task in tasks:
            self.rows.labels(task).inc()
        self.total_rows += len(tasks)
        self._recent.append((monotonic(), len(tasks), seconds))

    def request(self, route: str, status: int, seconds: float) -> None:
        """A request has been answered or refused."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def recent(self) -> tuple[float, float | None, float | None]:
        """Rows per second, median and 90th percentile of the seconds of requests, over the last ten seconds."""
        now = monotonic()
        recent = [entry for entry in self._recent if now - entry[0] <= _RECENT_S]
        if not recent:
            return 0.0, None, None
        span = min(_RECENT_S, now - self.started)
        times = [seconds for _, _, seconds in recent]
        deciles = quantiles(times, n=10, method="inclusive") if len(times) > 1 else times * 9
        return sum(rows for _, rows, _ in recent) / max(span, 1.0), deciles[4], deciles[8]
