"""`unilaunch report`."""

import sys
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from unilaunch.errors import InputError, PluginError
from unilaunch.folder.files import write_text, write_users
from unilaunch.interfaces.command import Command
from unilaunch.look.report.reading import read_run
from unilaunch.overriding import override
from unilaunch.spec.run_spec import Spec


class ReportSpec(Spec):
    """Which run to show, and where to write the page."""

    positional: ClassVar[tuple[str, ...]] = ("folder",)
    folder: Path = Field(default=Path("log_output"), description="the output folder of a run")
    compare: Path | None = Field(default=None, description="the output folder of another run, drawn over it")
    output: Path | None = Field(default=None, description="the page; default: report.html in the folder")


class ReportCommand(Command):
    """Write one self-contained page about a run, or about two."""

    help = "write a page about a run: curves, times, hosts, and the failure if any"
    examples = (
        "unilaunch report",
        "unilaunch report torch_output --compare mindspore_output --output both.html",
    )
    spec = ReportSpec

    @override
    def run(self, options: ReportSpec) -> int:
        folders = [options.folder, *([options.compare] if options.compare else [])]
        runs = [(str(folder).encode(errors="replace").decode(), read_run(folder)) for folder in folders]
        try:
            from unilaunch.look.report.page import make_page
        except ImportError as error:
            raise PluginError(f"unilaunch report: {error}: pip install 'unilaunch[report]'") from None
        path = options.output or options.folder / "report.html"
        try:
            (write_users if options.output else write_text)(path, make_page(runs))
        except OSError as error:
            raise InputError(f"--output {path}: cannot be written: {error.strerror}") from None
        sys.stdout.write(f"{path}\n")
        return 0
