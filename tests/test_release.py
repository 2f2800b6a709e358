"""A release says its version and date once everywhere."""

import re
from pathlib import Path

import yaml

from unilaunch import __version__

ROOT = Path(__file__).parents[1]


def test_changelog_and_citation_name_this_version() -> None:
    """The newest version of the changelog is the version of the package and of the citation."""
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert headings[:2] == ["Unreleased", f"{__version__} - {citation['date-released']}"]
    assert citation["version"] == __version__
