"""A run, opened: everyone who looks at one reads it through this."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

from torch import nn

from protolith.data.domain import Task
from protolith.data.protocols import Allocation, allocate
from protolith.data.sources.found import Progress, silent
from protolith.data.tasks import load_task
from protolith.errors import UserError
from protolith.methods.registry import Method, get_method, load_plugin
from protolith.models.saved import Saved, open_model
from protolith.records import BadRecord
from protolith.runs import allocation
from protolith.runs.allocation import Kept
from protolith.runs.config import RunConfig
from protolith.runs.diagnostics import Made, Prototypes, Tests, read_prototypes, read_shown, read_tests
from protolith.runs.directory import MODEL, RunDirectory
from protolith.runs.result import Summary
from protolith.runs.round import Round

Held = TypeVar("Held")


class Run:
    """A run's directory: its configuration, its rounds, its result, its data and its model.

    What may change while the run goes on is read again when its file has changed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.directory = RunDirectory(path)
        self._config = _Fresh(path / "config.toml", self.directory.config)
        self._rounds = _Fresh(path / "metrics.jsonl", self.directory.metrics)
        self._finished = _Fresh(path / "summary.json", self.directory.summary)

    @classmethod
    def open(cls, path: Path) -> "Run":
        """Open the directory of a run that exists."""
        return cls(RunDirectory.open(path).path)

    @property
    def config(self) -> RunConfig:
        """The resolved configuration."""
        return self._config.now()

    @property
    def rounds(self) -> list[Round]:
        """What came of each round so far."""
        return self._rounds.now()

    @property
    def finished(self) -> Summary | None:
        """The result; none while the run is not finished."""
        return self._finished.now()

    @property
    def summary(self) -> Summary:
        """The result: means of the last five rounds."""
        if (summary := self.finished) is None:
            raise UserError(f"{self.path} is not finished: protolith.resume('{self.path}') goes on with it.")
        return summary

    @cached_property
    def method(self) -> Method:
        """The method, also where a plug-in has it."""
        self._load_plugins()
        return get_method(self.config.method)

    def task(self, progress: Progress = silent) -> Task:
        """The data that it was trained on, where they are at hand."""
        if self.config.engine == "flower":
            raise UserError("the run's images are at its sites and not here.")
        self._load_plugins()
        task = task_of(self.config, progress)
        if self._kept and self._kept.sizes != allocation.sizes_of(task):
            raise UserError(f"task {task.name} now has other images than when {self.path} was run.")
        return task

    @cached_property
    def allocation(self) -> Allocation:
        """Who held which images, and what was tested: as it was written down, or of an older run worked out again."""
        if self._kept:
            return self._kept.allocation
        return allocate(self.task(), self.config.protocol, self.config.seed)

    @cached_property
    def _kept(self) -> Kept | None:
        try:
            kept = Kept.read(self.path / allocation.FILE)
        except FileNotFoundError:
            return None
        except BadRecord:
            kept = None
        known = self.finished.allocation if self.finished else ""
        if kept is None or (known and known != allocation.digest(self.path)):
            raise UserError(f"{self.path / allocation.FILE} is damaged: who held which images is not known.")
        return kept

    def saved_model(self, file: Path | None = None) -> Saved:
        """A model of its own, the global one unless a file is named, with what its method knows."""
        self._load_plugins()
        held, began = open_model(file or self.path / MODEL), self.config.model.sha256
        if file is None and (of := str((held.backbone or {}).get("sha256", ""))) != began:
            raise UserError(
                f"{self.path / MODEL} was trained from other weights of {held.name} than the run began with: SHA-256 "
                f"{of[:16] or 'unknown'}…, not {began[:16] or 'none'}…."
            )
        return held

    def model(self) -> nn.Module:
        """The trained global network, in evaluation mode."""
        return self.saved_model().model

    @cached_property
    def tests(self) -> Tests | None:
        """What it made of test images."""
        return read_tests(self.path)

    @cached_property
    def prototypes(self) -> list[Prototypes]:
        """Its clients' prototypes, for some rounds."""
        return read_prototypes(self.path)

    @cached_property
    def shown(self) -> list[Made]:
        """What its server made of the uploads, for some rounds."""
        return read_shown(self.path)

    def _load_plugins(self) -> None:
        for plugin in self.config.plugins:
            load_plugin(plugin)

    def __repr__(self) -> str:
        return f"Run('{self.path}')"


def task_of(config: RunConfig, progress: Progress = silent) -> Task:
    """The data that a configuration names."""
    return load_task(
        config.task,
        data=Path(config.data) if config.data else None,
        size=config.size,
        progress=progress,
        skip_bad=config.skip_bad,
        fit=config.model.fit,
    )


class _Fresh(Generic[Held]):
    """What a file says; read again when the file has changed."""

    def __init__(self, file: Path, read: Callable[[], Held]) -> None:
        self.file = file
        self.read = read
        self._held: tuple[object, Held] | None = None

    def now(self) -> Held:
        mark = self._mark()
        if self._held is None or self._held[0] != mark:
            self._held = (mark, self.read())
        return self._held[1]

    def _mark(self) -> object:
        try:
            found = self.file.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
