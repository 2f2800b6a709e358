"""Jobs on one NVIDIA GPU: how they start and where they are placed, and how they end when they break there.

    python benchmarks/gpu_jobs.py {start,break} [--device cuda] [--only NAME ...]

Each job is a command as a user types it, with a deadline, an exit code and words that it must say; it prints one JSON
object with what it was, its exit code, its seconds and what it said. On a GPU a job that gets a signal must end within
2 s of it, or of its grace, and after a job that breaks the card's memory must be free again within 10 s. `--device cpu`
starts the same jobs where no GPU is, with what they say there. Exit code 1 if a job was not as expected, 2 if there is
no GPU. Needs: torch, and mpirun on PATH for the jobs under it. Never run on a GPU so far.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mpirun import UNILAUNCH, environment

PROGRAMS = Path(__file__).parent / "programs"
DDP, FAILING = str(PROGRAMS / "gpu_ddp.py"), str(PROGRAMS / "gpu_failing.py")
MPIRUN = ["mpirun", "--allow-run-as-root", "-n", "1"]
GCN = ["gcn", "--dataset", "sbm", "--epochs", "5"]
#: Seconds until the memory of a job that has ended must be free; and MB that may be left of it.
FREE_AGAIN, LEFT = 10.0, 64.0
#: Seconds from a signal to the end of the job; with the grace of the job that gets SIGINT.
IN_TIME, GRACE = 2.0, 2.0


class Expected(NamedTuple):
    """An exit code, and a pattern in what was said."""

    code: int
    words: str


class Job(NamedTuple):
    """A job.

    Attributes:
        name: Its name.
        words: The command.
        on_gpu: What is expected where there is one.
        on_cpu: What is expected where there is none; None: it is not started there.
        environ: Variables beside those of this process.
        kills: The signal that its first rank gets, once it has printed its process id; None: none.
        deadline: Seconds.
    """

    name: str
    words: list[str]
    on_gpu: Expected
    on_cpu: Expected | None
    environ: Mapping[str, str] = {}
    kills: signal.Signals | None = None
    deadline: float = 60.0


def _launch(*words: str) -> list[str]:
    return [*UNILAUNCH, "launch", "--console", "all", *words]


_HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
_NO_GPU = Expected(2, r"no cuda device is visible there: check the driver and CUDA_VISIBLE_DEVICES")
_ON_CPU = Expected(0, r"rank 0 of 1 cpu gloo")
_ON_GPU = Expected(0, r"rank 0 of 1 cuda:0 nccl")
START = (
    Job("explain", [*UNILAUNCH, "explain"], Expected(0, r"cuda"), Expected(0, r"cuda|cpu")),
    Job("doctor", [*UNILAUNCH, "doctor"], Expected(0, r""), Expected(0, r"")),
    Job("launch -n 1 ddp.py", _launch("-n", "1", DDP), _ON_GPU, _ON_CPU),
    Job("launch -n gpu ddp.py", _launch("-n", "gpu", DDP), _ON_GPU, Expected(2, r"-n gpu: no device is visible here")),
    Job(
        "launch -n 2 ddp.py", _launch("-n", "2", DDP),
        Expected(2, r"has no cuda device of its own: 2 ranks on this host see 1"), Expected(0, r"rank 1 of 2 cpu gloo"),
    ),
    Job(
        "launch -n 2, one card over gloo", _launch("-n", "2", "--device", "cpu", DDP, "--share"),
        Expected(0, r"rank 1 of 2 cuda:0 gloo"), Expected(0, r"rank 1 of 2 cpu gloo"),
    ),
    Job("CUDA_VISIBLE_DEVICES=0", _launch("-n", "1", DDP), _ON_GPU, None, {"CUDA_VISIBLE_DEVICES": "0"}),
    Job(
        "CUDA_VISIBLE_DEVICES=7", _launch("-n", "1", DDP), Expected(0, r"7 is not there(?s:.*)rank 0 of 1 cpu gloo"),
        Expected(0, r"7 is not there(?s:.*)rank 0 of 1 cpu gloo"), {"CUDA_VISIBLE_DEVICES": "7"},
    ),
    Job("CUDA_VISIBLE_DEVICES=", _launch("-n", "1", DDP), _ON_CPU, _ON_CPU, _HIDDEN),
    Job(
        "mpirun, unilaunch run ddp.py", [*MPIRUN, *UNILAUNCH, "run", DDP], _ON_GPU, _ON_CPU,
    ),
    Job(
        "mpirun, unilaunch run gcn", [*MPIRUN, *UNILAUNCH, "run", *GCN, "--device", "cuda"],
        Expected(0, r"epoch 5/5"), _NO_GPU,
    ),
    Job("launch gcn", _launch("-n", "1", *GCN, "--device", "cuda"), Expected(0, r"epoch 5/5"), _NO_GPU),
)  # fmt: skip
BREAK = (
    Job(
        "out of memory", _launch("-n", "1", FAILING, "memory"), Expected(1, r"OutOfMemoryError"),
        Expected(1, r"can't allocate memory|not enough memory"),
    ),
    Job(
        "an assertion of a kernel", _launch("-n", "1", FAILING, "assert"), Expected(1, r"device-side assert"),
        Expected(1, r"IndexError"),
    ),
    Job("no visible device", _launch("-n", "1", "--device", "cuda", DDP), _NO_GPU, _NO_GPU, _HIDDEN),
    Job(
        "SIGKILL in a kernel", _launch("-n", "1", FAILING, "kernel"), Expected(137, r"SIGKILL"),
        Expected(137, r"SIGKILL"), kills=signal.SIGKILL,
    ),
    Job(
        "SIGKILL in a kernel, 2 ranks on one card", _launch("-n", "2", "--device", "cpu", FAILING, "kernel"),
        Expected(137, r"SIGKILL"), Expected(137, r"SIGKILL"), kills=signal.SIGKILL,
    ),
    Job(
        "SIGINT to a job in a kernel", _launch("-n", "1", "--grace", f"{GRACE:g}", FAILING, "kernel"),
        Expected(130, r""), Expected(130, r""), kills=signal.SIGINT,
    ),
)  # fmt: skip


def main() -> int:
    """Start each job, print what it was, and return 0 if all were as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=["start", "break"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the job in progress is ended
    on_gpu = chosen.device == "cuda"
    if on_gpu and used_memory() is None:
        sys.stderr.write(
            "gpu_jobs.py: nvidia-smi shows no GPU here: start this where there is one, or with --device cpu\n"
        )
        return 2
    jobs = [
        job for job in (START if chosen.which == "start" else BREAK) if chosen.only is None or job.name in chosen.only
    ]
    kept = True
    for job in jobs:
        expected = job.on_gpu if on_gpu else job.on_cpu
        if expected:
            figures = _measure(job, expected, watched=on_gpu and chosen.which == "break")
            print(json.dumps({"job": job.name, "device": chosen.device, **figures}), flush=True)
            kept &= figures["kept"]
    return 0 if kept else 1


def used_memory() -> float | None:
    """Return the MB of the first card that are in use; None if there is no card."""
    if shutil.which("nvidia-smi") is None:
        return None
    line = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    try:
        return float(done.stdout.split()[0])
    except (IndexError, ValueError):
        return None


def _measure(job: Job, expected: Expected, *, watched: bool) -> dict[str, Any]:
    """Return how a job ended, and whether that was as expected.

    Args:
        job: The job.
        expected: Its code and words.
        watched: Whether the card's memory must be free again.
    """
    if shutil.which(job.words[0]) is None:
        return {"kept": False, "failed": f"{job.words[0]} is not installed"}
    before = used_memory() if watched else None
    begin = time.monotonic()
    code, said, seconds = _run(job)
    figures: dict[str, Any] = {
        "kept": code == expected.code and re.search(expected.words, said) is not None,
        "code": code, "seconds": round(time.monotonic() - begin, 2),
    }  # fmt: skip
    if seconds is not None:
        figures["seconds_after_the_signal"] = round(seconds, 2)
    if before is not None:
        figures["memory_free_again_in"] = free = _free_again(before)
        in_time = IN_TIME + GRACE * (job.kills is signal.SIGINT)
        figures["kept"] &= free is not None and (seconds is None or seconds <= in_time)
    if not figures["kept"]:
        figures["expected"] = expected
    return {**figures, "said": said[-1500:]}


def _run(job: Job) -> tuple[int | None, str, float | None]:
    """Return a job's exit code, what it said, and the seconds from the signal that it got to its end."""
    with tempfile.TemporaryDirectory() as folder, Path(folder, "said").open("w+", encoding="utf-8") as said:
        own = {"UNILAUNCH_OUTPUT_DIR": f"{folder}/out", "UNILAUNCH_DATA_DIR": f"{folder}/data"}
        started = subprocess.Popen(
            job.words, stdout=said, stderr=subprocess.STDOUT, env=environment(**own, **job.environ),
            start_new_session=True,
        )  # fmt: skip
        code = sent = None
        try:
            sent = _signal(job, started, Path(folder, "said")) if job.kills else None
            code = started.wait(job.deadline)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if started.poll() is None:  # also where this program is ended: the job's kernels would disturb others
                os.killpg(started.pid, signal.SIGKILL)  # its guards end the ranks
        seconds = None if sent is None else time.monotonic() - sent
        return code, Path(folder, "said").read_text(encoding="utf-8", errors="replace"), seconds


def _signal(job: Job, started: subprocess.Popen[bytes], said: Path) -> float | None:
    """Send the signal, to the first rank or, as a terminal does, to the job; return when. None if there was no rank."""
    ends = time.monotonic() + job.deadline
    while time.monotonic() < ends and started.poll() is None:
        if found := re.search(r"process (\d+)", said.read_text(encoding="utf-8", errors="replace")):
            time.sleep(0.5)
            assert job.kills
            os.kill(int(found[1]) if job.kills is signal.SIGKILL else started.pid, job.kills)
            return time.monotonic()
        time.sleep(0.05)
    return None


def _free_again(before: float) -> float | None:
    """Return after how many seconds the card's memory was as before; None if it was not in time."""
    begin = time.monotonic()
    while (passed := time.monotonic() - begin) < FREE_AGAIN:
        used = used_memory()
        if used is not None and used <= before + LEFT:
            return round(passed, 2)
        time.sleep(0.2)
    return None


if __name__ == "__main__":
    sys.exit(main())
