"""Completion in a real bash: commands, options, choices, models, data sets and files."""

import subprocess
from pathlib import Path

import pytest

from unilaunch.spec.options import parse

#: What stands on the line, and what is offered.
CASES = {
    "lau": {"launch"},
    "run --epo": {"--epochs"},
    "run --device cu": {"cuda"},
    "run --backend min": {"mindspore"},
    "run g": {"gcn"},
    "run tra": {"train.py"},
    "run calib": set(),
    "run --dataset cit": {"citeseer"},
    "run --dataset ogbn-a": {"ogbn-arxiv"},
    "run --dataset tra": {"train.py"},
    "launch --hostfile hos": {"hosts.txt"},
    "launch --emit sba": {"sbatch"},
    "launch --emit sbatch --acc": {"--account"},
    "launch --emit jobset --ima": {"--image"},
    "launch --emit sbatch --container": {"--container-image"},
}


def test_bash_completes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The printed script does, as a shell calls it."""
    with pytest.raises(SystemExit):
        parse(["--print-completion", "bash"])
    for name in ("train.py", "hosts.txt"):
        (tmp_path / name).touch()
    script = capsys.readouterr().out
    for line in CASES:
        words = ["unilaunch", *line.split()]
        script += f"\nCOMP_WORDS=({' '.join(words)}) COMP_CWORD={len(words) - 1} COMPREPLY=()\n"
        script += 'compopt() { :; }; _shtab_unilaunch; echo "OFFERED ${COMPREPLY[@]}"\n'
    done = subprocess.run(["bash"], input=script, cwd=tmp_path, capture_output=True, text=True, check=True)
    offered = [set(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("OFFERED")]
    assert dict(zip(CASES, offered, strict=True)) == CASES, done.stderr
