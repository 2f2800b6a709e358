"""Checks an object against an excerpt of a published schema, as a Kubernetes with strict validation does."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

_TYPES: Mapping[str, type] = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}


def faults(fields: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with an object: where, and what the schema of its kind has there."""
    excerpt = yaml.safe_load(Path(__file__).with_name(f"{fields['kind'].lower()}.yaml").read_text())
    assert (fields["apiVersion"], fields["kind"]) == (excerpt["apiVersion"], excerpt["kind"])
    return list(_faults(fields, excerpt["openAPIV3Schema"], fields["kind"]))


def _faults(value: Any, schema: Mapping[str, Any], where: str) -> Iterator[str]:
    pattern, kind = schema.get("pattern", ""), type(value)
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str) or not re.search(pattern, str(value)):
            yield f"{where}: {value!r} is neither a whole number nor a text like {pattern}"
    elif kind is not _TYPES[schema["type"]]:
        yield f"{where}: {value!r} is no {schema['type']}"
    elif value not in schema.get("enum", [value]):
        yield f"{where}: {value!r} is none of {schema['enum']}"
    elif isinstance(value, str):
        if not re.search(pattern, value):
            yield f"{where}: {value!r} is not like {pattern}"
    elif isinstance(value, int):
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            yield f"{where}: {value!r} is out of range"
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _faults(item, schema["items"], f"{where}[{number}]")
    elif "properties" in schema or "additionalProperties" in schema:
        yield from (f"{where}: {name} is missing" for name in schema.get("required", ()) if name not in value)
        for name, item in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            yield from [f"{where}: no field {name}"] if inner is None else _faults(item, inner, f"{where}.{name}")
