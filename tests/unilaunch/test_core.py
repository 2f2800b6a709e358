"""The core knows no model, and no module of it hides one of Python's."""

import re
import sys
from pathlib import Path

import unilaunch

CORE = Path(unilaunch.__file__).parent
#: Names, options and figures of the models that we ship; not "part" and "node", which are also words of the core.
WORDS = re.compile(
    r"\b(gcn|mnist|cora|metis|halos?|epochs?|accurac(y|ies)|data[ _]?sets?|num[-_ ]parts|checkpoint[-_]dir)\b"
    r"|\bloss(es)?\b(?! of (a|the) (host|rank))",
    re.IGNORECASE,
)
#: The default target of `run`.
DEFAULT = 'default="gcn"'


def test_no_word_of_a_model_stands_in_the_core() -> None:
    """Neither in code nor in a docstring: what the core says of a model, the model has told it."""
    sources = [path for suffix in ("py", "j2") for path in CORE.rglob(f"*.{suffix}")]
    lines = [
        f"{path.relative_to(CORE)}:{number}: {line.strip()}"
        for path in sources
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if WORDS.search(line.replace(DEFAULT, ""))
    ]
    assert len(sources) > 100
    assert lines == []


def test_no_module_hides_one_of_pythons() -> None:
    """`python unilaunch/__main__.py`, as msrun runs it, looks for every module in this folder first."""
    assert not {path.stem for path in CORE.iterdir()} & sys.stdlib_module_names
