"""Fail on a GPU in a named way. For gpu_jobs.py.

gpu_failing.py {memory,assert,kernel}

memory   ask for more than the card has
assert   take a row that is not there: an assertion of a kernel
kernel   print this rank's process id, and wait for a kernel that runs for minutes, until someone kills it
On a CPU `memory` asks for more than a machine has, `assert` raises an IndexError and `kernel` sleeps.
"""

import os
import sys
import time

import torch


def main() -> None:
    """Fail."""
    way, has_gpu = sys.argv[1], torch.cuda.is_available()
    device = "cuda:0" if has_gpu else "cpu"
    rows = torch.ones(1000, 1000, device=device)  # a context on the card, with memory in it
    if way == "memory":
        torch.empty(2**46, dtype=torch.uint8, device=device)
    elif way == "assert":
        print(rows[torch.tensor([5000], device=device)].sum().item())
    else:
        if has_gpu:
            torch.cuda._sleep(400_000_000_000)  # type: ignore[no-untyped-call]  # noqa: SLF001  (cycles: some minutes)
        print(f"process {os.getpid()}", flush=True)
        if has_gpu:
            torch.cuda.synchronize()
        else:
            time.sleep(200)


if __name__ == "__main__":
    main()
