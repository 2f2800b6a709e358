"""`unilaunch schema`: the JSON schema of a file of options. With it an editor completes and checks the file."""

import json
import sys
from typing import Any

from unilaunch.interfaces import plugins
from unilaunch.interfaces.command import Command
from unilaunch.overriding import override
from unilaunch.spec.launch_spec import LaunchSpec
from unilaunch.spec.run_spec import Spec


class SchemaSpec(Spec):
    """The schema has no options."""


class SchemaCommand(Command):
    """Print the JSON schema of a file of options."""

    help = "print the JSON schema of a file of options (--config), for an editor"
    examples = ("unilaunch schema > run.schema.json",)
    spec = SchemaSpec

    @override
    def run(self, options: SchemaSpec) -> int:
        sys.stdout.write(json.dumps(make_schema(), indent=1) + "\n")
        return 0


def make_schema() -> dict[str, Any]:
    """Return the schema: the fields of LaunchSpec, and at the same level the options of every installed model."""
    schema = LaunchSpec.model_json_schema()
    options: dict[str, Any] = {}
    for model in plugins.models().values():
        if model.is_internal:
            continue
        of_model = model.spec.model_json_schema()
        schema.setdefault("$defs", {}).update(of_model.get("$defs", {}))
        for name, field in of_model["properties"].items():
            known = options.get(name, field)
            options[name] = known if known == field else {"anyOf": [known, field]}
    schema["properties"]["options"] |= {"properties": options}
    schema["properties"] = {**options, **schema["properties"]}
    schema["description"] = "A file of options of unilaunch, for --config and LaunchSpec.from_file"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
