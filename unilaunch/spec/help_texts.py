"""Examples and texts of `--help` for the core's commands; models and plug-ins define their own examples."""

from collections.abc import Mapping, Sequence

EXAMPLES = {
    "unilaunch": (
        "mpirun -n 2 python -m unilaunch run",
        "mpirun -n 8 --output-filename log_output python -m unilaunch run --backend mindspore",
        "unilaunch launch --hostfile hosts train.py --lr 0.1",
        "unilaunch logs log_output --follow",
    ),
    "run": (
        "mpirun -n 4 python -m unilaunch run train.py --lr 0.1",
        "python -m unilaunch run --config run.toml --seed 3",
    ),
    "launch": (
        "unilaunch launch -n 4 train.py --lr 0.1",
        "unilaunch launch -H a:4,b:4 train.py --lr 0.1",
        "unilaunch launch --emit sbatch --nodes 2 --gpus-per-node 4 --time 12:00:00 --requeue > job.sh",
    ),
    "doctor": (
        "unilaunch doctor",
        "unilaunch doctor --hostfile hosts",
        "unilaunch doctor --hostfile hosts --measure --healthy well",
        "unilaunch doctor -H a:4,b:4 --mpirun /opt/openmpi/bin/mpirun",
    ),
    "explain": ("unilaunch explain", "mpirun -n 2 python -m unilaunch explain"),
}
#: The start of the command line in a model's examples.
STARTS = {"run": "mpirun -n 2 python -m unilaunch run", "launch": "unilaunch launch -n 2"}
#: The text below the options.
NOTES = {
    "unilaunch": """
unilaunch COMMAND --help shows the options of a command.
Completion in the shell: eval "$(unilaunch --print-completion bash)" (or zsh).
""",
    "run": """
Options of a model: unilaunch run MODEL --help; all: unilaunch run --help-all.
Every option can also stand in the file of --config, and in a variable of the
environment: --seed as UNILAUNCH_SEED. An option wins over the environment, the
environment over the file.
""",
    "launch": """
More options: of a model, unilaunch launch MODEL --help; of a job file, unilaunch
launch --emit sbatch --help; mpirun's and all others, unilaunch launch --help-all.
""",
}
#: The options that `--help` of `run` and `launch` shows, by heading; `--help-all` shows every option.
LAYOUT: Mapping[str, Sequence[str]] = {
    "what to run": ("target", "-m", "--config", "--backend", "--device"),
    "how many ranks, and where": (
        "--nprocs", "--hosts", "--hostfile", "--nnodes", "--node-rank", "--oversubscribe", "--bind-to", "-x",
    ),
    "output": ("--output-dir", "--console"),
    "failures": ("--max-restarts", "--elastic", "--stall-timeout"),
    "instead of a start": ("--dry-run", "--emit", "--help-all"),
}  # fmt: skip
#: What an option that only switches something off does, by field; without an entry the text of the field is quoted.
OFF = {"abort": "let the other ranks go on when one has failed"}
OVERVIEW = "Start jobs of MindSpore or PyTorch on many ranks, with any MPI, and train graph networks."
HELP = {
    "run": "be one rank: the one that the launcher assigned, or under no launcher the only one",
    "launch": "check everything, then start all ranks, wait and report",
    "doctor": "check the hosts before a run, through the mpirun that it will use; show only what is wrong",
    "explain": "show which launcher was seen, by which variables, and what each framework would find",
}
