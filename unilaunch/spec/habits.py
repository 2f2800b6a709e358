"""Options of other launchers: the option of unilaunch with the same meaning, or what to type if there is none.

The names have no leading dashes, and dashes in place of underscores: both spellings are accepted.
"""

from collections.abc import Mapping

from unilaunch.record import Record


class Same(Record):
    """An option of unilaunch has the same meaning.

    Attributes:
        option: The option of unilaunch.
        value: The value for that option; "{}" is replaced by the typed value, and is none if no value is typed.
        takes: Number of typed values.
    """

    option: str
    value: str = "{}"
    takes: int = 1


class Needless(Record):
    """The option is not needed: unilaunch always does this.

    Attributes:
        takes: Number of typed values.
        values: The values for which this is true; empty for all.
        instead: What to type for another value.
    """

    takes: int = 1
    values: tuple[str, ...] = ()
    instead: str = ""


class Instead(Record):
    """No option of unilaunch has the same meaning.

    Attributes:
        text: What to type instead.
        takes: Number of typed values.
    """

    text: str
    takes: int = 0


Habit = Same | Needless | Instead

_RANKS = Same("--nprocs")
_RANKS_OF_A_NODE = Same("--nproc-per-node")
#: What to type instead of a number of ranks per host.
SLOTS = "say how many ranks each host takes: -H host1:4,host2:4, or slots=4 behind each name in the hostfile"
_DEVICES = "name the devices in the environment, CUDA_VISIBLE_DEVICES=0,1, and their number by -n 2"
#: What to type for a program that is not Python's.
ONLY_PYTHON = "unilaunch starts Python programs only; mpirun starts any: mpirun -n 2 PROGRAM"
_VARIABLE = "type -x NAME=VALUE"
_LABELLED = Same("--console", "labelled", takes=0)
_PLUGIN = "the script has it: Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config='FILE'))"
_SHOW_ONE = Instead("type --console all, or afterwards unilaunch logs --rank 0,1")
_FLAG_OF_MPIRUN = {
    name: Same("--mpi-arg", f"--{name}", takes=0)
    for name in ("report-bindings", "display-map", "display-allocation", "use-hwthread-cpus", "timestamp-output")
}

#: Options that users type after `unilaunch launch`, by launcher.
LAUNCH: Mapping[str, Habit] = {
    # mpirun and mpiexec
    "np": _RANKS, "n": _RANKS, "c": _RANKS, "f": Same("--hostfile"), "machinefile": Same("--hostfile"),
    "host": Same("--hosts"),
    "wdir": Same("--cwd"), "wd": Same("--cwd"), "genv": Instead(_VARIABLE), "env": Instead(_VARIABLE),
    "genvall": Needless(takes=0),
    "l": _LABELLED, "prepend-rank": _LABELLED, "bynode": Same("--map-by", "node", takes=0),
    "byslot": Same("--map-by", "slot", takes=0), "bind-to-core": Same("--bind-to", "core", takes=0),
    "bind-to-socket": Same("--bind-to", "socket", takes=0), "bind-to-none": Same("--bind-to", "none", takes=0),
    "rankfile": Same("--map-by", "rankfile:file={}"), "rf": Same("--map-by", "rankfile:file={}"),
    "output-filename": Same("--output-dir"), "tag-output": _LABELLED, "merge-stderr-to-stdout": Needless(takes=0),
    "share-import": Needless(takes=0), "no-share-import": Needless(takes=0),
    "npernode": Instead(SLOTS), "ppn": Instead(SLOTS), "perhost": Instead(SLOTS), "N": Instead(SLOTS),
    **_FLAG_OF_MPIRUN, "v": Same("--mpi-arg", "--verbose", takes=0), "verbose": Same("--mpi-arg", "--verbose", takes=0),
    "quiet": Needless(takes=0), "q": Needless(takes=0), "stream-buffering": Needless(),
    "cpus-per-proc": Same("--map-by", "slot:PE={}"), "cpus-per-rank": Same("--map-by", "slot:PE={}"),
    "npersocket": Instead("give the number of all ranks, and how many each socket takes: -n 8 --map-by ppr:2:socket"),
    "tune": Instead("type --mpi-arg=--tune --mpi-arg=FILE"),
    # unilaunch 0.2
    **{name: Same("--observe", f"{name}={{}}") for name in ("tensorboard", "mlflow", "otlp")},
    # torchrun and torch.distributed.launch
    "nproc": _RANKS, "standalone": Needless(takes=0),
    "rdzv-backend": Needless(), "rdzv-id": Needless(), "rdzv-conf": Needless(),
    "use-env": Needless(takes=0), "log-dir": Same("--output-dir"), "tee": Same("--console", "labelled"),
    "t": Same("--console", "labelled"), "redirects": Needless(), "r": Needless(),
    "no-python": Instead(ONLY_PYTHON), "module": Instead("type -m MODULE, with the dash in front of the name"),
    "role": Needless(), "monitor-interval": Needless(), "start-method": Needless(), "local-addr": Needless(),
    "run-path": Needless(takes=0), "signals-to-handle": Needless(), "event-log-handler": Needless(),
    "shutdown-timeout": Same("--grace"), "numa-binding": Instead("type --bind-to numa"),
    "local-ranks-filter": _SHOW_ONE,
    "duplicate-stdout-filters": Instead("type unilaunch logs --follow --grep TEXT beside the job"),
    "duplicate-stderr-filters": Instead("type unilaunch logs --follow --grep TEXT beside the job"),
    "virtual-local-rank": Instead("leave it out: a rank sees every device of its host, and takes that of LOCAL_RANK"),
    # msrun
    "worker-num": _RANKS, "local-worker-num": _RANKS_OF_A_NODE, "cluster-time-out": Same("--timeout"),
    "join": Needless(values=("True", "true"), instead="launch waits; to go on at once type: unilaunch launch ... &"),
    "bind-core": Needless(values=("False", "false"), instead="type --bind-to core"),
    "bind-numa": Needless(values=("False", "false"), instead="type --bind-to numa"),
    "tail-worker-log": _SHOW_ONE, "rank-table-file": Instead("type -x RANK_TABLE_FILE=FILE"),
    "worker-log-name": Instead("leave it out: each rank's log is FOLDER/rank.N/stderr, with --output-dir FOLDER"),
    "sim-level": Instead("type -x MS_SIMULATION_LEVEL=1"), "sim-rank-id": Instead("type -x RANK_ID=0"),
    # accelerate, deepspeed, horovodrun
    "num-processes": _RANKS, "num-proc": _RANKS, "num-gpus": _RANKS_OF_A_NODE, "gpus": Instead(_DEVICES),
    "gpu": Instead(_DEVICES), "gpu-ids": Instead(_DEVICES), "include": Instead(SLOTS),
    "bind-cores-to-rank": Instead("type --bind-to core, and for several cores to each rank --map-by slot:PE=4"),
    "num-machines": Same("--nnodes"), "machine-rank": Same("--node-rank"), "num-nodes": Same("--nnodes"),
    "main-process-port": Same("--master-port"),
    "main-process-ip": Same("--master-addr"), "multi-gpu": Needless(takes=0), "cpu": Same("--device", "cpu", takes=0),
    "num-cpu-threads-per-process": Same("--threads"), "use-deepspeed": Instead(_PLUGIN),
    "deepspeed-config": Instead(_PLUGIN), "deepspeed-config-file": Instead(_PLUGIN),
    "mixed-precision": Instead("type -x ACCELERATE_MIXED_PRECISION=bf16, or Accelerator(mixed_precision='bf16')"),
    "config-file": Instead("type what is in accelerate's file: its num_processes is -n 4, its mixed_precision "
                           "-x ACCELERATE_MIXED_PRECISION=bf16"),
    # srun
    "ntasks": _RANKS, "nodelist": Instead(SLOTS), "w": Instead(SLOTS), "label": _LABELLED,
    "export": Needless(values=("ALL",), instead=_VARIABLE), "cpu-bind": Instead("type --bind-to core, socket or none"),
    "exclude": Instead("name the hosts that take ranks: -H host1:4,host2:4"),
}  # fmt: skip

#: Commands that do not exist, and what to type.
COMMANDS: Mapping[str, str] = {
    "start": "launch", "exec": "launch", "srun": "launch", "mpirun": "launch", "torchrun": "launch", "train": "launch",
    "submit": "launch --emit sbatch", "sbatch": "launch --emit sbatch", "check": "doctor", "tail": "logs --follow",
    "version": "--version", "eval": "predict", "infer": "predict", "info": "explain", "env": "explain",
}  # fmt: skip
