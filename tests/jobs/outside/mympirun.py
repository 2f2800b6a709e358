"""A launcher in a few lines, for test_outside.py: `mympirun -n N PROGRAM ...` on this host."""

import os
import subprocess
import sys


def main() -> int:
    """Start N processes, each with its rank, and return the largest exit code."""
    if sys.argv[1:] == ["--version"]:
        print("My MPI 1.2")  # noqa: T201
        return 0
    _, option, number, *program = sys.argv
    assert option == "-n"
    common = {**os.environ, "MYMPI_JOB": str(os.getpid()), "MYMPI_SIZE": number}  # noqa: TID251
    ranks = [subprocess.Popen(program, env=common | {"MYMPI_RANK": str(rank)}) for rank in range(int(number))]
    return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
