"""Records: whatever the bytes, a record or a BadRecord."""

from pathlib import Path

from place import PLACE

from protolith import records
from protolith.errors import UserError
from protolith.records import BadRecord

FILE = PLACE / "r.safetensors"


def one(data: bytes) -> None:
    FILE.write_bytes(data)
    _as(FILE)
    try:
        found = records.from_bytes(data)
    except BadRecord:
        return
    assert records.nbytes(found) <= len(data)


def _as(path: Path) -> None:
    try:
        record, about = records.read_with_about(path)
    except (BadRecord, UserError):
        return
    assert isinstance(about, dict) and records.nbytes(record) <= path.stat().st_size
