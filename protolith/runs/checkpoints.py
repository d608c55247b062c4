"""Checkpoints: complete or absent, checked when read; the one before is kept."""

import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from protolith import files, records
from protolith.evaluation.measures import Counts, to_plain
from protolith.federation.coordinator import Progress
from protolith.files import write_text
from protolith.records import BadRecord, Record

KEPT = 2
# A later version that writes checkpoints in another way raises the number. In the first, memories count from 0: their
# numbers are those of files that are there, so they are read as they stand. Up to the second, `own_accuracy` has the
# accuracies of clients' own models in per cent; since then `own` has their counts. Up to the third, what layers keep
# was the method's.
FORMAT = 4
STATE, PROGRESS = "server.safetensors", "progress.json"
NAME = re.compile(r"round-([0-9]{6,9})")


class Description(BaseModel):
    """What progress.json says."""

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT
    round: int = Field(ge=0)
    memories: dict[int, int]  # client -> the number that its memory's file has
    own_accuracy: dict[int, dict[str, float]] = {}
    own: dict[int, dict[str, Any]] = {}
    strikes: dict[int, int] = {}
    sha256: str


@dataclass(frozen=True)
class Checkpoint:
    """The server's state and the progress after a round."""

    state: Record
    progress: Progress


class Checkpoints:
    """The checkpoints of a run, in a folder each."""

    def __init__(
        self, folder: Path, memory_file: Callable[[int, int], Path], counts_of: Callable[[str, Any], Counts]
    ) -> None:
        self.folder = folder
        self.memory_file = memory_file
        self.counts_of = counts_of  # from the name of a test set, and what was written of it
        folder.mkdir(exist_ok=True)

    def write(self, state: Record, progress: Progress) -> None:
        """Write a checkpoint and remove what is no longer needed."""
        final = self.folder / f"round-{progress.round:06d}"
        temporary = self.folder / f".{final.name}"
        for leftover in (temporary, final):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            temporary.mkdir()
            records.write(temporary / STATE, state, sync=True)
            description = Description(
                round=progress.round,
                memories=progress.memories,
                own={client: {t: to_plain(c) for t, c in own.items()} for client, own in progress.own.items()},
                strikes=progress.strikes,
                sha256=_sha256(temporary / STATE),
            )
            write_text(temporary / PROGRESS, description.model_dump_json())
            files.sync_folder(temporary)
            temporary.rename(final)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)  # half a checkpoint only takes room
            raise
        files.sync_folder(self.folder)
        self._remove_old()

    def latest(self, say: Callable[[str], None]) -> Checkpoint | None:
        """Read the newest checkpoint that is whole; say so when a newer one is not.

        One that cannot be opened at all, or is of a newer version, is not damaged: it stays, and the error is the
        caller's.
        """
        for leftover in self.folder.glob(".round-*"):  # of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        for folder in self._newest_first():
            try:
                return self._read(folder)
            except (FileNotFoundError, NotADirectoryError, BadRecord, ValueError) as error:
                reason = " ".join(str(error).split())[:300] or type(error).__name__
                say(f"checkpoint {folder.name} is damaged ({reason}); going back to the one before.")
                shutil.rmtree(folder, ignore_errors=True)
        return None

    def _read(self, folder: Path) -> Checkpoint:
        found = describe(folder)
        if f"round-{found.round:06d}" != folder.name:
            raise ValueError(f"it says that it is of round {found.round}")
        if _sha256(folder / STATE) != found.sha256:
            raise ValueError(f"{STATE} does not have the expected content")
        for client, round_ in found.memories.items():
            records.read(self.memory_file(client, round_))
        # Copied, because the files of a checkpoint are removed while the run goes on.
        state = records.clone(records.read(folder / STATE))
        held = {**found.own_accuracy, **found.own}
        own = {client: {test: self.counts_of(test, said) for test, said in of.items()} for client, of in held.items()}
        progress = Progress(found.round, dict(found.memories), own, dict(found.strikes))
        return Checkpoint(state, progress)

    def _newest_first(self) -> list[Path]:
        found = [folder for folder in self.folder.iterdir() if NAME.fullmatch(folder.name)]
        return sorted(found, key=lambda folder: int(folder.name.removeprefix("round-")), reverse=True)

    def _remove_old(self) -> None:
        folders = self._newest_first()
        for folder in folders[KEPT:]:
            shutil.rmtree(folder, ignore_errors=True)
        needed: set[Path] = set()
        for folder in folders[:KEPT]:
            try:
                memories = describe(folder).memories
            except (OSError, ValueError):  # a damaged one needs nothing: nobody can go back to it
                continue
            needed |= {self.memory_file(client, round_) for client, round_ in memories.items()}
        for file in self.memory_file(0, 0).parent.glob("client-*.safetensors"):
            if file not in needed:
                file.unlink(missing_ok=True)


def describe(folder: Path) -> Description:
    """Read what a checkpoint says about itself; ValueError when it is damaged."""
    path = folder / PROGRESS
    values = files.read_json(path)
    if problem := files.newer(path, values.get("format", 1), FORMAT):
        raise problem
    return Description.model_validate(values)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
