"""The run directory: everything that a run produced, and how it comes to be there safely."""

import json
import math
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from protolith import __version__, files
from protolith.errors import UserError
from protolith.files import write_text
from protolith.runs import result, round
from protolith.runs.config import RunConfig, read_toml, to_toml, validated
from protolith.runs.result import Summary
from protolith.runs.round import Json, Round

LOCK, HOLDER = ".lock", ".holder.json"
MODEL = "model.safetensors"  # the global one
METRICS_BYTES = 4 << 30  # of metrics.jsonl


def plain_json(value: object) -> object:
    """Make a value valid JSON: numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): plain_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def processor() -> str:
    """This machine's processor and the instructions that PyTorch uses of it: other ones compute other last digits."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine())
    return f"{model} ({torch.backends.cpu.get_cpu_capability()})"


def versions() -> dict[str, str]:
    """The versions that a result depends on, and the processor."""
    found = {"processor": processor(), "python": platform.python_version(), "protolith": __version__}
    for package in ("torch", "numpy", "pillow", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Not at once: `is_locked`, called by somebody else, holds the lock for a moment too.
        self._lock = FileLock(str(path / LOCK), timeout=0.3)

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> "RunDirectory":
        """Make the directory of a new run; it must not hold anything yet."""
        directory = cls(path)
        directory._refuse_occupied()  # before a lock is left in somebody's folder
        try:
            path.mkdir(parents=True, exist_ok=True)
            with directory.lock():
                directory._refuse_occupied()  # again: of two that begin at once, the second finds the first
                write_text(path / "config.toml", to_toml(config))
        except OSError as error:
            raise UserError(f"--out {path} cannot be written: {error.strerror}.") from None
        return directory

    def _refuse_occupied(self) -> None:
        path = self.path
        if path.exists() and (not path.is_dir() or any(not _left_behind(file) for file in path.iterdir())):
            held = "another run" if (path / "config.toml").exists() else "other files"
            raise UserError(
                f"--out {path} holds {held} already: choose another directory, or go on with `protolith resume {path}`."
            )

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """Open the directory of a run that exists."""
        if not (path / "config.toml").is_file():
            raise UserError(f"{path} is not a run directory: it has no config.toml.")
        return cls(path)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Make sure that no other process works here, until the context ends; the lock names who does."""
        try:
            held = self._lock.acquire()
        except Timeout:
            raise UserError(f"another process is working on the run in {self.path}{self.holder()}.") from None
        except OSError as error:
            raise UserError(f"the run in {self.path} cannot be written: {(error.strerror or str(error))}.") from None
        with held:
            self._name_holder()
            try:
                yield
            finally:
                with suppress(OSError):
                    (self.path / HOLDER).unlink(missing_ok=True)

    def _name_holder(self) -> None:
        holder = {"pid": os.getpid(), "host": platform.node(), "since": time.strftime("%Y-%m-%d %H:%M:%S %z")}
        with suppress(OSError):  # on a full disk the lock holds all the same; it only has no name
            write_text(self.path / HOLDER, json.dumps(holder) + "\n")

    def holder(self) -> str:
        """Who holds the lock, as the end of a sentence; empty where that is not known."""
        try:
            found = files.read_json(self.path / HOLDER, 10_000)
            pid, host, since = int(found["pid"]), str(found["host"])[:80], str(found["since"])[:40]
        except (OSError, ValueError, LookupError, TypeError, OverflowError):
            return ""
        if host == platform.node() and not files.alive(pid):  # of one before, which was killed
            return ""
        return f" (process {pid} on {files.printable(host)}, since {files.printable(since)})"

    def is_locked(self) -> bool:
        """Tell whether a process works here."""
        file = self.path / LOCK
        if not file.exists():
            return False
        try:
            with FileLock(str(file), timeout=0):
                return False
        except Timeout:
            return True
        except OSError:  # where nothing can be written, nobody is at work
            return False

    def remove_parts(self) -> None:
        """Remove what killed processes left half written; only for the one who holds the lock."""
        for folder in (self.path, *(self.path / name for name in ("memory", "models", "diagnostics"))):
            files.remove_parts(folder)

    def config(self) -> RunConfig:
        """The run's resolved configuration."""
        return validated(RunConfig, read_toml(self.path / "config.toml"))

    @property
    def memory(self) -> Path:
        """Where clients' memories are."""
        folder = self.path / "memory"
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def models(self) -> Path:
        """Where models are kept besides the final global one."""
        folder = self.path / "models"
        folder.mkdir(exist_ok=True)
        return folder

    def append_metrics(self, line: Json) -> None:
        """Add a round's line."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(_as_text(line))
            file.flush()
            os.fsync(file.fileno())  # no checkpoint may be ahead of it, also when the power fails

    def metrics(self) -> list[Round]:
        """The rounds, counted from 1; a line that was cut off by a crash, or is damaged, is left out."""
        path = self.path / "metrics.jsonl"
        lines: list[Round] = []
        for text in files.read_bytes(path, METRICS_BYTES).splitlines() if path.is_file() else []:
            with suppress(ValueError):
                line = files.parse_json(text)
                if isinstance(line, dict):
                    written = line.pop("format", 1)
                    if problem := files.newer(path, written, round.FORMAT):
                        raise problem
                    lines.append(Round.of(line, written))
        return lines

    def keep_metrics_of_first(self, rounds: int) -> int:
        """Drop the lines of rounds that will be run again; say how many are missing of those before."""
        kept = [line for line in self.metrics() if line.round <= rounds]
        write_text(self.path / "metrics.jsonl", "".join(_as_text(line.to_json()) for line in kept))
        return rounds - len({line.round for line in kept})

    def summary(self) -> Summary | None:
        """The summary, once the run is done; a damaged one counts as none, so that resuming makes it anew."""
        path = self.path / "summary.json"
        try:
            found = files.read_json(path)
            written = found.pop("format", 1)
            if problem := files.newer(path, written, result.FORMAT):
                raise problem
            return Summary.of(found, written)
        except (FileNotFoundError, ValueError):
            return None

    def write_summary(self, summary: Json) -> None:
        """Write the summary: the run is done."""
        write_text(self.path / "summary.json", json.dumps(plain_json(summary), indent=2) + "\n")


def _as_text(line: Json) -> str:
    return json.dumps(plain_json({"format": round.FORMAT, **line})) + "\n"


def _left_behind(file: Path) -> bool:
    """Tell whether a file is what a run that was killed while it began leaves behind."""
    return file.name in (LOCK, HOLDER) or (file.name.startswith(".") and file.name.endswith(files.PART))
