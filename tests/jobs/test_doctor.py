"""The doctor on this host: where its folder cannot be written, and with the ssh that launch would use."""

from pathlib import Path

from jobs.mpirun import Launcher, unilaunch


def test_a_folder_that_cannot_be_written(openmpi5: Launcher) -> None:
    """The hosts are checked all the same; whether they share the folder is then not known, and not said."""
    job = unilaunch(["doctor", *openmpi5.options[:-1]], Path("/sys")).check()
    assert "the host is ready" in job.stdout
    assert "other files than here" not in job.stdout


def test_the_ssh_that_mpirun_uses_logs_in(openmpi5: Launcher, tmp_path: Path) -> None:
    """With its options; and what it writes need not be UTF-8."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nprintf 'refus\\351: %s\\n' \"$1 $2\" >&2\nexit 255\n")
    ssh.chmod(0o755)
    options = [*openmpi5.options[:-1], "-H", "elsewhere:1", "--mca", "plm_rsh_agent", f"{ssh} -p 2222"]
    job = unilaunch(["doctor", *options], tmp_path)
    assert job.returncode == 1
    assert job.stdout.startswith("wrong  elsewhere: ssh elsewhere: refus\N{REPLACEMENT CHARACTER}: -p 2222: is it up?")
