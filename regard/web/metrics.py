"""Counts and times for Prometheus.  Labels are route templates, runs and statuses: a client cannot invent new ones."""

import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.web.batching import BatchReport, ModelThread

__all__ = ["CONTENT_TYPE", "Metrics", "MetricsMiddleware"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
OTHER = "other"  # addresses that no route has


class Metrics:
    """What one server counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry, "namespace": "regard"}
        self.requests = Counter("requests", "Requests by route and status.", ["method", "route", "status"], **own)
        self.latency = Histogram("request_seconds", "Time until the answer was sent.", ["route"], buckets=SECONDS, **own)
        self.waited = Histogram("queue_seconds", "Time that jobs waited for their model.", ["run"], buckets=SECONDS, **own)
        self.batch = Histogram("batch_jobs", "Jobs that were answered together.", ["run"], buckets=SIZES, **own)
        self.work = Counter("model_seconds", "Time that models worked.", ["run"], **own)
        self.failed = Counter("jobs_failed", "Jobs that ended with an error.", ["run"], **own)
        self.dropped = Counter("jobs_dropped", "Jobs that nobody waited for any more, or that ran out of time.", ["run"], **own)
        self.tokens = Counter("tokens", "Tokens that were read (prompt) and written (answer).", ["run", "kind"], **own)
        self.waiting = Gauge("queue_jobs", "Jobs that wait for their model.", ["run"], **own)

    def watch_queue(self, thread: ModelThread) -> None:
        """Report how many jobs wait for a model."""
        self.waiting.labels(thread.name).set_function(lambda: thread.depth)

    def count_batch(self, report: BatchReport) -> None:
        """Count what a model's thread did in one go."""
        for seconds in report.waited:
            self.waited.labels(report.name).observe(seconds)
        if report.jobs:
            self.batch.labels(report.name).observe(report.jobs)
        self.work.labels(report.name).inc(report.seconds)
        self.failed.labels(report.name).inc(report.failed)
        self.dropped.labels(report.name).inc(report.dropped)

    def count_tokens(self, run: str, prompt: int, answer: int) -> None:
        """Count the tokens of one request."""
        self.tokens.labels(run, "prompt").inc(prompt)
        self.tokens.labels(run, "answer").inc(answer)

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)


class MetricsMiddleware:
    """Counts each request when its answer has been sent."""

    def __init__(self, app: ASGIApp, metrics: Metrics, route_of: Callable[[str], str | None] = lambda path: None):
        self.app, self.metrics, self._route_of = app, metrics, route_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, start = 499, time.perf_counter()  # 499: the client hung up

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_counted)
        except Exception:
            status = 500
            raise
        finally:
            # a request that was refused before the router saw it, such as malformed JSON, counts for the address it asked
            route = getattr(scope.get("route"), "path", None) or self._route_of(scope["path"]) or OTHER
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else OTHER
            self.metrics.requests.labels(method, route, str(status)).inc()
            self.metrics.latency.labels(route).observe(time.perf_counter() - start)
