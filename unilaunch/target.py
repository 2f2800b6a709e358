"""What a run runs: a model, or the user's own script, module or function."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from typing_extensions import override

from unilaunch.errors import SpecError, nearest

MODULE_MARK = "-m "


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to run.

    Attributes:
        kind: What it is.
        name: A model's name, a script's path, a module's name, or "package.module:function".
    """

    kind: Literal["model", "script", "module", "function"]
    name: str

    @override
    def __str__(self) -> str:
        """Return it as it stands in a spec: "model", "train.py", "-m package.train", "package.train:main"."""
        return MODULE_MARK + self.name if self.kind == "module" else self.name

    def find_script(self) -> None:
        """Refuse a script that is not there.

        Raises:
            SpecError: It is no file.
        """
        path = Path(self.name)
        if not path.is_file():
            kind = "is a folder" if path.is_dir() else "no such file"
            raise SpecError(f"script {self.name}: {kind} (in {Path.cwd()})")


def read_target(text: str, models: Collection[str], *, here: bool = True) -> Target:
    """Return the target that *text* names.

    Args:
        text: As it stands in a spec.
        models: The installed models.
        here: A script must exist on this machine.

    Raises:
        SpecError: It is none, or a script that does not exist.
    """
    if text.startswith(MODULE_MARK):
        return Target("module", _dotted(text.removeprefix(MODULE_MARK).strip(), "-m"))
    if text in models:
        return Target("model", text)
    if text.endswith(".py") or "/" in text:
        script = Target("script", text)
        if here:
            script.find_script()
        return script
    module, colon, function = text.partition(":")
    if colon:
        return Target("function", f"{_dotted(module, text)}:{_dotted(function, text)}")
    if Path(text).is_file():
        return Target("script", text)
    raise SpecError(
        f"no model {text!r}{nearest(text, models)}; installed: {', '.join(models) or 'none'}; a script is FILE.py, "
        "a module -m NAME, a function package.module:function"
    )


def _dotted(name: str, where: str) -> str:
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise SpecError(f"{where}: {name!r} is no name of a module or a function (package.module:function)")
    return name
