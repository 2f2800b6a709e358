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
_LABELLED = Same("--console", "labelled", takes=0)
#: What to type instead of a number of ranks per host.
SLOTS = "say how many ranks each host takes: -H host1:4,host2:4, or slots=4 behind each name in the hostfile"
#: What to type for a program that is not Python's.
ONLY_PYTHON = "unilaunch starts Python programs only; mpirun starts any: mpirun -n 2 PROGRAM"
_VARIABLE = "type -x NAME=VALUE"
_GREP = "leave it out, and type afterwards unilaunch logs --grep 'apple|orange'"
_PLUGIN = "the script has it: Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config='FILE'))"

#: Options that users type after `unilaunch launch`, by launcher.
LAUNCH: Mapping[str, Habit] = {
    # mpirun and mpiexec
    "np": _RANKS, "n": _RANKS, "f": Same("--hostfile"), "machinefile": Same("--hostfile"), "host": Same("--hosts"),
    "wdir": Same("--cwd"), "wd": Same("--cwd"), "env": Instead(_VARIABLE), "genv": Instead(_VARIABLE),
    "genvall": Needless(takes=0), "l": _LABELLED, "prepend-rank": _LABELLED, "tag-output": _LABELLED,
    "output-filename": Same("--output-dir"), "merge-stderr-to-stdout": Needless(takes=0),
    "stream-buffering": Needless(), "rankfile": Same("--map-by", "rankfile:file={}"),
    "rank-by": Instead("type --mpi-arg --rank-by --mpi-arg node"),
    "npernode": Instead(SLOTS), "ppn": Instead(SLOTS), "perhost": Instead(SLOTS), "N": Instead(SLOTS),
    **{name: Same("--mpi-arg", f"--{name}", takes=0) for name in ("report-bindings", "display-map")},
    # torchrun and torch.distributed.launch
    "standalone": Needless(takes=0), "use-env": Needless(takes=0), "rdzv-backend": Needless(), "rdzv-id": Needless(),
    "rdzv-conf": Needless(), "local-addr": Needless(), "monitor-interval": Needless(), "redirects": Needless(),
    "r": Needless(), "log-dir": Same("--output-dir"), "tee": Same("--console", "labelled"),
    "t": Same("--console", "labelled"), "no-python": Instead(ONLY_PYTHON),
    "module": Instead("type -m MODULE, with the dash in front of the name"),
    "role": Instead("type -x ROLE_NAME=NAME"), "shutdown-timeout": Same("--grace"),
    "start-method": Instead("leave it out: a rank is a process of its own; for processes that the script starts call "
                            "torch.multiprocessing.set_start_method in it"),
    "local-ranks-filter": Instead("type --console rank0 or --console all, or afterwards unilaunch logs --rank 0,1"),
    "signals-to-handle": Instead("leave it out: SIGTERM, SIGINT and SIGHUP end the job and reach the ranks; "
                                 "SIGUSR1 and SIGUSR2 reach the ranks only"),
    "numa-binding": Instead("leave it out: each rank has its share of the cores in NUMA order; --bind-to none ends "
                            "that"),
    "run-path": Instead("leave it out: the path of the script is TARGET"),
    "virtual-local-rank": Instead("leave it out: the script reads LOCAL_RANK and calls torch.cuda.set_device with it"),
    **{name: Instead(_GREP) for name in ("duplicate-stdout-filters", "duplicate-stderr-filters")},
    **{name: Instead("leave it out: report.json and the files in rank.N/ of --output-dir have what happened")
       for name in ("event-log-handler", "logs-specs")},
    # msrun
    "worker-num": _RANKS, "local-worker-num": _RANKS_OF_A_NODE, "cluster-time-out": Same("--timeout"),
    "join": Needless(values=("True", "true"), instead="launch waits; to go on at once type: unilaunch launch ... &"),
    "bind-core": Needless(values=("False", "false"), instead="type --bind-to core"),
    "tail-worker-log": Instead("type --console all, or afterwards unilaunch logs --rank 0,1"),
    # accelerate and deepspeed
    "num-processes": _RANKS, "num-machines": Same("--nnodes"), "machine-rank": Same("--node-rank"),
    "main-process-ip": Same("--master-addr"), "main-process-port": Same("--master-port"),
    "multi-gpu": Needless(takes=0), "cpu": Same("--device", "cpu", takes=0),
    "num-cpu-threads-per-process": Same("--threads"), "use-deepspeed": Instead(_PLUGIN),
    "deepspeed-config": Instead(_PLUGIN), "deepspeed-config-file": Instead(_PLUGIN),
    "gpu-ids": Instead("name the devices in the environment, CUDA_VISIBLE_DEVICES=0,1, and their number by -n 2"),
    "mixed-precision": Instead("type -x ACCELERATE_MIXED_PRECISION=bf16, or Accelerator(mixed_precision='bf16')"),
    "config-file": Instead("type what is in accelerate's file: its num_processes is -n 4, its mixed_precision "
                           "-x ACCELERATE_MIXED_PRECISION=bf16"),
    "num-gpus": _RANKS_OF_A_NODE, "num-nodes": Same("--nnodes"), "include": Instead(SLOTS),
    # srun
    "ntasks": _RANKS, "c": Instead("type --threads 4"), "nodelist": Instead(SLOTS), "w": Instead(SLOTS),
}  # fmt: skip

#: Commands that do not exist, and what to type.
COMMANDS: Mapping[str, str] = {
    "start": "launch", "mpirun": "launch", "torchrun": "launch", "train": "launch", "sbatch": "launch --emit sbatch",
    "version": "--version",
}  # fmt: skip
