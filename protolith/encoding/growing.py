"""A record's file that is filled piece by piece, and goes on where a killed process left it."""

import errno
import json
import os
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protolith import files, records

GROWING, JOURNAL = ".growing", ".journal"
FORGOTTEN_SECONDS = 7 * 86_400  # what nobody went on with for a week only takes room
UNABLE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # of a file system that cannot set room aside


class Growing:
    """The file under another name, and beside it a journal of the pieces that are in it, each with its checksum.

    All its room is set aside at the start, so that a full disk is noticed before anything is computed. Only the
    holder of the final file's lock may work on it.
    """

    def __init__(self, path: Path, record: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        self.path = path
        self.header, self.places, self.length = records.outline(record, about)
        self.strides = {name: tensor.nbytes // max(1, len(tensor)) for name, tensor in record.items()}
        self.file, self.journal = (path.with_name(f".{path.name}{ending}") for ending in (GROWING, JOURNAL))
        self.done: set[int] = set()  # where in the file a finished piece begins

    def begin(self) -> None:
        """Go on with the file that is there if it is this one and its pieces are sound; else set room aside."""
        found = self._found()
        if found is not None:
            self.done = found
            return
        self.discard()
        with self.file.open("wb", buffering=0) as file:
            try:
                self._reserve(file.fileno())
                files.write_all(file, self.header)
            except OSError as error:
                error.filename = error.filename or str(self.path)
                self.discard()
                raise

    def place(self, name: str, row: int) -> int:
        """Where in the file a row of a tensor begins."""
        return self.places[name] + row * self.strides[name]

    def put(self, row: int, tensors: Mapping[str, Tensor]) -> None:
        """Write rows of some tensors, then note in the journal that they are there: one piece."""
        pieces: list[tuple[int, int]] = []
        checksum = 0
        with self.file.open("r+b", buffering=0) as file:
            for name, tensor in tensors.items():
                content = memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
                start = self.place(name, row)
                file.seek(start)
                files.write_all(file, content)
                pieces.append((start, len(content)))
                checksum = zlib.crc32(content, checksum)
        with self.journal.open("ab") as journal:
            journal.write(b"\n" + json.dumps([pieces, checksum]).encode())  # after what a killed process left half
        self.done.add(pieces[0][0])

    def finish(self) -> None:
        """Give the complete file its name."""
        with self.file.open("rb") as file:
            os.fsync(file.fileno())
        self.file.replace(self.path)
        self.journal.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove what there is of it."""
        with suppress(OSError):
            self.file.unlink(missing_ok=True)
        with suppress(OSError):
            self.journal.unlink(missing_ok=True)

    def _reserve(self, handle: int) -> None:
        os.ftruncate(handle, self.length)
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(handle, 0, self.length)
            except OSError as error:
                if error.errno not in UNABLE:
                    raise

    def _found(self) -> set[int] | None:
        """The sound pieces of a file that another process left; None where there is none of this content."""
        try:
            with self.file.open("rb") as file:
                same = file.read(len(self.header)) == self.header and os.fstat(file.fileno()).st_size == self.length
                if not same:
                    return None
                lines = self.journal.read_bytes().splitlines()
                return {first for line in lines if (first := _sound(line, file)) is not None}
        except FileNotFoundError:
            return None


def _sound(line: bytes, file: Any) -> int | None:
    """Where the piece begins that a line of the journal notes, if the file holds what it says."""
    try:
        pieces, expected = json.loads(line)
        checksum = 0
        for start, length in pieces:
            file.seek(start)
            checksum = zlib.crc32(file.read(length), checksum)
        return int(pieces[0][0]) if checksum == expected else None
    except (ValueError, TypeError, IndexError):  # the last line of a killed process
        return None


def sweep(folder: Path) -> None:
    """Remove what nobody went on with."""
    for ending in (GROWING, JOURNAL):
        for file in folder.glob(f".*{ending}"):
            with suppress(OSError):
                if time.time() - file.stat().st_mtime > FORGOTTEN_SECONDS:
                    file.unlink()
