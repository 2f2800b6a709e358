"""Values of options: typed, in variables and in files, and on their way to the ranks, which read no pydantic."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field
from typing_extensions import override

from unilaunch.errors import PluginError, SpecError
from unilaunch.interfaces import plugins
from unilaunch.job.api import start
from unilaunch.record import replace
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.options import parse
from unilaunch.spec.reading import make_task, read_task
from unilaunch.spec.run_spec import RunSpec, Spec
from unilaunch.spec.target import Target
from unilaunch.spec.task import Task, decode_task, encode_task
from unilaunch_gcn.model import GcnModel


class _Inner(Spec):
    width: int = 1
    folder: Path = Path("inner")


class _Rich(Spec):
    """Every kind of field that a model may have."""

    widths: tuple[int, ...] = (16,)
    names: list[str] = Field(default=[])
    rate: float | None = 0.5
    files: tuple[Path, ...] = ()
    by_name: dict[str, list[float]] = Field(default={})
    inner: _Inner = _Inner()
    flag: bool = True


class _RichModel(GcnModel):
    name = "rich"
    spec = _Rich  # type: ignore[assignment]

    @override
    def check(self, options: Any, world_size: int) -> None:
        """Fit any number of ranks."""


@pytest.fixture
def _rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "models", lambda: {"rich": _RichModel()})
    monkeypatch.setattr(plugins, "load_model", lambda _: _RichModel())


@pytest.mark.usefixtures("_rich")
@pytest.mark.parametrize(("words", "environ", "field", "value"), [
    (["--widths", "64", "--widths", "32"], {}, "widths", (64, 32)), (["--widths", "[64, 32]"], {}, "widths", (64, 32)),
    (["--names", "-a", "--names", "b c"], {}, "names", ["-a", "b c"]), (["--names", "--a"], {}, "names", ["--a"]),
    (["--by-name", '{"a": [1]}', "--by-name", '{"b": [2]}'], {}, "by_name", {"a": [1.0], "b": [2.0]}),
    (["--rate", "none"], {}, "rate", None), ([], {"UNILAUNCH_RATE": "none"}, "rate", None),
    ([], {"UNILAUNCH_WIDTHS": "[8, 4]"}, "widths", (8, 4)),
])  # fmt: skip
def test_several_values_and_none(words: list[str], environ: dict[str, str], field: str, value: Any) -> None:
    given = parse(["run", "rich", "--backend", "torch", *words])
    assert dict(read_task(RunSpec, given, environ).options or {})[field] == value


def test_a_spec_from_a_file_takes_the_options_of_the_model_as_config_does(tmp_path: Path) -> None:
    """The schema that editors know has them beside the others too; a slip is refused, of whatever target."""
    file = tmp_path / "run.toml"
    file.write_text('target = "gcn"\nnprocs = 2\nepochs = 5\nhidden = 7\n[options]\nhidden = 8\n')
    spec = LaunchSpec.from_file(file)
    assert (spec.nprocs, spec.options) == (2, {"epochs": 5, "hidden": 8})
    for target in ("script.py", "gcn"):
        file.write_text(f'target = "{target}"\nnproc = 2\n')
        with pytest.raises(SpecError, match=r"nproc: no such option; did you mean nproc_per_node\?"):
            start(LaunchSpec.from_file(file))


def test_a_broken_plug_in_breaks_only_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its name says why it cannot be used; the others can."""
    models = {**plugins.table()[plugins.MODELS.name], "broken": "no_such_module:Model"}
    monkeypatch.setattr(plugins, "_table", {**plugins.table(), plugins.MODELS.name: models})
    assert set(plugins.make_all.__wrapped__(plugins.MODELS)) == {"calibration", "gcn", "mnist"}  # as at the first call
    assert "left out: model 'broken' (no_such_module:Model) cannot be loaded" in capsys.readouterr().err
    with pytest.raises(PluginError, match=r"model 'broken' .* cannot be loaded: ModuleNotFoundError"):
        plugins.load_model("broken")


def _task(what: Target, /, **values: Any) -> Task[LaunchSpec]:
    return make_task(LaunchSpec, what, values, {})


_LETTERS = st.characters(codec="utf-8", exclude_characters="\0")  # NUL is refused
_TEXTS = st.text(_LETTERS, max_size=8) | st.sampled_from(["-out", "--", "a b", "é", "path", "tuple"])
_VALUES = st.fixed_dictionaries({}, optional={
    "widths": st.lists(st.integers(-5, 5)).map(tuple), "names": st.lists(_TEXTS), "seed": st.integers(0, 9),
    "rate": st.none() | st.floats(allow_nan=False, allow_infinity=False), "flag": st.booleans(),
    "files": st.lists(_TEXTS.filter(bool).map(Path)).map(tuple), "interface": _TEXTS.filter(bool),
    "by_name": st.dictionaries(_TEXTS, st.lists(st.floats(-1, 1))),
    "inner": st.builds(_Inner, width=st.integers(), folder=_TEXTS.filter(bool).map(Path)),
})  # fmt: skip


@pytest.mark.usefixtures("_rich")
@given(_VALUES)
def test_every_value_makes_the_way(values: dict[str, Any]) -> None:
    """Of its own type, and equal: lists, optional ones, paths, and what begins with a dash."""
    task = _task(Target("model", "rich"), **values, backend="torch")
    taken = decode_task(encode_task(task), ())
    assert task.options
    assert taken.options
    for name in _Rich.model_fields:
        ours, theirs = getattr(task.options, name), getattr(taken.options, name)
        if name == "inner":
            ours, theirs = dict(ours), dict(theirs.__dict__)
        assert (type(theirs), theirs) == (type(ours), ours)
    assert taken.options.to_json() == json.loads(json.dumps(task.options.to_json()))
    assert taken.spec.to_json() == {name: task.spec.to_json()[name] for name in taken.spec.to_json()}


def test_a_text_that_fits_into_no_variable_is_refused() -> None:
    """A notebook's source, for one; Linux would refuse to start mpirun."""
    task = _task(Target("module", "tool"), target="-m tool")
    with pytest.raises(SpecError, match=r"-m tool: its source, .* are 12\d{4} bytes together, .* holds 120000: "):
        encode_task(replace(task, target=replace(task.target, source="é" * 20_000)))


@pytest.mark.parametrize(("change", "words"), [
    ({"version": "0.0.9"}, "launch is unilaunch 0.0.9, and this host has"),
    ({"target": {"kind": "script", "name": "none.py"}}, "script none.py: no such file"),
    ({"target": {"kind": "model", "name": "none"}}, "no model 'none'"),
])  # fmt: skip
def test_what_does_not_fit_this_host_is_refused(change: dict[str, Any], words: str) -> None:
    """In one line: another version, a script or a model that only the launching host has."""
    told = json.loads(encode_task(_task(Target("model", "gcn"), backend="torch")))
    with pytest.raises((SpecError, PluginError), match=words):
        decode_task(json.dumps(told | change), ())
