"""docker/Dockerfile: linted by hadolint, and fit for the manifests.

That it can be built, and trains, is shown where there is a Docker: by `.ci/run` and by the workflow of GitHub.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.ports import free_ports
from unilaunch.jobfiles.kubernetes import SSH_FOLDER, SSHD, USER

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "docker" / "Dockerfile"


def test_the_recipe_is_clean_and_fits_the_project_and_the_manifests() -> None:
    """For hadolint and shellcheck. What it copies is there; user, sshd and extras are those of pods and project."""
    line = [Path(sys.executable).with_name("hadolint"), RECIPE]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    text = re.sub(r"\\\n\s*", "", RECIPE.read_text())
    ignored = (ROOT / ".dockerignore").read_text().split()
    for words in re.findall(r"^COPY (?!--from)(.+)", text, re.MULTILINE):
        for source in words.split()[:-1]:
            assert (ROOT / source).exists()
            assert source.partition("/")[0] not in ignored
    assert f"\nUSER {USER}\n" in text
    assert f"--uid {USER} " in text
    assert f"COPY docker/sshd_config {SSHD[-1]}\n" in text
    assert f"AuthorizedKeysFile {SSH_FOLDER}/authorized_keys" in (ROOT / "docker" / "sshd_config").read_text()
    (extras,) = re.findall(r"^ARG EXTRAS=(.+)", text, re.MULTILINE)
    assert set(extras.split(",")) <= set(
        re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    )


@pytest.mark.system
def test_its_ssh_reaches_its_sshd(tmp_path: Path) -> None:
    """With the files as they are, but for the folder and the port: a key that the operator mounts opens the pod."""
    if not (sshd := shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")) or not shutil.which("ssh-keygen"):
        pytest.skip("no sshd, or no ssh-keygen")
    for name, port in zip(("sshd_config", "ssh_config"), free_ports(1) * 2, strict=True):
        text = (ROOT / "docker" / name).read_text().replace("2222", str(port))
        (tmp_path / name).write_text(text.replace(SSH_FOLDER, str(tmp_path)))
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-N", "", "-f", tmp_path / "id_rsa"], check=True)
    shutil.copy(tmp_path / "id_rsa.pub", tmp_path / "authorized_keys")
    line = [sshd, *SSHD[1:-1], str(tmp_path / "sshd_config"), "-o", "ListenAddress=127.0.0.1"]
    if os.geteuid() == 0 and not Path("/run/sshd").is_dir():  # as root it wants that folder
        own = 'mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec "$@"'
        line = ["unshare", "--mount", "sh", "-c", own, "sh", *line]
    ssh, until = ["ssh", "-F", str(tmp_path / "ssh_config"), "127.0.0.1", "echo", "reached"], time.monotonic() + 60
    with subprocess.Popen(line) as server:
        while (done := subprocess.run(ssh, capture_output=True, text=True, check=False)).returncode:
            if server.poll() is not None or time.monotonic() > until:
                break
        server.terminate()
    assert done.stdout == "reached\n", done.stderr
