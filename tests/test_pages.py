"""The pages as people read them in a clone."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_links_lead_to_files_of_the_clone() -> None:
    """What only mkdocs makes is not there."""
    pages = [*ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md", *(ROOT / "docs").rglob("*.md")]
    link = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
    targets = [page.parent / target for page in pages for target in link.findall(page.read_text("utf-8"))]
    assert targets
    assert [target for target in targets if not target.exists()] == []
