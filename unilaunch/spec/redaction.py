"""Which values are secret, by the words of their names or by their own form; how to leave them out of what is kept.

There is this one rule for the spec, the events, the shown command lines, the job files and the messages.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: What stands in place of a secret value.
HIDDEN = "***"
#: Words of the names of secret values, and how such words end: "hftoken", "pgpassword".
_SECRET_WORDS = {"key", "pass", "sshpass", "pwd", "pw", "jwt", "auth", "authorization", "bearer"}
_SECRET_ENDS = (
    "password", "passwords", "passwd", "passphrase", "secret", "secrets", "credential", "credentials", "token",
    "apikey", "accesskey", "secretkey", "privatekey",
)  # fmt: skip
#: "keys" after one of these is secret, too.
_OF_KEYS = {"api", "access", "secret", "private"}
#: In front of such a word: the name is that of a number, a switch, a mark in a text, or something that all may see.
_INNOCENT_BEFORE = {
    "max", "min", "num", "n", "no", "use", "with", "per", "sep", "pad", "eos", "bos", "cls", "unk", "mask", "stop",
    "start", "end", "special", "image", "new", "public", "sort", "primary", "foreign", "partition", "group", "query",
    "forward", "backward", "single", "one", "two", "multi", "first", "second",
}  # fmt: skip
#: Behind it: the name is that of a file, a number, a kind or a part of a network.
_INNOCENT_BEHIND = {
    "file", "path", "dir", "folder", "name", "id", "ids", "type", "kind", "mode", "method", "len", "length", "size",
    "count", "limit", "budget", "index", "rate", "ratio", "sock", "ttl", "timeout", "dim", "dims", "head", "heads",
    "padding", "bias", "mask", "embedding", "embeddings", "dropout", "level", "bytes", "func", "fn", "column",
    "columns", "field", "frame", "frames", "point", "points",
}  # fmt: skip
#: Names whose value is a path, which no word of them says.
_KNOWN = {"pwd", "oldpwd", "google_application_credentials"}
#: Values of switches.
_SWITCHED = {"", "0", "1", "true", "false", "yes", "no", "on", "off", "none"}
#: Secret by their form: the tokens of well-known services, headers of HTTP, keys in PEM.
_SECRET_VALUE = re.compile(
    r"\b(?:hf_|gh[opsu]_|github_pat_|glpat-|sk-|xox[abps]-)[\w-]{16,}|\bAKIA[0-9A-Z]{16}\b|\bAIza[\w-]{30,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|\b(?:[Bb]earer|[Bb]asic)\s+\S{8,}"
    r"|-----BEGIN[A-Z ]* PRIVATE KEY-----.*", re.DOTALL,
)  # fmt: skip
#: The password of an address: postgres://user:PASSWORD@host.
_PASSWORD = re.compile(r"((?<![\w+.-])[A-Za-z][\w+.-]*+://[^\s/:@'\"]*:)[^\s/@'\"]+(?=@)")
#: A name and what gives it a value: NAME=, --name=, ?name=, "name": and Name: with a space. A name is searched from its
#: beginning only, and read once: the time is proportional to the text.
_NAMED = re.compile(r"(?<![\w.-])[\d.-]*([A-Za-z_][\w.-]*+)(?:[\"']\s*:|:\s|=)\s*")
_OPTION = re.compile(r"--?([A-Za-z][\w.-]*)")
_PAIR = re.compile(r"([-+]*[A-Za-z_][\w.-]*)=")


def is_secret_name(name: str) -> bool:
    """Return whether the value of this name is secret: HF_TOKEN, db-pass, trainer.apiKey; not MAX_TOKENS, key_file."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    if "_".join(words) in _KNOWN:
        return False
    for before, word, behind in zip(["", *words], words, (words[at:] for at in range(1, len(words) + 1)), strict=False):
        is_secret = word in _SECRET_WORDS or word.endswith(_SECRET_ENDS) or (word == "keys" and before in _OF_KEYS)
        if is_secret and before not in _INNOCENT_BEFORE and _INNOCENT_BEHIND.isdisjoint(behind):
            return True
    return False


def secret_variables(export: Iterable[str]) -> list[str]:
    """Return the names of those variables NAME=VALUE whose value is secret."""
    return [text.partition("=")[0] for text in export if redact(text) != text]


def without_secret_values(export: Iterable[str]) -> tuple[str, ...]:
    """Return the variables with NAME in place of each NAME=VALUE whose value is secret: it is to be exported before."""
    export = tuple(export)
    hidden = set(secret_variables(export))
    return tuple(name if (name := text.partition("=")[0]) in hidden else text for text in export)


def redact_words(words: Iterable[str]) -> tuple[str, ...]:
    """Return the words of a command line, with HIDDEN in place of each secret value."""
    shown: list[str] = []
    is_value = False  # of the option before it
    for word in words:
        hidden = is_value and not word.startswith("-") and word.lower() not in _SWITCHED
        shown.append(HIDDEN if hidden else redact(word))
        option = _OPTION.fullmatch(word)
        is_value = bool(option and is_secret_name(option[1]))
    return tuple(shown)


def redact(text: str) -> str:
    """Return a text with HIDDEN in place of each secret value: from a secret's name on, or what has a secret's form."""
    for named in _NAMED.finditer(text):
        value = text[named.end() :]
        if value.strip("\"'").lower() not in _SWITCHED and is_secret_name(named[1]):
            text = text[: named.end()] + HIDDEN
            break
    return _SECRET_VALUE.sub(HIDDEN, _PASSWORD.sub(rf"\1{HIDDEN}", text))


def redact_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name, as JSON has them, with HIDDEN in place of each secret value, however deep it is."""
    return {name: _redact_value(name, value) for name, value in fields.items()}


def _redact_value(name: str, value: Any) -> Any:
    if isinstance(value, str | int | float) and str(value).lower() not in _SWITCHED and is_secret_name(name):
        return HIDDEN
    match value:
        case str():
            return redact(value)
        case Mapping():
            return redact_fields(value)
        case list() | tuple() if all(isinstance(part, str) for part in value):
            return list(redact_words(value))
        case list() | tuple():
            return [_redact_value(name, part) for part in value]
    return value


def secret_arguments(words: Sequence[str]) -> dict[int, tuple[str, str]]:
    """Return where a program's arguments have a secret value: by position, the text before it and a variable's name.

    The variable can hold the value in its place: API_KEY for `--api-key=VALUE` and for `--api-key VALUE`.
    """
    places: dict[int, tuple[str, str]] = {}
    for position, (word, shown) in enumerate(zip(words, redact_words(words), strict=True)):
        if word == shown:
            continue
        pair = _PAIR.match(word)
        before = words[position - 1] if position else ""
        name = pair[1] if pair else before if is_secret_name(before) else ""
        variable = re.sub(r"\W+", "_", name.lstrip("-+"), flags=re.ASCII).upper()
        places[position] = (pair[0] if pair else "", variable or f"ARGUMENT_{position + 1}")
    return places
