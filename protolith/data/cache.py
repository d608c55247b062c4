"""Decode once: a task as one safetensors file, which is mapped and not copied when it is read."""

import hashlib
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from protolith import records
from protolith.data.domain import Domain, Split, Task
from protolith.data.sources.found import Progress, silent
from protolith.errors import UserError
from protolith.records import BadRecord

FORMAT = 2  # raise it when the file or the decoding changes: older files are then ignored
LEFTOVER_SECONDS = 86_400  # what a killed process left behind is removed after a day

Fingerprints = Mapping[str, str]  # by domain, in the order of the domains

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Header:
    """What a decoded file says about itself."""

    name: str
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    notes: tuple[str, ...]
    fingerprints: dict[str, str]


def folder(given: Path | None = None) -> Path:
    """Return the cache directory: the argument, PROTOLITH_CACHE, or the platform's place for caches."""
    if given is not None:
        return given.expanduser()
    if named := os.environ.get("PROTOLITH_CACHE"):
        return Path(named).expanduser()
    return _platform_folder() / "protolith"


def file_for(cache: Path, name: str, size: int, fingerprints: Fingerprints) -> Path:
    """Return the file of a task: its name depends on everything that determines the content."""
    parts = json.dumps([FORMAT, name, size, list(fingerprints.items())])
    return cache / f"{stem(name, size)}{hashlib.sha256(parts.encode()).hexdigest()[:16]}.safetensors"


def write(path: Path, task: Task, fingerprints: Fingerprints) -> Task:
    """Write a decoded task, complete or not at all, and return it mapped from the file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        # A directory of its own for each writer, so that two processes at once never meet.
        with TemporaryDirectory(prefix=".writing-", dir=path.parent) as place:
            temporary = Path(place) / path.name
            records.write(temporary, record_of(task), about=about(task, fingerprints), sync=True)
            temporary.replace(path)
    except OSError as error:
        raise UserError(
            f"the decoded task cannot be written to '{path.parent}' ({error.strerror or error}): "
            f"set PROTOLITH_CACHE to a folder that can be written."
        ) from error
    return read(path)


def record_of(task: Task) -> records.Record:
    """The tensors of a task by their names in its file."""
    return {
        f"{index}/{part}/{kind}": tensor
        for index, domain in enumerate(task.domains)
        for part, split in (("train", domain.train), ("test", domain.test))
        for kind in ("images", "labels", "colours")
        if (tensor := getattr(split, kind)) is not None
    }


def about(task: Task, fingerprints: Fingerprints) -> dict[str, Any]:
    """What a task's file says about itself."""
    return {
        "format": FORMAT,
        "name": task.name,
        "classes": task.classes,
        "domains": [domain.name for domain in task.domains],
        "notes": task.notes,
        "fingerprints": dict(fingerprints),
    }


def read(path: Path) -> Task:
    """Read a decoded task with its images mapped from the file; BadRecord when the file is damaged."""
    tensors, said = records.read_with_about(path)
    header = _parse(said, path)
    try:
        domains = tuple(
            Domain(name, *(_split(tensors, f"{index}/{part}") for part in ("train", "test")))
            for index, name in enumerate(header.domains)
        )
    except (KeyError, ValueError) as error:
        raise BadRecord(f"{path}: {error}") from error
    return Task(header.name, header.classes, domains, header.notes, file=path)


def read_header(path: Path) -> Header:
    """Read what a decoded file says about itself, without its images."""
    return _parse(records.read_about(path), path)


def read_if_good(path: Path, progress: Progress, what: str = "decoded file") -> Task | None:
    """Read a task's file if it is there; say so and return nothing when it is damaged."""
    if not path.is_file():
        return None
    try:
        return read(path)
    except BadRecord:
        sentence = f"the {what} '{path}' is damaged and is made anew"
        (log.warning if progress is silent else progress)(sentence)
        return None


def candidates(cache: Path, name: str, size: int) -> Iterator[tuple[Path, Header]]:
    """Go through the decoded files of a task and size, newest first, without the damaged ones."""
    files = [path for path in cache.glob(f"{stem(name, size)}*.safetensors") if path.is_file()]
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        try:
            header = read_header(path)
        except (BadRecord, FileNotFoundError):  # not found: another process was faster
            continue
        yield path, header


def stem(name: str, size: int) -> str:
    """How the name of a task's file begins."""
    readable = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)
    return f"{readable[:100]}-{size}px-"


def _split(tensors: records.Record, prefix: str) -> Split:
    return Split(tensors[f"{prefix}/images"], tensors[f"{prefix}/labels"], tensors.get(f"{prefix}/colours"))


def _parse(header: Mapping[str, Any], path: Path) -> Header:
    try:
        if header["format"] != FORMAT:
            raise ValueError(f"format {header['format']}, not {FORMAT}")
        classes, domains, notes = (tuple(header[key]) for key in ("classes", "domains", "notes"))
        return Header(header["name"], classes, domains, notes, dict(header["fingerprints"]))
    except (KeyError, TypeError, ValueError) as error:
        raise BadRecord(f"{path}: not a decoded task ({error})") from error


def _sweep(cache: Path) -> None:
    for leftover in cache.glob(".writing-*"):
        try:
            if time.time() - leftover.stat().st_mtime > LEFTOVER_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)
        except OSError:  # another process was faster
            continue


def _platform_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
