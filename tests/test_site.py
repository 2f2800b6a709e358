"""The site is built without a warning, and loads nothing from a network; its pages are whole in a clone, too."""

import re
import subprocess
import sys
from pathlib import Path

import unilaunch

ROOT = Path(__file__).parents[1]


def test_the_site_is_whole(tmp_path: Path) -> None:
    """A broken link or anchor, or a page that is in no menu, is a warning, and that an error."""
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", str(ROOT / "mkdocs.yml")]
    done = subprocess.run([*line, "-d", tmp_path], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    pages = {f"{path.relative_to(tmp_path)}": path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")}
    assert len(pages) > 30
    loads = re.compile(r"<(?:script|img|link)[^>]*(?:src|href)=\"http")
    assert [name for name, page in pages.items() if loads.search(page)] == []
    names = pages["reference/python/index.html"].replace("<wbr>", "")
    assert [name for name in unilaunch.__all__ if name[0] != "_" and f'id="unilaunch.{name}"' not in names] == []


def test_one_version() -> None:
    """The newest one of the changelog is the package's and the citation's."""
    fields = re.compile(r'^(?:version|date-released): "?([^"\n]+)', re.MULTILINE)
    version, day = fields.findall((ROOT / "CITATION.cff").read_text())
    newest = re.findall(r"^## (\d.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert (version, newest) == (unilaunch.__version__, f"{version} - {day}")


def test_links_lead_to_files_of_the_clone() -> None:
    """What only mkdocs makes is not there."""
    pages = [*ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md", *(ROOT / "docs").rglob("*.md")]
    link = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
    targets = [page.parent / target for page in pages for target in link.findall(page.read_text("utf-8"))]
    assert targets
    assert [target for target in targets if not target.exists()] == []
