"""docker/Dockerfile: linted by hadolint, and fit for the manifests.

That it can be built, and trains, is shown where there is a Docker: by `.ci/run` and by the workflow of GitHub.
"""

import re
import subprocess
import sys
from pathlib import Path

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
