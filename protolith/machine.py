"""What this machine gives to this process."""

import contextlib
import os
from pathlib import Path

from protolith.files import alive


def cores(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """How many cores this process may keep busy: those it may run on, and no more than its control group's share.

    A batch system gives a job some of a machine's cores, a container runtime a part of their time.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *(int(share) for share in _shares(groups, own))]))


def began_at(pid: int) -> int | None:
    """When a process began, in the kernel's own count; nothing when it is gone or a zombie, or nobody can tell."""
    with contextlib.suppress(OSError, AttributeError, OverflowError):  # if it is our own child, take note of its end
        os.waitpid(pid, os.WNOHANG)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def is_there(pid: int, began: int | None) -> bool:
    """Tell whether a process is still there, and is not another one that has its number now.

    Without a note of when it began, or where nobody can tell, the number alone counts.
    """
    if began_at(os.getpid()) is None:
        return alive(pid)
    now = began_at(pid)
    return now is not None and began in (None, now)


def _shares(groups: Path, own: Path) -> list[float]:
    """The limits in cores of the control groups (version 2) that this process is in; none where there are none."""
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = own.read_text().splitlines()
        inside = next(line for line in lines if line.startswith("0::")).removeprefix("0::").strip("/")
        for folder in [groups / inside, *(groups / inside).parents]:
            with contextlib.suppress(OSError, ValueError):  # the root has no such file; "max" is no limit
                quota, period = (folder / "cpu.max").read_text().split()
                found.append(float(quota) / float(period))
            if folder == groups:
                break
    return found
