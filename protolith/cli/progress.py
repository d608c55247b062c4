"""How a run or a sweep shows its progress: live on a terminal, plain lines elsewhere."""

import json
import sys
import time
from collections.abc import Sequence
from itertools import pairwise

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from protolith.runs.config import RunConfig
from protolith.runs.directory import RunDirectory
from protolith.runs.result import Summary
from protolith.runs.round import Round
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
        whose = "site(s)" if config.engine == "flower" else "worker(s)"
        self.say(
            f"{config.method} on {config.task}, protocol {config.protocol.name}, seed {config.seed}: "
            f"rounds {first_round + 1} to {config.rounds} with {workers} {whose}, in {directory.path}"
        )

    def round_done(self, done: Round) -> None:
        """Print a round."""
        left = (time.perf_counter() - self.began) / (done.round - self.first) * (self.rounds - done.round)
        self.say(f"round {done.round}/{self.rounds}  {describe(done)}  {left:.0f} s left")


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

    def round_done(self, done: Round) -> None:
        """Move the bar."""
        if self.line is not None:
            text = f"accuracy {done.mean:.2f}{untested(done)}" if done.mean is not None else ""
            self.bar.update(self.line, completed=done.round, description=f"round {done.round}/{self.rounds}", text=text)

    def finished(self, summary: Summary) -> None:
        """Take the bar away."""
        self.close()

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.bar.stop()


def describe(done: Round) -> str:
    """A round in one line."""
    parts = []
    if done.mean is not None:
        parts.append(f"accuracy {done.mean:.2f}{untested(done)}")
        parts.append("(" + " ".join(f"{name} {value:.1f}" for name, value in done.accuracy.items()) + ")")
    parts.append("loss " + " ".join(f"{name} {value:.3f}" for name, value in done.loss.items()))
    if done.rejected:
        parts.append(f"{len(done.rejected)} rejected")
    return " ".join(parts)


def untested(done: Round) -> str:
    """Which sites a round's mean is without."""
    return f" without {', '.join(done.untested)}" if done.untested else ""


def sparkline(values: Sequence[float | None], width: int = 60) -> str:
    """Numbers as a line of bars, the first and the last in words; many are averaged into `width` bars.

    Where there is none there is a gap.
    """
    if not values:
        return "none"
    cuts = [round(index * len(values) / min(width, len(values))) for index in range(min(width, len(values)) + 1)]
    pieces = [[value for value in values[a:b] if value is not None] for a, b in pairwise(cuts)]
    means = [sum(piece) / len(piece) if piece else None for piece in pieces]
    there = [mean for mean in means if mean is not None]
    first, last = ("–" if value is None else f"{value:.1f}" for value in (values[0], values[-1]))
    return f"{first} {''.join(_bar(mean, there) for mean in means)} {last}"


def _bar(value: float | None, values: Sequence[float]) -> str:
    """How high a value is among all of them."""
    if value is None:
        return " "
    low, high = min(values), max(values)
    return BARS[round(7 * (value - low) / (high - low)) if high > low else 0]


def observer() -> Lines:
    """The observer that fits where the output goes."""
    return Live() if sys.stderr.isatty() else Lines()


def print_json(value: object) -> None:
    """Print a result for other programs."""
    print(json.dumps(value, indent=2))
