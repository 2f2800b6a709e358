"""A job's state as Prometheus' text format (version 0.0.4).

Written here in few lines, and not by prometheus_client: that keeps values in a registry of its own and answers in
threads, and a rank's agent forks.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
Rank = Mapping[str, Any]

#: Name, type, help and value of each figure of a rank; a value None is left out.
_OF_RANKS: tuple[tuple[str, str, str, Callable[[Rank], float | None]], ...] = (
    ("running", "gauge", "1 while the rank's program runs.", lambda rank: float(rank["state"] == "running")),
    ("step", "gauge", "The step (epoch) that the rank is in.", lambda rank: (rank["step"] or {}).get("number")),
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


def write_metrics(snapshot: Mapping[str, Any]) -> str:
    """Return the text of a snapshot (`take_snapshot`)."""
    return "".join(f"{line}\n" for line in _lines(snapshot))


def _lines(snapshot: Mapping[str, Any]) -> Iterator[str]:
    ranks, slow = snapshot["ranks"], snapshot["straggler"] or {}
    yield from _metric("ranks", "gauge", "Number of ranks.", [({}, snapshot["size"])])
    yield from _metric(
        "restarts_total", "counter", "How often the job was started again.", [({}, snapshot["restarts"])]
    )
    for name, kind, text, value in _OF_RANKS:
        yield from _metric(name, kind, text, [(_labels(rank), value(rank)) for rank in ranks])
    factors = [(_labels(rank), slow["factor"] if rank["rank"] == slow.get("straggler") else 0.0) for rank in ranks]
    yield from _metric(
        "straggler", "gauge", "How many times as long as the median a straggler works in a step; 0: none.", factors
    )
    figures = [(_labels(rank) | {"name": name}, value) for rank in ranks for name, value in rank["values"].items()]
    yield from _metric("value", "gauge", "A figure of the last step, such as the loss, by name.", figures)


def _labels(rank: Rank) -> dict[str, str]:
    return {"rank": str(rank["rank"]), "host": rank["host"]}


def _metric(name: str, kind: str, text: str, samples: list[tuple[dict[str, str], float | None]]) -> Iterator[str]:
    yield f"# HELP unilaunch_{name} {text}"
    yield f"# TYPE unilaunch_{name} {kind}"
    for labels, value in samples:
        if value is not None:
            inner = ",".join(f'{label}="{told.translate(_ESCAPES)}"' for label, told in labels.items())
            yield f"unilaunch_{name}{f'{{{inner}}}' if inner else ''} {value!r}"
