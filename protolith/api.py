"""Protolith from Python: the same runs as on the command line."""

from pathlib import Path
from typing import Any

from torch import nn

from protolith import records
from protolith.errors import UserError
from protolith.experiments.table import build_table, render
from protolith.methods.fedavg import load_weights
from protolith.models import build_model
from protolith.runs import runner
from protolith.runs.config import RunConfig, resolve
from protolith.runs.directory import Metrics, RunDirectory
from protolith.runs.runner import Observer


class Run:
    """A run and what it produced."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory

    @property
    def path(self) -> Path:
        """Where everything is."""
        return self.directory.path

    @property
    def config(self) -> RunConfig:
        """The resolved configuration."""
        return self.directory.config()

    @property
    def metrics(self) -> list[Metrics]:
        """What came of each round."""
        return self.directory.metrics()

    @property
    def summary(self) -> Metrics:
        """The result: means of the last five rounds."""
        summary = self.directory.summary()
        if summary is None:
            raise UserError(f"{self.path} is not finished: protolith.resume('{self.path}') goes on with it.")
        return summary

    def table(self, format: str = "text") -> str:
        """The result as a table: text, md, csv or latex."""
        return render(build_table([self.directory]), format)

    def model(self) -> nn.Module:
        """The trained global network, in evaluation mode."""
        path = self.path / "model.safetensors"
        if not path.exists():
            raise UserError(f"{path} does not exist: this method has no global model, or the run is not finished.")
        weights, about = records.read_with_about(path)
        model = build_model(about["model"], len(about["classes"]), about["width"], seed=0)
        load_weights(model, weights)
        return model.eval()

    def __repr__(self) -> str:
        return f"Run('{self.path}')"


def fit(
    method: str = "fedavg",
    task: str = "mini",
    *,
    out: str | Path | None = None,
    protocol: str | dict[str, Any] = "shift",
    observer: Observer | None = None,
    **settings: Any,
) -> Run:
    """Train with one method.

    `settings` are those of a configuration file: rounds=10, seed=0, workers=2, data="DIR",
    model={"width": 16}, training={"lr": 0.1}, params={"tau": 0.02}, plugins=["my_method.py"] and so on.
    """
    place = {"name": protocol} if isinstance(protocol, str) else protocol
    config = resolve([{"method": method, "task": task, "protocol": place, **settings}])
    path = Path(out) if out is not None else runner.free_directory(config, Path("runs"))
    return Run(runner.start(config, path, observer or Observer()))


def resume(path: str | Path, observer: Observer | None = None) -> Run:
    """Go on with a run that was stopped or killed."""
    return Run(runner.resume(Path(path), observer or Observer()))


def load(path: str | Path) -> Run:
    """Look at a run that exists."""
    return Run(RunDirectory.open(Path(path)))
