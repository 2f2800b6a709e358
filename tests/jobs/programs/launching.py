"""A script that launches functions of its own and of a module beside it; it prints what it has seen, as JSON."""

# ruff: noqa: T201, TID251  (as users write)

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import unilaunch

sys.path.insert(0, str(Path(__file__).parent))  # ranks find it there too

import package_of_functions  # type: ignore[import-not-found]  # beside this file

SCALE = 2


def train(x: Any, lr: float = 0.1, large: Any = None) -> dict[str, Any]:
    """Return arrays that tell the ranks apart."""
    rank = int(os.environ["RANK"])
    print(f"I am {rank}", flush=True)
    place = [__name__, os.environ["WHERE"], str(Path.cwd())]
    return {"x": x * SCALE + rank, "lr": lr, "large": large[0, :2], "place": place}


def sleep(seconds: float) -> None:
    """Sleep, and say which process does."""
    Path(f"pid.{os.environ['RANK']}").write_text(str(os.getpid()))
    print(f"asleep {os.environ['RANK']}", flush=True)
    time.sleep(seconds)


def save() -> None:
    """Save for a second when the job is stopped."""

    def stop(*_: object) -> None:
        time.sleep(1)
        Path(f"saved.{os.environ['RANK']}").touch()
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    print("ready", flush=True)
    time.sleep(600)


def interrupt() -> None:
    """Press Ctrl-C when the main thread waits for a job: it has installed its own signal handler then."""
    while signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def main(mpirun: str) -> dict[str, Any]:
    """Launch."""
    job: dict[str, Any] = {"nprocs": 2, "mpirun": mpirun, "allow_run_as_root": True, "oversubscribe": True}
    seen: dict[str, Any] = {}
    x = np.arange(6, dtype=np.int16).reshape(2, 3)
    result = unilaunch.launch(
        train, x=x, lr=0.5, large=np.ones((500, 500)), env={"WHERE": "here"}, cwd="/", output_dir="train", **job
    )
    seen["train"] = [
        [one.value["x"].tolist(), one.value["x"].dtype.name, one.value["large"].tolist(), one.value["place"]]
        for one in result.ranks
    ]
    two = [unilaunch.start(sleep, seconds=600, output_dir=name, **job) for name in ("first", "second")]
    lines = [two[0].logs(rank=rank, follow=True) for rank in range(2)]  # both sleep before the cancel
    seen["lines"] = [str(next(line for line in of_rank if "asleep" in str(line))) for of_rank in lines]
    until = time.monotonic() + 30
    while any(one.state.value != "running" for one in two[0].ranks) and time.monotonic() < until:
        time.sleep(0.05)  # the thread that receives the ranks' states may be late
    seen["status"] = [two[0].status, [one.state.value for one in two[0].ranks]]
    try:
        two[0].wait(timeout=0.1)
    except TimeoutError as error:
        seen["timeout"] = str(error)
    threading.Thread(target=two[0].cancel).start()
    try:
        two[0].wait().raise_if_failed()
    except unilaunch.JobFailed as error:
        seen["cancelled"] = [two[0].status, error.result.interrupted, error.exit_code, str(error)]
    seen["logs"] = sorted(str(line) for line in two[0].logs() if "asleep" in str(line))
    by_thread: list[Any] = []
    thread = threading.Thread(
        target=lambda: by_thread.extend(
            one.value["sum"]
            for one in unilaunch.launch(package_of_functions.add, args=[1], second=2, output_dir="add", **job).ranks
        )
    )
    thread.start()
    thread.join()
    seen["by_thread"] = by_thread
    while two[1].status is unilaunch.JobStatus.STARTING:
        time.sleep(0.05)
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        two[1].wait()
    except KeyboardInterrupt:
        seen["interrupted"] = two[1].status
    here = Path.cwd()
    moved = unilaunch.start(train, x=x, large=x, env={"WHERE": "here"}, output_dir="moved", **job)
    os.chdir(Path(__file__).parent)  # the folder of the module, which is not that of the ranks
    added = unilaunch.launch(package_of_functions.add, args=[2], second=3, output_dir=here / "cwd", cwd="/", **job)
    seen["elsewhere"] = [
        [one.value["sum"] for one in added.ranks], [one.value["x"].tolist() for one in moved.wait().ranks]
    ]  # fmt: skip
    os.chdir(here)
    saving = unilaunch.start(save, output_dir="saving", **job)
    left = unilaunch.start(sleep, seconds=600, output_dir="left", **job)
    for rank in range(2):
        next(line for line in left.logs(rank=rank, follow=True) if "asleep" in str(line))  # and it is left running
        next(line for line in saving.logs(rank=rank, follow=True) if "ready" in str(line))
    saving.cancel()
    time.sleep(0.3)  # it still saves when this script ends
    return seen


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
