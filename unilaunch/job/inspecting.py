"""Let the owner of a running job inspect it, and send its metrics and curves to the programs that the user names."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from unilaunch.errors import REQUEUE, one_line
from unilaunch.folder.claim import is_ours
from unilaunch.folder.folder import rank_folder
from unilaunch.job.plan import Plan
from unilaunch.monitor.inbox import Inbox
from unilaunch.monitor.inspection import Inspection, listen_for_metrics
from unilaunch.monitor.monitor import Monitor


@contextmanager
def inspecting(plan: Plan, monitor: Monitor, say: Callable[[str], None]) -> Iterator[Inspection]:
    """Answer questions on the job while the block runs, and send its metrics and curves.

    Args:
        plan: The plan of the job.
        monitor: Its monitor.
        say: Shows the user a line; called in other threads.

    Raises:
        UnilaunchError: The metrics or the curves cannot be sent as the user wants.
    """
    spec = plan.task.spec
    with ExitStack() as kept:
        metrics = listen_for_metrics(spec.metrics_address, spec.metrics_port) if spec.metrics_port else None
        inspection = Inspection(monitor, spec.output_dir, metrics)
        kept.callback(inspection.close)
        if spec.otlp:
            from unilaunch.observers.otlp import exporting

            kept.enter_context(exporting(spec.otlp, inspection.snapshot, say))
        _draw_curves(plan, monitor.inbox, say, kept)
        yield inspection


def _draw_curves(plan: Plan, inbox: Inbox, say: Callable[[str], None], kept: ExitStack) -> None:
    """Begin to write the curves; *kept* ends that."""
    spec, model, ranks = plan.task.spec, plan.task.model, inbox.ranks
    root = rank_folder(spec.output_dir, 0, len(plan.rows))

    def find() -> Path | None:
        return root if 0 in ranks and ranks[0].run and is_ours(root, ranks[0].run) else None

    if spec.tensorboard and model:
        from unilaunch.observers.curves import writing

        kept.enter_context(writing(spec.tensorboard, find, model.report, say))
    if spec.mlflow and model:
        from unilaunch.observers.curves import MlflowRun, following

        options = plan.task.options.to_json() if plan.task.options else {}
        run = MlflowRun(
            spec.mlflow, spec.output_dir.name, options, plan.request.environ, lambda text: say(one_line(text))
        )
        kept.enter_context(following(find, model.report, run.write, lambda: run.end(_status(inbox)), say))


def _status(inbox: Inbox) -> str:
    """Return how the job has ended, in MLflow's words."""
    codes = {seen.exit_code for seen in inbox.ranks.values()}
    if codes == {0}:
        return "FINISHED"
    return "KILLED" if codes == {REQUEUE} else "FAILED"
