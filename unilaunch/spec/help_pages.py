"""The pages of `--help`: the common options, the options of one model, or all options."""

import argparse
from collections.abc import Iterable, Sequence

from unilaunch.interfaces import plugins
from unilaunch.interfaces.model import Model
from unilaunch.spec.grammar import Parser, Switch, model_options
from unilaunch.spec.help_texts import EXAMPLES, HELP, LAYOUT, NOTES, OVERVIEW, STARTS

Sections = Iterable[tuple[str, Sequence[argparse.Action]]]


def overview(parser: Parser) -> str:
    """Return the help of `unilaunch` without a command: the list of commands."""
    listed = parser.listed_commands()
    return _draw(
        "unilaunch COMMAND [options]", OVERVIEW, EXAMPLES["unilaunch"], [("commands", listed)], NOTES["unilaunch"]
    )


def page(command: str, parser: Parser, model: Model | None, *, whole: bool) -> str:
    """Return the help of a command.

    Args:
        command: The command.
        parser: Its options.
        model: Show this model's options instead of the command's.
        whole: Show all options.
    """
    if model:
        examples = [f"{STARTS[command]} {words}" for words in model.examples]
        about = f"The options of the model {model.name}."
        note = f"unilaunch {command} --help shows the options of every target."
        return _draw(f"unilaunch {command} [options] {model.name} [its options]", about, examples,
                     [("options", [_short(action) for action in model_options(model)])], note)  # fmt: skip
    plugin = plugins.commands().get(command) if command not in HELP else None
    about = plugin.help if plugin else HELP[command]
    usage = f"unilaunch {command} [options]" + "".join(_positional(parser, command))
    sections = _chosen(parser) if command in STARTS and not whole else _all(parser)
    examples = list(plugin.examples) if plugin else [*EXAMPLES[command], *_of_models(command)]
    return _draw(usage, about[0].upper() + about[1:] + ".", examples, sections, NOTES.get(command, ""))


def _of_models(command: str) -> Iterable[str]:
    """Yield one example of each model, if the command starts models."""
    for model in plugins.models().values() if command in STARTS else ():
        yield from (f"{STARTS[command]} {words}" for words in model.examples[:1])


def _positional(parser: Parser, command: str) -> Iterable[str]:
    for action in parser.options():
        if not action.option_strings:
            yield f" [{action.metavar or action.dest.upper()}]"
            if command in STARTS:
                yield " [its arguments]"


def _chosen(parser: Parser) -> Sections:
    """Yield the most common options, each in one form."""
    by_name = {name: action for action in parser.options() for name in action.option_strings or [action.dest]}
    for heading, names in LAYOUT.items():
        if found := [_short(by_name[name]) for name in names if name in by_name]:
            yield heading, found
    for heading, actions in parser.groups():
        if heading.startswith("options of --emit"):
            yield heading, [_short(action) for action in actions]


def _all(parser: Parser) -> Sections:
    for heading, actions in parser.groups():
        yield heading, [_short(action) for action in actions]


def _short(action: argparse.Action) -> argparse.Action:
    """Return a switch without the form that is the default; return other options unchanged."""
    if not isinstance(action, Switch):
        return action
    return argparse.Action(action.shown, action.dest, nargs=0, help=action.help)


def _draw(usage: str, about: str, examples: Sequence[str], sections: Sections, note: str) -> str:
    from rich_argparse import RawDescriptionRichHelpFormatter

    class Formatter(RawDescriptionRichHelpFormatter):
        group_name_formatter = str
        text_markup = help_markup = False

    formatter = Formatter("unilaunch", max_help_position=26)
    formatter.add_text(f"usage: {usage}\n\n{about}")
    if examples:
        formatter.add_text("\n".join(["examples:", *(f"  {example}" for example in examples)]))
    for heading, actions in sections:
        formatter.start_section(heading)
        formatter.add_arguments(actions)
        formatter.end_section()
    formatter.add_text(note)
    return formatter.format_help()
