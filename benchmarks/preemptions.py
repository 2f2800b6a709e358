"""A training that a real Slurm preempts at random moments: does it go on by itself, and lose nothing?

    python benchmarks/preemptions.py [--preemptions 50]

Needs root, slurmctld, slurmd and munged, which it starts. The batch script is that of `launch --emit sbatch --requeue`,
on two nodes. A job of a higher partition takes the nodes, or an administrator puts the job into the queue, or the job's
time is nearly over (SIGUSR1). Bounds: no epoch is trained twice, and the float64 curve is that of an undisturbed job.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from jobs.preemption import KINDS, submit
from jobs.slurm import slurm_cluster
from mpirun import verdict

OPTIONS = ["--nodes", "2", "--ntasks-per-node", "1", "--cpus-per-task", "1", "--requeue", "--precision", "float64"]
#: Seconds after a start in which it is preempted, in a third of the cases: most of these are before its first epoch.
START_UP = 5.0


def main() -> int:
    """Preempt, and return 0 if nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preemptions", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=40000)
    options = parser.parse_args()
    draw = np.random.default_rng(0)
    drawn: Counter[str] = Counter()
    words = [*OPTIONS, "--epochs", str(options.epochs), "--eval-every", "100", "--data-dir", "../data"]
    with tempfile.TemporaryDirectory() as name, slurm_cluster(_made(Path(name, "slurm"))) as slurm:
        job = submit(words, Path(name, "preempted"), slurm)
        starts, began = [], time.monotonic()
        for restarts in range(options.preemptions):
            job.await_start(restarts)
            kind = str(draw.choice(KINDS))
            if kind == "notice" or draw.random() > 1 / 3:  # a notice comes a minute before the end of a longer time
                share = options.epochs / options.preemptions
                job.await_epochs(int(draw.integers(1, max(2, share))))
            else:
                time.sleep(draw.uniform(0, START_UP))
            starts.append(job.epochs_trained())
            job.preempt(kind)
            drawn[kind] += 1
            print(f"{time.monotonic() - began:5.0f} s: {kind} after {starts[-1]} epochs", flush=True)
        ended = job.await_end(3600)
        quiet = submit(words, Path(name, "undisturbed"), slurm)
        quiet.await_end(3600)
        trained, losses = job.epochs_trained(), np.array(job.losses)
        apart = float(np.abs(losses - np.array(quiet.losses)).max())
    print(f"{options.preemptions} preemptions ({dict(drawn)}), {len(set(starts))} of them at different epochs")
    kept = [
        verdict("starts that were missing", options.preemptions - int(ended["Restarts"]), 0),
        verdict("epochs trained twice", trained - options.epochs, 0),
        verdict("epochs missing in the curve", options.epochs - len(losses), 0),
        verdict("distance from the undisturbed curve", apart, 1e-10),
    ]
    return 0 if all(kept) else 1


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    sys.exit(main())
