"""The task of a rank: options over environment over file, what a file may say, and how faults in them are told."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from unilaunch.errors import PluginError, SpecError
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.placeholders import placeholder_values, replace_placeholders
from unilaunch.spec.reading import read_file, read_task
from unilaunch.spec.run_spec import RunSpec, validate
from unilaunch.spec.task import Task
from unilaunch.spec.variables import describe_services, read_variables
from unilaunch_gcn.spec import GcnSpec
from unilaunch_mnist.spec import MnistSpec


def _options(task: Task[RunSpec]) -> GcnSpec:
    assert isinstance(task.options, GcnSpec)
    return task.options


def test_option_wins_over_environment_over_file(tmp_path: Path) -> None:
    """Each field for itself."""
    (tmp_path / "run.toml").write_text('seed = 1\nlr = 0.5\nepochs = 1\nbackend = "torch"\n')
    environ = {"UNILAUNCH_LR": "0.25", "UNILAUNCH_EPOCHS": "2"}
    task = read_task(RunSpec, {"config": str(tmp_path / "run.toml"), "epochs": "3"}, environ)
    assert (task.spec.seed, _options(task).lr, _options(task).epochs) == (1, 0.25, 3)
    assert read_task(RunSpec, {}, {"UNILAUNCH_TARGET": "mnist"}).target.name == "mnist"
    assert read_task(RunSpec, {}, {}).spec.backend == "torch"  # so the written spec repeats the run


def test_hosts_on_the_line_win_over_a_hostfile_of_the_environment() -> None:
    """Both are one option, in two forms: the user has typed one of them."""
    task = read_task(LaunchSpec, {"hosts": "a:2", "backend": "torch"}, {"UNILAUNCH_HOSTFILE": "hosts"})
    assert (task.spec.hosts, task.spec.hostfile) == ("a:2", None)


def test_written_spec_can_be_given_back(tmp_path: Path) -> None:
    """`spec.json` repeats the run."""
    task = read_task(RunSpec, {"epochs": "7", "seed": "5", "backend": "torch"}, {})
    assert task.options
    written = task.spec.model_dump(mode="json") | {"options": task.options.model_dump(mode="json")}
    (tmp_path / "spec.json").write_text(json.dumps(written))
    again = read_task(RunSpec, {"config": str(tmp_path / "spec.json")}, {})
    assert (again.spec, again.options) == (task.spec, task.options)


@pytest.mark.parametrize(("file", "given", "environ", "words"), [
    ("", {"seed": "x", "epochs": "0"}, {"UNILAUNCH_LR": "-1"}, ["--seed: ", "--epochs: ", "UNILAUNCH_LR: must"]),
    ("", {"target": "resnet"}, {}, ["no model 'resnet'"]), ("", {"num_parts": "3"}, {}, ["--num-parts 3"]),
    ("", {"colour": "red"}, {}, ["--colour: no such option"]),
    ("", {"backend": "jax"}, {}, ["no backend 'jax'; installed: mindspore, torch"]),
    ('options = {epochs = "none"}\n', {}, {}, ["run.toml: epochs: must be a whole number"]),
    ("options = 3\n", {}, {}, ["run.toml: options: expected"]),
], ids=lambda value: str(value[0]) if isinstance(value, list) else "")  # fmt: skip
def test_faults_name_their_source(
    file: str, given: dict[str, Any], environ: dict[str, str], words: list[str], tmp_path: Path
) -> None:
    """The option, the variable or the file, as the user wrote it; all faults in one line."""
    (tmp_path / "run.toml").write_text(file)
    with pytest.raises((SpecError, PluginError)) as refusal:
        read_task(RunSpec, {"config": str(tmp_path / "run.toml"), **given}, environ).check(2)
    assert [word for word in words if word not in str(refusal.value)] == []
    assert "\n" not in str(refusal.value)


def test_another_models_variable_is_left_alone(tmp_path: Path) -> None:
    """A shell may hold both models' variables; on the command line and in a file it is a slip."""
    environ = {"UNILAUNCH_BATCH_SIZE": "64", "UNILAUNCH_HIDDEN": "7"}
    assert _options(read_task(RunSpec, {}, environ)).hidden == 7
    assert read_task(RunSpec, {"target": "mnist"}, environ).options == MnistSpec(batch_size=64)
    with pytest.raises(SpecError, match="--batch-size: no such option"):
        read_task(RunSpec, {"batch_size": "64"}, {})
    (tmp_path / "run.toml").write_text("batch_size = 64\n")
    with pytest.raises(SpecError, match=r"run\.toml: batch_size: no such option"):
        read_task(RunSpec, {"config": str(tmp_path / "run.toml")}, {})


TEXTS = {
    "run.toml": 'backend = "torch"\nmaster-port = 4000\n[options]\nepochs = 3\n',
    "run.yaml": "backend: torch\nmaster_port: 4000\noptions: {epochs: 3}\n",
    "run.json": '{"backend": "torch", "master_port": 4000, "options": {"epochs": 3}}',
}


@pytest.mark.parametrize("name", TEXTS)
def test_each_format_says_the_same(name: str, tmp_path: Path) -> None:
    """TOML, YAML and JSON; a dash in a name is an underscore, and a byte order mark is no part of the file."""
    (tmp_path / name).write_text("\ufeff" + TEXTS[name], encoding="utf-8")
    assert read_file(tmp_path / name) == {"backend": "torch", "master_port": 4000, "options": {"epochs": 3}}


@pytest.mark.parametrize(("name", "text"), [
    ("a.toml", b"backend ="), ("a.yaml", b"a: [1"), ("a.json", b"{"), ("a.txt", b""), ("a.yaml", b"- 1"),
    ("a.yaml", b"!!python/object/apply:os.system [ls]"), ("a.toml", b"\xff\xfe"), ("a.toml", None),
    # A field that is there twice: the last one counted, and nothing was said.
    ("a.toml", b"seed = 1\nseed = 2\n"), ("a.json", b'{"env": {"seed": "1", "seed": "2"}}'),
    ("a.yaml", b"options: {seed: 1, seed: 2}"), ("a.toml", b"weight-seed = 1\nweight_seed = 2\n"),
], ids=str)  # fmt: skip
def test_unreadable_file_is_named(name: str, text: bytes | None, tmp_path: Path) -> None:
    """One line with the file's name: never an empty spec."""
    if text is not None:
        (tmp_path / name).write_bytes(text)
    with pytest.raises(SpecError, match=name) as refusal:
        read_file(tmp_path / name)
    assert "\n" not in str(refusal.value)


def test_a_variable_names_the_file_of_options(tmp_path: Path) -> None:
    """The file of another command too: what only `launch` can do is left out of `run`."""
    (tmp_path / "run.yaml").write_text("nprocs: 2\nseed: 7\n")
    environ = {"UNILAUNCH_CONFIG": str(tmp_path / "run.yaml")}
    assert read_task(RunSpec, {"target": "gcn"}, environ).spec.seed == 7
    assert read_task(LaunchSpec, {"target": "gcn"}, environ).spec.nprocs == 2
    with pytest.raises(SpecError, match=r"missing\.yaml: cannot be read"):
        read_task(RunSpec, {"target": "gcn"}, {"UNILAUNCH_CONFIG": "missing.yaml"})


def test_unknown_variable_is_a_slip() -> None:
    """It is named, with the nearest field."""
    with pytest.raises(SpecError, match="UNILAUNCH_SEEDS names no option; did you mean seed"):
        read_variables({"UNILAUNCH_SEEDS": "3"}, (), lambda: [["seed", "data_dir"]])


@pytest.mark.parametrize(("name", "value"), [
    ("UNILAUNCH_METRICS_PORT", "tcp://10.0.0.1:9464"), ("UNILAUNCH_SERVICE_HOST", "10.0.0.1"),
    ("UNILAUNCH_SERVICE_PORT_METRICS", "80"), ("UNILAUNCH_PORT_80_TCP_ADDR", "10.0.0.1"),
    ("UNILAUNCH_GCN_PORT", "udp://[fd00::1]:53"),
])  # fmt: skip
def test_a_variable_of_a_service_sets_nothing(name: str, value: str) -> None:
    """Kubernetes makes it in every pod."""
    environ = {name: value, "UNILAUNCH_MASTER_PORT": "29500", "HOME": "/root"}
    assert read_variables(environ, ["master_port"], lambda: [["metrics_port"]]) == {"master_port": "29500"}
    assert name in describe_services(environ)
    fields = {"metrics_port": "9464", "data_dir": "/data"}
    own = {"UNILAUNCH_METRICS_PORT": "9464", "UNILAUNCH_DATA": "/data"}  # the data folder has a shorter name
    assert read_variables(own, [], lambda: [fields]) == fields
    assert describe_services(own) == ""


def test_the_port_of_a_service_is_no_address_of_rank_0() -> None:
    """That of a Service named master."""
    assert read_task(RunSpec, {"target": "-m tool"}, {"MASTER_PORT": "tcp://10.0.0.1:80"}).spec.master_port is None
    assert read_task(RunSpec, {"target": "-m tool"}, {"MASTER_PORT": "29500"}).spec.master_port == 29500


@pytest.mark.parametrize(("fields", "words"), [
    ({"timeout": "nan"}, "--timeout"), ({"timeout": "0"}, "--timeout"), ({"threads": "0"}, "--threads"),
    ({"hosts": ""}, "--hosts: must be a name or an address, not ''"), ({"ouput_dir": "x"}, "did you mean output_dir"),
    ({"device": "gpu"}, "'cuda' or 'npu', not 'gpu'"), ({"seed": 2**32}, "--seed"),
    ({"seed": "-1"}, "--seed: must be greater than or equal to 0, not '-1'"),
    ({"log_level": "LOUD"}, "'DEBUG', 'INFO', 'WARNING' or 'ERROR', not 'LOUD'"),
    # Linux sends at most 127 probes: with more the control connection could not be made.
    ({"host_timeout": "86401"}, "--host-timeout: must be less than or equal to 86400"),
    ({"output_dir": "runs/{job:5}"}, "--output-dir: must be a folder whose placeholders are"),
    ({"output_dir": ""}, "--output-dir: must be a path, not ''"),  # as of a variable that is not set
    ({"nprocs": True}, "--nprocs: must be a whole number, not 'true'"),
], ids=lambda value: "" if isinstance(value, str) else "=".join(map(str, *value.items())))  # fmt: skip
def test_values_out_of_range_are_refused(fields: dict[str, object], words: str) -> None:
    """At the spec, before anything is started."""
    with pytest.raises(SpecError, match=words):
        validate(LaunchSpec, fields, {})


@pytest.mark.parametrize("field", ["output_dir", "cwd"])
def test_a_path_may_begin_at_the_home(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell replaces the ~ of --output-dir=~/runs, nor that of a file: a folder of that name was made."""
    monkeypatch.setenv("HOME", "/home/me")
    assert getattr(validate(LaunchSpec, {field: "~/runs"}, {}), field) == Path("/home/me/runs")


def test_parameters_of_mpirun_are_a_dict_or_pairs() -> None:
    """In Python, in a file, and in a variable as JSON."""
    pairs = (("btl", "self"), ("a", "1"))
    given: list[Any] = [{"btl": "self", "a": 1}, [["btl", "self"], ["a", "1"]], pairs]
    assert [LaunchSpec(mca=each).mca for each in given] == [pairs] * 3
    assert read_task(LaunchSpec, {}, {"UNILAUNCH_MCA": '{"btl": "self", "a": 1}'}).spec.mca == pairs
    wrong: Any = {"btl self": "1"}
    with pytest.raises(SpecError, match="the parameter's name and its value, as two words: --mca btl self"):
        LaunchSpec(mca=wrong)


@pytest.mark.parametrize(("field", "value"), [
    ("hosts", "a\0b"), ("env", {"A": "\0"}), ("args", ["x", "\0"]), ("output_dir", Path("a\0")), ("mca", [["a", "\0"]]),
])  # fmt: skip
def test_the_letter_nul_is_refused(field: str, value: Any) -> None:
    """In Python and in a file; the system takes it nowhere, and it was a traceback."""
    with pytest.raises(SpecError, match=f"^{field}: must be text without the letter NUL, not "):
        LaunchSpec(**{field: value})
    with pytest.raises(SpecError, match=f"^--spec: {field}: must be text without the letter NUL"):
        validate(LaunchSpec, {field: value}, {field: f"--spec: {field}"})


@pytest.mark.parametrize(("environ", "job", "array"), [
    ({"SLURM_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "0"}, "17", "0"),
    ({"PBS_JOBID": "8[3].head/x", "PBS_ARRAY_INDEX": "3"}, "8[3].head_x", "3"),
    ({"JOB_ID": "5", "SGE_TASK_ID": "7"}, "5", "7"), ({"SLURM_ARRAY_TASK_ID": "2"}, "own", "2"),
])  # fmt: skip
def test_what_each_stands_for(environ: dict[str, str], job: str, array: str) -> None:
    found = replace_placeholders(Path("runs/{job}/{array}-{date}"), placeholder_values(environ, "own"))
    assert re.fullmatch(re.escape(f"runs/{job}/{array}-") + r"\d{8}-\d{6}", str(found))
    assert replace_placeholders(found, {}) == found


@pytest.mark.parametrize("environ", [{}, {"SGE_TASK_ID": "undefined"}])
def test_a_job_outside_an_array_has_no_index(environ: dict[str, str]) -> None:
    with pytest.raises(SpecError, match="index in an array of jobs, and none of SLURM_ARRAY_TASK_ID"):
        replace_placeholders(Path("runs/{array}"), placeholder_values(environ, "own"))
