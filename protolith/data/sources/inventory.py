"""Images listed but not decoded, in one form from every source: whose, which part, which class, and the picture."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from protolith.errors import UserError

NAME_LENGTH = 200  # letters of the name of a site or a class

# In this order: a validation part stands in for a missing test part.
TEST_NAMES = ("test", "val", "valid", "validation")

Array: TypeAlias = npt.NDArray[np.uint8]
Picture: TypeAlias = Path | bytes | Array  # a file, encoded bytes, or pixels [height, width] or [height, width, 3]
Part = Literal["train", "test", "val", ""]  # the last: nobody has said


class Row(NamedTuple):
    """One image: whose it is, which part it belongs to, what it shows, and its name for people."""

    domain: str
    part: Part
    label: str
    picture: Picture
    name: str


@dataclass(frozen=True)
class Inventory:
    """The image files of one's own, sorted by domain, part, class and name.

    `notes` say what was found and left out on the way.
    """

    name: str
    path: Path
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains' names."""
        return tuple(dict.fromkeys(row.domain for row in self.rows))

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of all domains; a domain may lack some."""
        return tuple(sorted({row.label for row in self.rows}))

    def of(self, domain: str) -> tuple[Row, ...]:
        """The rows of one domain."""
        return tuple(row for row in self.rows if row.domain == domain)

    def fingerprint(self, domain: str) -> str:
        """Condense a domain's rows and their files' sizes and times of change, without reading them."""
        digest = hashlib.sha256()
        for row in self.of(domain):
            file = _file(row)
            stamp = "\x1f".join((row.part, row.label, *map(str, _stamp(file))))
            digest.update(os.fsencode(file.absolute()) + b"\x1f" + stamp.encode() + b"\n")
        return f"rows:{digest.hexdigest()}"


def inventory(name: str, path: Path, rows: Iterable[Row], notes: Sequence[str] = ()) -> Inventory:
    """Sort the rows of files; names that cannot be written down are refused."""
    ordered = tuple(sorted(rows, key=lambda row: (row.domain, row.part, row.label, os.fsencode(_file(row)))))
    for kind, names in (("site", {row.domain for row in ordered}), ("class", {row.label for row in ordered})):
        for found in sorted(names):
            if printable(found) != found or any(ord(letter) < 32 for letter in found):
                raise UserError(f"the {kind} name {printable(found)!r} in '{printable(str(path))}' is not plain UTF-8.")
            if len(found) > NAME_LENGTH:
                raise UserError(
                    f"the {kind} name '{found[:40]}…' in '{printable(str(path))}' has {len(found)} letters, and "
                    f"{NAME_LENGTH} are allowed."
                )
    return Inventory(name, path, ordered, tuple(notes))


def settled(rows: Sequence[Row]) -> tuple[list[Row], list[Row], list[Row]]:
    """Divide a domain's rows into training, test and unused ones as their parts say; no test rows: to be held out.

    A validation part stands in for a missing test part, and is unused beside one.
    """
    by_part: dict[str, list[Row]] = {"train": [], "test": [], "val": [], "": []}
    for row in rows:
        by_part[row.part].append(row)
    train = by_part["train"] + by_part[""]
    if by_part["test"]:
        return train, by_part["test"], by_part["val"]
    return train, by_part["val"], []


def part_of(name: str) -> Part | None:
    """The part that a folder's or a column's word stands for; None for any other word."""
    if name in ("train", "test"):
        return "train" if name == "train" else "test"
    return "val" if name in TEST_NAMES else None


def printable(text: str) -> str:
    """Write a name so that it can be printed, also one that is not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def file_row(domain: str, part: Part, label: str, file: Path, root: Path) -> Row:
    """The row of a file, under the name that it has within a folder."""
    inside = file.relative_to(root) if file.is_relative_to(root) else file
    return Row(domain, part, label, file, printable(str(inside)))


def _file(row: Row) -> Path:
    assert isinstance(row.picture, Path)
    return row.picture


def _stamp(file: Path) -> tuple[int, int]:
    try:
        stat = file.stat()
    except OSError:  # a link to nowhere or in a circle: found unreadable later
        return (-1, -1)
    return stat.st_size, stat.st_mtime_ns
