"""A Slurm of two nodes on this machine: its daemons, started as plain processes in a temporary folder."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL

from jobs.mpirun import wait_until
from jobs.ports import free_ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo")
#: Slurm's daemons stand where a plain user's PATH does not look.
SEARCH = f"/usr/sbin:/sbin:{os.environ['PATH']}"  # noqa: TID251
SETTINGS = """
ClusterName=test SlurmctldHost={host}(127.0.0.1) SlurmUser=root SlurmdUser=root SlurmctldPort={control}
AuthType=auth/munge AuthInfo=socket={folder}/munge.socket,cred_expire=5 CryptoType=crypto/munge
StateSaveLocation={folder}/state SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc TaskPlugin=task/none SwitchType=switch/none MpiDefault=none
SelectType=select/cons_tres SelectTypeParameters=CR_Core SlurmdParameters=config_overrides
SchedulerType=sched/builtin SchedulerParameters=sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio PreemptMode=REQUEUE KillWait=30 KillOnBadExit=1 ReturnToService=2 InactiveLimit=0
JobAcctGatherType=jobacct_gather/none AccountingStorageType=accounting_storage/none
"""
PARTITIONS = """
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def lacking() -> str:
    """Return what this machine lacks for a Slurm; nothing if it lacks nothing."""
    missing = [program for program in PROGRAMS if not shutil.which(program, path=SEARCH)]
    return "root" if os.geteuid() else ", ".join(missing)


@contextmanager
def slurm_cluster(folder: Path, nodes: int = 2) -> Iterator[Mapping[str, str]]:
    """Run a Slurm while the block runs; give the variables with which srun and sbatch find it."""
    names = [f"n{index}" for index in range(nodes)]
    _configure(folder, names)
    environ = {"SLURM_CONF": str(folder / "slurm.conf")}
    files = [f"--{name}={folder}/munge.{name[:-5]}" for name in ("key-file", "pid-file", "log-file", "seed-file")]
    started = [_start(["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files])]
    try:
        wait_until((folder / "munge.socket").exists)
        started.append(_start(["slurmctld", "-D", "-c", "-f", environ["SLURM_CONF"]]))
        started += [_start(["slurmd", "-D", "-N", name, "-f", environ["SLURM_CONF"]]) for name in names]
        idle = ["sinfo", "-h", "-N", "-p", "main", "-o", "%T"]
        wait_until(lambda: _ask(idle, environ).split().count("idle") == nodes)
        yield environ
    finally:
        _ask(["scancel", "--full", "--signal=KILL", "--user=root"], environ)  # jobs would outlive the daemons
        wait_until(lambda: not _ask(["squeue", "-h", "-t", "running,completing"], environ))
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)


def _configure(folder: Path, names: list[str]) -> None:
    folder.chmod(0o755)
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    host = socket.gethostname()
    control, *ports = free_ports(1 + len(names))
    lines = SETTINGS.format(host=host, folder=folder, control=control).split()
    for name, port in zip(names, ports, strict=True):
        (folder / f"spool.{name}").mkdir()
        lines.append(f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 State=UNKNOWN")
    (folder / "slurm.conf").write_text("\n".join(lines) + PARTITIONS)


def _start(line: list[str]) -> subprocess.Popen[bytes]:
    program = shutil.which(line[0], path=SEARCH)
    assert program
    return subprocess.Popen([program, *line[1:]], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)


def _ask(line: list[str], environ: Mapping[str, str]) -> str:
    whole = {**os.environ, **environ}  # noqa: TID251
    return subprocess.run(line, env=whole, capture_output=True, text=True, check=False).stdout
