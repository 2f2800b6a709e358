"""The JSON schema of a file of options: it is current, and what it allows is what is read."""

import json
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import unilaunch
from unilaunch.errors import SpecError
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.reading import read_task
from unilaunch.spec.schema import SchemaCommand, SchemaSpec

SHIPPED = Path(unilaunch.__file__).parent / "run.schema.json"
EXAMPLE = Path(__file__).parents[3] / "examples" / "run.toml"


def test_the_schema_that_is_shipped_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    """Made by `unilaunch schema > unilaunch/run.schema.json`, with the models of this distribution."""
    SchemaCommand().run(SchemaSpec())
    assert capsys.readouterr().out == SHIPPED.read_text(), "unilaunch schema > unilaunch/run.schema.json"


@pytest.mark.parametrize(("line", "wrong"), [
    ("", ""), ("nprocs = 0", "0"), ('device = "gpu"', "gpu"), ("oversubscribed = true", "oversubscribed"),
    ('mca = {btl = "self", a = 1}', ""), ('mca = "btl"', "btl"), ('[mpi]\nbind_to = "core"', "mpi"),
    ("[env]\nN = 1", "1"), ("epochs = 3", ""),
])  # fmt: skip
def test_the_schema_allows_what_is_read(line: str, wrong: str, tmp_path: Path) -> None:
    """The example as it is, and with one more line."""
    jsonschema = import_module("jsonschema")  # it has no types
    text = line if wrong else f"{line}\n{EXAMPLE.read_text()}"
    (tmp_path / "run.toml").write_text(text)
    errors = list(jsonschema.Draft202012Validator(json.loads(SHIPPED.read_text())).iter_errors(tomllib.loads(text)))
    if not wrong:
        assert errors == []
        assert read_task(LaunchSpec, {"config": str(tmp_path / "run.toml")}, {}).spec.nprocs == 2
        return
    assert [error for error in errors if wrong in error.message]
    with pytest.raises(SpecError, match=wrong):
        read_task(LaunchSpec, {"config": str(tmp_path / "run.toml")}, {})
