"""The links on the pages, as people follow them in a clone."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_links_lead_to_files_of_the_clone() -> None:
    """Where people read the pages; what only mkdocs makes is not there."""
    pages = [*ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md", *DOCS.rglob("*.md")]
    links = [
        (page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    ]
    assert links
    assert [(str(page), link) for page, link in links if not (page.parent / link).exists()] == []
