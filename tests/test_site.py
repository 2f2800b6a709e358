"""The site is built without a warning, and its pages answer what people ask. It needs the extra docs."""

import re
import subprocess
import sys
from pathlib import Path

import unilaunch
from unilaunch.interfaces import plugins
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.run_spec import Spec

CONFIG = Path(__file__).parents[1] / "mkdocs.yml"


def test_the_site_is_whole(tmp_path: Path) -> None:
    """It loads nothing from a network, and its reference has every option, every public name and every field.

    A broken link or anchor, or a page that is in no menu, is a warning, and that an error.
    """
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", str(CONFIG), "-d", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    pages = {f"{path.relative_to(tmp_path)}": path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")}
    assert len(pages) > 30
    loads = re.compile(r"<(?:script|img|link)[^>]*(?:src|href)=\"http")
    assert [name for name, page in pages.items() if loads.search(page)] == []
    specs: list[type[Spec]] = [LaunchSpec]
    specs += [model.spec for model in plugins.models().values() if not model.is_internal]
    fields = {name for spec in specs for name in spec.model_fields}
    named = {
        name.replace("-", "_") for name in re.findall(r"--(?:no-)?([a-z-]+)", pages["reference/options/index.html"])
    }
    not_options = {"target", "args", "options", "env", "job_file", "mpi", "export", "mpi_args"}
    assert fields - named - not_options == set()
    names = pages["reference/python/index.html"].replace("<wbr>", "")
    assert [name for name in unilaunch.__all__ if name[0] != "_" and f'id="unilaunch.{name}"' not in names] == []
    assert [field for field in LaunchSpec.model_fields if f"<code>{field}</code>" not in names] == []
    for name in ("distribute", "halo", "mean", "gather"):
        assert f'id="unilaunch_graph.torch.{name}"' in names
    # On a narrow screen `--` stood at the end of a line, and the name on the next one.
    assert '<span class="option">--nnodes</span>' in pages["start/torchrun/index.html"]
