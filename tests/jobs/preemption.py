"""A batch job under a real Slurm, which is preempted and goes on by itself."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.mpirun import alone, finish, wait_until

#: How a job loses its nodes: to a job of a higher partition, to the administrator, or, soon, to the end of its time.
KINDS = ("urgent", "requeue", "notice")


@dataclass(frozen=True)
class BatchJob:
    number: str
    folder: Path  # where it was submitted
    slurm: Mapping[str, str]  # the variables with which Slurm's programs find it

    @property
    def output(self) -> Path:
        return self.folder / "log_output" / self.number

    @property
    def console(self) -> str:
        return "".join(path.read_text() for path in self.folder.glob(f"*-{self.number}.out"))

    @property
    def result(self) -> dict[str, Any]:
        return dict(json.loads((self.output / "result.json").read_text()))

    @property
    def losses(self) -> list[float]:
        return list(self.result["loss"])

    def state(self) -> dict[str, str]:
        said = ask(["scontrol", "show", "job", self.number], self.folder, self.slurm)
        return dict(word.split("=", 1) for word in said.split() if "=" in word)

    def await_start(self, restarts: int) -> None:
        self._await(lambda state: (state["JobState"], int(state["Restarts"])) == ("RUNNING", restarts))

    def await_end(self, seconds: float) -> dict[str, str]:
        ends = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}
        return self._await(lambda state: state["JobState"] in ends, seconds)

    def await_epochs(self, more: int) -> None:
        enough = self.epochs_trained() + more
        wait_until(lambda: self.epochs_trained() >= enough, 120)

    def preempt(self, kind: str) -> None:
        line = {
            "urgent": ["sbatch", "-p", "urgent", "-N", "2", "--exclusive", "-o", "/dev/null", "--wrap", "true"],
            "requeue": ["scontrol", "requeue", self.number],
            "notice": ["scancel", "--signal=USR1", self.number],  # as Slurm does for --signal=USR1@60
        }[kind]
        ask(line, self.folder, self.slurm)

    def epochs_trained(self) -> int:
        """Return the number of epochs that all its starts have trained together."""
        while True:
            files = [*self.output.glob("rank.0/epochs.jsonl"), *self.output.glob("previous/*/rank.0/epochs.jsonl")]
            with suppress(FileNotFoundError):  # a start has just moved its predecessor's files: count again
                return sum(path.read_text().count("\n") for path in files)

    def _await(self, condition: Any, seconds: float = 120) -> dict[str, str]:
        return dict(wait_until(lambda: condition(state := self.state()) and state, seconds, 0.2))


def submit(options: list[str], folder: Path, slurm: Mapping[str, str], sbatch: Sequence[str] = ()) -> BatchJob:
    """Write a batch script with `launch --emit sbatch` and *options*, and submit it with options of *sbatch*."""
    folder.mkdir(exist_ok=True)
    script = alone(["-m", "unilaunch", "launch", "--emit", "sbatch", *options], folder).check().stdout
    (folder / "job.sh").write_text(script)
    return BatchJob(ask(["sbatch", "--parsable", *sbatch, "job.sh"], folder, slurm).strip(), folder, slurm)


def ask(line: list[str], folder: Path, slurm: Mapping[str, str]) -> str:
    return finish(line, folder, dict(slurm)).check().stdout
