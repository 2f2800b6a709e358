"""Write the files of `launch` and the agents into the output folder when the ranks have ended."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from unilaunch.errors import InputError, say
from unilaunch.folder.claim import Marker, hold, is_ours, note_files, read_marker
from unilaunch.folder.files import write_failure, write_json
from unilaunch.folder.folder import REPORT, RESULT, OutputFolder, Use, rank_folder
from unilaunch.monitor.inbox import RankSeen


def keep_reports(root: Path, size: int, ranks: Mapping[int, RankSeen]) -> None:
    """Write the messages of ranks that cannot write here themselves, because their hosts have other file systems."""
    with ExitStack() as kept:
        claims = True
        for rank, seen in sorted(ranks.items()):
            if not seen.run or is_ours(rank_folder(root, rank, size), seen.run):
                continue
            files = [RESULT] if seen.result is not None else []
            output = OutputFolder(root, rank, size, seen.run, Use(claims=claims, files=files, resumes=True))
            kept.callback(output.let_go)
            try:
                output.claim()
                output.open()
                _keep(output, seen)
            except InputError as error:
                say(f"the messages of rank {rank} on {seen.host} are not kept here: {error}")
                if claims and output.lock < 0:  # no rank can be written either
                    return
            claims = False


def _keep(output: OutputFolder, seen: RankSeen) -> None:
    output.record(host=seen.host, device=seen.device)
    if seen.failure:
        write_failure(output.rank_dir, seen.failure)
    if seen.value is not None:
        output.write_value(seen.value)
    if seen.result is not None:
        output.write_result(seen.result)
    if seen.exit_code is not None:
        output.record(phase="end", exit_code=seen.exit_code)


def write_report(root: Path, run_id: str, report: Mapping[str, Any], rank_0: Path) -> str:
    """Write `report.json` of a run, and return a message for the user; "" if there is none.

    If the user has a file of that name, the report is written into rank 0's folder.

    Args:
        root: The output folder; nothing is written if another run uses it.
        run_id: The run.
        report: The content of the report: how the job failed.
        rank_0: Rank 0's folder.
    """
    if not is_ours(root.resolve(), run_id):
        return ""
    path, said = root / REPORT, ""
    try:
        with os.fdopen(hold(root)):  # from here on no other run can claim the folder, and an earlier claim is noticed
            marker = read_marker(root) or Marker()
            if marker.run != run_id:
                return ""
            if os.path.lexists(path) and REPORT not in marker.files:
                said = f"{path} is there, and unilaunch did not write it: the report of this run is {rank_0 / REPORT}"
                path = rank_0 / REPORT
            else:
                note_files(root, {**marker.files, REPORT: run_id})
            write_json(path, report)
    except OSError as error:
        return f"{path}: cannot be written: {error.strerror}"
    return said
