"""Check the hosts: ssh to each host, then one rank on each through the mpirun that the job will use."""

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import Any

from unilaunch.doctor.diagnosis import (
    Finding,
    HostFacts,
    Measured,
    diagnose,
    differing,
    find_slow,
    healthy,
    read_measured,
    table,
    unconnected,
)
from unilaunch.errors import InputError
from unilaunch.folder.files import write_users
from unilaunch.job.choice import find_mpirun
from unilaunch.job.login import log_in
from unilaunch.job.plan import hosts_of
from unilaunch.launchers.allocation import allocated_hosts
from unilaunch.launchers.mpirun import Mpirun, Request
from unilaunch.machine.addresses import own_names
from unilaunch.monitor.connection import listen
from unilaunch.monitor.inbox import Inbox
from unilaunch.record import replace
from unilaunch.spec.hostfile import Host, format_hostfile
from unilaunch.spec.launch_spec import DoctorSpec
from unilaunch.spec.variables import MONITOR

#: Seconds for mpirun to start one rank on each host, and for these to find each other; and for each that measures.
DEADLINE = 30.0
_MEASURING = 10.0
#: Seconds for which the last answers may still arrive when mpirun has exited: packets that were lost are sent again.
_LAST_WORDS = 5.0
#: In a line of Open MPI's that is no reason: its ssh had begun before it could be given a group of processes.
_HARMLESS = "Warning: setpgid("
#: Why mpirun may say nothing, by whether there are several hosts: ssh to all of them has been tried before.
_SILENCE = {
    False: "mpirun says nothing",
    True: "mpirun says nothing: the other hosts must reach this one at every TCP port of its "
    "net.ipv4.ip_local_port_range (firewall, security group)",
}
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
    lines = [Finding(why, hosts=(host,)) for host, why in wrong.items() if why]
    request = _request(spec, reached, here, environ)
    mpirun.check(request, os.geteuid())
    summary, measured, well = "", None, list[str]()
    if reached:
        found, summary, measured = _visit(mpirun, request, reached, spec)
        lines += found
    if measured:
        slow = find_slow(measured)
        well = healthy(_without_faults(reached, lines), slow)
        lines += chain.from_iterable(slow.values())
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
        options=spec,
        program=(),
        environ=environ,
    )


def _without_faults(hosts: Sequence[Host], findings: Sequence[Finding]) -> list[str]:
    """Return the hosts with which nothing is wrong; none if a fault may be of any host."""
    faults = [finding.hosts for finding in findings if finding.stops]
    return [host.name for host in hosts if all(ill and host.name not in ill for ill in faults)]


def _write_hosts(path: Path, hosts: Sequence[Host]) -> None:
    """Write a hostfile of the hosts without a fault.

    Raises:
        InputError: No host is known to be without a fault, or the file cannot be written.
    """
    if not hosts:
        raise InputError(f"--healthy {path}: not written: no host is known to be well")
    try:
        write_users(path, format_hostfile(hosts))
    except OSError as error:
        raise InputError(f"--healthy {path}: cannot be written: {error.strerror}") from None


def _visit(
    mpirun: Mpirun, request: Request, hosts: Sequence[Host], spec: DoctorSpec
) -> tuple[list[Finding], str, Measured | None]:
    """Start the probes; return what is wrong or differs, a summary for a person, and what they have measured.

    Where some measurements are missing there are none.
    """
    measures = spec.measure or spec.healthy is not None
    others = [host.name for host in hosts] if request.several else []
    listening = listen(others, several=bool(others), host_timeout=request.host_timeout)
    with (
        Inbox(listening) as inbox,
        tempfile.TemporaryFile("w+", errors="replace") as console,
        tempfile.NamedTemporaryFile("w", prefix="unilaunch-hosts-") as hostfile,
        _token() as token,
    ):
        hostfile.write(format_hostfile(request.hosts))
        hostfile.flush()
        words = [str(token), str(spec.output_dir), *(["--measure"] if measures else [])]
        program = (sys.executable, "-m", "unilaunch.doctor.probe", *words)
        request = replace(
            request, program=program, hostfile=hostfile.name if request.hosts else None
        ).with_hidden_values()
        line = mpirun.start_line(request, (MONITOR,), session="")
        arrived: dict[int, float] = {}
        with subprocess.Popen(
            line, env={**request.environ, MONITOR: inbox.where}, stdin=subprocess.DEVNULL, stdout=console,
            stderr=subprocess.STDOUT, start_new_session=True,
        ) as process:  # fmt: skip
            seconds = DEADLINE + (_MEASURING * len(hosts) if measures else 0.0)
            late = _listen(process, inbox, arrived, seconds)
        console.seek(0)
        lines = [text.strip() for text in console if text.strip(" -\n") and _HARMLESS not in text]
        said = lines or [_SILENCE[request.several]]
    findings, summary, measured = _judge(inbox, hosts, arrived, said)
    if late and not any(finding.stops for finding in findings):
        findings.append(_why_unfinished(inbox, hosts, seconds))
    return findings, summary, measured


@contextmanager
def _token() -> Iterator[Path]:
    """Make a file in this folder, by which a host that shares the folder is known; remove it at the end of the block.

    If this folder cannot be written, yield "/", which every host has: no host is then said to lack the folder.
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
        for rank in [rank for rank, seen in inbox.ranks.items() if seen.result]:
            arrived.setdefault(rank, time.time())
        if time.monotonic() > deadline and not late:
            late = True
            process.terminate()
            deadline += 5
        elif time.monotonic() > deadline:
            process.kill()
    until = time.monotonic() + _LAST_WORDS
    while inbox.connected and time.monotonic() < until:
        inbox.take(0.1)
    return late


def _judge(
    inbox: Inbox, hosts: Sequence[Host], arrived: Mapping[int, float], said: Sequence[str]
) -> tuple[list[Finding], str, Measured | None]:
    """Return what the probes' answers say, as `_visit` does; *said* is what mpirun has written."""
    answers, of_rank = _answers(inbox), _host_of_each(inbox, hosts)
    ranks = {name: rank for rank, name in of_rank.items()}
    visits, findings = [], []
    for host in hosts:
        if host.name not in ranks:
            visits.append(HostFacts(host.name, host.slots, {}))
            continue
        rank = ranks[host.name]
        facts = answers[rank]["facts"]
        skew = float(facts["time"]) - arrived.get(rank, float(facts["time"]))
        visits.append(HostFacts(host.name, host.slots, facts, skew, inbox.ranks[rank].host))
    silent = tuple(visit.host for visit in visits if not visit.facts)
    if silent:
        first = "; ".join(said[:3])
        findings.append(Finding(f"{', '.join(silent)}: mpirun could not start a rank there: {first}", hosts=silent))
    refused = [
        Finding(text) for text in dict.fromkeys(str(one["refused"]) for one in answers.values() if "refused" in one)
    ]
    findings += refused or unconnected(
        [
            (of_rank[rank], of_rank[other])
            for rank in of_rank
            for other in answers[rank].get("unreached", ())
            if other in of_rank
        ]
    )
    met = {of_rank[rank]: answers[rank]["meeting"] for rank in of_rank if "meeting" in answers[rank]}
    libraries = {host: meeting["library"] for host, meeting in met.items()}
    findings += differing(libraries, "as its MPI", "install one version, or set MPI4PY_LIBMPI")
    measured = None
    is_whole = bool(answers) and len(hosts) == len(of_rank) == len(answers)
    if is_whole and all("measured" in answer for answer in answers.values()):
        measured = read_measured(of_rank, {rank: answer["measured"] for rank, answer in answers.items()})
    return [*findings, *diagnose(visits)], _summary(visits, list(met.values())), measured


def _answers(inbox: Inbox) -> dict[int, Any]:
    return {rank: seen.result for rank, seen in sorted(inbox.ranks.items()) if seen.result}


def _host_of_each(inbox: Inbox, hosts: Sequence[Host]) -> dict[int, str]:
    """Return the host of each rank that has answered: the one whose name the rank's host gives itself, or by order."""
    own = {rank: inbox.ranks[rank].host for rank in _answers(inbox)}
    names, is_whole = [host.name for host in hosts], len(own) == len(hosts)
    alone = Counter(own.values())
    found = {rank: name for rank, name in own.items() if name in names and alone[name] == 1}
    if is_whole:
        rest = [name for name in names if name not in found.values()]
        found |= zip([rank for rank in own if rank not in found], rest, strict=True)
    return found


def _why_unfinished(inbox: Inbox, hosts: Sequence[Host], seconds: float) -> Finding:
    """Return why mpirun had to be ended after *seconds*: what the ranks had not done yet."""
    answers, of_rank = _answers(inbox), _host_of_each(inbox, hosts)
    if not all("meeting" in answer for answer in answers.values()):
        return Finding(
            f"the ranks did not find each other within {seconds:.0f} s through MPI: name the network between them: "
            "--mca btl_tcp_if_include NETWORK/BITS"
        )
    slow = tuple(of_rank[rank] for rank in of_rank if not answers[rank].get("measures_links"))
    if slow and len(slow) < len(answers):
        return Finding(
            f"{', '.join(slow)}: the measurement did not end within {seconds:.0f} s: look at the disk there", hosts=slow
        )
    return Finding(
        f"the ranks found each other, but did not end within {seconds:.0f} s: look at the disks and the network of the "
        "hosts"
    )


def _summary(visits: Sequence[HostFacts], met: Sequence[Mapping[str, str]]) -> str:
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
