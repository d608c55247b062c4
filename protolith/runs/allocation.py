"""Who holds which images, and what is tested: written down when a run begins, and read by whoever looks at it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from protolith import records
from protolith.data.domain import Task
from protolith.data.protocols import Allocation, Client, TestSet
from protolith.errors import UserError
from protolith.records import BadRecord, Record

FILE = "allocation.safetensors"
SETS = ("tests", "validation")


@dataclass(frozen=True)
class Kept:
    """An allocation, and the number of images of each domain that it was made for."""

    allocation: Allocation
    sizes: dict[str, int]

    @classmethod
    def of(cls, allocation: Allocation, task: Task) -> "Kept":
        """What is to be kept of a run on a task."""
        return cls(allocation, sizes_of(task))

    def write(self, path: Path) -> None:
        """Write it as a record: the rows of all clients, then of all test sets, one after the other."""
        held = self.allocation
        parts = [client.rows for client in held.clients] + [test.rows for test in held.measured]
        record = {
            "rows": torch.cat(parts).to(torch.int32),
            "lengths": torch.tensor([len(rows) for rows in parts]),
        }
        about: dict[str, object] = {"clients": [[client.name, client.domain] for client in held.clients]}
        about |= {name: [[t.name, t.domain, t.owner] for t in getattr(held, name)] for name in SETS}
        records.write(path, record, about={**about, "sizes": self.sizes}, sync=True)

    @classmethod
    def read(cls, path: Path) -> "Kept":
        """Read it; BadRecord where it cannot be one."""
        record, about = records.read_with_about(path)
        try:
            names = [about["clients"], *(about[name] for name in SETS)]
            rows = _cut(record, sum(map(len, names)))
            clients = tuple(Client(i, str(n), str(d), rows.pop(0)) for i, (n, d) in enumerate(names[0]))
            tests, validation = (
                tuple(TestSet(str(n), str(d), rows.pop(0), o) for n, d, o in part) for part in names[1:]
            )
            sizes = {str(name): int(size) for name, size in about["sizes"].items()}
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise BadRecord(f"{path}: {error}") from None
        return cls(Allocation(clients, tests, validation), sizes)

    def same_as(self, other: "Kept") -> bool:
        """Tell whether two are one allocation of the same images."""
        return self.sizes == other.sizes and all(
            _alike(ours, theirs)
            for ours, theirs in (
                (self.allocation.clients, other.allocation.clients),
                (self.allocation.tests, other.allocation.tests),
                (self.allocation.validation, other.allocation.validation),
            )
        )


def keep(folder: Path, allocation: Allocation, task: Task) -> None:
    """Write it down when a run begins; a run goes on with that with which it began, or not at all."""
    now = Kept.of(allocation, task)
    try:
        before = Kept.read(folder / FILE)
    except (FileNotFoundError, BadRecord):  # a run of an earlier version, or a file that a crash has left
        now.write(folder / FILE)
        return
    if not now.same_as(before):
        raise UserError(f"the clients of {folder} now hold other images than when it began: its data have changed.")


def sizes_of(task: Task) -> dict[str, int]:
    """The images of each domain, training and test part together."""
    return {domain.name: len(domain.train) + len(domain.test) for domain in task.domains}


def digest(folder: Path) -> str:
    """The SHA-256 of the kept allocation; empty where there is none."""
    try:
        with (folder / FILE).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return ""


def _cut(record: Record, sets: int) -> list[torch.Tensor]:
    lengths = record["lengths"].tolist()
    if len(lengths) != sets:
        raise ValueError(f"it names {sets} sets and has the rows of {len(lengths)}")
    return list(torch.split(record["rows"].to(torch.int64), lengths))


def _alike(ours: Sequence[Client | TestSet], theirs: Sequence[Client | TestSet]) -> bool:
    def said(part: Client | TestSet) -> tuple[object, ...]:
        return part.name, part.domain, getattr(part, "owner", None)

    return [*map(said, ours)] == [*map(said, theirs)] and all(
        torch.equal(a.rows, b.rows) for a, b in zip(ours, theirs, strict=True)
    )
