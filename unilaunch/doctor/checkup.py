"""Check the hosts: ssh to each host, then one rank on each through the mpirun that the job will use."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import Any

from unilaunch.addresses import own_names
from unilaunch.doctor.diagnosis import Finding, Visit, diagnose, differing
from unilaunch.doctor.slow import Measured, find_slow, healthy, read_measured, table
from unilaunch.doctor.spec import DoctorSpec
from unilaunch.errors import InputError
from unilaunch.hostfile import Host, format_hostfile
from unilaunch.job.find import find_mpirun
from unilaunch.job.login import log_in
from unilaunch.job.plan import hosts_of
from unilaunch.launchers.allocation import allocated_hosts
from unilaunch.launchers.mpirun import Mpirun, Request
from unilaunch.monitor.inbox import Inbox, listen
from unilaunch.output.files import write_users
from unilaunch.record import Record, replace
from unilaunch.start_variables import MONITOR

#: Seconds for mpirun to start one rank on each host, and for these to find each other; and for each that measures.
DEADLINE = 30.0
_MEASURING = 10.0
_HERE = Host("localhost", 1)  # without hosts and without an allocation


def doctor(spec: DoctorSpec, environ: Mapping[str, str]) -> int:
    """Check the hosts, print what is wrong or differs with what to do, and return 0 only when a job would start.

    Raises:
        UnilaunchError: The hosts cannot be read, or there is no mpirun.
    """
    hosts = hosts_of(spec) or allocated_hosts(environ) or (_HERE,)
    spec = (mpirun := find_mpirun(spec.mpirun, environ)).usable(spec)
    here = own_names([host.name for host in hosts])
    ssh = mpirun.login_command(_request(spec, hosts, here, environ))
    wrong = log_in([host for host in hosts if host.name not in here], ssh) if ssh else {}
    reached = [host for host in hosts if not wrong.get(host.name)]
    lines = [Finding(why) for why in wrong.values() if why]
    request = _request(spec, reached, here, environ)
    mpirun.check(request, os.geteuid())
    summary, measured, well = "", None, [host.name for host in reached]
    if reached:
        answer = _visit(mpirun, request, reached, measures=spec.measure or spec.healthy is not None)
        visits, summary, measured = answer.visits, answer.summary, answer.measured
        slow = find_slow(measured) if measured else {}
        of_hosts = diagnose(visits)
        ill = {visit.host for visit in visits if visit.facts is None or _is_ill(visit.host, of_hosts)}
        well = healthy([name for name in well if name not in ill], slow)
        lines += [*answer.findings, *of_hosts, *chain.from_iterable(slow.values())]
    if measured:
        sys.stdout.write("\n".join(table(measured)) + "\n")
    _print(lines, len(hosts), summary)
    if spec.healthy:
        _write_hosts(spec.healthy, [host for host in hosts if host.name in well])
    return 1 if any(finding.stops for finding in lines) else 0


def _request(spec: DoctorSpec, hosts: Sequence[Host], here: Collection[str], environ: Mapping[str, str]) -> Request:
    """Return what starts one rank on each host."""
    return Request(
        nprocs=len(hosts),
        hosts=tuple(replace(host, slots=1, max_slots=None) for host in hosts if host is not _HERE),
        hostfile=None,
        several=any(host.name not in here for host in hosts),
        host_timeout=spec.host_timeout,
        cores_each=None,
        mpi=spec,
        program=(),
        environ=environ,
    )


def _is_ill(host: str, findings: Sequence[Finding]) -> bool:
    return any(finding.stops and finding.text.startswith((f"{host}:", f"{host} ")) for finding in findings)


def _write_hosts(path: Path, hosts: Sequence[Host]) -> None:
    """Write a hostfile of the hosts without a fault.

    Raises:
        InputError: No host is without a fault, or the file cannot be written.
    """
    if not hosts:
        raise InputError(f"--healthy {path}: not written: no host is well")
    try:
        write_users(path, format_hostfile(hosts))
    except OSError as error:
        raise InputError(f"--healthy {path}: cannot be written: {error.strerror}") from None


class _Answer(Record):
    """What the probes told.

    Attributes:
        visits: The facts of each host.
        findings: Why hosts cannot reach each other.
        summary: Over which addresses the ranks connected, for a person.
        measured: The measurements; None if some or all are missing.
    """

    visits: list[Visit]
    findings: list[Finding]
    summary: str
    measured: Measured | None


def _visit(mpirun: Mpirun, request: Request, hosts: Sequence[Host], *, measures: bool) -> _Answer:
    """Start the probes, and return their answers."""
    others = [host.name for host in hosts] if request.several else []
    listening = listen(others, several=bool(others), host_timeout=request.host_timeout)
    with (
        Inbox(listening.listener, listening.secret, request.host_timeout) as inbox,
        tempfile.TemporaryFile("w+", errors="replace") as console,
        tempfile.NamedTemporaryFile("w", prefix="unilaunch-hosts-") as hostfile,
        _token() as token,
    ):
        hostfile.write(format_hostfile(request.hosts))
        hostfile.flush()
        program = (sys.executable, "-m", "unilaunch.doctor.probe", str(token), *(["--measure"] if measures else []))
        request = replace(request, program=program, hostfile=hostfile.name if request.hosts else None).started()
        line = mpirun.start_line(request, (MONITOR,), session="", stdin=False)
        arrived: dict[int, float] = {}
        with subprocess.Popen(
            line, env={**request.environ, MONITOR: listening.where}, stdin=subprocess.DEVNULL, stdout=console,
            stderr=subprocess.STDOUT, start_new_session=True,
        ) as process:  # fmt: skip
            late = _listen(process, inbox, arrived, DEADLINE + (_MEASURING * len(hosts) if measures else 0.0))
        console.seek(0)
        said = [text.strip() for text in console if text.strip(" -\n")]
    return _judge(inbox, hosts, arrived, said, late=late)


@contextmanager
def _token() -> Iterator[Path]:
    """Make a file in this folder, by which a host that shares the folder is known; remove it at the end of the block.

    If nothing can be written here, give a folder that every host has: then it is not known.
    """
    token = Path.cwd() / f".unilaunch-doctor-{token_hex(8)}"
    try:
        token.touch()
    except OSError:
        yield Path("/")
        return
    try:
        yield token
    finally:
        with suppress(OSError):
            token.unlink()


def _listen(process: "subprocess.Popen[bytes]", inbox: Inbox, arrived: dict[int, float], seconds: float) -> bool:
    """Receive the probes' messages until mpirun exits; return whether mpirun had to be ended after *seconds*."""
    deadline = time.monotonic() + seconds
    late = False
    while process.poll() is None:
        inbox.take(0.1)
        for rank in inbox.ranks:
            arrived.setdefault(rank, time.time())
        if time.monotonic() > deadline and not late:
            late = True
            process.terminate()
            deadline += 5
        elif time.monotonic() > deadline:
            process.kill()
    inbox.take(0)
    return late


def _judge(
    inbox: Inbox, hosts: Sequence[Host], arrived: Mapping[int, float], said: Sequence[str], *, late: bool
) -> _Answer:
    told: dict[int, Any] = {rank: seen.result for rank, seen in inbox.ranks.items() if seen.result}
    names = {inbox.ranks[rank].host: rank for rank in told}
    visits, findings = [], []
    ranks = sorted(told)
    for index, host in enumerate(hosts):
        rank = names.get(host.name, ranks[index] if len(ranks) == len(hosts) else None)
        if rank is None:
            visits.append(Visit(host.name, host.slots, None))
            continue
        facts = told[rank]["facts"]
        skew = float(facts["time"]) - arrived.get(rank, float(facts["time"]))
        visits.append(Visit(host.name, host.slots, facts, skew, inbox.ranks[rank].host))
    silent = [visit.host for visit in visits if visit.facts is None]
    if silent:
        first = "; ".join(said[:3]) or "mpirun says nothing"
        findings.append(Finding(f"{', '.join(silent)}: mpirun could not start a rank there: {first}"))
    refused = list(dict.fromkeys(str(answer["refused"]) for answer in told.values() if "refused" in answer))
    findings += [Finding(text) for text in refused]
    met = [answer["meeting"] for answer in told.values() if "meeting" in answer]
    libraries = {
        inbox.ranks[rank].host: answer["meeting"]["library"] for rank, answer in told.items() if "meeting" in answer
    }
    findings += list(differing(libraries, "as its MPI", "install one version, or set MPI4PY_LIBMPI"))
    if late and not silent and not refused:
        findings.append(
            Finding(
                f"the ranks did not find each other within {DEADLINE:.0f} s through MPI: name the network between "
                "them: --mca btl_tcp_if_include NETWORK/BITS"
            )
        )
    measured = None
    if told and len(visits) == len(told) and all("measured" in answer for answer in told.values()):
        of_rank = {rank: visits[index].host for index, rank in enumerate(ranks)} if len(ranks) == len(hosts) else {}
        of_rank |= {rank: name for name, rank in names.items() if name in {host.name for host in hosts}}
        measured = read_measured(of_rank, {rank: answer["measured"] for rank, answer in told.items()})
    return _Answer(visits, findings, _summary(visits, met), measured)


def _summary(visits: Sequence[Visit], met: Sequence[Mapping[str, str]]) -> str:
    facts = next((visit.facts for visit in visits if visit.facts), None)
    if not facts:
        return ""
    packages = ", ".join(f"{name} {facts['packages'][name]}" for name in facts["frameworks"])
    devices = ", ".join(f"{number} {kind}" for kind, number in facts["devices"].items() if number) or "cpu only"
    place = f", rank 0 reached at {met[0]['address']} ({met[0]['interface']})" if met else ""
    return f"Python {facts['python']}, {packages or 'no framework'}, {devices}{place}"


def _print(findings: Sequence[Finding], count: int, summary: str) -> None:
    ready = not any(finding.stops for finding in findings)
    lines = [f"{'wrong' if finding.stops else 'note':6} {finding.text}" for finding in findings]
    if ready:
        who = "the host is ready" if count == 1 else f"all {count} hosts are ready"
        lines.append(f"{who}: {summary}")
    sys.stdout.write("\n".join(lines) + "\n")
