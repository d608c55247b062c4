"""The run directory: everything that a run produced, and how it comes to be there safely."""

import json
import math
import os
import platform
from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from protolith.errors import UserError
from protolith.runs.config import RunConfig, read_toml, to_toml, validated

Metrics = dict[str, Any]


def write_text(path: Path, text: str) -> None:
    """Write a file that is complete under its name, or not there at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def plain_json(value: Any) -> Any:
    """Make a value valid JSON: numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): plain_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    found = {"python": platform.python_version()}
    for package in ("protolith", "torch", "numpy", "pillow", "scikit-learn"):
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
        self._lock = FileLock(str(path / ".lock"), timeout=0.3)

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> "RunDirectory":
        """Make the directory of a new run; it must not hold anything yet."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            held = "another run" if (path / "config.toml").exists() else "other files"
            raise UserError(
                f"--out {path} holds {held} already: choose another directory, or go on with `protolith resume {path}`."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_text(path / "config.toml", to_toml(config))
        except OSError as error:
            raise UserError(f"--out {path} cannot be written: {error.strerror}.") from None
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """Open the directory of a run that exists."""
        if not (path / "config.toml").is_file():
            raise UserError(f"{path} is not a run directory: it has no config.toml.")
        return cls(path)

    def lock(self) -> AbstractContextManager[object]:
        """Make sure that no other process works here, until the context ends."""
        try:
            return self._lock.acquire()
        except Timeout:
            raise UserError(f"another process is working on the run in {self.path}.") from None

    def is_locked(self) -> bool:
        """Tell whether a process works here."""
        file = self.path / ".lock"
        if not file.exists():
            return False
        try:
            with FileLock(str(file), timeout=0):
                return False
        except Timeout:
            return True

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

    def append_metrics(self, line: Metrics) -> None:
        """Add a round's line."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(plain_json(line)) + "\n")

    def metrics(self) -> list[Metrics]:
        """The rounds' lines; a line that was cut off by a crash is left out."""
        path = self.path / "metrics.jsonl"
        lines: list[Metrics] = []
        for text in path.read_text().splitlines() if path.exists() else []:
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:
                break
        return lines

    def keep_metrics_before(self, round_: int) -> None:
        """Drop the lines of rounds that will be run again."""
        kept = [line for line in self.metrics() if line["round"] < round_]
        write_text(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))

    def summary(self) -> Metrics | None:
        """The summary, once the run is done."""
        path = self.path / "summary.json"
        if not path.exists():
            return None
        found: Metrics = json.loads(path.read_text())
        return found

    def write_summary(self, summary: Metrics) -> None:
        """Write the summary: the run is done."""
        write_text(self.path / "summary.json", json.dumps(plain_json(summary), indent=2) + "\n")
