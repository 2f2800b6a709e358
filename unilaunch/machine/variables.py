"""The variables that belong to one machine, login or process; every other one of the user reaches every host."""

import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase

from unilaunch.machine.devices import DEVICES

#: The reason for a variable whose name begins as those of a launcher do (`Launcher.prefixes`), and of others.
_OF_LAUNCHER = "of a launcher or a resource manager"
#: For each reason why a variable stays on its host: names, as in a shell's patterns.
STAYING: Mapping[str, tuple[str, ...]] = {
    "of the login": (
        "HOME", "USER", "USERNAME", "LOGNAME", "SHELL", "MAIL", "SHLVL", "PWD", "OLDPWD", "_", "SSH_*", "SUDO_*",
        "KRB5CCNAME", "GPG_AGENT_INFO", "GPG_TTY", "XAUTHORITY", "DISPLAY", "WAYLAND_DISPLAY", "DBUS_*",
        "DESKTOP_SESSION", "XDG_RUNTIME_DIR", "XDG_SESSION_*", "XDG_SEAT*", "XDG_VTNR", "XDG_CURRENT_DESKTOP",
    ),
    "of the terminal": (
        "TERM", "TERMINFO", "TERM_PROGRAM*", "TERM_SESSION_ID", "COLORTERM", "COLUMNS", "LINES", "LS_COLORS",
        "LESSOPEN", "LESSCLOSE", "PS1", "PROMPT_COMMAND", "TMUX", "TMUX_*", "STY", "WINDOW", "WINDOWID", "VSCODE_*",
    ),
    "of the machine": (
        "HOSTNAME", "HOST", "HOSTTYPE", "MACHTYPE", "OSTYPE", "TMPDIR", "TMP", "TEMP", "INVOCATION_ID",
        "JOURNAL_STREAM", "NOTIFY_SOCKET", *(variable for variable, _ in DEVICES.values()), "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
    ),
    _OF_LAUNCHER: (
        "RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "SRUN_*", "PBS_*", "LSB_*", "LSF_*", "SGE_*",
        "PE_HOSTFILE", "NSLOTS", "NHOSTS", "JOB_ID",
    ),
}  # fmt: skip
#: What a shell can set and every launcher can pass on; an exported function of bash has another name.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def reasons(prefixes: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return STAYING with the variables of the launchers that are installed.

    Args:
        prefixes: How their names begin.
    """
    of_launchers = tuple(f"{prefix}*" for prefix in prefixes)
    return {why: patterns + of_launchers * (why == _OF_LAUNCHER) for why, patterns in STAYING.items()}


def staying(names: Iterable[str], prefixes: Iterable[str]) -> dict[str, list[str]]:
    """Return those of *names* that stay on their host, sorted, by the reason; *prefixes* as in `reasons`."""
    known, found = reasons(prefixes), dict[str, list[str]]()
    for name in sorted(names):
        kept = (why for why, patterns in known.items() if any(fnmatchcase(name, pattern) for pattern in patterns))
        if why := next(kept, "") if _NAME.fullmatch(name) else "not a variable's name":
            found.setdefault(why, []).append(name)
    return found


def travelling(names: Collection[str], prefixes: Iterable[str]) -> list[str]:
    """Return those of *names* that every host is to find, sorted; *prefixes* as in `reasons`."""
    return sorted(set(names).difference(*staying(names, prefixes).values()))
