"""What this machine gives to this process."""

import contextlib
import os
from pathlib import Path


def cores(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """How many cores this process may keep busy: those it may run on, and no more than its control group's share.

    A batch system gives a job some of a machine's cores, a container runtime a part of their time.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *(int(share) for share in _shares(groups, own))]))


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
