"""The plan of a job, before anything is started: mpirun's command line, and the host of each rank."""

import json
import os
import re
import shlex
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unilaunch.errors import SpecError
from unilaunch.interfaces.plugins import load_observer
from unilaunch.job.choice import DirectStart, choose_start, foresee_mpirun
from unilaunch.launchers import known
from unilaunch.launchers.allocation import allocated_hosts, hosts_to_name, is_allocated
from unilaunch.launchers.mpirun import Request, Starter
from unilaunch.machine.addresses import own_names
from unilaunch.machine.devices import absent_devices, count_cores, count_ranks, visible_devices
from unilaunch.rank.placement import Facts, device_kinds, place
from unilaunch.record import Record, replace
from unilaunch.spec.habits import SLOTS
from unilaunch.spec.hostfile import RANKFILE, Host, parse_hosts, read_hostfile
from unilaunch.spec.launch_spec import LaunchSpec, MpiSpec
from unilaunch.spec.redaction import HIDDEN, secret_arguments, secret_variables
from unilaunch.spec.run_spec import RunSpec
from unilaunch.spec.task import Machine, Task

_SHOWN = 8  # most hosts that an error names
_MOST_RANKS = 1_000_000
_UNREAD = (Host("?"),)  # the hosts of an allocation that only mpirun can read
#: With these values, and by default, Open MPI fills one host after the other.
_FILLING = {None, "slot", "core", "hwthread", "socket", "package", "numa", "l1cache", "l2cache", "l3cache"}
_RANK_LINE = re.compile(r"\s*rank\s+(\d+)\s*=\s*(\S+)\s+slots?\s*=", re.IGNORECASE)
_PER_NODE = re.compile(r"ppr:(\d+):node")
#: Words of --mpi-arg with which mpirun places the ranks otherwise.
_PLACING = {"--map-by", "--rank-by", "--rankfile"}


class Row(Record):
    """The host and device of one rank; the host is "?" if only mpirun knows it."""

    rank: int
    host: str
    device: str


class Plan(Record):
    """A job that has been checked and can be started.

    Attributes:
        task: The task of the ranks.
        starter: What starts the ranks: an mpirun, or a `DirectStart`.
        line: The command line, word by word, to be shown: it can be typed where the plan was made.
        rows: The host and device of each rank, by rank.
        notes: What of the user's environment is ignored, one line each; rank 0 says it at the start.
        request: The request from which the command line was made.
        why: Why it starts the ranks.
    """

    task: Task[LaunchSpec]
    starter: Starter
    line: tuple[str, ...]
    rows: tuple[Row, ...]
    request: Request
    why: str
    notes: tuple[str, ...] = ()


def make_plan(task: Task[LaunchSpec], environ: Mapping[str, str], machine: Machine = Machine.HERE) -> Plan:
    """Check a task, and return the plan of its job.

    Args:
        task: The task of the ranks.
        environ: The process's environment.
        machine: Where the job will run. Cores, devices and the user are checked only if that is this machine.

    Raises:
        UnilaunchError: The job cannot run.
    """
    starting = machine is Machine.HERE
    hosts = _find_hosts(task.spec, environ, starting=starting)
    if starting:
        starter, why = choose_start(task, hosts.known, environ)
    else:
        starter, why = foresee_mpirun(task.spec.mpirun, environ, machine), "a job file"
    task = _resolved(task, starter, starting=starting)
    if starting and not (hosts.named or hosts.allocated):
        task = replace(task, spec=_counted_here(task.spec, environ))
    spec = options = task.spec
    if starting and not spec.hosts and not spec.hostfile and os.geteuid() == 0:
        options = options.model_copy(update={"allow_run_as_root": True})  # mpirun is our choice here, not the user's
    slots = _slots(hosts, starter, spec, starting=starting)
    if (nprocs := _count(spec, slots)) > _MOST_RANKS:
        raise SpecError(f"{nprocs} ranks, by -n or by the hosts' slots: {_MOST_RANKS} is the most")
    task.check(nprocs)
    _check_observers(task)
    named = hosts.named
    if _fills_the_first_host(spec, starter, named):
        named, options = make_room(named, nprocs), options.model_copy(update={"oversubscribe": False})
        slots = {host.name: host.slots for host in named}
    here = own_names([host.name for host in named])
    names = _names(_in_mpiruns_order(slots, starter, here), nprocs, options, starter)
    beside = _beside(environ) if starting else {}
    is_direct = isinstance(starter, DirectStart)
    request = Request(
        nprocs=nprocs,
        hosts=named,
        hostfile=str(spec.hostfile)
        if named == hosts.named and spec.hostfile and starter.reads(spec.hostfile)
        else None,
        several=spec.nnodes > 1 or (hosts.allocated and not is_direct) or any(host.name not in here for host in named),
        host_timeout=spec.host_timeout,
        cores_each=count_cores() // max(Counter(names).values()) if starting else None,
        options=options,
        program=_program_line(task, "python" if machine is Machine.IMAGE else sys.executable),
        environ={} if machine is Machine.IMAGE else {**environ, **beside},
    )
    if starting:
        starter.check(request, os.geteuid())
    visible = {} if machine is Machine.IMAGE else visible_devices(environ)
    rows = _rows(task, names, here if starting else set(), visible)
    before = ("env", *(f"{name}={value}" for name, value in beside.items())) if beside else ()
    notes = () if machine is Machine.IMAGE else absent_devices(environ)
    line = (*before, *starter.write(request.shown()))
    return Plan(task, starter, line, tuple(rows), request, why, tuple(notes))


class _Hosts(Record):
    """The hosts of a job.

    Attributes:
        named: The hosts that mpirun is told; empty for this host, and if mpirun reads an allocation by itself.
        allocated: Whether mpirun reads an allocation by itself.
        known: The hosts that are named or allocated, as far as it is known; empty for this host.
    """

    named: tuple[Host, ...]
    allocated: bool
    known: tuple[Host, ...]


def _find_hosts(spec: LaunchSpec, environ: Mapping[str, str], *, starting: bool) -> _Hosts:
    named = hosts_of(spec) or (hosts_to_name(environ) if starting and spec.nnodes == 1 else ())
    allocated = not named and spec.nnodes == 1 and is_allocated(environ)
    return _Hosts(named, allocated, (allocated_hosts(environ) or _UNREAD) if allocated and starting else named)


def _check_observers(task: Task[LaunchSpec]) -> None:
    for named in task.spec.observe:
        name, _, where = named.partition("=")
        observer = load_observer(name)
        try:
            observer.check(where)
        except SpecError as error:
            raise SpecError(f"--observe {named}: {error}") from None
        if observer.of_models and not task.model:
            raise SpecError(f"--observe {named}: a {task.target.kind} writes its own curves: leave it out")


def _resolved(task: Task[LaunchSpec], starter: Starter, *, starting: bool) -> Task[LaunchSpec]:
    """Return the task with paths relative to its ranks' folder, options for this mpirun, and options for a restart."""
    spec = task.spec
    if starting and spec.cwd and not (spec.hostfile or spec.hosts) and not os.path.isdir(spec.cwd):  # noqa: PTH112  (raises nothing)
        raise SpecError(f"--cwd {spec.cwd}: no such folder (in {Path.cwd()})")
    target = task.target.absolute() if spec.cwd else task.target
    if task.model and spec.max_restarts:
        task = replace(task, options=task.model.restartable(task.options))
    return replace(task, spec=starter.usable(spec.resolved()), target=target)


def hosts_of(spec: LaunchSpec) -> tuple[Host, ...]:
    """Return the hosts that a spec names; empty if it names none.

    Raises:
        SpecError: Both options name hosts, or the hosts cannot be read.
    """
    if spec.hostfile and spec.hosts:
        raise SpecError(f"--hostfile {spec.hostfile} and -H {spec.hosts}: give one of the two")
    if spec.hostfile:
        return read_hostfile(spec.hostfile)
    return parse_hosts(spec.hosts) if spec.hosts else ()


def _fills_the_first_host(spec: LaunchSpec, starter: Starter, hosts: Sequence[Host]) -> bool:
    """Return whether mpirun would put all ranks on the first of several hosts, although their slots are known."""
    is_known = len(hosts) > 1 and all(host.slots is not None for host in hosts)
    return starter.fills_the_first_host and is_known and spec.oversubscribe and not spec.map_by


def _slots(hosts: _Hosts, starter: Starter, spec: LaunchSpec, *, starting: bool) -> dict[str, int | None]:
    """Return the slots of each host; None if only mpirun knows them, or if the user says how many ranks there are."""
    if hosts.known:
        # A task of an allocation may be a whole node: the ranks of a direct start are as many as the user says.
        is_free = hosts.allocated and isinstance(starter, DirectStart) and spec.nprocs is not None
        return {host.name: None if is_free else host.slots for host in hosts.known}
    is_counted = starter.counts_cores and starting and not hosts.allocated
    return {socket.gethostname(): count_cores() if is_counted else None}


def _counted_here(spec: LaunchSpec, environ: Mapping[str, str]) -> LaunchSpec:
    """Return the spec with the number of all ranks: if it is not given, what this host takes, on each node."""
    if spec.nprocs is not None:
        return spec
    number = count_ranks("cpu" if spec.device == "cpu" else "auto", environ)
    return spec.model_copy(update={"nprocs": number * spec.nnodes})


def _count(spec: LaunchSpec, slots: Mapping[str, int | None]) -> int:
    """Return the number of ranks; raise an error if it does not fit the slots or the nodes."""
    if spec.nproc_per_node and len(slots) > 1:
        raise SpecError(f"--nproc-per-node {spec.nproc_per_node}: there are several hosts: leave it out, and {SLOTS}")
    known = [number for number in slots.values() if number is not None]
    total = sum(known) if len(known) == len(slots) else None
    if spec.nprocs is None:
        if total is None:
            raise SpecError(
                "-n: how many ranks? Give -n N, or each host its slots: -H node0:8, or slots=8 behind its name in the "
                "hostfile"
            )
        return total
    if spec.nprocs % spec.nnodes:
        raise SpecError(f"-n {spec.nprocs} --nnodes {spec.nnodes}: every node gets the same number of ranks")
    if total is not None and spec.nprocs > total and not _may_oversubscribe(spec):
        some = ", ".join(f"{name}: {number}" for name, number in list(slots.items())[:_SHOWN])
        more = f", and {len(slots) - _SHOWN} more hosts" if len(slots) > _SHOWN else ""
        raise SpecError(
            f"-n {spec.nprocs}: {spec.nprocs} ranks and {total} slots ({some}{more}); start at most {total}, give the "
            "hosts more slots (slots=N in the hostfile, -H host:N), or add --oversubscribe"
        )
    return spec.nprocs


def _beside(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what mpirun must find where another launcher has started this shell."""
    return {name: value for one in known().values() for name, value in one.mpirun_variables(environ).items()}


def _may_oversubscribe(mpi: MpiSpec) -> bool:
    mapping = (mpi.map_by or "").upper()
    return mpi.oversubscribe or ("OVERSUBSCRIBE" in mapping and "NOOVERSUBSCRIBE" not in mapping)


def _in_mpiruns_order(slots: Mapping[str, int | None], starter: Starter, here: set[str]) -> dict[str, int | None]:
    """Return the hosts in the order in which they get ranks."""
    return dict(sorted(slots.items(), key=lambda item: starter.begins_here and item[0] not in here))


def _names(slots: Mapping[str, int | None], nprocs: int, spec: LaunchSpec, starter: Starter) -> list[str]:
    """Return the host of each rank; "?" if it is not known.

    Args:
        slots: The hosts and their slots, in the order in which they get ranks.
        nprocs: Number of ranks.
        spec: The options.
        starter: What starts the ranks.
    """
    if (nodes := spec.nnodes) > 1:
        own = spec.node_rank or 0
        return [next(iter(slots)) if rank * nodes // nprocs == own else "?" for rank in range(nprocs)]
    if len(slots) == 1:
        return list(slots) * nprocs
    if any(number is None for number in slots.values()):
        return ["?"] * nprocs
    elsewhere = _PLACING & set(spec.mpi_args) or (starter.fills_the_first_host and _may_oversubscribe(spec))
    known = {name: number or 0 for name, number in slots.items()}
    return map_ranks(known, nprocs, "unknown" if elsewhere else spec.map_by)


def map_ranks(slots: Mapping[str, int], nprocs: int, map_by: str | None) -> list[str]:
    """Return each rank's host, by rank; "?" for every rank if only mpirun knows it.

    Raises:
        SpecError: A rankfile cannot be read, or has no line for a rank.
    """
    if (map_by or "").lower().startswith(RANKFILE):
        return _of_rankfile(Path(str(map_by)[len(RANKFILE) :].partition(":")[0]), nprocs)
    policy = map_by.lower() if map_by else None
    if policy and not policy.startswith("ppr:"):
        policy = policy.partition(":")[0] or None
    if match := _PER_NODE.match(policy or ""):
        return _cut([name for name in slots for _ in range(int(match[1]))], nprocs)
    if sum(slots.values()) < nprocs:
        return ["?"] * nprocs
    if policy in _FILLING:
        return _cut([name for name, number in slots.items() for _ in range(number)], nprocs)
    return _cut(_round_robin(slots), nprocs) if policy == "node" else ["?"] * nprocs


def make_room(hosts: Sequence[Host], nprocs: int) -> tuple[Host, ...]:
    """Return the hosts with slots for all ranks; missing slots are added to the hosts in turn, up to each maximum."""
    slots = [host.slots or 0 for host in hosts]
    lacking, open_ = nprocs - sum(slots), True
    while lacking > 0 and open_:
        open_ = False
        for at, host in enumerate(hosts):
            if lacking > 0 and slots[at] < (host.max_slots or nprocs):
                slots[at], lacking, open_ = slots[at] + 1, lacking - 1, True
    return tuple(replace(host, slots=number) for host, number in zip(hosts, slots, strict=True))


def _of_rankfile(path: Path, nprocs: int) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"--map-by {RANKFILE}{path}: cannot be read: {error}") from None
    hosts = {int(found[1]): found[2] for line in lines if (found := _RANK_LINE.match(line))}
    missing = next((rank for rank in range(nprocs) if rank not in hosts), None)
    if missing is not None:
        raise SpecError(f"{path}: no line for rank {missing} of {nprocs}; expected 'rank {missing}=HOST slot=N'")
    return [hosts[rank] for rank in range(nprocs)]


def _round_robin(slots: Mapping[str, int]) -> list[str]:
    rounds = range(max(slots.values()))
    return [name for turn in rounds for name, number in slots.items() if turn < number]


def _cut(names: list[str], nprocs: int) -> list[str]:
    return names[:nprocs] if len(names) >= nprocs else ["?"] * nprocs


def _rows(
    task: Task[LaunchSpec], names: Sequence[str], here: set[str], visible: Mapping[str, Sequence[str]]
) -> list[Row]:
    """Return the host and device of each rank, as the ranks themselves will place them.

    The other hosts are assumed to have enough devices of the best kind that this one has.

    Raises:
        PlacementError: This host lacks devices.
    """
    kinds, wanted = device_kinds(task.backends), task.spec.device
    own = {kind: list(devices) for kind, devices in visible.items()}
    facts = [
        Facts(
            name=name, host=name, folder="", cores=1, quota=None, threads=1, devices=own, monitor="", start="",
            placeholders={},
        )
        for name in names if name in here
    ]  # fmt: skip
    placed = iter(place(wanted, kinds, None, facts) if facts else ())
    kind = next((kind for kind in kinds if visible.get(kind)), "cpu") if wanted == "auto" else wanted
    local: Counter[str] = Counter()
    rows = []
    for rank, name in enumerate(names):
        number = local[name]
        local[name] += 1
        elsewhere = kind if kind == "cpu" or name == "?" else f"{kind}:{number}"
        rows.append(Row(rank, name, str(next(placed)) if name in here else elsewhere))
    return rows


def _program_line(task: Task[LaunchSpec], python: str) -> tuple[str, ...]:
    """Return the words of a rank's command line: they contain the whole spec, and so work in any environment.

    A program's arguments follow `--` unchanged: one word holds at most 128 KiB.
    """
    spec = {
        name: value
        for name, value in task.spec.model_dump(mode="json", include=set(RunSpec.model_fields)).items()
        if name not in {"target", "args"} and getattr(task.spec, name) != RunSpec.model_fields[name].default
    }
    options = task.options.model_dump(mode="json", exclude_defaults=True) if task.options else {}
    whole: dict[str, Any] = {"target": str(task.target), **spec, **({"options": options} if options else {})}
    args = ("--", *task.spec.args) if task.spec.args else ()
    return (python, "-m", "unilaunch", "run", "--spec", json.dumps(whole), *args)


def show_plan(plan: Plan, *, as_json: bool) -> None:
    """Print the command line, and the host and device of every rank."""
    text = _as_json(plan) if as_json else "\n".join(_as_text(plan))
    sys.stdout.write(text + "\n")


def _as_json(plan: Plan) -> str:
    spec = plan.task.spec.shown(plan.task.options, whole=True)
    ranks = [{"rank": row.rank, "host": row.host, "device": row.device} for row in plan.rows]
    starter = {
        "path": str(plan.starter.path), "launcher": plan.starter.launcher,
        "version": ".".join(map(str, plan.starter.version)),
    }  # fmt: skip
    return json.dumps({"line": plan.line, "mpirun": starter, "why": plan.why, "ranks": ranks, "spec": spec}, indent=1)


def _as_text(plan: Plan) -> Iterator[str]:
    yield shlex.join(plan.line)
    for name in secret_variables(plan.request.options.export):
        yield f"(export {name} before: its value is a secret, and is not shown)"
    if secret_arguments(plan.request.args):
        yield f"({HIDDEN}: an argument whose value is a secret, and is not shown)"
    yield ""
    width = max(len("host"), *(len(row.host) for row in plan.rows))
    yield f"{'rank':>6}  {'host':{width}}  device"
    for row in plan.rows:
        yield f"{row.rank:6}  {row.host:{width}}  {row.device}"
    yield ""
    names = {row.host for row in plan.rows}
    where, unknown = f"{len(names)} host{'s' * (len(names) != 1)}", ""
    if plan.task.spec.nnodes > 1:
        where, unknown = f"{plan.task.spec.nnodes} nodes", "another node, on which the same line is typed"
    elif "?" in names:
        where = "hosts that mpirun chooses"
        unknown = "only mpirun can tell; --map-by slot or node is foreseen, if every host says its slots"
    launcher = f"{plan.starter.launcher} {'.'.join(map(str, plan.starter.version))}"
    number = len(plan.rows)
    yield f"{number} rank{'s' * (number != 1)} on {where}, started by {launcher} ({plan.why})"
    yield from (f"({note})" for note in plan.notes)
    if unknown:
        yield f"(?: {unknown})"
    elif plan.request.several:
        yield "(devices of the other hosts: taken to be as those of this one)"
