"""Docstrings, comments, messages and pages use plain English: the words that readers did not understand stay away.

codespell checks the spelling. This list has expressions that stood in the project once, and what to write.
"""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: An expression that is not used, and the plain one.
BANNED = {
    r"fork ?server|stand-in\b": "agent; shim",
    r"\baskers?\b": "shim, caller, process",
    r"\bwhoever\b": "a process that, a caller that, if you",
    r"\b(is|are|was|were) told\b": "gets, receives; the option, the task",
    r"\bmakes? no sense\b": "is not valid",
    r"\bdealt (out|again)\b": "assigned, divided, taken in turn",
    r"\bunasked\b": "by default, automatically",
    r"\blast words\b": "last messages",
    r"\bto be had\b": "available, can be downloaded",
    r"\bcomes? nearer\b": "advances",
    r"\bon (its|their) way\b": "is being sent, in transit",
    r"\bcomes? to (its|their) end\b": "exits, ends",
    r"\bno word for\b": "has no option for",
    r"\bwhat is said\b|\bit is said\b": "a line says so; the text",
    r"\bfell silent\b|\bpeople at one table\b|\blive to say\b": "the connection broke; messages; reported",
    r"\btell-?tale|\bthe house\b|\bknocks?\b": "no metaphors",
}


@cache
def _lines() -> list[tuple[str, str]]:
    """Return every line of code and pages, each with its place."""
    listed = subprocess.run(["git", "ls-files", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = [name for name in listed.stdout.split() if not name.endswith(("test_words.py", "CHANGELOG.md"))]
    texts = {name: (ROOT / name).read_text() for name in names if (ROOT / name).exists()}
    assert len(texts) > 500, "git lists the files: run this in a clone"
    return [(f"{name}:{n}", line) for name, text in texts.items() for n, line in enumerate(text.splitlines(), 1)]


@pytest.mark.parametrize("expression", BANNED)
def test_a_plain_word_stands_in_place_of(expression: str) -> None:
    """The message names file and line, and what to write."""
    pattern = re.compile(expression, re.IGNORECASE)
    found = [f"{place}: {line.strip()}" for place, line in _lines() if pattern.search(line)]
    assert not found, f"write: {BANNED[expression]}\n" + "\n".join(found)
