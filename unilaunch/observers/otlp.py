"""Send a job's metrics to an OpenTelemetry collector (OTLP over HTTP), with the OpenTelemetry SDK."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from unilaunch.errors import PluginError, one_line
from unilaunch.interfaces.observer import Observed, Observer, check_url
from unilaunch.monitor.metrics import list_metrics
from unilaunch.overriding import override

_EVERY = 5000  # milliseconds between two exports
_TICK = 0.05
_PATIENCE = 5  # seconds for the collector's answer
_LAST = 3  # seconds for the answer to the last export: the job's end waits for it
_LAST_OF_FAILED = 1  # the same, if the export before it has failed
_SECTION = "/v1/metrics"


class _Faults(logging.Filter):
    """Shows the first failure of the export in one line; the SDK would write several lines every 5 seconds.

    Attributes:
        thread: The thread that exports; lines of other threads stay.
        reason: Why the export that is under way was not received; "" if nothing is known.
        is_told: Whether the user knows.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self.tell, self.thread, self.reason, self.is_told = tell, 0, "", False

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self.thread:
            return True
        if record.levelno < logging.ERROR:  # it is tried again
            self.reason = record.getMessage()
        else:
            self.reason = self.reason or record.getMessage()
            self.tell_once()
        return False

    def tell_once(self) -> None:
        """Show the user why the metrics do not arrive."""
        if not self.is_told:
            self.is_told = True
            self.tell(one_line(self.reason))


class Otlp(Observer):
    """Sends the metrics to the collector at an address, such as http://collector:4318."""

    @override
    def check(self, where: str) -> None:
        check_url(where)

    @override
    def observing(self, where: str, job: Observed) -> AbstractContextManager[None]:
        return exporting(where, job.snapshot, job.say)


@contextmanager
def exporting(url: str, snapshot: Callable[[], Mapping[str, Any]], tell: Callable[[str], None]) -> Iterator[None]:
    """Send the job's metrics to a collector every 5 seconds while the block runs, and once at its end.

    Args:
        url: The collector's address.
        snapshot: Returns the job's state; called in another thread.
        tell: Shows the user a line, if the metrics do not arrive; called in another thread.

    Raises:
        PluginError: The OpenTelemetry SDK is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.metrics import Observation
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    except ImportError as error:
        raise PluginError(f"--observe otlp={url}: {error}: pip install 'unilaunch[otlp]'") from None
    address = url if url.endswith(_SECTION) else url.rstrip("/") + _SECTION
    exporter = OTLPMetricExporter(endpoint=address, timeout=_PATIENCE)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=_EVERY)
    # The user's OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win.
    sender = Resource.create({"service.name": "unilaunch"}).merge(OTELResourceDetector().detect())
    provider = MeterProvider(metric_readers=[reader], resource=sender, shutdown_on_exit=False)
    meter = provider.get_meter("unilaunch")

    faults = _Faults(lambda why: tell(f"--observe otlp={url}: the metrics do not arrive, the job goes on: {why}"))

    def observe(name: str, _: object) -> list[Any]:
        faults.thread, faults.reason = threading.get_ident(), ""
        (metric,) = [one for one in list_metrics(snapshot()) if one.name == name]
        return [Observation(value, labels) for labels, value in metric.samples]

    for metric in list_metrics(snapshot()):
        make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        make(f"unilaunch.{metric.name}", callbacks=[partial(observe, metric.name)], description=metric.text)
    logger = logging.getLogger(OTLPMetricExporter.__module__)
    logger.addFilter(faults)
    try:
        yield
    finally:
        _end(provider, faults, lambda: logger.removeFilter(faults))


def _end(provider: Any, faults: _Faults, close: Callable[[], None]) -> None:
    """Send the last figures; do not wait for a collector that cannot be reached. *close* is called after that."""

    def send() -> None:
        provider.shutdown(timeout_millis=1000 * _PATIENCE)  # longer than the job's end waits
        close()

    until = time.monotonic() + (_LAST_OF_FAILED if faults.is_told else _LAST)
    sending = threading.Thread(target=send, daemon=True)
    try:
        sending.start()
    except RuntimeError:  # the interpreter exits, and Python 3.12 then starts no thread
        send()
    while sending.is_alive() and time.monotonic() < until and not faults.reason:
        sending.join(_TICK)
    if sending.is_alive():
        faults.reason = faults.reason or "the last figures got no answer"
        faults.tell_once()
