"""docker/Dockerfile: linted by hadolint's rules, and those of its steps that cost nothing are done here.

These are: the files that it copies are there, and its sshd and ssh speak with each other. `.ci/run` builds the wheel as
the recipe does, and where there is a Docker the whole image: `apt-get` and the extras are installed there only.
"""

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from unilaunch.job.emit.kubernetes import SSH_FOLDER, SSHD, USER

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "docker" / "Dockerfile"
Steps = Sequence[tuple[str, str]]


def _steps(text: str) -> list[tuple[str, str]]:
    """Return the instructions: a word, and what follows it."""
    lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    pairs = (line.partition(" ") for line in re.sub(r"\\\n\s*", "", lines).splitlines() if line.strip())
    return [(word, rest) for word, _, rest in pairs]


def _runs(steps: Steps, having: str = "") -> list[str]:
    return [rest for word, rest in steps if word == "RUN" and having in rest]


#: The rules of hadolint that this recipe can break; a wider check is hadolint itself, where it is installed.
RULES: Mapping[str, Callable[[Steps], bool]] = {
    "DL3002 the last USER is not root": lambda steps: dict(steps).get("USER", "root") not in {"root", "0"},
    "DL3003 WORKDIR, no cd": lambda steps: not any(re.search(r"\bcd ", run) for run in _runs(steps)),
    "DL3004 no sudo": lambda steps: not _runs(steps, "sudo "),
    "DL3006 a tag": lambda steps: all(":" in rest for word, rest in steps if word == "FROM"),
    "DL3007 not latest": lambda steps: not any(":latest" in rest for word, rest in steps if word == "FROM"),
    "DL3009 no lists of apt": lambda steps: all("rm -rf /var/lib/apt/lists/*" in r for r in _runs(steps, "apt-get")),
    "DL3014 apt-get install -y": lambda steps: all(" -y" in run for run in _runs(steps, "apt-get install")),
    "DL3015 no recommends": lambda steps: all("--no-install-recommends" in r for r in _runs(steps, "apt-get install")),
    "DL3020 COPY, not ADD": lambda steps: "ADD" not in [word for word, _ in steps],
    "DL3025 CMD as JSON": lambda steps: all(r.startswith("[") for w, r in steps if w in {"CMD", "ENTRYPOINT"}),
    "DL3042 no cache": lambda steps: all("--no-cache-dir" in run for run in _runs(steps, "pip ")),
    "DL3013 fixed versions": lambda steps: all(" -c " in run for run in _runs(steps, "pip install")),
    "DL4006 pipes fail": lambda steps: not any(re.search(r"[^|]\|[^|]", run) for run in _runs(steps)),
}  # fmt: skip
#: What breaks a rule each, put in place of what the recipe says.
BREAKS = {
    "DL3002": ("USER 1000", "USER root"),
    "DL3003": ("RUN pip wheel", "RUN cd /source && pip wheel"),
    "DL3004": ("RUN pip wheel", "RUN sudo pip wheel"),
    "DL3006": ("FROM python:3.11-slim-bookworm AS", "FROM python AS"),
    "DL3007": ("python:3.11-slim-bookworm AS", "python:latest AS"),
    "DL3009": ("rm -rf /var/lib/apt/lists/*", "true"),
    "DL3014": ("install -y", "install"),
    "DL3015": ("--no-install-recommends", ""),
    "DL3020": ("COPY . .", "ADD . ."),
    "DL3025": ('CMD ["unilaunch", "--help"]', "CMD unilaunch --help"),
    "DL3042": ("install --no-cache-dir", "install"),
    "DL3013": ("-c /tmp/constraints.txt", ""),
    "DL4006": ("RUN pip wheel", "RUN true | pip wheel"),
}


def _broken(text: str) -> list[str]:
    return [name[:6] for name, keeps in RULES.items() if not keeps(_steps(text))]


def test_the_recipe_keeps_the_rules() -> None:
    text = RECIPE.read_text()
    assert _broken(text) == []
    if hadolint := shutil.which("hadolint"):
        done = subprocess.run([hadolint, RECIPE], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout


def test_every_rule_is_noticed() -> None:
    """A rule that is broken is found, and no other one."""
    text = RECIPE.read_text()
    assert {name[:6] for name in RULES} == set(BREAKS)
    for rule, (right, wrong) in BREAKS.items():
        assert right in text
        assert _broken(text.replace(right, wrong)) == [rule]


def test_the_recipe_fits_the_project_and_the_manifests() -> None:
    """What it copies is there; its user and its sshd are those of the pods; its extras are the project's."""
    steps = _steps(RECIPE.read_text())
    copies = [rest.split() for word, rest in steps if word == "COPY" and "--from" not in rest]
    ignored = (ROOT / ".dockerignore").read_text().split()
    for *sources, target in copies:
        for source in sources:
            assert (ROOT / source).exists(), target
            assert source.partition("/")[0] not in ignored
    assert ("USER", str(USER)) in steps
    assert f"--uid {USER} " in f"{_runs(steps, 'useradd')[0]} "
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
            while (done := subprocess.run(ssh, capture_output=True, text=True, check=False, timeout=60)).returncode:
                assert time.monotonic() < deadline, done.stderr
                assert server.poll() is None, server.stderr and server.stderr.read()
                time.sleep(0.05)
            assert done.stdout == "reached\n"
        finally:
            server.terminate()
