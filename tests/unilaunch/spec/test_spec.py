"""The spec, from files and variables, and the messages for faults in them."""

from pathlib import Path
from typing import Any

import pytest

from unilaunch.errors import SpecError
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.reading import read_file, read_task
from unilaunch.spec.run_spec import RunSpec, validate
from unilaunch.spec.variables import describe_services, read_variables

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
