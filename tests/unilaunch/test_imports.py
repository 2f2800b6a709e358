"""What is light stays light, and the public names are the ones that are promised."""

import pkgutil
import subprocess
import sys

import pytest

import unilaunch

HEAVY = {"torch", "mindspore", "numpy", "scipy", "mpi4py"}


@pytest.mark.parametrize(
    "program",
    [
        "import unilaunch",
        "import unilaunch; unilaunch.RunSpec; unilaunch.World",
        "from unilaunch.options import parse; parse(['--help'])",
        "from unilaunch.options import parse; parse(['run', '--help'])",
        "from unilaunch.options import parse; parse(['partition', '--help'])",
        "from unilaunch.options import parse; parse(['run', '--epochs', '3'])",
    ],
)
def test_light_paths_import_nothing_heavy(program: str) -> None:
    """No framework, no numpy, no mpi4py on `import` and on `--help`."""
    watched = f"try:\n    {program}\nexcept SystemExit: pass\nimport sys\nprint(sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", watched], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_launchers_child_imports_little_before_it_has_an_agent() -> None:
    """Each of them pays for it; the agent imports the rest once."""
    program = (
        "import sys, unilaunch.agent.host\n"
        "from unilaunch.launchers import detect\n"
        "detect({})\n"
        "heavy = {'typing_extensions', 'importlib.metadata', 'pydantic', 'psutil', 'unilaunch.launchers.mpirun'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_public_names_resolve() -> None:
    """A name in __all__ is there, and is no submodule's name: the two would shadow each other."""
    assert {"LaunchResult", "LaunchSpec", "World", "__version__", "init", "launch"} < set(unilaunch.__all__)
    assert unilaunch.__all__ == sorted(unilaunch.__all__)
    assert dir(unilaunch) == unilaunch.__all__
    submodules = {module.name for module in pkgutil.iter_modules(unilaunch.__path__)}
    for name in unilaunch.__all__:
        assert getattr(unilaunch, name) is not None
        assert name not in submodules
    with pytest.raises(AttributeError, match="no attribute 'lunch'"):
        _ = unilaunch.lunch


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["partition", "--help"], ["--version"]])
def test_the_command_itself_imports_nothing_heavy(arguments: list[str]) -> None:
    """As the interpreter lists every module that it imports."""
    line = [sys.executable, "-X", "importtime", "-m", "unilaunch", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)
    imported = {entry.rpartition("|")[2].strip() for entry in done.stderr.splitlines()}
    assert "unilaunch.spec" in imported
    assert not HEAVY & imported
