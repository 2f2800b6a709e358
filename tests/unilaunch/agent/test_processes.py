"""What a supervising process does to others."""

import os
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from unilaunch.agent.processes import kill_children


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_child_of_another_user_is_left_alone() -> None:
    """As one that has become another by a setuid program: it ends no agent."""
    if not (agent := os.fork()):
        if not os.fork():
            time.sleep(3)
            os._exit(0)
        kill_children(group=-1)  # none, but its modules are loaded: the other user may not read them
        os.setuid(65534)
        with suppress(BaseException):
            kill_children()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(agent, 0)[1] == 0


def test_the_pages_of_libraries_are_given_back() -> None:
    """A process that has imported a framework would count as larger than a forked rank that takes the memory."""
    program = (
        "import numpy, re\n"
        "from pathlib import Path\n"
        "from unilaunch.agent.processes import release_code\n"
        "def of_files():\n"
        "    return int(re.search(r'RssFile:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "before = of_files()\n"
        "release_code()\n"
        "print(of_files() < before / 2, numpy.ones((64, 64)).dot(numpy.ones(64)).sum())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True 4096.0\n"
