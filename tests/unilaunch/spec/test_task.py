"""The task of a rank: options over environment over file, what they may say, its way to the ranks; who needs MPI."""

import json
import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field
from typing_extensions import override

import unilaunch
from unilaunch.errors import PluginError, SpecError
from unilaunch.interfaces import plugins
from unilaunch.record import replace
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.mpi_programs import LIBRARIES, find_import
from unilaunch.spec.options import parse
from unilaunch.spec.placeholders import placeholder_values, replace_placeholders
from unilaunch.spec.reading import make_task, read_file, read_task
from unilaunch.spec.run_spec import RunSpec, Spec, validate
from unilaunch.spec.schema import SchemaCommand, SchemaSpec
from unilaunch.spec.target import Target
from unilaunch.spec.task import Task, decode_task, encode_task
from unilaunch.spec.variables import describe_services, read_variables
from unilaunch_gcn.model import GcnModel
from unilaunch_gcn.spec import GcnSpec
from unilaunch_mnist.spec import MnistSpec

SHIPPED = Path(unilaunch.__file__).parent / "run.schema.json"
EXAMPLE = Path(__file__).parents[3] / "examples" / "run.toml"


def _options(task: Task[RunSpec]) -> GcnSpec:
    assert isinstance(task.options, GcnSpec)
    return task.options


def test_option_wins_over_environment_over_file(tmp_path: Path) -> None:
    """Each field for itself; -H and --hostfile are one option, in two forms."""
    (tmp_path / "run.toml").write_text('seed = 1\nlr = 0.5\nepochs = 1\nbackend = "torch"\n')
    environ = {"UNILAUNCH_LR": "0.25", "UNILAUNCH_EPOCHS": "2"}
    task = read_task(RunSpec, {"config": str(tmp_path / "run.toml"), "epochs": "3"}, environ)
    assert (task.spec.seed, _options(task).lr, _options(task).epochs) == (1, 0.25, 3)
    (tmp_path / "run.yaml").write_text("target: mnist\nnprocs: 2\nseed: 7\n")  # of run too, which has no nprocs
    environ = {"UNILAUNCH_CONFIG": str(tmp_path / "run.yaml"), "UNILAUNCH_TARGET": "gcn"}
    assert [read_task(kind, {}, environ).spec.seed for kind in (RunSpec, LaunchSpec)] == [7, 7]
    assert read_task(RunSpec, {}, environ).target.name == "gcn"
    with pytest.raises(SpecError, match=r"missing\.yaml: cannot be read"):
        read_task(RunSpec, {}, {"UNILAUNCH_CONFIG": "missing.yaml"})
    assert read_task(RunSpec, {}, {}).spec.backend == "torch"  # so the written spec repeats the run
    hosts = read_task(LaunchSpec, {"hosts": "a:2", "backend": "torch"}, {"UNILAUNCH_HOSTFILE": "hosts"}).spec
    assert (hosts.hosts, hosts.hostfile) == ("a:2", None)


def test_written_spec_can_be_given_back(tmp_path: Path) -> None:
    task = read_task(RunSpec, {"epochs": "7", "seed": "5", "backend": "torch"}, {})
    written = task.spec.model_dump(mode="json") | {"options": _options(task).model_dump(mode="json")}
    (tmp_path / "spec.json").write_text(json.dumps(written))
    again = read_task(RunSpec, {"config": str(tmp_path / "spec.json")}, {})
    assert (again.spec, again.options) == (task.spec, task.options)


@pytest.mark.parametrize(("file", "typed", "environ", "words"), [
    ("", {"seed": "x", "epochs": "0"}, {"UNILAUNCH_LR": "-1"}, "--seed: .*--epochs: .*UNILAUNCH_LR: must"),
    ("", {"target": "resnet"}, {}, "no model 'resnet'"), ("", {"num_parts": "3"}, {}, "--num-parts 3"),
    ("", {"colour": "red"}, {}, "--colour: no such option"), ("", {"batch_size": "64"}, {}, "--batch-size: no such"),
    ("", {"backend": "jax"}, {}, "no backend 'jax'; installed: mindspore, torch"),
    ("", {}, {"UNILAUNCH_SEEDS": "3"}, "UNILAUNCH_SEEDS names no option; did you mean seed"),
    ('options = {epochs = "none"}\n', {}, {}, "run.toml: epochs: must be a whole number"),
    ("options = 3\n", {}, {}, "run.toml: options: expected"), ("batch_size = 64\n", {}, {}, "run.toml: batch_size: no"),
    ('target = "gcn"\nargs = 5\n', {}, {}, "args: must be a list, not 5"),
    ('target = "gcn"\nargs = [1, 2]\n', {}, {}, "args.0: must be a valid string, not 1"),
    ('target = "gcn"\nargs = ["fast"]\n', {}, {}, "args: gcn is a model and has options, no arguments: fast"),
    ('target = "a:f"\nargs = 5\n[options]\nlr = 1\n', {}, {}, "args: must be a list of text, not 5"),
    ('target = "a:f"\n[options]\nday = 2020-01-01\n', {}, {}, "options: day: cannot be sent to the ranks"),
])  # fmt: skip
def test_faults_name_their_source(
    file: str, typed: dict[str, Any], environ: dict[str, str], words: str, tmp_path: Path
) -> None:
    """The option, the variable or the file, as the user wrote it; all faults in one line."""
    (tmp_path / "run.toml").write_text(file)
    with pytest.raises((SpecError, PluginError), match=f"^.*{words}.*$"):
        read_task(RunSpec, {"config": str(tmp_path / "run.toml"), **typed}, environ).check(2)


def test_variables_of_others_are_left_alone() -> None:
    """A shell may hold both models'; Kubernetes makes some in every pod, for a Service of the name of an option."""
    environ = {"UNILAUNCH_BATCH_SIZE": "64", "UNILAUNCH_HIDDEN": "7"}
    assert _options(read_task(RunSpec, {}, environ)).hidden == 7
    assert read_task(RunSpec, {"target": "mnist"}, environ).options == MnistSpec(batch_size=64)
    services = {
        "UNILAUNCH_METRICS_PORT": "tcp://10.0.0.1:9464", "UNILAUNCH_SERVICE_HOST": "10.0.0.1",
        "UNILAUNCH_SERVICE_PORT_METRICS": "80", "UNILAUNCH_PORT_80_TCP_ADDR": "10.0.0.1",
        "UNILAUNCH_GCN_PORT": "udp://[fd00::1]:53",
    }  # fmt: skip
    port = {"UNILAUNCH_MASTER_PORT": "29500", "HOME": "/root"}
    assert read_variables(services | port, ["master_port"], lambda: [["metrics_port"]]) == {"master_port": "29500"}
    assert "UNILAUNCH_GCN_PORT and 4 more" in describe_services(services | port)
    fields = {"metrics_port": "9464", "data_dir": "/data"}
    own = {"UNILAUNCH_METRICS_PORT": "9464", "UNILAUNCH_DATA": "/data"}  # the data folder has a shorter name
    assert (read_variables(own, [], lambda: [fields]), describe_services(own)) == (fields, "")
    for value, port_of_rank_0 in (("tcp://10.0.0.1:80", None), ("29500", 29500)):
        assert read_task(RunSpec, {"target": "-m tool"}, {"MASTER_PORT": value}).spec.master_port == port_of_rank_0


def test_each_format_says_the_same(tmp_path: Path) -> None:
    """TOML, YAML and JSON; a dash in a name is an underscore, and a byte order mark is no part of the file."""
    for name, text in (
        ("run.toml", 'backend = "torch"\nmaster-port = 4000\n[options]\nepochs = 3\n'),
        ("run.yaml", "backend: torch\nmaster_port: 4000\noptions: {epochs: 3}\n"),
        ("run.json", '{"backend": "torch", "master_port": 4000, "options": {"epochs": 3}}'),
    ):
        (tmp_path / name).write_text("\ufeff" + text, encoding="utf-8")
        assert read_file(tmp_path / name) == {"backend": "torch", "master_port": 4000, "options": {"epochs": 3}}


@pytest.mark.parametrize(("name", "text"), [
    ("a.toml", b"backend ="), ("a.yaml", b"a: [1"), ("a.json", b"{"), ("a.txt", b""), ("a.yaml", b"- 1"),
    ("a.yaml", b"!!python/object/apply:os.system [ls]"), ("a.toml", b"\xff\xfe"), ("a.toml", None),
    # A field that is there twice: the last one counted, and nothing was said.
    ("a.toml", b"seed = 1\nseed = 2\n"), ("a.json", b'{"env": {"seed": "1", "seed": "2"}}'),
    ("a.yaml", b"options: {seed: 1, seed: 2}"), ("a.toml", b"weight-seed = 1\nweight_seed = 2\n"),
    ("a.yaml", b"a: &a [1]\nb: [*a, *a]\n"), ("a.yaml", b"#" * (1 << 20) + b"\nseed: 1\n"), ("/dev/zero", None),
], ids=lambda value: str(value)[:30])  # fmt: skip
def test_unreadable_file_is_named(name: str, text: bytes | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text)
    with pytest.raises(SpecError, match=name) as refusal:
        read_file(tmp_path / name)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("fields", "words"), [
    ({"timeout": "nan"}, "--timeout"), ({"timeout": "0"}, "--timeout"), ({"threads": "0"}, "--threads"),
    ({"hosts": ""}, "--hosts: must be a name or an address, not ''"), ({"ouput_dir": "x"}, "did you mean output_dir"),
    ({"device": "gpu"}, "'cuda' or 'npu', not 'gpu'"), ({"seed": 2**32}, "--seed"), ({"seed": "-1"}, "not '-1'"),
    ({"log_level": "LOUD"}, "'WARNING' or 'ERROR', not 'LOUD'"), ({"nprocs": True}, "whole number, not 'true'"),
    # Linux sends at most 127 probes: with more the control connection could not be made.
    ({"host_timeout": "86401"}, "--host-timeout: must be less than or equal to 86400"),
    ({"output_dir": "runs/{job:5}"}, "--output-dir: must be a folder whose placeholders are"),
    ({"output_dir": ""}, "--output-dir: must be a path, not ''"),  # as of a variable that is not set
    ({"hosts": "a\0b"}, "NUL"), ({"env": {"A": "\0"}}, "NUL"), ({"args": ["x", "\0"]}, "NUL"),
    ({"output_dir": Path("a\0")}, "NUL"), ({"mca": [["a", "\0"]]}, "NUL"),
    ({"mca": {"btl self": "1"}}, "the parameter's name and its value, as two words: --mca btl self"),
], ids=str)  # fmt: skip
def test_values_out_of_range_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        validate(LaunchSpec, fields, {})


def test_forms_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path may begin at the home, since no shell replaces the ~ of --cwd=~/runs; mca is a dict, pairs, or JSON."""
    monkeypatch.setenv("HOME", "/home/me")
    spec = validate(LaunchSpec, {"output_dir": "~/runs", "cwd": "~/code"}, {})
    assert (spec.output_dir, spec.cwd) == (Path("/home/me/runs"), Path("/home/me/code"))
    pairs = (("btl", "self"), ("a", "1"))
    forms: list[Any] = [{"btl": "self", "a": 1}, [["btl", "self"], ["a", "1"]], pairs]
    assert [LaunchSpec(mca=each).mca for each in forms] == [pairs] * 3
    assert read_task(LaunchSpec, {}, {"UNILAUNCH_MCA": '{"btl": "self", "a": 1}'}).spec.mca == pairs
    with pytest.raises(SpecError, match=r"^nprocs: must be greater.*oversubscribed: no such option"):
        LaunchSpec(nprocs=0, oversubscribed=True)  # type: ignore[call-arg]


@pytest.mark.parametrize(("environ", "job", "array"), [
    ({"SLURM_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "0"}, "17", "0"), ({"SLURM_ARRAY_TASK_ID": "2"}, "own", "2"),
    ({"PBS_JOBID": "8[3].head/x", "PBS_ARRAY_INDEX": "3"}, "8[3].head_x", "3"),
    ({"JOB_ID": "5", "SGE_TASK_ID": "7"}, "5", "7"), ({"SGE_TASK_ID": "undefined"}, "own", None), ({}, "own", None),
])  # fmt: skip
def test_what_placeholders_stand_for(environ: dict[str, str], job: str, array: str | None) -> None:
    if array is None:
        with pytest.raises(SpecError, match="index in an array of jobs, and none of SLURM_ARRAY_TASK_ID"):
            replace_placeholders(Path("runs/{array}"), placeholder_values(environ, "own"))
        return
    found = replace_placeholders(Path("runs/{job}/{array}-{date}"), placeholder_values(environ, "own"))
    assert re.fullmatch(re.escape(f"runs/{job}/{array}-") + r"\d{8}-\d{6}", str(found))
    assert replace_placeholders(found, {}) == found


@pytest.mark.parametrize(("line", "wrong"), [
    ('mca = {btl = "self", a = 1}', ""), ("epochs = 3", ""), ("nprocs = 0", "0"), ('device = "gpu"', "gpu"),
    ("oversubscribed = true", "oversubscribed"), ('[mpi]\nbind_to = "core"', "mpi"), ("[env]\nN = 1", "1"),
])  # fmt: skip
def test_the_schema_allows_what_is_read(line: str, wrong: str, tmp_path: Path) -> None:
    """The example as it is, and with one more line."""
    jsonschema = import_module("jsonschema")  # it has no types
    (file := tmp_path / "run.toml").write_text(text := line if wrong else f"{line}\n{EXAMPLE.read_text()}")
    errors = list(jsonschema.Draft202012Validator(json.loads(SHIPPED.read_text())).iter_errors(tomllib.loads(text)))
    if not wrong:
        assert errors == []
        assert read_task(LaunchSpec, {"config": str(file)}, {}).spec.nprocs == 2
        return
    assert [error for error in errors if wrong in error.message]
    with pytest.raises(SpecError, match=wrong):
        read_task(LaunchSpec, {"config": str(file)}, {})


def test_the_schema_that_is_shipped_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    SchemaCommand().run(SchemaSpec())
    assert capsys.readouterr().out == SHIPPED.read_text(), "unilaunch schema > unilaunch/run.schema.json"


@pytest.mark.parametrize(("files", "target", "expected"), [
    ({"train.py": "import torch\n"}, Target("script", "train.py"), None),
    ({"train.py": "def main():\n    import horovod.torch as hvd\n"}, Target("script", "train.py"), "horovod"),
    ({"train.py": "import net\n", "net.py": "import petsc4py\n"}, Target("script", "train.py"), "petsc4py"),
    ({"train.py": "from lib.io import read\n", "lib/__init__.py": "", "lib/io.py": "from . import mesh\n",
      "lib/mesh.py": "import mpi4py.MPI\n"}, Target("script", "train.py"), "mpi4py"),
    ({"app/__init__.py": "", "app/__main__.py": "import mpi4py\n"}, Target("module", "app"), "mpi4py"),
    ({"app.py": "from mpi4py import MPI\n"}, Target("function", "app:main"), "mpi4py"),
    ({}, Target("function", "__main__:f", "import mpi4py\ndef f(): pass\n"), "mpi4py"),
    ({"train.py": "import mpi4py\n(\n"}, Target("script", "train.py"), None),
], ids=str)  # fmt: skip
def test_the_library_of_mpi_that_a_program_imports(
    files: dict[str, str], target: Target, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anywhere in its file, or in a module of its own; a file that Python cannot read says nothing."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert find_import(target, LIBRARIES) == expected


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
    typed = parse(["run", "rich", "--backend", "torch", *words])
    assert dict(read_task(RunSpec, typed, environ).options or {})[field] == value


def test_a_spec_from_a_file_takes_the_options_of_the_model_as_config_does(tmp_path: Path) -> None:
    """The schema that editors know has them beside the others too; a slip is refused, of whatever target."""
    file = tmp_path / "run.toml"
    file.write_text('target = "gcn"\nnprocs = 2\nepochs = 5\nhidden = 7\n[options]\nhidden = 8\n')
    spec = LaunchSpec.from_file(file)
    assert (spec.nprocs, spec.options) == (2, {"epochs": 5, "hidden": 8})
    for target in ("script.py", "gcn"):
        file.write_text(f'target = "{target}"\nnproc = 2\n')
        with pytest.raises(SpecError, match=r"nproc: no such option; did you mean nproc_per_node\?"):
            unilaunch.start(LaunchSpec.from_file(file))


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
    told = json.loads(encode_task(_task(Target("model", "gcn"), backend="torch")))
    with pytest.raises((SpecError, PluginError), match=words):
        decode_task(json.dumps(told | change), ())
