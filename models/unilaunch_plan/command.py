"""`unilaunch plan`: what a training will cost on how many parts, before anyone rents machines."""

import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
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
from unilaunch_plan.table import Row, json_line, page, table

if TYPE_CHECKING:
    from unilaunch_graph.data.graph import Graph
    from unilaunch_graph.partition.cut import Order
    from unilaunch_graph.partition.statistics import PartitionStatistics
    from unilaunch_plan.forecast import Machine

#: What is taken for messages where only one processor is there to measure them.
_ASSUMED = (5e-6, 2e9)
#: The rows between each two parts are counted: of so many parts in arrays of 134 MB.
_MOST_PARTS = 4096


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
        if options.halo != "exact":
            raise SpecError(f"--halo {options.halo}: plan counts what exact halos send; leave --halo out")
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
        from unilaunch_graph.partition.part_placement import crossing, place
        from unilaunch_graph.partition.partitioners import load_partitioner

        _refuse_no_files(options)
        load_partitioner(options.partitioner)

        rows, said = _forecasts(options, counts)
        hosts = [place(row.statistics.traffic, slots) if slots else None for row in rows]
        rows = [
            row._replace(crossing=crossing(row.statistics.traffic, names) if names else None)
            for row, names in zip(rows, hosts, strict=True)
        ]
        sys.stdout.write("".join(map(json_line, rows)) if options.as_json else f"{table(rows)}\n{said}\n")
        if options.rankfile and hosts[-1]:
            _write(options.rankfile, _rankfile(hosts[-1]), "--rankfile")
        if options.plot:
            _write(options.plot, page(rows), "--plot")
        return 0


def _refuse_no_files(options: PlanSpec) -> None:
    """Refuse files that cannot be written, before anything is measured for them."""
    from unilaunch_graph.aside import refuse_no_file

    for option, path in (("--plot ", options.plot), ("--rankfile ", options.rankfile)):
        if path:
            refuse_no_file(path, option)
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
    from unilaunch_gcn.trainable import refuse_untrainable
    from unilaunch_graph.partition.preparation import read_graph

    graph = read_graph(options, log, as_given=takes_edges_as_given(options))
    refuse_untrainable(options, graph, options.device)
    return graph


class _Measured(NamedTuple):
    """What this machine showed.

    Attributes:
        seconds: Of an epoch's computing, for each number of parts; None: not measured.
        machine: What messages cost.
        backend: The backend that computed.
        frameworks: Bytes of the interpreter and the framework of a rank, for each number of parts: ranks that are
            forked behind one import hold less than a single one; None: not measured.
        line: How it was measured, in words.
    """

    seconds: Sequence[float | None]
    machine: "Machine"
    backend: str
    frameworks: Sequence[int | None]
    line: str


def _forecasts(options: PlanSpec, counts: Sequence[int]) -> tuple[list[Row], str]:
    """Return the table's lines, and how the machine was measured."""
    import tempfile

    from unilaunch_gcn.layers import plan_layers
    from unilaunch_gcn.memory import forecast_memory
    from unilaunch_gcn.memory_check import host_memory, leaves_rows_out, shares_of_parts
    from unilaunch_graph.partition.cut import order_nodes
    from unilaunch_graph.partition.partitioners import assign
    from unilaunch_graph.partition.statistics import count, count_pruned
    from unilaunch_graph.peak import peak_memory
    from unilaunch_plan.forecast import Machine, predict

    log = Log()
    graph = _read(options, log)
    structure = graph.structure() if graph.is_directed else graph
    layers = plan_layers(options, graph.num_features, graph.num_classes)
    counted, owners = [], []
    for parts in counts:
        log.say(f"cutting it into {parts} part{'s' * (parts != 1)}")
        owners.append(assign(structure, parts, options.balance, options.partitioner))
        counted.append(count(graph, owners[-1].owner, parts))
    if leaves_rows_out(options, is_directed=graph.is_directed):
        counted = [
            count_pruned(graph, made.owner, statistics, len(layers))
            for made, statistics in zip(owners, counted, strict=True)
        ]
    shares = [
        list(shares_of_parts(statistics, made.owner, graph, len(layers)))
        for made, statistics in zip(owners, counted, strict=True)
    ]
    backend = plugins.load_backend(options.backend).name
    needed = max(
        sum(sorted(forecast_memory(options, layers, share, backend).peak for share in own)[-_processors() :])
        for own in shares
    )
    if 2 * needed > (has := host_memory()):
        measured = _Measured([None] * len(counts), Machine(*_ASSUMED), backend, [None] * len(counts), (
            f"no epoch is measured here: it needs {needed / 1e9:,.1f} GB of the {has / 1e9:,.1f} GB of this host"
        ))  # fmt: skip
        preparation = peak_memory()
    else:
        with tempfile.TemporaryDirectory() as folder:
            log.say("measuring this machine")
            cases = [
                _case(graph, order_nodes(structure, made.owner, statistics.num_parts), statistics, Path(folder))
                for made, statistics in zip(owners, counted, strict=True)
            ]
            preparation = peak_memory()  # a run's rank 0 does the same where there is no partition yet
            measured = _measure(options, cases, Path(folder))
    whole = zip(owners, counted, shares, measured.seconds, measured.frameworks, strict=True)
    return [
        Row(
            made.partitioner,
            statistics,
            predict(statistics, layers, options.precision, seconds, measured.machine),
            max((forecast_memory(options, layers, share, backend, framework) for share in own), key=attrgetter("peak")),
            preparation,
            None,
        )
        for made, statistics, own, seconds, framework in whole
    ], measured.line


def _processors() -> int:
    import os

    return len(os.sched_getaffinity(0))


def _case(graph: "Graph", order: "Order", statistics: "PartitionStatistics", folder: Path) -> dict[str, Any]:
    """Write the parts with most edges, one for each processor, and return where they are."""
    from unilaunch_graph.partition.cut import split_parts
    from unilaunch_graph.partition.store import Origin, write_nodes, write_parts

    heaviest = sorted(statistics.edges.argsort()[::-1][: min(_processors(), statistics.num_parts)].tolist())
    own = folder / str(statistics.num_parts)
    parts = split_parts(graph, order, heaviest)
    origin = Origin("plan", *["plan"] * 4)
    write_parts(own, origin, parts)
    write_nodes(own, origin, graph, folder / "nodes")
    return {"folder": str(own), "fingerprint": "plan", "num_parts": statistics.num_parts, "parts": heaviest}


def _measure(options: PlanSpec, cases: Sequence[dict[str, Any]], folder: Path) -> _Measured:
    """Run the heaviest parts' epochs, and messages between two ranks."""
    from unilaunch_plan.forecast import Machine

    seconds: dict[int, float] = {}
    frameworks: dict[int, int] = {}
    messages: dict[str, Any] = {}
    for ranks in sorted({len(case["parts"]) for case in cases}):
        own = [case for case in cases if len(case["parts"]) == ranks]
        measured = _launch(options, own, ranks, folder / f"{ranks}-ranks")
        seconds |= {case["num_parts"]: value for case, value in zip(own, measured["seconds"], strict=True)}
        frameworks[ranks] = measured["framework_bytes"]
        messages |= {name: measured[name] for name in ("latency", "bytes_per_second") if name in measured}
    said = "measured here" if messages else "taken: one rank measures no messages"
    machine = Machine(**messages) if messages else Machine(*_ASSUMED)
    ordered = [seconds[case["num_parts"]] for case in cases]
    of_cases = [frameworks[len(case["parts"])] for case in cases]
    return _Measured(ordered, machine, measured["backend"], of_cases, (
        "computing: measured here, on cpu, as many ranks at once as there are processors; messages: "
        f"{machine.latency * 1e6:.1f} us and {machine.bytes_per_second / 1e9:.2f} GB/s, {said}; memory: of a rank that "
        f"finds its partition; {max(of_cases) / 1e6:.0f} MB of it are the interpreter and {measured['backend']}, "
        "measured here"
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
    slot: dict[str, int] = {}
    lines = ["# Written by unilaunch plan: launch --map-by rankfile:file=FILE, mpirun --rankfile FILE (Open MPI 4)"]
    for rank, host in enumerate(hosts):
        lines.append(f"rank {rank}={host} slot={slot.get(host, 0)}")
        slot[host] = slot.get(host, 0) + 1
    return "\n".join(lines) + "\n"


def _write(path: Path, text: str, option: str) -> None:
    try:
        write_users(path, text)
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written: {error.strerror}") from None
