"""Show the results of `unilaunch plan`: a table, lines of JSON, or a page."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from unilaunch_gcn.memory import Memory
    from unilaunch_graph.partition.statistics import PartitionStatistics
    from unilaunch_plan.forecast import Forecast


class Row(NamedTuple):
    """A line of the table.

    Attributes:
        partitioner: Who decided which part owns each node.
        statistics: The partition, counted.
        forecast: What an epoch costs.
        memory: The memory of the rank that needs most.
        preparation: Bytes that reading and dividing the graph took here, as rank 0 of a first run does.
        crossing: Rows between hosts; None without hosts.
    """

    partitioner: str
    statistics: "PartitionStatistics"
    forecast: "Forecast"
    memory: "Memory"
    preparation: int
    crossing: int | None


def table(rows: Sequence[Row]) -> str:
    """Return the table of the numbers of parts."""
    heads = [
        "parts", "cut edges", "halo rows", "of nodes", "MB/epoch", "by columns", "MB/rank", "s/epoch", "by columns",
        "sends less", "partitioner",
    ]  # fmt: skip
    crosses = rows[0].crossing is not None
    lines = [[*heads, *(["rows between hosts"] if crosses else [])]]
    for row in rows:
        statistics, forecast = row.statistics, row.forecast
        halo = int(statistics.halo.sum())
        lines.append([
            f"{statistics.num_parts}", f"{statistics.cut:,}", f"{halo:,}", f"{halo / statistics.num_nodes:.1%}",
            f"{forecast.halo_bytes / 1e6:,.2f}",
            "-" if forecast.tensor_bytes is None else f"{forecast.tensor_bytes / 1e6:,.2f}",
            f"{row.memory.peak / 1e6:,.1f}", _seconds(forecast.graph_seconds),
            _seconds(forecast.tensor_seconds),
            "tensor" if forecast.tensor_bytes is not None and forecast.halo_bytes > forecast.tensor_bytes else "graph",
            row.partitioner,
            *([f"{row.crossing:,}"] if crosses else []),
        ])  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(f"{word:>{width}}" for word, width in zip(line, widths, strict=True)) for line in lines)


def json_line(row: Row) -> str:
    """Return the row's figures as a line of JSON: bytes and seconds of an epoch, bytes of the largest rank's memory.

    *peak_memory_bytes* is that of `ranks` in `result.json`, where the partition is there; *memory_bytes* are its parts.
    """
    statistics = row.statistics
    counted = {
        "num_parts": statistics.num_parts,
        "partitioner": row.partitioner,
        "cut": statistics.cut,
        "halo": int(statistics.halo.sum()),
        "rows_between_hosts": row.crossing,
        "peak_memory_bytes": row.memory.peak,
        "memory_bytes": asdict(row.memory),
        "preparation_memory_bytes": row.preparation,
    }
    return json.dumps(counted | asdict(row.forecast)) + "\n"


def page(rows: Sequence[Row]) -> str:
    """Return a page of HTML with the table's curves, drawn by plotly."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    parts = [row.statistics.num_parts for row in rows]
    figure = make_subplots(rows=1, cols=2, subplot_titles=("predicted seconds per epoch", "MB per epoch"))
    for column, kinds in ((1, ("graph_seconds", "tensor_seconds")), (2, ("halo_bytes", "tensor_bytes"))):
        scale = 1.0 if column == 1 else 1e-6
        for name, kind in zip(("nodes divided", "columns divided"), kinds, strict=True):
            values = [getattr(row.forecast, kind) for row in rows]
            y = [None if value is None else value * scale for value in values]
            figure.add_trace(go.Scatter(x=parts, y=y, name=name, showlegend=column == 1), row=1, col=column)
    figure.update_xaxes(type="log", title="parts").update_yaxes(type="log")
    page: str = figure.to_html(include_plotlyjs=True)
    return page


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.4f}" if seconds >= 0.01 else f"{seconds:.6f}"  # noqa: PLR2004
