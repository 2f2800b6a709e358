"""Checks an object against an excerpt of a published schema, as a Kubernetes with strict validation does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import yaml


def faults(fields: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with an object: where, and what the schema of its kind has there."""
    excerpt = yaml.safe_load(Path(__file__).with_name(f"{fields['kind'].lower()}.yaml").read_text())
    assert (fields["apiVersion"], fields["kind"]) == (excerpt["apiVersion"], excerpt["kind"])
    checker = jsonschema.Draft7Validator(_strict(excerpt["openAPIV3Schema"]))
    return [f"{error.json_path}: {error.message}" for error in checker.iter_errors(fields)]


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    """Refuse the fields that a schema does not name, and say what Kubernetes means by "int or string"."""
    if schema.get("x-kubernetes-int-or-string"):
        return schema | {"type": ["integer", "string"]}
    inner: dict[str, Any] = {
        name: _strict(schema[name]) for name in ("items", "additionalProperties") if name in schema
    }
    if "properties" in schema:
        inner["properties"] = {name: _strict(field) for name, field in schema["properties"].items()}
    return {"additionalProperties": "properties" not in schema, **schema, **inner}
