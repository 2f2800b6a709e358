"""Send a model's curves to an MLflow server: the numbers of each step that rank 0 records, over MLflow's REST API."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from typing import Any
from urllib.request import Request, urlopen

from unilaunch.job.curves import Point


class MlflowRun:
    """A run of the MLflow server at *url*, made at the first `write`; *tell* shows a line if points do not arrive.

    MLFLOW_EXPERIMENT_NAME and MLFLOW_TRACKING_TOKEN in *environ* have their usual meaning.
    """

    def __init__(
        self, url: str, name: str, options: Mapping[str, Any], environ: Mapping[str, str], tell: Callable[[str], None]
    ) -> None:
        self.url, self.name, self.options, self.tell = url, name, options, tell
        self.experiment, self.run = environ.get("MLFLOW_EXPERIMENT_NAME") or "unilaunch", ""
        token = environ.get("MLFLOW_TRACKING_TOKEN")
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def write(self, points: Sequence[Point]) -> None:
        """Send points. Raises OSError if they do not arrive."""
        try:
            self.run = self.run or self._begin()
            metrics = [{"key": each.name, "value": each.value, "step": each.step, "timestamp": round(1000 * each.time)}
                       for each in points]  # fmt: skip
            self._post("runs/log-batch", run_id=self.run, metrics=metrics)
        except (OSError, LookupError, TypeError) as error:
            self.tell(f"--mlflow {self.url}: the curves do not arrive, the job goes on: {error}")
            self.tell = lambda _: None
            raise OSError from None

    def end(self, status: str) -> None:
        """Record how the job has ended: FINISHED, FAILED or KILLED. Raises OSError if that does not arrive."""
        if self.run:
            self._post("runs/update", run_id=self.run, status=status, end_time=round(1000 * time.time()))

    def _begin(self) -> str:
        known = self._post("experiments/search", filter=f"name = '{self.experiment}'", max_results=1).get("experiments")
        number = (known[0] if known else self._post("experiments/create", name=self.experiment))["experiment_id"]
        made = self._post("runs/create", experiment_id=number, run_name=self.name, start_time=round(1000 * time.time()))
        run = str(made["run"]["info"]["run_id"])
        params = [{"key": key, "value": str(value)[:500]} for key, value in self.options.items()]
        self._post("runs/log-batch", run_id=run, params=params[:100])  # MLflow's limits
        return run

    def _post(self, method: str, **fields: Any) -> Any:
        address, body = f"{self.url.rstrip('/')}/api/2.0/mlflow/{method}", json.dumps(fields).encode()
        try:
            with urlopen(Request(address, body, self.headers), timeout=10) as answer:  # noqa: S310  (http only)
                return json.loads(answer.read())
        except (ValueError, HTTPException) as error:  # this is no MLflow server
            raise OSError(f"{type(error).__name__}: {error}") from None
