"""docker/Dockerfile: linted by hadolint, fit for the manifests, and its sshd and ssh speak with each other.

That it can be built, and trains, is shown where there is a Docker: by `.ci/run` and by the workflow of GitHub.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unilaunch.jobfiles.kubernetes import SSH_FOLDER, SSHD, USER

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "docker" / "Dockerfile"


def test_hadolint_finds_nothing(tmp_path: Path) -> None:
    """Its own rules, and those of shellcheck; and it does find a fault."""
    bad = tmp_path / "Dockerfile"
    bad.write_text(RECIPE.read_text().replace("install --no-cache-dir", "install"))
    hadolint = Path(sys.executable).with_name("hadolint")
    found = [
        subprocess.run([hadolint, recipe], capture_output=True, text=True, check=False) for recipe in (RECIPE, bad)
    ]
    assert [done.returncode for done in found] == [0, 1], found[0].stdout + found[0].stderr
    assert "DL3042" in found[1].stdout


def test_the_recipe_fits_the_project_and_the_manifests() -> None:
    """What it copies is there; its user and its sshd are those of the pods; its extras are the project's."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", RECIPE.read_text(), flags=re.MULTILINE))
    steps = [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())]
    copies = [rest.split() for word, rest in steps if word == "COPY" and "--from" not in rest]
    ignored = (ROOT / ".dockerignore").read_text().split()
    for *sources, target in copies:
        for source in sources:
            assert (ROOT / source).exists(), target
            assert source.partition("/")[0] not in ignored
    assert ("USER", str(USER)) in steps
    assert any(f"--uid {USER} " in f"{rest} " for word, rest in steps if word == "RUN")
    assert ["docker/sshd_config", SSHD[-1]] in copies
    assert f"AuthorizedKeysFile {SSH_FOLDER}/authorized_keys" in (ROOT / "docker" / "sshd_config").read_text()
    extras = next(rest for word, rest in steps if word == "ARG" and rest.startswith("EXTRAS=")).removeprefix("EXTRAS=")
    known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert set(extras.split(",")) <= set(known)


def test_its_ssh_reaches_its_sshd(tmp_path: Path) -> None:
    """With the files as they are, but for the folder and the port: a key that the operator mounts opens the pod."""
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if not (sshd and shutil.which("ssh-keygen")):
        pytest.skip("no sshd, or no ssh-keygen")
    held = socket.socket()  # bound, so that nobody else takes the port; sshd may, since both allow it and one listens
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    for name in ("sshd_config", "ssh_config"):
        text = (ROOT / "docker" / name).read_text()
        assert "2222" in text
        (tmp_path / name).write_text(text.replace("2222", str(port)).replace(SSH_FOLDER, str(tmp_path)))
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-N", "", "-f", tmp_path / "id_rsa"], check=True)
    shutil.copy(tmp_path / "id_rsa.pub", tmp_path / "authorized_keys")
    line = [sshd, *SSHD[1:-1], str(tmp_path / "sshd_config"), "-o", "ListenAddress=127.0.0.1"]
    if os.geteuid() == 0 and not Path("/run/sshd").is_dir():  # as root it wants that folder
        own = 'mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec "$@"'
        line = ["unshare", "--mount", "sh", "-c", own, "sh", *line]
    with held, subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as server:
        try:
            ssh = ["ssh", "-F", str(tmp_path / "ssh_config"), "127.0.0.1", "echo", "reached"]
            deadline = time.monotonic() + 60
            while (done := subprocess.run(ssh, capture_output=True, text=True, check=False)).returncode:
                assert time.monotonic() < deadline, done.stderr
                assert server.poll() is None, server.stderr and server.stderr.read()
                time.sleep(0.05)
            assert done.stdout == "reached\n"
        finally:
            server.terminate()
