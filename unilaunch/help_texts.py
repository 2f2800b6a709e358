"""What `--help` says of the core's commands; a model and a plug-in's command bring their own examples."""

from collections.abc import Sequence

EXAMPLES = {
    "unilaunch": (
        "mpirun -n 2 python -m unilaunch run",
        "mpirun -n 8 --output-filename log_output python -m unilaunch run --backend mindspore",
        "unilaunch launch -n 8 --hostfile hosts train.py -- --lr 0.1",
        "unilaunch logs log_output --follow",
    ),
    "run": (
        "mpirun -n 4 python -m unilaunch run train.py -- --lr 0.1",
        "python -m unilaunch run --config run.toml --seed 3",
    ),
    "launch": (
        "unilaunch launch -n 4 --oversubscribe",
        "unilaunch launch -n 8 -H a:4,b:4 train.py -- --lr 0.1",
        "unilaunch launch -n 8 --hostfile hosts --dry-run",
        "unilaunch launch --emit sbatch --nodes 2 --gpus-per-node 4 --time 12:00:00 --requeue > job.sh",
    ),
    "doctor": (
        "unilaunch doctor",
        "unilaunch doctor --hostfile hosts",
        "unilaunch doctor -H a:4,b:4 --mpirun /opt/openmpi/bin/mpirun",
    ),
    "explain": ("unilaunch explain", "mpirun -n 2 python -m unilaunch explain"),
}
#: What stands in front of a model's own examples.
STARTS = {"run": "mpirun -n 2 python -m unilaunch run", "launch": "unilaunch launch -n 2"}
#: What stands below the examples.
NOTES = {
    "run": """
Every option can also stand in the file of --config, and in the environment: --seed as UNILAUNCH_SEED.
An option wins over the environment, the environment over the file.
""",
    "launch": """
mpirun's options are understood in the single-dash forms too: -np 8 -bind-to none -mca K V -x NAME=VALUE.
""",
}
HELP = {
    "run": "be one rank: the one that the launcher assigned, or under no launcher the only one",
    "launch": "check everything, then start all ranks with mpirun, wait and report",
    "doctor": "check the hosts before a run, through the mpirun that it will use; show only what is wrong",
    "explain": "show which launcher was seen, by which variables, and what each framework would find",
}


def epilog(examples: Sequence[str], note: str = "") -> str | None:
    """Return what stands below a command's options: its examples, and a note; None if it has no examples."""
    return "\n".join(["examples:", *(f"  {example}" for example in examples), note]) if examples else None
