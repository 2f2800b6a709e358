"""The check of the logins: a host where one takes too long, and a user who does not wait."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import find_mpirun, write_programs
from unilaunch.job import login
from unilaunch.spec.hostfile import Host


def test_a_start_up_file_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the port is asked about: ssh gives up by itself, and sooner, where nobody answers at it."""
    write_programs(tmp_path, ssh="exec sleep 60")
    monkeypatch.setattr(login, "_PATIENCE", 0.3)
    (said,) = login.log_in([Host(name="elsewhere", slots=1, user="me")], [f"{tmp_path}/ssh"]).values()
    assert said.startswith("elsewhere: ssh connects, and no command runs within 0 s: does a start-up file (~/.bashrc)")
    assert said.endswith("Try: ssh me@elsewhere true")


INTERRUPT = """
import os, signal, sys, threading, time
from unilaunch.cli import main
began = time.monotonic()
whole = sys.argv.pop(1) == "group"
def interrupt():
    while not os.path.exists("called"): time.sleep(0.02)
    (os.killpg if whole else os.kill)(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
main()
"""


@pytest.mark.parametrize("whom", ["group", "process"])
def test_an_interrupted_login_is_no_fault_of_the_host(whom: str, tmp_path: Path) -> None:
    """Ctrl-C at a terminal reaches the process group; another program's signal reaches launch alone."""
    path = write_programs(tmp_path, ssh="touch called; exec sleep 60")
    words = ["launch", "--mpirun", find_mpirun(), "--allow-run-as-root", "-H", "nohost:1", "-m", "this"]
    own = os.environ | {"PATH": f"{path}:{os.environ['PATH']}"}  # noqa: TID251
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPT, whom, *words], cwd=tmp_path, env=own, capture_output=True, text=True,
        check=False, timeout=15, start_new_session=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "unilaunch: interrupted\n")
