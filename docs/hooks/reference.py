"""mkdocs hook: writes the reference of commands, options and public names from the specs and `__all__`.

It also puts what the code lists in place of a mark `<!-- made: NAME -->` on a page.
"""

import argparse
import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import unilaunch
from unilaunch.interfaces import plugins
from unilaunch.launchers import own_prefixes
from unilaunch.machine.variables import reasons
from unilaunch.spec.help import EXAMPLES, STARTS
from unilaunch.spec.options import CORE, HELP, Parser, Switch, make_parser, model_options

Row = tuple[str, str, str]
#: The public packages, by their anchors on the page.
_PACKAGES = {
    "unilaunch": "unilaunch",
    "graph": "unilaunch_graph",
    "torch": "unilaunch_graph.torch",
    "mindspore": "unilaunch_graph.mindspore",
}
#: The beginning of each page.
_HEADS = {
    "commands": """# Commands

This page is made from the program's own descriptions. `unilaunch` and `python -m unilaunch` are the same program.
`unilaunch COMMAND --help` shows the options of a command; `unilaunch --print-completion bash` completes them.
""",
    "options": """# Options

This page is made from the specs that check the options. The options of the first two sections belong to `launch` only;
all others belong to `run` and `launch`. Each option can also stand in the file of `--config` and in a variable:
`--output-dir` is `output_dir` in a file and `UNILAUNCH_OUTPUT_DIR` in the environment. An option wins over the
environment, and the environment over the file.
""",
    "python": """# Python

This page is made from the docstrings. A name that is not on this page is private and may change.
[`unilaunch`](#python-unilaunch) starts jobs. [`unilaunch_graph`](#python-graph) (`import unilaunch_graph as ug`)
divides graphs; a network uses [`ug.torch`](#python-torch) or [`ug.mindspore`](#python-mindspore).
""",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {"commands": _commands(), "options": _options(), "python": _python()}
    for name, lines in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(lines)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return the page with its marks replaced."""
    return _MARK.sub(lambda mark: "\n".join(_MADE[mark[1]]()), markdown)


def _staying() -> Iterator[str]:
    """Give the table of the variables that stay on their host."""
    yield from ("| variables | names |", "|---|---|")
    for why, names in reasons(own_prefixes()).items():
        yield f"| {why} | {', '.join(f'`{name}`' for name in names)} |"


#: What stands in place of a mark.
_MADE = {"staying": _staying}
_MARK = re.compile(r"<!-- made: (\w+) -->")


def _commands() -> Iterator[str]:
    """Give the page of all commands; the options of `run` and `launch` have a page of their own."""
    yield _HEADS["commands"]
    plugin_commands = plugins.commands()
    for command in [*CORE, *plugin_commands]:
        plugin = plugin_commands.get(command)
        about = plugin.help if plugin else HELP[command]
        yield f"## unilaunch {command} {{#{command}}}\n"
        yield f"{_sentence(about)}\n"
        yield from _examples(plugin.examples if plugin else EXAMPLES[command])
        if command in STARTS:
            yield f"[The options of `{command}`](options.md)\n"
        else:
            yield from _table(_rows(make_parser(command)[1][command].options()))


def _options() -> Iterator[str]:
    """Give the page of the options of `run` and `launch`, of every model and of every job file."""
    yield _HEADS["options"]
    parser = make_parser("launch")[1]["launch"]
    groups = dict(parser.groups())
    common = [*groups.pop("positional arguments"), *groups.pop("options")]
    first = {title: options for title, options in groups.items() if not title.startswith("options of")}
    models = {name: model for name, model in plugins.models().items() if not model.is_internal}
    of_models = {f"options of {name}": model_options(model) for name, model in models.items()}
    for title, options in {**first, "every target": common, **of_models}.items():
        yield f"## {_sentence(title).rstrip('.')}\n"
        yield from _table(_rows(options))
    for kind in plugins.names(plugins.JOB_FILES):
        yield f"## Options of --emit {kind}\n"
        yield from _table(_rows(_own(make_parser("launch", ["--emit", kind])[1]["launch"], kind)))


def _own(parser: Parser, kind: str) -> Sequence[argparse.Action]:
    return dict(parser.groups()).get(f"options of --emit {kind}", [])


def _rows(options: Iterable[argparse.Action]) -> Iterator[Row]:
    """Give the names, the value and the meaning of each option."""
    for option in options:
        if "--help" in option.option_strings:
            continue
        names = option.shown if isinstance(option, Switch) else tuple(option.option_strings)
        metavar = option.metavar or ""
        value = " ".join(metavar) if isinstance(metavar, tuple) else metavar
        value = value if names else ""
        yield ", ".join(f"`{name}`" for name in names or (str(metavar),)), value, (option.help or "").replace("%%", "%")


def _table(rows: Iterable[Row]) -> Iterator[str]:
    lines = [f"| {names} | {_code(value)} | {_cell(text)} |" for names, value, text in rows]
    if lines:
        yield from ('<div class="options" markdown>', "", "| option | value | meaning |", "|---|---|---|", *lines, "")
        yield "</div>\n"
    else:
        yield "It has no options.\n"


def _code(value: str) -> str:
    if value.startswith("{"):
        return " ".join(f"`{one}`" for one in value.strip("{}").split(","))
    return f"`{value}`" if value else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _examples(examples: Sequence[str]) -> Iterator[str]:
    if examples:
        yield from ("```bash", *examples, "```", "")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _python() -> Iterator[str]:
    """Give the page of the public names, for mkdocstrings."""
    yield _HEADS["python"]
    for anchor, package in _PACKAGES.items():
        yield f"## {package} {{#python-{anchor}}}\n"
        for name in _public(package):
            yield f"::: {package}.{name}\n"
            yield from _fields(name) if package == "unilaunch" else ()


def _fields(name: str) -> Iterator[str]:
    """Give the fields of a spec; those of its bases stand there."""
    kind = getattr(unilaunch, name)
    own = [field for field in getattr(kind, "model_fields", ()) if field in kind.__annotations__]
    if own:
        yield from ("| field | default | meaning |", "|---|---|---|")
        for field in own:
            info = kind.model_fields[field]
            default = "" if info.is_required() or info.default_factory else f"`{info.default!r}`"
            yield f"| `{field}` | {default} | {_cell(info.description or '')} |"
        yield ""


def _public(package: str) -> list[str]:
    """Return the names in a package's `__all__`, read from its text: an import would load a framework."""
    found = find_spec("unilaunch_graph" if package != "unilaunch" else package)
    path = Path(found.origin or "").parent.joinpath(*package.split(".")[1:], "__init__.py") if found else Path()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            others = {f"{package}.{name}" for name in names} & {*_PACKAGES.values()}
            public = [name for name in names if not name.startswith("__") and f"{package}.{name}" not in others]
            return sorted(public, key=lambda name: name[0].isupper())  # functions first
    raise ValueError(f"{path}: it has no __all__")
