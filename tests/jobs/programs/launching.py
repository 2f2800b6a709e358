"""A script that launches functions of its own and of a module beside it; it prints what it has seen, as JSON."""

import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

import unilaunch

sys.path.insert(0, str(Path(__file__).parent))  # ranks find it there too

import package_of_functions  # type: ignore[import-not-found]  # beside this file

SCALE = 2


def train(x: Any, lr: float = 0.1, large: Any = None) -> dict[str, Any]:
    rank = int(os.environ["RANK"])
    print(f"I am {rank}", flush=True)
    place = [__name__, os.environ["WHERE"], str(Path.cwd())]
    return {"x": x * SCALE + rank, "lr": lr, "large": large[0, :2], "place": place}


def sleep(seconds: float) -> None:
    Path(f"pid.{os.environ['RANK']}").write_text(str(os.getpid()))
    print(f"asleep {os.environ['RANK']}", flush=True)
    time.sleep(seconds)


def save() -> None:
    def stop(*_: object) -> None:
        time.sleep(1)  # when the job is stopped
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


def await_line(job: Any, word: str) -> list[str]:
    """Wait until each rank has said the word, and return these lines."""
    of_ranks = [job.logs(rank=rank, follow=True) for rank in range(2)]
    return [str(next(line for line in lines if word in str(line))) for lines in of_ranks]


def main(mpirun: str) -> dict[str, Any]:
    job: dict[str, Any] = {"nprocs": 2, "mpirun": mpirun, "allow_run_as_root": True, "oversubscribe": True}
    x = np.arange(6, dtype=np.int16).reshape(2, 3)
    seen: dict[str, Any] = {}
    result = unilaunch.launch(
        train, x=x, lr=0.5, large=np.ones((500, 500)), env={"WHERE": "here"}, cwd="/", output_dir="train", **job
    )
    seen["train"] = []
    for value in (one.value for one in result.ranks):
        seen["train"].append([value["x"].tolist(), value["x"].dtype.name, value["large"].tolist(), value["place"]])
    first, second = (unilaunch.start(sleep, seconds=600, output_dir=name, **job) for name in ("first", "second"))
    seen["lines"] = await_line(first, "asleep")
    until = time.monotonic() + 30
    while any(one.state.value != "running" for one in first.ranks) and time.monotonic() < until:
        time.sleep(0.05)  # the thread that receives the ranks' states may be late
    seen["status"] = [first.status, [one.state.value for one in first.ranks]]
    try:
        first.wait(timeout=0.1)
    except TimeoutError as error:
        seen["timeout"] = str(error)
    Thread(target=first.cancel).start()
    try:
        first.wait().raise_if_failed()
    except unilaunch.JobFailed as error:
        seen["cancelled"] = [first.status, error.result.interrupted, error.exit_code, str(error)]
    seen["logs"] = sorted(str(line) for line in first.logs() if "asleep" in str(line))
    add = package_of_functions.add
    with ThreadPoolExecutor() as pool:
        added = pool.submit(unilaunch.launch, add, args=[1], second=2, output_dir="add", **job).result()
    seen["by_thread"] = [one.value["sum"] for one in added.ranks]
    while second.status is unilaunch.JobStatus.STARTING:
        time.sleep(0.05)
    try:
        Thread(target=interrupt, daemon=True).start()
        second.wait()
    except KeyboardInterrupt:
        seen["interrupted"] = second.status
    here = Path.cwd()
    moved = unilaunch.start(train, x=x, large=x, env={"WHERE": "here"}, output_dir="moved", **job)
    os.chdir(Path(__file__).parent)  # the folder of the module, which is not that of the ranks
    added = unilaunch.launch(add, args=[2], second=3, output_dir=here / "cwd", cwd="/", **job)
    sums = [one.value["sum"] for one in added.ranks]
    seen["elsewhere"] = [sums, [one.value["x"].tolist() for one in moved.wait().ranks]]
    os.chdir(here)
    saving = unilaunch.start(save, output_dir="saving", **job)
    await_line(unilaunch.start(sleep, seconds=600, output_dir="left", **job), "asleep")  # and it is left running
    await_line(saving, "ready")
    saving.cancel()
    time.sleep(0.3)  # it still saves when this script ends
    return seen


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
