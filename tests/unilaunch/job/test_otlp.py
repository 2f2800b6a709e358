"""Live metrics to an OpenTelemetry collector: what arrives is what a real collector would read."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from threading import Thread
from typing import Any

import pytest
from typing_extensions import override

from unilaunch.errors import PluginError
from unilaunch.job import otlp
from unilaunch.job.otlp import exporting

RANK = {
    "rank": 0, "host": "node0", "state": "running", "step": {"kind": "epoch", "number": 7, "total": 9}, "steps": 7,
    "values": {"loss": 0.25}, "busy_seconds": 0.5, "seconds_per_step": 0.1, "received_bytes": 4096,
    "memory_bytes": 1, "idle_seconds": 0.0,
}  # fmt: skip
JOB = {"run": "a", "size": 1, "restarts": 2, "straggler": None, "ranks": [RANK]}


@contextmanager
def _collector() -> Iterator[tuple[str, list[bytes]]]:
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            import gzip

            body = self.rfile.read(int(self.headers["Content-Length"]))
            bodies.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200 if self.path == "/v1/metrics" else 404)
            self.end_headers()

        @override
        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", bodies
        server.shutdown()
        thread.join()


def test_the_figures_arrive_at_the_end_too() -> None:
    """Read with OpenTelemetry's own definition of the message."""
    service = import_module("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    with _collector() as (url, bodies), exporting(url, lambda: JOB, print):
        pass
    request = service.ExportMetricsServiceRequest.FromString(bodies[-1])
    metrics = {one.name: one for one in request.resource_metrics[0].scope_metrics[0].metrics}
    (point,) = metrics["unilaunch.value"].gauge.data_points
    labels = {label.key: label.value.string_value for label in point.attributes}
    assert (point.as_double, labels) == (0.25, {"rank": "0", "host": "node0", "name": "loss"})
    assert metrics["unilaunch.received_bytes_total"].sum.data_points[0].as_int == 4096
    assert metrics["unilaunch.restarts_total"].sum.is_monotonic


def test_a_collector_that_is_not_there_is_named_once(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """In one line, however often it is tried; the SDK's own lines of several exports are not shown."""
    monkeypatch.setattr(otlp, "_EVERY", 50)
    told: list[str] = []
    with exporting("http://127.0.0.1:port", lambda: JOB, told.append):
        time.sleep(0.5)
    (line,) = told
    assert line.startswith("--otlp http://127.0.0.1:port: the metrics do not arrive, the job goes on: ")
    assert capfd.readouterr() == ("", "")


def test_without_the_sdk_the_command_to_install_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with (
        pytest.raises(PluginError, match=r"pip install 'unilaunch\[otlp\]'"),
        exporting("http://x", lambda: JOB, print),
    ):
        pass
