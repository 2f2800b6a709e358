"""A real OpenTelemetry collector on this machine, and what it understood."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from jobs.mpirun import wait_until
from jobs.ports import free_ports


@contextmanager
def collecting(log: Path) -> Iterator[str]:
    """Run Rotel, a collector that writes what it receives, while the block runs."""
    grpc, http = (f"127.0.0.1:{port}" for port in free_ports(2))
    options = ["--otlp-grpc-endpoint", grpc, "--otlp-http-endpoint", http, "--exporter", "blackhole"]
    line = [str(Path(*import_module("rotel").__path__, "rotel-agent")), "start", *options]
    line += ["--debug-log", "metrics", "--debug-log-verbosity", "detailed"]
    with log.open("wb") as said, subprocess.Popen(line, stdout=said, stderr=said) as collector:
        wait_until(lambda: "Starting Rotel" in log.read_text() or collector.poll() is not None, 60)
        if collector.poll() == 127:  # its shared libraries are not there
            pytest.skip(f"this machine lacks what Rotel's collector is linked with: {log.read_text().strip()}")
        yield f"http://{http}"
        collector.terminate()  # it writes what it holds


def read_points(log: Path) -> tuple[str, dict[str, list[tuple[dict[str, str], float]]]]:
    """Return the sender's name and the points of each metric, with their labels, as the collector understood them."""
    text = re.sub(r"\x1b\[\d*m", "", log.read_text())
    (sender,) = set(re.findall(r"service\.name: Str\((.*)\)", text))
    points: dict[str, list[tuple[dict[str, str], float]]] = {}
    for metric in text.split("Descriptor:\n")[1:]:
        name = metric.partition("Name: ")[2].partition("\n")[0]
        for point in metric.split("NumberDataPoints #")[1:]:
            value = float(point.partition("\nValue: ")[2].partition("\n")[0])
            points.setdefault(name, []).append((dict(re.findall(r"-> (\w+): Str\((.*)\)", point)), value))
    return sender, points
