"""`unilaunch plan`: what a training will cost on how many parts, before anyone rents machines."""

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from itertools import pairwise
from math import ceil, log2
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field
from typing_extensions import override

from unilaunch.errors import InputError, PluginError, SpecError
from unilaunch.folder.files import write_users
from unilaunch.folder.log import Log
from unilaunch.interfaces import plugins
from unilaunch.interfaces.command import Command
from unilaunch_gcn.options import refuse_options, takes_edges_as_given
from unilaunch_gcn.spec import TrainingSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unilaunch_gcn.layers import Layer
    from unilaunch_gcn.memory import Memory, Share
    from unilaunch_graph.data.graph import Graph
    from unilaunch_graph.partition.statistics import PartitionStatistics, Traffic

#: The rows between each two parts are counted: of so many parts in arrays of 134 MB.
_MOST_PARTS = 4096


class Machine(NamedTuple):
    """What messages cost; what is taken where only one processor is there to measure them.

    Attributes:
        latency: Alpha: seconds of a message that holds nothing.
        bytes_per_second: 1 / beta.
    """

    latency: float = 5e-6
    bytes_per_second: float = 2e9


class Forecast(NamedTuple):
    """What an epoch costs, over all ranks unless it says otherwise.

    Attributes:
        halo_bytes: Halo rows' bytes, where ranks divide nodes.
        tensor_bytes: The all-to-alls' bytes, where ranks divide columns; None of attention, which needs whole rows.
        graph_seconds: An epoch, where ranks divide nodes; None: not measured.
        tensor_seconds: An epoch, where ranks divide columns; None of attention, and not measured.
    """

    halo_bytes: int
    tensor_bytes: int | None
    graph_seconds: float | None
    tensor_seconds: float | None


class _Cut(NamedTuple):
    """The graph in a number of parts.

    Attributes:
        partitioner: Who decided which part owns each node.
        owner: The part of each node. (num_nodes,)
        statistics: The partition, counted.
        shares: What each rank has.
    """

    partitioner: str
    owner: "NDArray[np.int64]"
    statistics: "PartitionStatistics"
    shares: "Sequence[Share]"


class Row(NamedTuple):
    """A line of the table.

    Attributes:
        cut: The partition.
        forecast: What an epoch costs.
        memory: The memory of the rank that needs most.
        preparation: Bytes that reading and dividing the graph took here, as rank 0 of a first run does.
        hosts: The host of each part; none without hosts.
    """

    cut: _Cut
    forecast: Forecast
    memory: "Memory"
    preparation: int
    hosts: Sequence[str] = ()

    @property
    def crossing(self) -> int | None:
        """Rows between hosts; None without hosts."""
        return crossing(self.cut.statistics.traffic, self.hosts) if self.hosts else None


def table(rows: Sequence[Row]) -> str:
    """Return the table of the numbers of parts."""
    heads = [
        "parts", "cut edges", "halo rows", "of nodes", "MB/epoch", "by columns", "MB/rank", "s/epoch", "by columns",
        "sends less", "partitioner",
    ]  # fmt: skip
    crosses = bool(rows[0].hosts)
    lines = [[*heads, *(["rows between hosts"] if crosses else [])]]
    for row in rows:
        statistics, forecast = row.cut.statistics, row.forecast
        halo = int(statistics.halo.sum())
        lines.append([
            f"{statistics.num_parts}", f"{statistics.cut:,}", f"{halo:,}", f"{halo / statistics.num_nodes:.1%}",
            f"{forecast.halo_bytes / 1e6:,.2f}",
            "-" if forecast.tensor_bytes is None else f"{forecast.tensor_bytes / 1e6:,.2f}",
            f"{row.memory.peak / 1e6:,.1f}", _seconds(forecast.graph_seconds),
            _seconds(forecast.tensor_seconds),
            "tensor" if forecast.tensor_bytes is not None and forecast.halo_bytes > forecast.tensor_bytes else "graph",
            row.cut.partitioner,
            *([f"{row.crossing:,}"] if crosses else []),
        ])  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(f"{word:>{width}}" for word, width in zip(line, widths, strict=True)) for line in lines)


def json_line(row: Row) -> str:
    """Return the row's figures as a line of JSON: bytes and seconds of an epoch, bytes of the largest rank's memory.

    *peak_memory_bytes* is that of `ranks` in `result.json`, where the partition is there; *memory_bytes* are its parts.
    """
    statistics = row.cut.statistics
    counted = {
        "num_parts": statistics.num_parts,
        "partitioner": row.cut.partitioner,
        "cut": statistics.cut,
        "halo": int(statistics.halo.sum()),
        "rows_between_hosts": row.crossing,
        "peak_memory_bytes": row.memory.peak,
        "memory_bytes": asdict(row.memory),
        "preparation_memory_bytes": row.preparation,
    }
    return json.dumps(counted | row.forecast._asdict()) + "\n"


def page(rows: Sequence[Row]) -> str:
    """Return a page of HTML with the table's curves, drawn by plotly."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    parts = [row.cut.statistics.num_parts for row in rows]
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


class PlanSpec(TrainingSpec):
    """Which training, on which numbers of parts and hosts."""

    backend: str = Field(
        default="auto",
        description="framework that is measured: torch, mindspore, or auto (the first that is installed)",
    )
    device: str = Field(default="auto", description="cpu: memory and time are those of ranks on the host")
    num_parts: str = Field(default="1,2,4,8", description="numbers of parts: 1,2,4,8")
    hosts: str | None = Field(default=None, description="hosts and their slots: a:4,b:4; parts are placed on them")
    rankfile: Path | None = Field(
        default=None, description="write the placement of the last number of parts, as an Open MPI rankfile"
    )
    plot: Path | None = Field(default=None, description="write a page with the table's curves")
    as_json: bool = Field(default=False, description="one JSON object for each number of parts, instead of the table")


class PlanCommand(Command):
    """Cut the graph into each number of parts, count what they send, and predict an epoch."""

    help = "predict traffic, memory and time on how many parts"
    examples = ("unilaunch plan --dataset cora --num-parts 2,4", "unilaunch plan --dataset cora --hosts a:4,b:4")
    spec = PlanSpec

    @override
    def run(self, options: PlanSpec) -> int:
        refuse_options(options)
        if options.device not in {"auto", "cpu"}:
            raise SpecError(
                f"--device {options.device}: plan forecasts ranks on cpu; no forecast of a GPU has been compared with "
                "one yet: leave --device out"
            )
        plugins.load_backend(options.backend)  # one that is not there is refused before anything is cut
        counts = _counts(options.num_parts)
        slots = _slots(options.hosts, max(counts))
        if options.rankfile and not slots:
            raise SpecError("--rankfile: which hosts? --hosts a:4,b:4")
        from unilaunch_graph.partition.partitioners import load_partitioner

        _refuse_no_files(options)
        load_partitioner(options.partitioner)
        rows, said = _forecasts(options, counts)
        if slots:
            rows = [row._replace(hosts=place(row.cut.statistics.traffic, slots)) for row in rows]
        sys.stdout.write("".join(map(json_line, rows)) if options.as_json else f"{table(rows)}\n{said}\n")
        if options.rankfile:
            _write(options.rankfile, _rankfile(rows[-1].hosts), "--rankfile")
        if options.plot:
            _write(options.plot, page(rows), "--plot")
        return 0


def _refuse_no_files(options: PlanSpec) -> None:
    """Refuse files that cannot be written, before anything is measured for them; and one that is not read."""
    from unilaunch_graph.new_files import refuse_no_file

    for option, path in (("--plot ", options.plot), ("--rankfile ", options.rankfile)):
        if path:
            refuse_no_file(path, option)
    if options.owner:
        raise SpecError(f"--owner {options.owner}: plan cuts the graph itself, into several numbers of parts")
    if options.plot and find_spec("plotly") is None:
        raise PluginError("--plot: plotly is not installed: pip install 'unilaunch[report]'")


def _counts(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.strip().isdecimal() and 0 < int(word) <= _MOST_PARTS for word in words):
        raise SpecError(f"--num-parts {text}: expected numbers from 1 to {_MOST_PARTS:,}, as 1,2,4")
    return sorted({int(word) for word in words})


def _slots(text: str | None, most: int) -> dict[str, int]:
    if text is None:
        return {}
    from unilaunch.spec.hostfile import parse_hosts

    slots = {host.name: host.slots or 1 for host in parse_hosts(text)}
    if sum(slots.values()) < most:
        raise SpecError(f"--hosts {text}: {sum(slots.values())} slots for {most} part{'s' * (most != 1)}")
    return slots


def _read(options: PlanSpec, log: Log) -> "Graph":
    """Return the graph; what a training refuses of it is refused."""
    from unilaunch_gcn.options import refuse_untrainable
    from unilaunch_graph.partition.preparation import read_graph

    graph = read_graph(options, log, as_given=takes_edges_as_given(options))
    refuse_untrainable(options, graph, options.device)
    return graph


class _Measured(NamedTuple):
    """What this machine showed.

    Attributes:
        epochs: By the number of parts: seconds of an epoch's computing, and bytes of the interpreter and the framework
            of a rank: ranks that are forked behind one import hold less than a single one.
        machine: What messages cost.
        line: How it was measured, in words.
    """

    epochs: "Mapping[int, tuple[float, int]]"
    machine: Machine
    line: str


def _forecasts(options: PlanSpec, counts: Sequence[int]) -> tuple[list[Row], str]:
    """Return the table's lines, and how the machine was measured."""
    import tempfile

    from unilaunch_gcn.layers import plan_layers
    from unilaunch_gcn.memory import forecast_memory, host_memory, peak_memory

    log = Log()
    graph = _read(options, log)
    structure = graph.structure() if graph.is_directed else graph
    layers = plan_layers(options, graph.num_features, graph.num_classes)
    cuts = [_cut(options, graph, structure, parts, log) for parts in counts]
    backend = plugins.load_backend(options.backend).name

    def memory(cut: _Cut, framework: int | None) -> "list[Memory]":
        """Return the forecast of each rank, the largest last."""
        ranks = [forecast_memory(options, layers, share, backend, framework) for share in cut.shares]
        return sorted(ranks, key=attrgetter("peak"))

    needed = max(sum(one.peak for one in memory(cut, None)[-_processors() :]) for cut in cuts)
    if 2 * needed > (has := host_memory()):
        preparation = peak_memory()
        measured = _Measured({}, Machine(), (
            f"no epoch is measured here: it needs {needed / 1e9:,.1f} GB of the {has / 1e9:,.1f} GB of this host"
        ))  # fmt: skip
    else:
        with tempfile.TemporaryDirectory() as folder:
            log.say("measuring this machine")
            cases = [_case(graph, structure, cut, Path(folder)) for cut in cuts]
            preparation = peak_memory()  # a run's rank 0 does the same where there is no partition yet
            measured = _measure(options, cases, Path(folder))

    def row(cut: _Cut) -> Row:
        seconds, framework = measured.epochs.get(cut.statistics.num_parts, (None, None))
        forecast = predict(cut.statistics, layers, options.precision, seconds, measured.machine)
        return Row(cut, forecast, memory(cut, framework)[-1], preparation)

    return [row(cut) for cut in cuts], measured.line


def _cut(options: PlanSpec, graph: "Graph", structure: "Graph", parts: int, log: Log) -> _Cut:
    """Cut the graph into some parts, whose edges *structure* has in both directions, and count them."""
    from unilaunch_gcn.memory import leaves_rows_out, shares_of_parts
    from unilaunch_gcn.reach import count_pruned
    from unilaunch_graph.partition.partitioners import assign
    from unilaunch_graph.partition.statistics import count

    log.say(f"cutting it into {parts} part{'s' * (parts != 1)}")
    made = assign(structure, parts, options.balance, options.partitioner)
    statistics = count(graph, made.owner, parts)
    if leaves_rows_out(options, is_directed=graph.is_directed):
        statistics = count_pruned(graph, made.owner, statistics, options.layers)
    shares = list(shares_of_parts(statistics, made.owner, graph, options.layers))
    return _Cut(made.partitioner, made.owner, statistics, shares)


def _processors() -> int:
    import os

    return len(os.sched_getaffinity(0))


def _case(graph: "Graph", structure: "Graph", cut: _Cut, folder: Path) -> dict[str, Any]:
    """Write the parts with most edges, one for each processor, and return where they are."""
    from unilaunch_graph.partition.cut import order_nodes, split_parts
    from unilaunch_graph.partition.store import Origin, write_nodes, write_parts

    num_parts = cut.statistics.num_parts
    heaviest = sorted(cut.statistics.edges.argsort()[::-1][: min(_processors(), num_parts)].tolist())
    own = folder / str(num_parts)
    parts = split_parts(graph, order_nodes(structure, cut.owner, num_parts), heaviest)
    origin = Origin("plan", "plan", "plan", "plan", "plan", Path("/"))  # where its files are now
    write_parts(own, origin, parts)
    write_nodes(own, origin, graph, folder / "nodes", Log().say)
    return {"folder": str(own), "fingerprint": "plan", "num_parts": num_parts, "parts": heaviest}


def _measure(options: PlanSpec, cases: Sequence[dict[str, Any]], folder: Path) -> _Measured:
    """Run the heaviest parts' epochs, and messages between two ranks."""
    epochs: dict[int, tuple[float, int]] = {}
    messages: dict[str, Any] = {}
    for ranks in sorted({len(case["parts"]) for case in cases}):
        own = [case for case in cases if len(case["parts"]) == ranks]
        measured = _launch(options, own, ranks, folder / f"{ranks}-ranks")
        for case, seconds in zip(own, measured["seconds"], strict=True):
            epochs[case["num_parts"]] = seconds, measured["framework_bytes"]
        messages |= {name: measured[name] for name in Machine._fields if name in measured}
    machine = Machine(**messages)
    return _Measured(epochs, machine, (
        "computing: measured here, on cpu, as many ranks at once as there are processors; messages: "
        f"{machine.latency * 1e6:.1f} us and {machine.bytes_per_second / 1e9:.2f} GB/s, "
        f"{'measured here' if messages else 'taken: one rank measures no messages'}; memory: of a rank that finds its "
        f"partition; {max(framework for _, framework in epochs.values()) / 1e6:.0f} MB of it are the interpreter and "
        f"{measured['backend']}, measured here"
    ))  # fmt: skip


def _launch(options: PlanSpec, cases: Sequence[dict[str, Any]], ranks: int, folder: Path) -> Any:
    import unilaunch

    folder.mkdir()
    told = folder / "cases.json"
    training = options.model_dump(mode="json", include=set(TrainingSpec.model_fields))
    told.write_text(json.dumps({"training": training, "cases": list(cases)}), encoding="utf-8")
    result = unilaunch.launch(unilaunch.LaunchSpec.model_validate({
        "nprocs": ranks, "target": "calibration", "output_dir": folder / "log_output", "log_level": "ERROR",
        "backend": options.backend, "options": {"cases": str(told)},
        "device": "cpu", "oversubscribe": True, "allow_run_as_root": True,
    }), check=False)  # fmt: skip
    if result.returncode:
        raise PluginError(
            f"this machine cannot be measured: {result.failure.message if result.failure else 'see above'}"
        )
    return result.result


def _rankfile(hosts: Sequence[str]) -> str:
    slot: Counter[str] = Counter()
    lines = ["# Written by unilaunch plan: launch --map-by rankfile:file=FILE, mpirun --rankfile FILE (Open MPI 4)"]
    for rank, host in enumerate(hosts):
        lines.append(f"rank {rank}={host} slot={slot[host]}")
        slot[host] += 1
    return "\n".join(lines) + "\n"


def _write(path: Path, text: str, option: str) -> None:
    try:
        write_users(path, text)
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written: {error.strerror}") from None


def predict(
    statistics: "PartitionStatistics",
    layers: "Sequence[Layer]",
    precision: str,
    compute: float | None,
    machine: Machine,
) -> Forecast:
    """Return what an epoch of such a partition costs.

    Args:
        statistics: The partition, counted.
        layers: The network's layers.
        precision: "float32", "float64" or "bfloat16", in which only halo rows travel.
        compute: Seconds that the slowest rank computes in an epoch; None: it was not measured.
        machine: What messages cost.
    """
    itemsize = 8 if precision == "float64" else 4
    halo_itemsize = 2 if precision == "bfloat16" else itemsize
    parts = statistics.num_parts
    every = [(statistics.traffic, statistics.traffic)] * len(layers)
    exchanges = [
        (layer.width, traffic)
        for layer, traffics in zip(layers, statistics.exchanged or every, strict=True)
        for traffic in traffics[: layer.exchanges]
    ]
    moved = sum(_switched(statistics.num_nodes, width, parts) for width, _ in exchanges)
    weights = sum(parameter.size for layer in layers for parameter in layer.parameters)
    reduced = (
        (2 * 8 * weights / machine.bytes_per_second + 2 * machine.latency * ceil(log2(parts))) if parts > 1 else 0.0
    )
    by_halo = sum(_exchange_seconds(traffic, width * halo_itemsize, machine) for width, traffic in exchanges)
    share = moved * itemsize / parts
    by_columns = share / machine.bytes_per_second + 2 * len(exchanges) * (parts - 1) * machine.latency
    most = statistics.edges.max()
    evenly = statistics.edges.sum() / parts / most if most else 1.0  # without edges each rank computes the same
    is_attention = any(layer.heads for layer in layers)
    return Forecast(
        halo_bytes=sum(int(traffic.sum()) * width for width, traffic in exchanges) * halo_itemsize,
        tensor_bytes=None if is_attention else moved * itemsize,
        graph_seconds=None if compute is None else compute + by_halo + reduced,
        tensor_seconds=(None if is_attention or compute is None else compute * float(evenly) + by_columns + reduced),
    )


def _switched(num_nodes: int, width: int, parts: int) -> int:
    """Return how many numbers move there and back where ranks divide columns: all but a rank's columns of its nodes."""
    begins = [(part * num_nodes // parts, part * width // parts) for part in range(parts + 1)]
    own = sum((end - begin) * (last - first) for (begin, first), (end, last) in pairwise(begins))
    return 2 * (num_nodes * width - own)


def _exchange_seconds(traffic: "Traffic", row_bytes: int, machine: Machine) -> float:
    """Return the seconds of an exchange: the busiest rank's rows, in and out, and its messages, one after the other."""
    rows = max(int((traffic.sum(axis=0) + traffic.sum(axis=1)).max()) // 2, 0)
    return row_bytes * rows / machine.bytes_per_second + int((traffic > 0).sum(axis=1).max()) * machine.latency


def place(traffic: "Traffic", slots: Mapping[str, int]) -> list[str]:
    """Return the host of each part. Hosts are filled in order; a host gets next the part with most rows to its parts.

    After this greedy step, two parts are swapped as long as a swap reduces the rows between hosts.

    Args:
        traffic: Rows that part i sends to part j. (num_parts, num_parts)
        slots: Free slots by host; together at least as many as parts.
    """
    both = (traffic + traffic.T).astype(float)
    names = list(slots)
    host = _grow(both, [slots[name] for name in names])
    _swap(both, host)
    return [names[at] for at in host]


def crossing(traffic: "Traffic", hosts: Sequence[str]) -> int:
    """Return the rows that go from one host to another in an exchange."""
    import numpy as np

    at = np.unique(hosts, return_inverse=True)[1]
    return int(traffic[at[:, None] != at].sum())


def _grow(both: "NDArray[np.float64]", sizes: list[int]) -> "NDArray[np.int64]":
    import numpy as np

    host = np.full(len(both), -1)
    for at, size in enumerate(sizes):
        near = np.zeros(len(both))
        for taken in range(min(size, int((host < 0).sum()))):
            free = host < 0
            # The first part of a host is the one that exchanges the fewest rows with the placed parts.
            wanted = near if taken else -both[:, ~free].sum(axis=1)
            part = int(np.where(free, wanted, -np.inf).argmax())
            host[part] = at
            near += both[part]
    return host


def _swap(both: "NDArray[np.float64]", host: "NDArray[np.int64]") -> None:
    """Swap the two parts with the largest gain, as long as there is a gain (Kernighan and Lin, 1970, no look-ahead)."""
    import numpy as np

    for _ in range(len(both)):
        to_host = np.stack([both[:, host == at].sum(axis=1) for at in range(host.max() + 1)], axis=1)
        own = to_host[np.arange(len(host)), host]
        gain = to_host[:, host] - own[:, None]
        gain = gain + gain.T - 2 * both
        gain[host[:, None] == host] = 0
        first, second = np.unravel_index(gain.argmax(), gain.shape)
        if gain[first, second] <= 0:
            return
        host[first], host[second] = host[second], host[first]
