"""The doctor on this host: where its folder cannot be written, and with the ssh that launch would use."""

from pathlib import Path

from jobs.mpirun import Launcher, alone


def test_a_folder_that_cannot_be_written(openmpi5: Launcher) -> None:
    """The hosts are checked all the same; whether they share the folder is then not known, and not said."""
    line = ["-m", "unilaunch", "doctor", "--allow-run-as-root", "--mpirun", str(openmpi5.path)]
    job = alone(line, Path("/sys")).check()
    assert "the host is ready" in job.stdout
    assert "other files than here" not in job.stdout


def test_the_ssh_that_mpirun_uses_logs_in(openmpi5: Launcher, tmp_path: Path) -> None:
    """With its options; and what it writes need not be UTF-8."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nprintf 'refus\\351: %s\\n' \"$1 $2\" >&2\nexit 255\n")
    ssh.chmod(0o755)
    line = ["-m", "unilaunch", "doctor", "--allow-run-as-root", "--mpirun", str(openmpi5.path), "-H", "elsewhere:1"]
    job = alone([*line, "--mca", "plm_rsh_agent", f"{ssh} -p 2222"], tmp_path)
    assert job.returncode == 1
    assert job.stdout.startswith("wrong  elsewhere: ssh elsewhere: refus\N{REPLACEMENT CHARACTER}: -p 2222: is it up?")
