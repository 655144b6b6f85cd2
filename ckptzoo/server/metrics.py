"""Metrics of the server for Prometheus, without names of repositories and users."""

import time
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 30)


class Metrics:
    """Counts of one process since it started, in ``registry``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("handler", "status")
        self._requests = Counter("ckptzoo_requests", "Requests that were answered.", labels, registry=self.registry)
        self._seconds = Histogram(
            "ckptzoo_request_seconds",
            "From a request to the beginning of its answer.",
            ("handler",),
            buckets=_SECONDS,
            registry=self.registry,
        )

    def watch(self, gauges: Mapping[str, tuple[str, Callable[[], float]]]) -> None:
        """Register gauges, a description and a function that returns the value by name; they are read whenever the
        metrics are requested.
        """
        self.registry.register(_Gauges(gauges))

    def note(self, handler: str, status: int, started: float) -> None:
        """Count an answer of a handler, of which there is a fixed set of names; the request started at ``started`` by
        ``time.perf_counter()``.
        """
        self._requests.labels(handler, str(status)).inc()
        self._seconds.labels(handler).observe(time.perf_counter() - started)


class _Gauges(Collector):
    def __init__(self, gauges: Mapping[str, tuple[str, Callable[[], float]]]) -> None:
        self._gauges = gauges

    def collect(self) -> list[GaugeMetricFamily]:
        return [GaugeMetricFamily(name, text, value()) for name, (text, value) in self._gauges.items()]
