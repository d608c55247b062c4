"""What federation is worth to each site: the same images trained by every site alone, by FedAvg, and pooled."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path

from protolith.errors import UserError
from protolith.methods.registry import get_method
from protolith.runs import runner
from protolith.runs.config import RunConfig, merge, resolve
from protolith.runs.run import Run
from protolith.runs.runner import Observer
from protolith.use.text import columns

FOLDER = "baselines"  # in the run's directory
CHANCE = 1.96  # standard errors of the difference of two accuracies that chance alone explains, in 95 of 100 cases


@dataclass(frozen=True)
class Verdict:
    """What a site got with federation, alone and from all data pooled, in per cent, and what that means."""

    site: str
    tested: int
    federated: float
    alone: float
    pooled: float
    sentence: str


@dataclass(frozen=True)
class Baselines:
    """A run beside its baselines: accuracy by site of each, and a verdict for each site."""

    accuracy: dict[str, dict[str, float]]
    verdicts: tuple[Verdict, ...]

    def text(self) -> str:
        """A table and a sentence for each site."""
        sites = list(next(iter(self.accuracy.values())))
        rows: list[list[str]] = [["trained by", *sites, "mean"]]
        for name, values in self.accuracy.items():
            numbers = [values[site] for site in sites]
            rows.append([name, *(f"{value:.2f}" for value in [*numbers, sum(numbers) / len(numbers)])])
        return "\n".join([columns(rows), *(verdict.sentence for verdict in self.verdicts)])

    def plain(self) -> dict[str, object]:
        """The same for other programs."""
        return asdict(self)


def run_baselines(run: Run, observer: Observer) -> Baselines:
    """Train the baselines of a finished run in its directory; those that are there already are only read."""
    config, summary = run.config, run.finished
    if config.engine == "flower":
        raise UserError("--with-baselines needs all images on this machine, and the run's are at its sites.")
    if summary is None:
        raise UserError(f"{run.path} is not finished: baselines come after it.")
    title = get_method(config.method).title
    accuracy = {title: summary.accuracy}
    for name, settings in _settings(config).items():
        accuracy[name] = _finished(settings, run.path / FOLDER / name, observer)
    if "fedavg" in accuracy:
        accuracy["FedAvg"] = accuracy.pop("fedavg")
    return Baselines(
        {_named(name): values for name, values in accuracy.items()}, verdicts(title, accuracy, _tested(run))
    )


def verdicts(title: str, accuracy: Mapping[str, Mapping[str, float]], tested: Mapping[str, int]) -> tuple[Verdict, ...]:
    """Say for each site whether federation paid, as far as its test images can show."""
    found = []
    for site, federated in accuracy[title].items():
        alone, pooled, count = accuracy["alone"][site], accuracy["pooled"][site], tested[site]
        gain = federated - alone
        chance = CHANCE * sqrt((federated * (100 - federated) + alone * (100 - alone)) / count)
        numbers = f"{federated:.1f} % with {title}, {alone:.1f} % alone ({gain:+.1f} points"
        if gain > chance:
            what = f"federation paid: {numbers}, more than chance gives with {count} test images)"
        elif gain < -chance:
            what = f"federation did not pay: {numbers}, more than chance gives with {count} test images)"
        else:
            what = f"no difference that {count} test images could show: {numbers}, up to {chance:.1f} can be chance)"
        sentence = f"{site}: {what}; all data pooled: {pooled:.1f} %."
        found.append(Verdict(site, count, federated, alone, pooled, sentence))
    return tuple(found)


def _settings(config: RunConfig) -> dict[str, RunConfig]:
    """The same data, network, training and rounds; only who trains with whom differs."""
    base = config.model_dump() | {"params": {}, "diagnostics": False, "keep_models": []}
    changes: dict[str, dict[str, object]] = {
        "alone": {"method": "solo", "tested": "auto", "buffers": "average"},
        "fedavg": {"method": "fedavg"},
        "pooled": {"method": "fedavg", "tested": "auto", "buffers": "average", "protocol": {"pool": True}},
    }
    if config.method == "fedavg":
        del changes["fedavg"]
    return {name: resolve([merge(base, change)]) for name, change in changes.items()}


def _finished(config: RunConfig, place: Path, observer: Observer) -> dict[str, float]:
    if (place / "config.toml").is_file():
        runner.resume(place, observer)
    else:
        runner.start(config, place, observer)
    return Run(place).summary.accuracy


def _tested(run: Run) -> dict[str, int]:
    found: dict[str, int] = {}
    for test in run.allocation.tests:
        found[test.domain] = found.get(test.domain, 0) + len(test.rows)
    return found


def _named(name: str) -> str:
    return {"alone": "every site alone", "pooled": "all data pooled"}.get(name, name)
