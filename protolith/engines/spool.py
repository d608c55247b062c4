"""The spool: a directory, in memory where there is one, through which tensors reach worker processes."""

import os
import shutil
import tempfile
from pathlib import Path

from protolith.files import alive

MEMORY = Path("/dev/shm")
PREFIX = "protolith-spool-"
LEAST_FREE = 2 << 30  # a smaller memory disk (as in a default container) would run full


def make_spool() -> Path:
    """Make a new spool, and remove those whose process is gone."""
    in_memory = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= LEAST_FREE
    place = MEMORY if in_memory else Path(tempfile.gettempdir())
    for old in place.glob(f"{PREFIX}*"):
        pid = old.name.removeprefix(PREFIX).split("-")[0]
        if pid.isascii() and pid.isdigit() and not alive(int(pid)):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))
