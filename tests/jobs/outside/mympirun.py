"""A launcher in a few lines, for test_outside.py: `mympirun -n N PROGRAM ...` on this host."""

import os
import subprocess
import sys

if sys.argv[1:] == ["--version"]:
    print("My MPI 1.2")  # noqa: T201
    sys.exit()
number, *program = sys.argv[2:]
common = {**os.environ, "MYMPI_JOB": str(os.getpid()), "MYMPI_SIZE": number}  # noqa: TID251
ranks = [subprocess.Popen(program, env=common | {"MYMPI_RANK": str(rank)}) for rank in range(int(number))]
sys.exit(max(rank.wait() for rank in ranks))
