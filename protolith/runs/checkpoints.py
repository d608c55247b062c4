"""Checkpoints: complete or absent, checked when read; the one before is kept."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from protolith import records
from protolith.federation.coordinator import Progress
from protolith.records import BadRecord, Record
from protolith.runs.directory import write_text

KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """The server's state and the progress after a round."""

    state: Record
    progress: Progress


class Checkpoints:
    """The checkpoints of a run, in a folder each."""

    def __init__(self, folder: Path, memory_file: Callable[[int, int], Path]) -> None:
        self.folder = folder
        self.memory_file = memory_file
        folder.mkdir(exist_ok=True)

    def write(self, state: Record, progress: Progress) -> None:
        """Write a checkpoint and remove what is no longer needed."""
        final = self.folder / f"round-{progress.round:06d}"
        temporary = self.folder / f".{final.name}"
        for leftover in (temporary, final):
            shutil.rmtree(leftover, ignore_errors=True)
        temporary.mkdir()
        records.write(temporary / "server.safetensors", state, sync=True)
        description = {
            "round": progress.round,
            "memories": progress.memories,
            "own_accuracy": progress.own_accuracy,
            "strikes": progress.strikes,
            "sha256": _sha256(temporary / "server.safetensors"),
        }
        write_text(temporary / "progress.json", json.dumps(description))
        temporary.rename(final)
        _sync_folder(self.folder)
        self._remove_old()

    def latest(self, say: Callable[[str], None]) -> Checkpoint | None:
        """Read the newest checkpoint that is whole; say so when a newer one is not."""
        for folder in self._newest_first():
            try:
                return self._read(folder)
            except (OSError, BadRecord, ValueError, KeyError, TypeError) as error:
                reason = " ".join(str(error).split()) or type(error).__name__
                say(f"checkpoint {folder.name} is damaged ({reason}); going back to the one before.")
                shutil.rmtree(folder, ignore_errors=True)
        return None

    def _read(self, folder: Path) -> Checkpoint:
        found = json.loads((folder / "progress.json").read_text())
        if _sha256(folder / "server.safetensors") != found["sha256"]:
            raise ValueError("server.safetensors does not have the expected content")
        memories = {int(client): int(round_) for client, round_ in found["memories"].items()}
        for client, round_ in memories.items():
            records.read(self.memory_file(client, round_))
        own = {int(client): accuracy for client, accuracy in found["own_accuracy"].items()}
        # Copied, because the files of a checkpoint are removed while the run goes on.
        state = records.clone(records.read(folder / "server.safetensors"))
        strikes = {int(client): int(number) for client, number in found.get("strikes", {}).items()}
        return Checkpoint(state, Progress(int(found["round"]), memories, own, strikes))

    def _newest_first(self) -> list[Path]:
        return sorted(self.folder.glob("round-*"), reverse=True)

    def _remove_old(self) -> None:
        folders = self._newest_first()
        for folder in folders[KEPT:]:
            shutil.rmtree(folder, ignore_errors=True)
        needed: set[Path] = set()
        for folder in folders[:KEPT]:
            memories = json.loads((folder / "progress.json").read_text())["memories"]
            needed |= {self.memory_file(int(client), int(round_)) for client, round_ in memories.items()}
        for file in self.memory_file(0, 0).parent.glob("client-*.safetensors"):
            if file not in needed:
                file.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
