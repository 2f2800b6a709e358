"""Options of other launchers: which of ours means the same, and what to type where none does.

The names have no leading dashes, and dashes for underscores: both spellings are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Same:
    """An option of ours means the same.

    Attributes:
        option: Ours.
        value: The value for ours; "{}" stands for the value that was typed.
        takes: Number of values that were typed.
        one_host: It counts the ranks of each host: on one host alone that is `-n`.
    """

    option: str
    value: str = "{}"
    takes: int = 1
    one_host: bool = False


@dataclass(frozen=True, slots=True)
class Needless:
    """What it asks for happens without it.

    Attributes:
        takes: Number of values that were typed.
        values: The values for which this is so; empty for all.
        instead: What to type for another value.
    """

    takes: int = 1
    values: tuple[str, ...] = ()
    instead: str = ""


@dataclass(frozen=True, slots=True)
class Instead:
    """Nothing means the same.

    Attributes:
        text: What to type.
        takes: Number of values that were typed.
    """

    text: str
    takes: int = 0


Habit = Same | Needless | Instead

_RANKS = Same("--nprocs")
_RANKS_OF_A_HOST = Same("--nprocs", one_host=True)
_HOSTS = "one launch starts the ranks of all hosts: type unilaunch launch -H host1:4,host2:4 train.py, or --hostfile"
#: What to type instead of a number of ranks of each host.
SLOTS = "say how many ranks each host takes: -H host1:4,host2:4, or slots=4 behind each name in the hostfile"
_DEVICES = "name the devices in the environment, CUDA_VISIBLE_DEVICES=0,1, and their number by -n 2"
_FLAG_OF_MPIRUN = {
    name: Same("--mpi-arg", f"--{name}", takes=0)
    for name in ("report-bindings", "display-map", "display-allocation", "use-hwthread-cpus", "timestamp-output")
}

#: Of `unilaunch launch`, by whose they are.
LAUNCH: Mapping[str, Habit] = {
    # mpirun and mpiexec
    "np": _RANKS, "c": _RANKS, "f": Same("--hostfile"), "machinefile": Same("--hostfile"), "host": Same("--hosts"),
    "wdir": Same("--cwd"), "wd": Same("--cwd"), "genv": Instead("type -x NAME=VALUE"),
    "rankfile": Same("--map-by", "rankfile:file={}"), "rf": Same("--map-by", "rankfile:file={}"),
    "npernode": Instead(SLOTS), "ppn": Instead(SLOTS), "perhost": Instead(SLOTS), "N": Instead(SLOTS),
    **_FLAG_OF_MPIRUN,
    # torchrun and torch.distributed.launch
    "nproc-per-node": _RANKS_OF_A_HOST, "nproc": _RANKS, "standalone": Needless(takes=0),
    "nnodes": Needless(values=("1", "1:1"), instead=_HOSTS), "node-rank": Needless(values=("0",), instead=_HOSTS),
    "rdzv-backend": Needless(), "rdzv-id": Needless(), "rdzv-endpoint": Needless(), "rdzv-conf": Needless(),
    "use-env": Needless(takes=0), "log-dir": Same("--output-dir"), "tee": Same("--console", "all"),
    "t": Same("--console", "all"), "redirects": Needless(), "r": Needless(),
    "no-python": Instead("unilaunch starts Python programs only; mpirun starts any: mpirun -n 2 PROGRAM"),
    "role": Needless(), "monitor-interval": Needless(), "start-method": Needless(),
    # msrun
    "worker-num": _RANKS, "local-worker-num": _RANKS_OF_A_HOST, "cluster-time-out": Same("--timeout"),
    "join": Needless(values=("True", "true"), instead="launch waits; to go on at once type: unilaunch launch ... &"),
    "bind-core": Needless(values=("False", "false"), instead="type --bind-to core"),
    # accelerate, deepspeed, horovodrun
    "num-processes": _RANKS, "num-proc": _RANKS, "num-gpus": _RANKS_OF_A_HOST, "gpus": Instead(_DEVICES),
    "gpu": Instead(_DEVICES), "gpu-ids": Instead(_DEVICES), "include": Instead(SLOTS),
    "num-machines": Needless(values=("1",), instead=_HOSTS), "machine-rank": Needless(values=("0",), instead=_HOSTS),
    "num-nodes": Needless(values=("1",), instead=_HOSTS), "main-process-port": Same("--master-port"),
    "main-process-ip": Same("--master-addr"),
    # srun
    "ntasks": _RANKS, "nodelist": Instead(SLOTS), "w": Instead(SLOTS),
}  # fmt: skip

#: Commands that do not exist, and what to type.
COMMANDS: Mapping[str, str] = {
    "start": "launch", "exec": "launch", "srun": "launch", "mpirun": "launch", "torchrun": "launch", "train": "launch",
    "submit": "launch --emit sbatch", "sbatch": "launch --emit sbatch", "check": "doctor", "tail": "logs --follow",
    "version": "--version", "eval": "predict", "infer": "predict", "info": "explain", "env": "explain",
}  # fmt: skip
