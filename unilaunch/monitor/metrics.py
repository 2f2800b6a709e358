"""A job's state as Prometheus' text format (version 0.0.4).

This module does not use prometheus_client: that package keeps the values in its own registry and answers in threads,
and a process with threads must not fork, as a rank's agent does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from unilaunch.record import Record
from unilaunch.version import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
Rank = Mapping[str, Any]

#: Name, type, help and value of each metric of a rank; None values are omitted.
_OF_RANKS: tuple[tuple[str, str, str, Callable[[Rank], float | None]], ...] = (
    ("running", "gauge", "1 while the rank's program runs.", lambda rank: float(rank["state"] == "running")),
    ("step", "gauge", "The step that the rank is in.", lambda rank: (rank["step"] or {}).get("number")),
    ("steps_total", "counter", "Steps of a model, or waits of a script for other ranks.", lambda rank: rank["steps"]),
    ("seconds_per_step", "gauge", "Seconds of a step of late.", lambda rank: rank["seconds_per_step"]),
    (
        "busy_seconds_total", "counter", "Seconds of the steps in which the rank did not wait for others.",
        lambda rank: rank["busy_seconds"],
    ),
    (
        "received_bytes_total", "counter", "Bytes that came from other ranks, where the model counts them.",
        lambda rank: rank["received_bytes"],
    ),
    ("memory_bytes", "gauge", "Resident memory of the rank's process.", lambda rank: rank["memory_bytes"]),
    ("idle_seconds", "gauge", "Seconds since the rank last made progress.", lambda rank: rank["idle_seconds"]),
)  # fmt: skip


class Metric(Record):
    """A metric of a job, or of each of its ranks.

    Attributes:
        name: Without the prefix.
        kind: "gauge" or "counter".
        text: The help text.
        samples: Labels and value of each sample; unknown ones are omitted.
    """

    name: str
    kind: str
    text: str
    samples: Sequence[tuple[dict[str, str], float]]


def list_metrics(snapshot: Mapping[str, Any]) -> list[Metric]:
    """Return the metrics of a snapshot (`Inspection.snapshot`): the same for any job, some of them without samples."""
    ranks = [rank for rank in snapshot["ranks"] if rank["host"] != "?"]  # from now on their labels do not change
    slow = snapshot["straggler"] or {}
    of_ranks = [
        Metric(name, kind, text, [(_labels(rank), one) for rank in ranks if (one := value(rank)) is not None])
        for name, kind, text, value in _OF_RANKS
    ]
    factors = [(_labels(rank), slow["factor"] if rank["rank"] == slow.get("straggler") else 0.0) for rank in ranks]
    figures = [(_labels(rank) | {"name": name}, value) for rank in ranks for name, value in rank["values"].items()]
    job = {"run": snapshot["run"], "version": __version__}
    return [
        Metric("job_info", "gauge", "1; its labels name the run.", [(job, 1)] if snapshot["run"] else []),
        Metric("ranks", "gauge", "Number of ranks.", [({}, snapshot["size"])]),
        Metric("restarts_total", "counter", "How often the job was started again.", [({}, snapshot["restarts"])]),
        *of_ranks,
        Metric("straggler", "gauge", "How many times as long as the median a straggler is busy; 0: none.", factors),
        Metric("value", "gauge", "A figure of the last step, by name.", figures),
    ]


def write_metrics(snapshot: Mapping[str, Any]) -> str:
    """Return the text of a snapshot."""
    return "".join(f"{line}\n" for metric in list_metrics(snapshot) for line in _lines(metric))


def _labels(rank: Rank) -> dict[str, str]:
    return {"rank": str(rank["rank"]), "host": rank["host"]}


def _lines(metric: Metric) -> Iterator[str]:
    yield f"# HELP unilaunch_{metric.name} {metric.text}"
    yield f"# TYPE unilaunch_{metric.name} {metric.kind}"
    for labels, value in metric.samples:
        inner = ",".join(f'{label}="{text.translate(_ESCAPES)}"' for label, text in labels.items())
        yield f"unilaunch_{metric.name}{f'{{{inner}}}' if inner else ''} {value!r}"
