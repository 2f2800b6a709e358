"""Values on the command line, in variables and in files: several at once, none, and such as begin with a dash."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import Field
from typing_extensions import override

from unilaunch.errors import PluginError, SpecError
from unilaunch.interfaces import plugins
from unilaunch.job.api import start
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.options import parse
from unilaunch.spec.reading import read_file, read_task
from unilaunch.spec.run_spec import RunSpec, Spec
from unilaunch_gcn.model import GcnModel


class _Several(Spec):
    widths: tuple[int, ...] = (16,)
    names: list[str] = Field(default=[])
    by_name: dict[str, float] = Field(default={})
    patience: int | None = 3


class _Model(GcnModel):
    name = "several"
    spec = _Several  # type: ignore[assignment]

    @override
    def check(self, options: Any, world_size: int) -> None:
        """Fit any number of ranks."""


@pytest.fixture
def _several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "models", lambda: {"several": _Model()})


def _read(words: list[str], **environ: str) -> dict[str, Any]:
    given = parse(["run", "several", "--backend", "torch", *words])
    return dict(read_task(RunSpec, given, environ).options or {})


@pytest.mark.usefixtures("_several")
@pytest.mark.parametrize(("words", "environ", "field", "value"), [
    (["--widths", "64", "--widths", "32"], {}, "widths", (64, 32)),
    (["--widths", "[64, 32]"], {}, "widths", (64, 32)),
    (["--names", "-a", "--names", "b c"], {}, "names", ["-a", "b c"]),
    (["--by-name", '{"a": 1}', "--by-name", '{"b": 2}'], {}, "by_name", {"a": 1.0, "b": 2.0}),
    (["--patience", "none"], {}, "patience", None), (["--names", "--a"], {}, "names", ["--a"]),
    ([], {"UNILAUNCH_WIDTHS": "[8, 4]"}, "widths", (8, 4)),
    ([], {"UNILAUNCH_PATIENCE": "none"}, "patience", None),
])  # fmt: skip
def test_several_values_and_none(words: list[str], environ: dict[str, str], field: str, value: Any) -> None:
    assert _read(words, **environ)[field] == value


@pytest.mark.parametrize(("text", "words"), [
    ('target = "gcn"\nargs = 5\n', "args: must be a list, not 5"),
    ('target = "gcn"\nargs = [1, 2]\n', "args.0: must be a valid string, not 1"),
    ('target = "gcn"\nargs = ["fast"]\n', "args: gcn is a model and has options, no arguments: fast"),
    ('target = "a:f"\nargs = 5\n[options]\nlr = 1\n', "args: must be a list of text, not 5"),
    ('target = "a:f"\n[options]\nday = 2020-01-01\n', "options: day: cannot be sent to the ranks"),
])  # fmt: skip
def test_arguments_in_a_file_that_are_none_are_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(SpecError) as refused:
        read_task(RunSpec, {"config": str(tmp_path / "run.toml")}, {})
    assert words in str(refused.value)


def test_a_spec_from_a_file_takes_the_options_of_the_model_as_config_does(tmp_path: Path) -> None:
    """The schema that editors know has them beside the others too."""
    file = tmp_path / "run.toml"
    file.write_text('target = "gcn"\nnprocs = 2\nepochs = 5\nhidden = 7\n[options]\nhidden = 8\n')
    spec = LaunchSpec.from_file(file)
    assert (spec.nprocs, spec.options) == (2, {"epochs": 5, "hidden": 8})
    file.write_text('target = "gcn"\nnproc = 2\n')
    spec = LaunchSpec.from_file(file)
    for target in ("module:function", "script.py", "-m module"):
        (other := tmp_path / "other.toml").write_text(f'target = "{target}"\nnproc = 2\n')
        with pytest.raises(SpecError, match=r"other.toml: nproc: no such option; did you mean nproc_per_node\?"):
            LaunchSpec.from_file(other)
    for refused in (lambda: start(spec), lambda: read_task(LaunchSpec, {"config": str(file)}, {})):
        with pytest.raises(SpecError, match=r"nproc: no such option; did you mean nproc_per_node\?"):
            refused()


@pytest.mark.parametrize(("text", "words"), [
    ("a: &a [1]\nb: [*a, *a]\n", "aliases"),
    ("# " + "x" * (1 << 20) + "\nseed: 1\n", "more than 1 MiB"),
], ids=["aliases", "large"])  # fmt: skip
def test_a_file_that_would_grow_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(SpecError, match=words):
        read_file(tmp_path / "run.yaml")
    with pytest.raises(SpecError, match="not a file"):  # it might have no end
        read_file(Path("/dev/zero"))


def test_a_broken_plug_in_breaks_only_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its name says why it cannot be used; the others can."""
    models = {**plugins.table()[plugins.MODELS.name], "broken": "no_such_module:Model"}
    monkeypatch.setattr(plugins, "_table", {**plugins.table(), plugins.MODELS.name: models})
    plugins.make_all.cache_clear()
    try:
        assert set(plugins.models()) == {"calibration", "gcn", "mnist"}
        assert "left out: model 'broken' (no_such_module:Model) cannot be loaded" in capsys.readouterr().err
        with pytest.raises(PluginError, match=r"model 'broken' .* cannot be loaded: ModuleNotFoundError"):
            plugins.load_model("broken")
    finally:
        plugins.make_all.cache_clear()
