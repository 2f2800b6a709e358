"""The site is built without a warning, and its pages answer what people ask."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import unilaunch
from unilaunch import plugins
from unilaunch.launch_spec import LaunchSpec
from unilaunch.spec import Spec

pytestmark = pytest.mark.xdist_group("site")  # it is built once
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a broken link or anchor, or a page that is in no menu, is a warning, and that an error."""
    folder = tmp_path_factory.mktemp("site")
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", str(ROOT / "mkdocs.yml")]
    done = subprocess.run(
        [*line, "-d", str(folder)], capture_output=True, text=True, timeout=250, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_pages_load_nothing_from_a_network(site: Path) -> None:
    """No font, script or picture of another host."""
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    loaded = [
        found for page in pages for found in re.findall(r"<(?:script|img|link)[^>]*(?:src|href)=\"(http[^\"]*)", page)
    ]
    assert len(pages) > 30
    assert loaded == []


def test_the_reference_is_complete(site: Path) -> None:
    """Every option, of models and job files too, and every public name."""
    options = (site / "reference" / "options" / "index.html").read_text(encoding="utf-8")
    specs: list[type[Spec]] = [LaunchSpec]
    specs += [model.spec for model in plugins.models().values() if not model.is_internal]
    fields = {name for spec in specs for name in spec.model_fields}
    named = {name.replace("-", "_") for name in re.findall(r"--(?:no-)?([a-z-]+)", options)}
    not_options = {"target", "args", "options", "env", "job_file", "mpi", "export", "mpi_args"}
    assert fields - named - not_options == set()
    names = (site / "reference" / "python" / "index.html").read_text(encoding="utf-8")
    assert [name for name in unilaunch.__all__ if name[0] != "_" and f'id="unilaunch.{name}"' not in names] == []
    assert [field for field in LaunchSpec.model_fields if f"<code>{field}</code>" not in names] == []
    for name in ("distribute", "halo", "mean", "gather"):
        assert f'id="unilaunch_graph.torch.{name}"' in names


def test_links_lead_to_files_of_the_clone() -> None:
    """Where people read the pages; what only mkdocs makes is not there."""
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    links = [
        (page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    ]
    assert len(links) > 150
    assert [(str(page), link) for page, link in links if not (page.parent / link).exists()] == []


def test_each_question_has_its_answer() -> None:
    """The sentence stands on the page that the table names; ten questions of each kind of reader."""
    kinds = (DOCS / "questions.md").read_text(encoding="utf-8").split("\n## ")[1:]
    rows = [re.findall(r"^\| (.+?) \| \[.+?\]\(([^)]+)\) \| (.+?) \|$", kind, re.MULTILINE) for kind in kinds]
    assert [len(one) for one in rows] == [10, 10, 10, 10]
    lost = [(link, answer) for one in rows for _, link, answer in one if _plain(answer) not in _plain(_text(link))]
    assert lost == []


def _text(link: str) -> str:
    """Return a page, or the section of it that the link names."""
    page, _, anchor = link.partition("#")
    text = (DOCS / page).read_text(encoding="utf-8")
    sections = re.split(r"^#+ (?=.+$)", text, flags=re.MULTILINE) if anchor else [text]
    return next(one for one in sections if not anchor or _anchor(one.split("\n")[0]) == anchor)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _plain(text: str) -> str:
    """Return the words alone: without marks, links and line ends."""
    return " ".join(re.sub(r"\]\([^)]*\)|[`*\[|]", "", text).split())
