"""Builds an image of docker/Dockerfile without Docker: its steps run in root file systems of their own, by chroot.

The base image is a minimal Debian 12 with its own Python 3.11, made by mmdebstrap. The steps see this machine's network
and kernel, and no file of this machine but those that they copy.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

Steps = Sequence[tuple[str, str]]
#: What the official image of Python has: Python, pip, and the certificates of public hosts.
BASE = "python:3.11-slim-bookworm"
PACKAGES = "ca-certificates,python3,python3-pip,python3-venv,python-is-python3"
TOOLS = ("mmdebstrap", "unshare", "mount", "chroot")
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"  # a network may have its own
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
#: Runs "$@" as user $1 with $2 as root: its mounts and its processes end with it.
_INSIDE = """
mount -t proc proc "$2/proc" && mount --rbind /dev "$2/dev" && mount -t tmpfs tmpfs "$2/dev/shm" || exit 120
user=$1 root=$2 folder=$3; shift 3
exec chroot --userspec="$user:$user" "$root" sh -c 'cd "$0" && exec "$@"' "$folder" "$@"
"""


def lacking() -> str:
    """Return what this machine lacks to build the image; "" if nothing."""
    path = f"/usr/sbin:/sbin:{os.environ['PATH']}"  # noqa: TID251
    return "root" if os.geteuid() else ", ".join(tool for tool in TOOLS if not shutil.which(tool, path=path))


def read_steps(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile: a word, and what follows it."""
    lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    pairs = (line.partition(" ") for line in re.sub(r"\\\n\s*", "", lines).splitlines() if line.strip())
    return [(word, rest) for word, _, rest in pairs]


@dataclass
class Image:
    """A root file system, and what its steps have said of the processes in it.

    Attributes:
        root: Its folder on this machine.
        environ: Its variables.
        user: Who runs in it.
        folder: Where.
    """

    root: Path
    environ: dict[str, str] = field(default_factory=dict)
    user: str = "0"
    folder: str = "/"

    def run(self, line: Sequence[str], seconds: float = 280.0) -> "subprocess.CompletedProcess[str]":
        """Run a command in it."""
        own = {name: os.environ[name] for name in _PROXIES if name in os.environ}  # noqa: TID251
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        home = "/root" if self.user == "0" else self.folder
        environ = {"PATH": path, "LANG": "C.UTF-8", "HOME": home, "DEBIAN_FRONTEND": "noninteractive"}
        inside = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "sh", "-c", _INSIDE, "sh"]
        return subprocess.run(
            [*inside, self.user, str(self.root), self.folder, *line], env=environ | own | self.environ, text=True,
            capture_output=True, check=False, timeout=seconds, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def place(self, inside: str) -> Path:
        """Return where a path of the image lies on this machine."""
        return self.root / os.path.join(self.folder, inside).lstrip("/")  # noqa: PTH118  (an absolute one replaces it)


def make_base(root: Path) -> None:
    """Make the base image: Debian's own Python stands for the official image's."""
    line = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={PACKAGES}"]
    line += ["--dpkgopt=force-unsafe-io", "bookworm", str(root)]  # as Debian's images have it: no fsync
    done = subprocess.run(line, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    next(root.glob("usr/lib/python3.*/EXTERNALLY-MANAGED")).unlink()  # pip may install beside Debian's packages
    shutil.copy(f"/{CERTIFICATES}", root / CERTIFICATES)
    policy = root / "usr" / "sbin" / "policy-rc.d"  # as in every image of Debian: no package starts its daemon
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)


def build(recipe: Path, context: Path, base: Path, folder: Path, arguments: Mapping[str, str]) -> Image:
    """Do the steps of a recipe, and return the image of its last stage.

    Args:
        recipe: The Dockerfile. Its stages begin with the base image.
        context: The folder that COPY reads.
        base: The base image's root; it stays as it is.
        folder: Gets a root for each stage.
        arguments: Values of ARG.
    """
    stages: dict[str, Image] = {}
    for word, rest in read_steps(recipe.read_text()):
        if word == "FROM":
            name, _, alias = rest.partition(" AS ")
            assert name == BASE, f"FROM {name}: this test knows {BASE}"
            image = stages[alias] = Image(folder / f"stage-{len(stages)}")
            subprocess.run(["cp", "-a", "--reflink=auto", base, image.root], check=True)
        elif word == "ARG":
            name, _, value = rest.partition("=")
            image.environ[name] = arguments.get(name, value)
        elif word == "WORKDIR":
            image.folder = rest
            image.place(rest).mkdir(parents=True, exist_ok=True)
        elif word == "USER":
            image.user = rest
        elif word == "COPY":
            _copy(image, rest.split(), context, stages)
        elif word == "RUN":
            done = image.run(["sh", "-c", rest])
            assert done.returncode == 0, f"RUN {rest}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        else:
            assert word == "CMD", f"{word}: this test knows no such instruction"
    return image


def _copy(image: Image, words: list[str], context: Path, stages: Mapping[str, Image]) -> None:
    of_stage = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else ""
    *sources, target = words
    for source in sources:
        path = stages[of_stage].place(source) if of_stage else context / source
        place = image.place(target)
        if path.is_dir():
            shutil.copytree(
                path, place, symlinks=True, dirs_exist_ok=True, ignore=None if of_stage else _ignored(context)
            )
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)


def _ignored(context: Path) -> Callable[[str, list[str]], set[str]]:
    """Return what shutil.copytree asks: which names of a folder `.dockerignore` leaves out."""
    patterns = (context / ".dockerignore").read_text().split()
    anywhere = [pattern.removeprefix("**/") for pattern in patterns if pattern.startswith("**/")]

    def ignore(folder: str, names: list[str]) -> set[str]:
        at_top = [] if Path(folder) != context else patterns
        return {name for name in names if any(fnmatchcase(name, pattern) for pattern in (*anywhere, *at_top))}

    return ignore
