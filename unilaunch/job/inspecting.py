"""Let the owner of a running job inspect it, and tell the observers that the user names its numbers."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from unilaunch.folder.claim import is_ours
from unilaunch.folder.folder import rank_folder
from unilaunch.interfaces.observer import Observed
from unilaunch.interfaces.plugins import load_observer
from unilaunch.interfaces.report_layout import ReportLayout
from unilaunch.job.plan import Plan
from unilaunch.monitor.inspection import Inspection, listen_for_metrics
from unilaunch.monitor.monitor import Monitor


@contextmanager
def inspecting(plan: Plan, monitor: Monitor, say: Callable[[str], None]) -> Iterator[Inspection]:
    """Answer questions on the job while the block runs, and tell the observers its numbers.

    Args:
        plan: The plan of the job.
        monitor: Its monitor.
        say: Shows the user a line; called in other threads.

    Raises:
        UnilaunchError: An observer cannot be told the numbers as the user wants.
    """
    spec = plan.task.spec
    with ExitStack() as kept:
        metrics = listen_for_metrics(spec.metrics_address, spec.metrics_port) if spec.metrics_port else None
        inspection = Inspection(monitor, spec.output_dir, metrics)
        kept.callback(inspection.close)
        for named in spec.observe:
            name, _, where = named.partition("=")
            kept.enter_context(load_observer(name).observing(where, _observed(plan, inspection, say)))
        yield inspection


def _observed(plan: Plan, inspection: Inspection, say: Callable[[str], None]) -> Observed:
    spec, model, ranks = plan.task.spec, plan.task.model, inspection.monitor.inbox.ranks
    root = rank_folder(spec.output_dir, 0, len(plan.rows))

    def find() -> Path | None:
        return root if 0 in ranks and ranks[0].run and is_ours(root, ranks[0].run) else None

    return Observed(
        name=spec.output_dir.name,
        environ=plan.request.environ,
        options=plan.task.options.to_json() if plan.task.options else {},
        layout=model.report if model else ReportLayout(),
        find=find,
        snapshot=inspection.snapshot,
        exit_codes=lambda: {seen.exit_code for seen in list(ranks.values())},
        say=say,
    )
