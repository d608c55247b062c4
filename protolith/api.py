"""Protolith from Python: the same runs as on the command line."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from protolith.experiments.presets import read_settings
from protolith.experiments.render import render
from protolith.experiments.table import build_tables
from protolith.runs import runner
from protolith.runs.config import merge, resolve
from protolith.runs.directory import RunDirectory
from protolith.runs.run import Run
from protolith.runs.runner import Observer
from protolith.use.baselines import Baselines, run_baselines
from protolith.use.check import Check
from protolith.use.check import check as _check
from protolith.use.diagnose import Diagnosis, diagnose
from protolith.use.familiarity import FALSE_ALARMS
from protolith.use.own_run import unsaid
from protolith.use.predict import Predictor

if TYPE_CHECKING:
    from protolith.use.export import Exported


class RunInUse(Run):
    """A run and everything that can be done with it."""

    def table(self, format: str = "text") -> str:
        """The result as a table: text, md, csv or latex."""
        return render(build_tables([self]), format)

    def predictor(self, false_alarms: float = FALSE_ALARMS) -> Predictor:
        """The trained model in use: labels, confidence and familiarity of images or files.

        `for item in run.predictor().files(["photos/"]): print(item.file, item.label, item.unfamiliar)`
        """
        return Predictor(self, false_alarms)

    def export(self, to: str, out: str | Path) -> "Exported":
        """Write the model as "onnx" or "safetensors", with a model card beside it."""
        from protolith.use.export import export  # torch's exporter takes seconds to import

        return export(self, to, Path(out))

    def report(self, out: str | Path | None = None) -> Path:
        """Write the page that explains the run, and say where: by default `report.html` in its directory."""
        from protolith.report.page.build import write_report  # matplotlib and plotly take a second to import

        return write_report([self.path], Path(out) if out is not None else self.path / "report.html")

    def diagnose(self, unseen: Sequence[Run] = ()) -> Diagnosis:
        """Say which sites are hard and why, and from runs of protocol `unseen` what a new site could expect."""
        return diagnose(self, unseen)

    def baselines(self, observer: Observer | None = None) -> Baselines:
        """Also train every site alone, FedAvg, and all data pooled; `.text()` says for each site what paid."""
        return run_baselines(self, observer or Observer())


def fit(
    method: str = "",
    task: str = "",
    *,
    config: str = "",
    out: str | Path | None = None,
    protocol: str | dict[str, object] = "",
    observer: Observer | None = None,
    **settings: object,
) -> RunInUse:
    """Train with one method: FedAvg on `mini` if nothing else is said.

    On a folder or a manifest of your own, what you leave open is as `check` suggests: Strata, a size, rounds.
    `config` is a file of settings or a preset, such as "demo"; what is given here wins over it.
    `settings` are those of a configuration file: rounds=10, seed=0, workers=2, data="DIR",
    model={"width": 16}, training={"lr": 0.1}, params={"tau": 0.02}, plugins=["my_method.py"] and so on.
    """
    place = {"name": protocol} if protocol and isinstance(protocol, str) else protocol or {}
    named = {key: value for key, value in {"method": method, "task": task, "protocol": place}.items() if value}
    observer = observer or Observer()
    asked = merge(read_settings(config) if config else {}, {**named, **settings})
    resolved = resolve([unsaid(asked, observer.say), asked])
    path = Path(out) if out is not None else runner.free_directory(resolved, Path("runs"))
    return RunInUse(runner.start(resolved, path, observer).path)


def resume(path: str | Path, observer: Observer | None = None) -> RunInUse:
    """Go on with a run that was stopped or killed."""
    return RunInUse(runner.resume(Path(path), observer or Observer()).path)


def load(path: str | Path) -> RunInUse:
    """Look at a run that exists."""
    return RunInUse(RunDirectory.open(Path(path)).path)


def check(path: str | Path) -> Check:
    """Look at images of your own: `print(protolith.check("sites").text())`."""
    return _check(path)
