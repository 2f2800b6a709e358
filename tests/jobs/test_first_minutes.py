"""docs/first-minutes.md: all users and commands are there; those of a notebook, a cloud and Slurm are run again."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.hosts import lacking as lacking_for_hosts
from jobs.slurm import lacking as lacking_for_slurm

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from first_minutes import DATASETS, PAGE, record, section  # noqa: E402
from users import USERS, Cell, Command  # noqa: E402

#: Commands of the other users are run by tests of their own.
RUN = {
    "notebook": lambda: "" if DATASETS.is_dir() else f"the data sets of {DATASETS}",
    "cloud": lacking_for_hosts,
    "Slurm": lacking_for_slurm,
}


def _blocks(text: str) -> list[str]:
    return re.findall(r"^```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def _typed(command: Command | Cell) -> str:
    return command.source if isinstance(command, Cell) else f"$ {command.line}"


def _last_lines(text: str) -> list[str]:
    """Return the last line of each block, with # for numbers and versions, and one space between words.

    A virtual environment's Python may be called python, python3 or python3.11.
    """
    last = [re.sub(r"bin/python[\d.]*", "bin/python", block.splitlines()[-1]) for block in _blocks(text)]
    return [" ".join(re.sub(r"\d[\d.,:]*(\+\w+)?| - ", " # ", line).split()) for line in last]


def test_the_page_has_every_user_and_every_command() -> None:
    """In their order; after a change `python benchmarks/first_minutes.py` writes it again."""
    assert re.findall("^## (.*)", PAGE.read_text(), re.MULTILINE) == [user.title for user in USERS]
    for user in USERS:
        text = section(user.title)
        assert text.startswith(f"## {user.title}\n\n{user.text}\n")
        blocks = iter(_blocks(text))
        for command in user.commands:
            assert any(block.startswith(f"{_typed(command)}\n") for block in blocks), _typed(command)


@pytest.mark.parametrize(
    ("word", "lacking"),
    # The doctor's line of the cloud names MindSpore.
    [pytest.param(*case, marks=[pytest.mark.mindspore] if case[0] == "cloud" else []) for case in RUN.items()],
)
def test_what_the_page_shows_happens(word: str, lacking: Callable[[], str]) -> None:
    """Each command ends with the same code and with the same last line, but for the numbers in it."""
    if missing := lacking():
        pytest.skip(f"this machine lacks {missing}")
    (user,) = (user for user in USERS if word in user.title)
    assert _last_lines(record(user)) == _last_lines(section(user.title))
