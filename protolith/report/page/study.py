"""The runs that a report is about, with what is missing of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from protolith.errors import UserError
from protolith.experiments.compare import group_runs
from protolith.experiments.sweep import failure
from protolith.report.style import Look, looks
from protolith.runs.run import Run


@dataclass
class Setting:
    """Runs that can be compared: the same data and protocol."""

    key: str  # for ids in the page
    title: str
    methods: dict[str, list[Run]]  # method or variant -> a run for each seed

    @property
    def runs(self) -> Iterator[Run]:
        """All of them."""
        return (run for runs in self.methods.values() for run in runs)

    @cached_property
    def looks(self) -> dict[str, Look]:
        """The colour, line and marker of each method."""
        return looks(self.methods)

    @cached_property
    def domains(self) -> list[str]:
        """The domains that were tested."""
        lines = (line for run in self.runs for line in run.rounds)
        return list(dict.fromkeys(domain for line in lines for domain in line.accuracy))

    def first_with(self, what: Callable[[Run], object]) -> dict[str, Run]:
        """The first seed of each method that has saved something."""
        found = {label: next((run for run in runs if what(run)), None) for label, runs in self.methods.items()}
        return {label: run for label, run in found.items() if run is not None}


@dataclass
class Study:
    """Everything that a report shows."""

    settings: list[Setting]
    failed: dict[str, str] = field(default_factory=dict)  # name of a job -> what went wrong
    name: str = ""

    @property
    def runs(self) -> Iterator[Run]:
        """All runs."""
        return (run for setting in self.settings for run in setting.runs)


def read_study(paths: Sequence[Path]) -> Study:
    """Read runs, or directories of runs."""
    found: dict[Path, Run] = {}
    failed: dict[str, str] = {}
    for path in paths:
        if not path.exists():
            raise UserError(f"{path} does not exist.")
        for folder in folders(path):
            if (folder / "config.toml").is_file():
                found.setdefault(folder.resolve(), Run(folder))
            if sentence := failure(folder):
                failed[folder.name] = sentence
    readable = _readable(found, failed)
    if not readable and not failed:
        raise UserError(f"{paths[0]} holds no run: there is no config.toml in it or one level below.")
    settings = [Setting(f"s{index}", *group) for index, group in enumerate(group_runs(readable).items())]
    return Study(settings, failed, ", ".join(path.resolve().name for path in paths))


def folders(path: Path) -> list[Path]:
    """The run in a directory, or the runs below it, with those that failed before they began."""
    if (path / "config.toml").is_file():
        return [path]
    return sorted({file.parent for name in ("config.toml", "failed.json") for file in path.glob(f"*/{name}")})


def _readable(found: Mapping[Path, Run], failed: dict[str, str]) -> list[Run]:
    """The runs whose configuration can be read; the others are named with what has failed."""
    readable = []
    for run in found.values():
        try:
            _ = run.config, run.finished  # one of a newer version is refused
            readable.append(run)
        except UserError as error:
            failed[run.path.name] = str(error)
    return readable
