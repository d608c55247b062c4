"""Files: complete under their name or not there at all, of a size that was looked at first, and inside their folder."""

import contextlib
import errno
import glob
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from protolith.errors import UserError

PART = ".part"  # a file that is being written: .NAME.PID.part
TEXT_BYTES = 64 << 20  # of a text file that is read whole, unless a caller allows less
NAME_BYTES = 120  # of a file name that is made of somebody's words
# What a disk says when it takes nothing more: full, over quota, read-only, not ours, broken, gone.
REFUSALS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR,
    errno.ENOENT, errno.ESTALE, errno.ENAMETOOLONG, errno.EMFILE, errno.ENFILE,
)  # fmt: skip


@contextlib.contextmanager
def writing(path: Path, *, sync: bool = False) -> Iterator[IO[bytes]]:
    """Open a file to be written under another name; it gets its own when it is complete, and goes when it fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        with temporary.open("wb", buffering=0) as file:
            yield file
            if sync:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is None:  # as when a disk is full
            error.filename = str(path)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)  # half a file only takes room
        raise


def write_all(file: IO[bytes], content: bytes | memoryview) -> None:
    """Write every byte, also where the system takes them in pieces."""
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file that is complete under its name, or not there at all."""
    with writing(path, sync=True) as file:
        write_all(file, content)


def write_text(path: Path, text: str) -> None:
    """Write a text that is complete under its name, or not there at all."""
    write_bytes(path, text.encode("utf-8"))


def sync_folder(folder: Path) -> None:
    """Have the names in a folder reach the disk."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_parts(folder: Path, name: str = "*") -> None:
    """Remove what killed processes left half written in a folder."""
    for part in folder.glob(f".{name if name == '*' else glob.escape(name)}.*{PART}"):
        pid = part.name.removesuffix(PART).rpartition(".")[2]
        if pid.isascii() and pid.isdigit() and not alive(int(pid)):
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def alive(pid: int) -> bool:
    """Tell whether a process of this machine is there; where nobody can tell, say yes."""
    if os.name != "posix" or pid <= 0:
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def read_bytes(path: Path, most: int = TEXT_BYTES) -> bytes:
    """Read a regular file whole, if it is not larger than so many bytes; ValueError otherwise."""
    with open(path, "rb", opener=_without_waiting) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"'{path}' is not a regular file")
        if found.st_size > most:
            raise ValueError(f"'{path}' has {found.st_size:,} bytes, and {most:,} are allowed")
        content = file.read(most + 1)  # it may have grown since
    if len(content) > most:
        raise ValueError(f"'{path}' has more than the {most:,} bytes that are allowed")
    return content


def read_text(path: Path, most: int = TEXT_BYTES) -> str:
    """Read a text file whole, if it is not too large; ValueError otherwise."""
    return read_bytes(path, most).decode("utf-8")


def parse_json(text: str | bytes) -> Any:
    """Read JSON from outside: whatever is wrong with it is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path, most: int = TEXT_BYTES) -> dict[str, Any]:
    """Read a JSON object from a file; ValueError when it is anything else."""
    found = parse_json(read_text(path, most))
    if not isinstance(found, dict):
        raise ValueError(f"'{path}' does not hold a JSON object")
    return found


def file_name(words: str) -> str:
    """Make a file name of somebody's words: plain ones stay, no other leads elsewhere, and no two become one."""
    name = "".join(_escaped(letter) for letter in words)
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name.encode()) <= NAME_BYTES:
        return name
    digest = hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{name.encode()[:80].decode('utf-8', 'ignore')}%{digest}"


def _escaped(letter: str) -> str:
    plain = letter not in "/\\:%\x7f" and ord(letter) >= 32 and not 0xD800 <= ord(letter) <= 0xDFFF
    return letter if plain else f"%{ord(letter):02X}"


def printable(text: str) -> str:
    """Write words from outside so that they can be printed on one line."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def refusal(error: OSError) -> str | None:
    """Say in a few words what a disk refused, or nothing when the error is of another kind."""
    if error.errno not in REFUSALS:
        return None
    where = f": '{error.filename}'" if error.filename else ""
    return f"{(error.strerror or 'input or output error').lower()}{where}"


def newer(what: object, found: object, known: int) -> UserError | None:
    """Build the error for a file of a later version's format; nothing when this version knows it."""
    if isinstance(found, int) and not isinstance(found, bool) and 0 < found <= known:
        return None
    return UserError(
        f"{what} has the format {str(found)[:40]!r}, and this version of Protolith knows formats up to {known}: "
        "it was written by a newer version, which is needed to read it."
    )


def _without_waiting(path: str, flags: int) -> int:
    # A named pipe among the files would otherwise be waited for until somebody writes to it.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
