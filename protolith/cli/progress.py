"""How a run or a sweep shows its progress: live on a terminal, plain lines elsewhere."""

import json
import sys
import time
from collections.abc import Sequence
from itertools import pairwise

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from protolith.experiments.sweep import Job, Standing, SweepObserver
from protolith.runs.config import RunConfig
from protolith.runs.directory import Metrics, RunDirectory
from protolith.runs.runner import Observer

BARS = "▁▂▃▄▅▆▇█"


class Lines(Observer):
    """Plain lines on standard error: one for each round."""

    def __init__(self) -> None:
        self.rounds = 0
        self.first = 0
        self.began = time.perf_counter()

    def say(self, text: str) -> None:
        """Print a sentence."""
        print(text, file=sys.stderr, flush=True)

    def started(self, config: RunConfig, directory: RunDirectory, first_round: int, workers: int) -> None:
        """Print what is run."""
        self.rounds, self.first, self.began = config.rounds, first_round, time.perf_counter()
        self.say(
            f"{config.method} on {config.task}, protocol {config.protocol.name}, seed {config.seed}: "
            f"rounds {first_round + 1} to {config.rounds} with {workers} worker(s), in {directory.path}"
        )

    def round_done(self, metrics: Metrics) -> None:
        """Print a round."""
        done = metrics["round"] + 1
        left = (time.perf_counter() - self.began) / (done - self.first) * (self.rounds - done)
        self.say(f"round {done}/{self.rounds}  {describe(metrics)}  {left:.0f} s left")


class Live(Lines):
    """A bar that moves, for a terminal."""

    def __init__(self) -> None:
        super().__init__()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=Console(stderr=True))
        self.line: TaskID | None = None

    def say(self, text: str) -> None:
        """Print a sentence above the bar."""
        self.bar.console.print(text, markup=False, highlight=False)

    def started(self, config: RunConfig, directory: RunDirectory, first_round: int, workers: int) -> None:
        """Show the bar."""
        super().started(config, directory, first_round, workers)
        self.line = self.bar.add_task("training", total=config.rounds, completed=first_round, text="")
        self.bar.start()

    def round_done(self, metrics: Metrics) -> None:
        """Move the bar."""
        if self.line is not None:
            done = metrics["round"] + 1
            text = f"accuracy {metrics['mean']:.2f}" if "mean" in metrics else ""
            self.bar.update(self.line, completed=done, description=f"round {done}/{self.rounds}", text=text)

    def finished(self, summary: Metrics) -> None:
        """Take the bar away."""
        self.close()

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.bar.stop()


def describe(metrics: Metrics) -> str:
    """A round in one line."""
    parts = []
    if "mean" in metrics:
        parts.append(f"accuracy {metrics['mean']:.2f}")
        parts.append("(" + " ".join(f"{name} {value:.1f}" for name, value in metrics["accuracy"].items()) + ")")
    parts.append("loss " + " ".join(f"{name} {value:.3f}" for name, value in metrics["loss"].items()))
    if metrics["rejected"]:
        parts.append(f"{len(metrics['rejected'])} rejected")
    return " ".join(parts)


class SweepLines(SweepObserver):
    """Plain lines on standard error: one when a job starts, one when it ends."""

    def say(self, text: str) -> None:
        """Print a sentence."""
        print(text, file=sys.stderr, flush=True)

    def began(self, standing: Standing, at_once: int) -> None:
        """Print what there is to do."""
        self.say(f"{standing.total} job(s), {standing.done} done already, {at_once} at a time")

    def started(self, job: Job, standing: Standing) -> None:
        """Print that a job begins."""
        how = f"goes on after round {job.rounds}" if job.rounds else "started"
        self.say(f"{job.name} {how}, {job.config.rounds} rounds in all")

    def ended(self, job: Job, standing: Standing) -> None:
        """Print what became of a job, and how far the sweep is."""
        if job.state == "done":
            accuracy = f"{job.accuracy:.2f}" if job.accuracy is not None else "unknown"
            what = f"done, mean accuracy {accuracy}, {job.seconds:.0f} s"
        else:
            what = f"{job.state}: {job.error}"
        self.say(f"{job.name} {what}; {overall(standing)}")


class SweepLive(SweepLines):
    """A line for each running job and a bar for all, for a terminal."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
        self.bars = Progress(*columns, console=Console(stderr=True))
        self.all: TaskID | None = None
        self.lines: dict[str, TaskID] = {}

    def say(self, text: str) -> None:
        """Print a sentence above the bars."""
        self.bars.console.print(text, markup=False, highlight=False)

    def began(self, standing: Standing, at_once: int) -> None:
        """Show the bar for all jobs."""
        super().began(standing, at_once)
        self.all = self.bars.add_task("all jobs", total=standing.total, text="")
        self.moved(standing)
        self.bars.start()

    def started(self, job: Job, standing: Standing) -> None:
        """Show the job's line."""
        self.moved(standing)

    def ended(self, job: Job, standing: Standing) -> None:
        """Turn a job's line into a sentence."""
        super().ended(job, standing)
        self.moved(standing)

    def moved(self, standing: Standing) -> None:
        """Move all bars."""
        for name in self.lines.keys() - {job.name for job in standing.running}:
            self.bars.remove_task(self.lines.pop(name))
        for job in standing.running:
            if job.name not in self.lines:
                self.lines[job.name] = self.bars.add_task(job.name, total=job.config.rounds, text="")
            accuracy = f", accuracy {job.accuracy:.2f}" if job.accuracy is not None else ""
            text = f"round {job.rounds}/{job.config.rounds}{accuracy}"
            self.bars.update(self.lines[job.name], completed=job.rounds, text=text)
        if self.all is not None:
            self.bars.update(self.all, completed=standing.total - standing.left, text=overall(standing))

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.bars.stop()


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


def span(seconds: float) -> str:
    """A time that nobody needs to the second."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Numbers as a line of bars, the first and the last in words; many are averaged into `width` bars."""
    if not values:
        return "none"
    cuts = [round(index * len(values) / min(width, len(values))) for index in range(min(width, len(values)) + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, high = min(means), max(means)
    steps = [round(7 * (mean - low) / (high - low)) if high > low else 0 for mean in means]
    return f"{values[0]:.1f} {''.join(BARS[step] for step in steps)} {values[-1]:.1f}"


def observer() -> Lines:
    """The observer that fits where the output goes."""
    return Live() if sys.stderr.isatty() else Lines()


def sweep_observer() -> SweepLines:
    """The same for a sweep."""
    return SweepLive() if sys.stderr.isatty() else SweepLines()


def print_json(value: object) -> None:
    """Print a result for other programs."""
    print(json.dumps(value, indent=2))
