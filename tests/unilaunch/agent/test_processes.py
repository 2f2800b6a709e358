"""What a supervising process does to others."""

import os
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
