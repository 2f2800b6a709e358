"""Find ranks that have called different collectives, and so wait for each other without end."""

from collections.abc import Mapping

from unilaunch.interfaces.calls import mixed
from unilaunch.monitor.messages import Progress
from unilaunch.monitor.verdict import ranks as name_ranks


def find_mixed_calls(seen: Mapping[int, Progress]) -> str:
    """Return in one line who is in which collective, where calls with the same number differ; "" if none do.

    The ranks' newest calls become known at different times: only numbers that are known of several ranks count.

    Args:
        seen: The newest progress of each rank.
    """
    first: dict[int, tuple[int, int]] = {}  # of each call: its kind, and a rank that has made it
    for rank, progress in sorted(seen.items()):
        kinds = bytes.fromhex(progress.kinds)
        for number, kind in enumerate(kinds, progress.calls - len(kinds) + 1):
            others_kind, other = first.setdefault(number, (kind, rank))
            if others_kind != kind:
                return _describe(seen, number, {kind: rank, others_kind: other})
    return ""


def _describe(seen: Mapping[int, Progress], number: int, kinds: Mapping[int, int]) -> str:
    alike: dict[int, list[int]] = {}
    for rank, progress in seen.items():
        place = number - progress.calls - 1
        known = bytes.fromhex(progress.kinds)
        if -len(known) <= place < 0 and known[place] in kinds:
            alike.setdefault(known[place], []).append(rank)
    groups = sorted(alike.items(), key=lambda item: min(item[1]))
    names = next(filter(None, (progress.purposes for progress in seen.values())), "").split(",")
    return mixed(
        [(f"{name_ranks(ranks)} {'are' if len(ranks) > 1 else 'is'}", kind, number, "") for kind, ranks in groups],
        names,
    )
