"""The site is built without a warning, and its pages answer what people ask. It needs the extra docs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import unilaunch
from unilaunch.interfaces import plugins
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.run_spec import Spec

pytestmark = pytest.mark.xdist_group("site")  # it is built once
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a broken link or anchor, or a page that is in no menu, is a warning, and that an error."""
    folder = tmp_path_factory.mktemp("site")
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", str(ROOT / "mkdocs.yml")]
    done = subprocess.run([*line, "-d", str(folder)], capture_output=True, text=True, check=False, cwd=folder)
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
    names = (site / "reference" / "python" / "index.html").read_text(encoding="utf-8").replace("<wbr>", "")
    assert [name for name in unilaunch.__all__ if name[0] != "_" and f'id="unilaunch.{name}"' not in names] == []
    assert [field for field in LaunchSpec.model_fields if f"<code>{field}</code>" not in names] == []
    for name in ("distribute", "halo", "mean", "gather"):
        assert f'id="unilaunch_graph.torch.{name}"' in names


def test_an_option_is_not_broken_after_its_dashes(site: Path) -> None:
    """On a narrow screen `--` stood at the end of a line, and the name on the next one."""
    page = (site / "start" / "torchrun" / "index.html").read_text(encoding="utf-8")
    line = "unilaunch launch --standalone --nnodes=1 --nproc_per_node=2 train.py"
    marked = re.sub(r"--\w+", r'<span class="option">\g<0></span>', line)
    assert f"<code>{marked}</code>" in page.replace("=<wbr>", "=")
    assert page.count('class="language-console') == 1  # site.css wraps what has this class
