"""Secrets reach the ranks, and no file of the output folder shows them; those of `-x` no command line either."""

from pathlib import Path
from secrets import token_hex

import pytest

import unilaunch
from jobs.conftest import LAUNCHERS
from jobs.mpirun import Launcher

MPI = Path(__file__).parents[2] / ".mpi"
#: One is named with its value, the other one is exported; a third name is not set anywhere.
PROGRAM = """
import os
from contextlib import suppress
from pathlib import Path
values = [os.environ[name].encode() for name in ("GIVEN", "EXPORTED")]
assert "MISSING" not in os.environ
for file in Path("/proc").glob("[0-9]*/cmdline"):
    with suppress(OSError):
        line = file.read_bytes()
        assert not [value for value in values if value in line], line
"""


@pytest.mark.parametrize("mpirun", [
    *LAUNCHERS["4.1"][:1], *LAUNCHERS["5.0"], MPI / "mpich" / "bin" / "mpiexec", MPI / "intel" / "bin" / "mpiexec",
], ids=["openmpi-4", "openmpi-5", "mpich", "intel"])  # fmt: skip
def test_ps_does_not_show_what_x_gives(mpirun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two ranks, which look at every command line of this machine."""
    if not mpirun.exists():
        pytest.skip(f"no {mpirun}: see .ci/run")
    monkeypatch.chdir(tmp_path)
    given, exported = token_hex(16), token_hex(16)
    monkeypatch.setenv("EXPORTED", exported)
    (tmp_path / "look.py").write_text(PROGRAM)
    open_mpi = mpirun.name == "mpirun"  # it warns of unset names
    spec = unilaunch.LaunchSpec.model_validate({
        "nprocs": 2, "target": "look.py", "mpirun": mpirun,
        "export": (f"GIVEN={given}", "EXPORTED", *(() if open_mpi else ("MISSING",))),
        **({"allow_run_as_root": True, "oversubscribe": True} if open_mpi else {}),
    })  # fmt: skip
    assert unilaunch.launch(spec).returncode == 0, (tmp_path / "log_output" / "rank.0" / "stderr").read_text()
    for file in (tmp_path / "log_output").rglob("*"):
        assert file.is_dir() or not {given, exported} & set(file.read_text(errors="replace").split('"'))


def test_secrets_of_a_scripts_arguments_are_not_kept(openmpi5: Launcher, tmp_path: Path) -> None:
    """The script gets them. `--config spec.json` refuses to run it without them."""
    (tmp_path / "train.py").write_text("import sys\nprint(*sys.argv[1:])\n")
    given = ["train.py", "--", "--hf-token", "firstsecret", "--api-key=secondsecret", "--lr", "3"]
    again = ["--config", "log_output/spec.json"]
    for words in (given, [*again, *given]):
        assert openmpi5.launch(1, words, tmp_path).check().stdout == f"{' '.join(given[2:])}\n"
    text = "".join(file.read_text() for file in (tmp_path / "log_output").rglob("*.json*"))
    assert ("firstsecret" in text, "secondsecret" in text) == (False, False)
    assert "the values of secrets are left out" in openmpi5.launch(1, again, tmp_path).refusal()
