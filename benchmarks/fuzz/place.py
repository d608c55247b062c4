"""A folder in memory, if there is one, for the files that are tried."""

import atexit
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
PLACE = Path(tempfile.mkdtemp(prefix="protolith-fuzz-", dir=MEMORY if MEMORY.is_dir() else None))
atexit.register(shutil.rmtree, PLACE, ignore_errors=True)
