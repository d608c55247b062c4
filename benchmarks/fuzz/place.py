"""A folder in memory, if there is one, for the files that are tried."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM = MEMORY if MEMORY.is_dir() else None
# The fuzzer ends without a word to Python, so its runner makes and removes the folder.
PLACE = Path(os.environ.get("PROTOLITH_FUZZ") or tempfile.mkdtemp(prefix="protolith-fuzz-", dir=ROOM))
atexit.register(shutil.rmtree, PLACE, ignore_errors=True)
