"""The pages as people read them in a clone: links, pictures, and the version of a release."""

import re
import sys
from pathlib import Path

import yaml

from unilaunch import __version__

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from pictures import DRAWINGS, pictures  # noqa: E402


def test_links_lead_to_files_of_the_clone() -> None:
    """What only mkdocs makes is not there."""
    pages = [*ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md", *(ROOT / "docs").rglob("*.md")]
    link = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
    targets = [page.parent / target for page in pages for target in link.findall(page.read_text("utf-8"))]
    assert targets
    assert [target for target in targets if not target.exists()] == []


def test_pictures_show_what_the_records_hold() -> None:
    """After a change of a record or of the tutorial `python benchmarks/pictures.py` draws them again."""
    assert pictures() == {name: (DRAWINGS / name).read_text("utf-8") for name in pictures()}


def test_changelog_and_citation_name_this_version() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert headings[:2] == ["Unreleased", f"{__version__} - {citation['date-released']}"]
    assert citation["version"] == __version__
