"""The check of the logins: a host where one takes too long, and a user who does not wait."""

from pathlib import Path

import pytest

from unilaunch.job import login
from unilaunch.spec.hostfile import Host


def test_a_start_up_file_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the port is asked about: ssh gives up by itself, and sooner, where nobody answers at it."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexec sleep 60\n")
    ssh.chmod(0o755)
    monkeypatch.setattr(login, "_PATIENCE", 0.3)
    (said,) = login.log_in([Host(name="elsewhere", slots=1, user="me")], [str(ssh)]).values()
    assert said.startswith("elsewhere: ssh connects, and no command runs within 0 s: does a start-up file (~/.bashrc)")
    assert said.endswith("Try: ssh me@elsewhere true")
