"""Freed memory stays: the second array of a size costs no fresh pages."""

import subprocess
import sys


def test_freed_memory_is_used_again() -> None:
    """64 MB are more than glibc would keep by itself."""
    program = """
import resource, sys
from unilaunch_gcn.memory import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(64 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults() + faults())
keep_freed_memory()
faults()
print(faults())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    without, kept = map(int, done.stdout.split())
    assert kept * 10 < without
