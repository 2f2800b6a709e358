"""The spec inside a job file, so that the file says what it is and can be made again."""

import json

from unilaunch.job.plan import Plan


def spec_json(plan: Plan) -> str:
    """Return the spec as one line of JSON, which `launch --config FILE.json` reads."""
    spec = plan.task.spec.shown().model_dump(mode="json", exclude_defaults=True)
    if plan.task.options:
        spec["options"] = plan.task.options.model_dump(mode="json", exclude_defaults=True)
    return json.dumps(spec, sort_keys=True)
