"""How a sweep shows its progress: one live table on a terminal, plain lines elsewhere."""

import sys
from collections import Counter
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from protolith.experiments.sweep import Standing, SweepJob, SweepObserver
from protolith.methods.registry import get_method
from protolith.use.text import span

STILL = 16  # rows of the live table, so that it fits a terminal; jobs beyond that are counted only


class SweepLines(SweepObserver):
    """Plain lines on standard error: one when a job starts, one when it ends."""

    def __init__(self) -> None:
        self.labels: dict[str, str] = {}

    def say(self, text: str) -> None:
        """Print a sentence."""
        print(text, file=sys.stderr, flush=True)

    def began(self, standing: Standing, at_once: int) -> None:
        """Print what there is to do."""
        self.labels = labels(standing.jobs)
        already = f", {standing.done} done already" if standing.done else ""
        self.say(f"{standing.total} runs{already}, {at_once} at a time")

    def started(self, job: SweepJob, standing: Standing) -> None:
        """Print that a job begins."""
        how = f"goes on after round {job.rounds}" if job.rounds else "started"
        self.say(f"{self._label(job)} {how}, {job.config.rounds} rounds in all")

    def ended(self, job: SweepJob, standing: Standing) -> None:
        """Print what became of a job, and how far the sweep is."""
        self.say(f"{self._label(job)} {outcome(job)}; {overall(standing)}")

    def _label(self, job: SweepJob) -> str:
        return self.labels.get(job.name, job.name)


class SweepLive(SweepLines):
    """A table that moves, for a terminal: a row for each job with its round, accuracy so far and time left."""

    def __init__(self) -> None:
        super().__init__()
        self.live = Live(console=Console(stderr=True), auto_refresh=False)

    def say(self, text: str) -> None:
        """Print a sentence above the table."""
        self.live.console.print(text, markup=False, highlight=False)

    def began(self, standing: Standing, at_once: int) -> None:
        """Show the table."""
        super().began(standing, at_once)
        self.live.start()
        self.moved(standing)

    def started(self, job: SweepJob, standing: Standing) -> None:
        """Show that a job begins."""
        self.moved(standing)

    def ended(self, job: SweepJob, standing: Standing) -> None:
        """Show what became of a job; a failure is a sentence too."""
        if job.state != "done":
            super().ended(job, standing)
        self.moved(standing)

    def moved(self, standing: Standing) -> None:
        """Draw the table anew."""
        shown = fitting(standing.jobs)
        more = len(standing.jobs) - len(shown)
        last = f"{overall(standing)}{f'; {more} jobs are not shown' if more else ''}"
        self.live.update(Group(self._table(shown), Text(last)), refresh=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.live.stop()

    def _table(self, jobs: Sequence[SweepJob]) -> Table:
        table = Table(box=None, pad_edge=False)
        table.add_column("method", no_wrap=True)
        for name in ("round", "accuracy so far", "time left"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("", width=20)
        for job in jobs:
            bar = ProgressBar(total=job.config.rounds, completed=job.rounds, width=20)
            table.add_row(Text(self._label(job)), *cells(job), bar)
        return table


def labels(jobs: Sequence[SweepJob]) -> dict[str, str]:
    """What each job is called on the screen: its method, its seed where there are several, else its own name."""
    several = len({job.config.seed for job in jobs}) > 1
    found = {job.name: title(job) + (f" seed {job.config.seed}" if several else "") for job in jobs}
    often = Counter(found.values())
    return {name: label if often[label] == 1 else name for name, label in found.items()}


def title(job: SweepJob) -> str:
    """The method's name as people write it."""
    return get_method(job.config.method).title


def fitting(jobs: Sequence[SweepJob]) -> list[SweepJob]:
    """The jobs that the live table has room for: those at work first, in the order of the sweep."""
    at_work = [job for job in jobs if job.state == "running"]
    others = [job for job in jobs if job.state != "running"]
    chosen = {job.name for job in [*at_work, *others][:STILL]}
    return [job for job in jobs if job.name in chosen]


def cells(job: SweepJob) -> list[str]:
    """A job's round, accuracy so far and time left."""
    accuracy = f"{job.accuracy:.1f}" if job.accuracy is not None else ""
    left = job.seconds_left
    what = {"running": f"about {span(left)}" if left is not None else "starting", "done": "done", "failed": "failed"}
    return [f"{job.rounds}/{job.config.rounds}", accuracy, what.get(job.state, "waits")]


def outcome(job: SweepJob) -> str:
    """What became of a job, in words."""
    if job.state != "done":
        return f"{job.state}: {job.error}"
    accuracy = f"{job.accuracy:.2f}" if job.accuracy is not None else "unknown"
    return f"done, mean accuracy {accuracy}, {job.seconds:.0f} s"


def overall(standing: Standing) -> str:
    """How far a sweep is, in one line."""
    parts = [f"{standing.done} of {standing.total} done"]
    if standing.failed:
        parts.append(f"{standing.failed} failed")
    if standing.left:
        parts.append(f"{standing.left} to do")
    if standing.left and standing.seconds_left is not None:
        parts.append(f"about {span(standing.seconds_left)} left")
    return ", ".join(parts)


def sweep_observer() -> SweepLines:
    """The observer that fits where the output goes."""
    return SweepLive() if sys.stderr.isatty() else SweepLines()
