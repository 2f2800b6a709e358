"""A process's memory at its peak: of what two processes share, each counts half."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unilaunch_gcn.memory import peak_memory

_ROLLUP = Path("/proc/self/smaps_rollup")
_KNOWS_SHARES = _ROLLUP.exists() and "Pss_Shmem" in _ROLLUP.read_text()
_BYTES = 1 << 26
_OTHER = f"""
import mmap, sys
memory = mmap.mmap(int(sys.argv[1]), {_BYTES})
memory[::4096] = bytes({_BYTES} // 4096)
print("ready", flush=True)
input()
"""


@pytest.mark.skipif(not _KNOWS_SHARES, reason="this kernel has no Pss_Shmem in /proc/self/smaps_rollup")
def test_shared_pages_count_by_their_share() -> None:
    """Of a buffer that another process maps too, half."""
    file = os.memfd_create("shared")
    os.ftruncate(file, _BYTES)
    memory = mmap.mmap(file, _BYTES)
    memory[::4096] = bytes(_BYTES // 4096)
    alone = peak_memory()
    line = [sys.executable, "-c", _OTHER, str(file)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[file]) as other:
        assert other.stdout
        assert other.stdout.readline() == b"ready\n"
        shared = peak_memory()
        other.communicate(b"\n")
    memory.close()
    os.close(file)
    assert alone - shared == pytest.approx(_BYTES / 2, rel=0.1)
