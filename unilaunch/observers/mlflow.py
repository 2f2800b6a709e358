"""A model's curves on an MLflow server, over MLflow's REST API.

MLFLOW_EXPERIMENT_NAME and MLFLOW_TRACKING_TOKEN have their usual meaning.
"""

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from http.client import HTTPException
from typing import Any
from urllib.request import Request, urlopen

from unilaunch.errors import REQUEUE, one_line
from unilaunch.interfaces.observer import Observed, Observer, check_url
from unilaunch.observers.points import Point, following
from unilaunch.overriding import override


class Mlflow(Observer):
    """Sends the curves to the server at an address, in a new run of the user's experiment."""

    of_models = True

    @override
    def check(self, where: str) -> None:
        check_url(where)

    @override
    def observing(self, where: str, job: Observed) -> AbstractContextManager[None]:
        run = _Run(where, job)
        return following(job, run.write, run.end)


class _Run:
    """A run of the server, made at the first `write`; the user sees one line if points do not arrive."""

    def __init__(self, url: str, job: Observed) -> None:
        self.url, self.job, self.say = url, job, job.say
        self.experiment, self.run = job.environ.get("MLFLOW_EXPERIMENT_NAME") or "unilaunch", ""
        token = job.environ.get("MLFLOW_TRACKING_TOKEN")
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def write(self, points: Sequence[Point]) -> None:
        """Send points. Raises OSError if they do not arrive."""
        try:
            self.run = self.run or self._begin()
            metrics = [{"key": each.name, "value": each.value, "step": each.step, "timestamp": round(1000 * each.time)}
                       for each in points]  # fmt: skip
            self._post("runs/log-batch", run_id=self.run, metrics=metrics)
        except (OSError, LookupError, TypeError) as error:
            self.say(one_line(f"--observe mlflow={self.url}: the curves do not arrive, the job goes on: {error}"))
            self.say = lambda _: None
            raise OSError from None

    def end(self) -> None:
        """Record how the job has ended. Raises OSError if that does not arrive."""
        if self.run:
            codes = self.job.exit_codes()
            status = "FINISHED" if codes == {0} else "KILLED" if codes == {REQUEUE} else "FAILED"
            self._post("runs/update", run_id=self.run, status=status, end_time=round(1000 * time.time()))

    def _begin(self) -> str:
        quote = '"' if "'" in self.experiment else "'"  # MLflow's filters have no escape
        wanted = f"name = {quote}{self.experiment}{quote}"
        known = self._post("experiments/search", filter=wanted, max_results=1).get("experiments")
        number = (known[0] if known else self._post("experiments/create", name=self.experiment))["experiment_id"]
        now = round(1000 * time.time())
        made = self._post("runs/create", experiment_id=number, run_name=self.job.name, start_time=now)
        run = str(made["run"]["info"]["run_id"])
        params = [{"key": key, "value": str(value)[:500]} for key, value in self.job.options.items()]
        self._post("runs/log-batch", run_id=run, params=params[:100])  # MLflow's limits
        return run

    def _post(self, method: str, **fields: Any) -> Any:
        address, body = f"{self.url.rstrip('/')}/api/2.0/mlflow/{method}", json.dumps(fields).encode()
        try:
            with urlopen(Request(address, body, self.headers), timeout=10) as answer:  # noqa: S310  (http only)
                return json.loads(answer.read())
        except (ValueError, HTTPException) as error:  # this is no MLflow server
            raise OSError(f"{type(error).__name__}: {error}") from None
