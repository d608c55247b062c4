"""What a run or a sweep prints when it is done."""

import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from protolith.cli.progress import print_json, sparkline
from protolith.data.spec import all_tasks
from protolith.errors import unknown
from protolith.experiments.render import render
from protolith.experiments.sweep import Outcome, log_file
from protolith.experiments.table import build_tables
from protolith.runs.attendance import with_whole_means
from protolith.runs.directory import MODEL
from protolith.runs.run import Run
from protolith.runs.runner import Observer
from protolith.use.text import predict_line


def show_all(outcomes: Sequence[Outcome], as_json: bool) -> None:
    """Print what is done as one table."""
    runs = [Run(outcome.path) for outcome in outcomes]
    if as_json:
        print_json([run.finished.to_json() for run in runs if run.finished])
    elif any(outcome.state == "done" for outcome in outcomes):
        print(render(build_tables(runs), "text"), end="")


def name_failed(outcomes: Sequence[Outcome]) -> None:
    """Name the jobs that failed, and leave with the exit code that says so."""
    failed = [outcome for outcome in outcomes if outcome.state != "done"]
    if failed:
        sys.stdout.flush()
        print(f"protolith: {len(failed)} of {len(outcomes)} jobs failed:", file=sys.stderr)
        for outcome in failed:
            sentence = " ".join(outcome.error.split()).rstrip(".")
            print(f"  {outcome.path.name}: {sentence} (see {log_file(outcome.path)})", file=sys.stderr)
        raise typer.Exit(1)


def show(run: Run, as_json: bool, page: Path | None = None) -> None:
    """Print a run's result."""
    if as_json:
        print_json(run.summary.to_json())
    else:
        print(render(build_tables([run]), "text"), end="")
        print(f"accuracy by round  {_by_round(run)}")
        print(f"everything is in {run.path}")
        print("; ".join([where_to_look(run.path, page), *_next(run)]))


def _next(run: Run) -> list[str]:
    """What is done with a model for images of one's own, as `protolith data check` says too."""
    is_own = run.config.task not in all_tasks() and (run.path / MODEL).is_file()
    return [f"next: {predict_line(run.path)}"] if is_own else []


def _by_round(run: Run) -> str:
    """The mean of each tested round as a line of bars, over all sites or not at all."""
    means = [line.mean for line in with_whole_means(run.rounds) if line.tested]
    gaps = " (a gap: a round in which not all sites were tested)" if None in means else ""
    return f"{sparkline(means)}{gaps}"


def tracked(watcher: Observer, track: str | None) -> Observer:
    """Have rounds written for TensorBoard too, where that is asked for."""
    if track is None:
        return watcher
    if track != "tensorboard":
        raise unknown("tracker in --track", track, ["tensorboard"])
    from protolith.report.track import TensorBoard

    return TensorBoard(watcher)


def write_page(path: Path) -> Path:
    """Write the report beside what it is about."""
    from protolith.report.page.build import write_report  # takes a second to import

    return write_report([path], path / "report.html")


def where_to_look(path: Path, page: Path | None) -> str:
    """The path of the report, or how to get one."""
    return f"the report is {page}" if page else f"see it: protolith report {path}"
