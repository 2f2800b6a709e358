"""docker/Dockerfile: linted by hadolint, its steps run without Docker, and its sshd and ssh speak with each other.

Without Docker the base image is a minimal Debian with Debian's Python, torch is left out, and the runtime is chroot:
this does not show that the official base image is there and has what the steps need, or the entries of its
configuration. Where there is a Docker `.ci/run` builds the whole image.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from image import Image, build, lacking, make_base, read_steps
from jobs.mpirun import NUMPY_BACKEND
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


def test_its_steps_make_an_image_that_trains() -> None:
    """Each step, in the recipe's order; then the image's command, and two ranks of its user under its own mpirun."""
    if missing := lacking():
        pytest.skip(f"this machine lacks {missing}")
    with TemporaryDirectory() as name:
        folder = Path(name)
        make_base(folder / "base")
        arguments = {"EXTRAS": "mpi,report", "INDEX": "https://pypi.org/simple"}
        image = build(RECIPE, ROOT, folder / "base", folder, arguments)
        assert (image.user, image.folder) == (str(USER), "/home/mpiuser")
        assert "usage: unilaunch" in image.run(json.loads(dict(read_steps(RECIPE.read_text()))["CMD"])).stdout
        check_training(image)
        compiled = "from unilaunch_graph.kernels.library import load_library; print(load_library())"
        assert "kernels-" in image.run(["python", "-W", "error", "-c", compiled]).stdout  # by the image's compiler
        assert all(image.place(file).exists() for file in ("/etc/ssh/ssh_config.d/unilaunch.conf", SSHD[-1]))
        assert not list(image.place("/etc/ssh").glob("ssh_host_*"))


def check_training(image: Image) -> None:
    """Train two epochs with a backend that needs no framework."""
    shutil.copytree(NUMPY_BACKEND, image.place("numpy_backend"))
    image.environ["PYTHONPATH"] = image.folder + "/numpy_backend"
    train = ["mpirun", "--oversubscribe", "-n", "2", "python", "-m", "unilaunch", "run", "--backend", "numpy"]
    done = image.run([*train, "--dataset", "sbm", "--epochs", "2"])
    assert done.returncode == 0, done.stderr
    result = json.loads(image.place("log_output/result.json").read_text())
    assert (result["world_size"], len(result["loss"])) == (2, 2)


def test_the_recipe_fits_the_project_and_the_manifests() -> None:
    """What it copies is there; its user and its sshd are those of the pods; its extras are the project's."""
    steps = read_steps(RECIPE.read_text())
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
