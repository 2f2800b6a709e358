"""What is light stays light, and the public names are the ones that are promised."""

import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import unilaunch
from unilaunch.interfaces import plugins

HEAVY = {"torch", "mindspore", "numpy", "scipy", "mpi4py"}


LIGHT = (
    "import unilaunch; unilaunch.RunSpec; unilaunch.World",
    "from unilaunch.spec.options import parse; parse(['--help'])",
    "from unilaunch.cli import main; sys.argv = ['unilaunch', 'partition', '--help']; main()",
    "from unilaunch.spec.options import parse; parse(['run', '--epochs', '3'])",
)


def test_no_module_hides_one_of_pythons() -> None:
    """`python unilaunch/__main__.py`, as msrun runs it, looks for every module in this folder first."""
    assert not {path.stem for path in Path(unilaunch.__file__).parent.iterdir()} & sys.stdlib_module_names


def test_light_paths_import_nothing_heavy() -> None:
    """No framework, no numpy, no mpi4py on `import` and on `--help`."""
    lines = "".join(f"try:\n    {program}\nexcept SystemExit: pass\n" for program in LIGHT)
    watched = f"import sys\n{lines}print(sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", watched], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_launchers_child_imports_little_before_it_has_an_agent() -> None:
    """Each of them pays for it; the agent imports the rest once."""
    program = (
        "import sys, unilaunch.agent.under_launcher\n"
        "from unilaunch.launchers import detect\n"
        "detect({})\n"
        "heavy = {'typing_extensions', 'importlib.metadata', 'pydantic', 'psutil', 'unilaunch.launchers.mpirun'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
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


def test_exceptions_and_base_classes_are_public() -> None:
    """Each exception of unilaunch's that a caller can get, and what each plug-in of ours extends."""
    modules = pkgutil.walk_packages(unilaunch.__path__, "unilaunch.")
    found = [vars(import_module(module.name)) for module in modules if not module.name.endswith("__main__")]
    classes = {one for names in found for one in names.values() if isinstance(one, type)}
    errors = {one.__name__ for one in classes if issubclass(one, unilaunch.UnilaunchError)}
    assert errors <= set(unilaunch.__all__)
    assert len(errors) > 14
    public = tuple(getattr(unilaunch, name) for name in ("Backend", "Command", "JobFile", "Launcher", "Model"))
    groups = (plugins.BACKENDS, plugins.COMMANDS, plugins.JOB_FILES, plugins.LAUNCHERS,
              plugins.MODELS)  # fmt: skip
    for group, base in zip(groups, public, strict=True):
        assert all(isinstance(one, base) for one in plugins.make_all(group).values())
