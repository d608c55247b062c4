"""What the runs in results/measured gave: the rows of each experiment, seed by seed."""

import atexit
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from packed_runs import unpack
from scipy.stats import t as student

from protolith.experiments.paper import Experiment, Reduction, get_experiment, plan, run_of
from protolith.runs.result import Summary
from protolith.runs.run import Run

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "results" / "measured"
PACKED = MEASURED / "runs.jsonl"
# The papers that print our data sets: heading, table, their name of the data set. FedAPC's has other clients.
PAPERS = {
    "Office-Caltech10": [
        ("FPL", "fpl_table2", "Office Caltech"),
        ("I2PFL", "i2pfl_table2", "Office-10"),
        ("FedAPC", "fedapc_table1", "Office-10"),
    ],
    "Digits": [
        ("FPL", "fpl_table2", "Digits"),
        ("I2PFL", "i2pfl_table2", "Digits"),
        ("FedAPC", "fedapc_table1", "Digits"),
    ],
    "PACS": [("I2PFL", "i2pfl_table2", "PACS")],
}
UNSEEN = {  # where each domain in turn is left out
    "Office-Caltech10": [("I2PFL", "i2pfl_table3", "Office-10")],
    "PACS": [("I2PFL", "i2pfl_table3", "PACS")],
}
BASE = "FedAvg"
OUTDATED = {("digits", "FedCode"), ("pacs", "FedCode")}  # trained before a fix of SAIN in bfloat16: docs/limits.md
IMAGES = {"caltech": 224, "amazon": 190, "webcam": 58, "dslr": 30}  # of Office-Caltech10's test sets

Values = dict[str, float]


@dataclass(frozen=True)
class Seed:
    """What one seed of a row gave, and the runs that it comes from: several where each domain is left out in turn."""

    runs: list[Run]
    summaries: list[Summary]

    @property
    def accuracy(self) -> Values:
        """Per cent by domain, and their mean."""
        found = {name: value for summary in self.summaries for name, value in summary.accuracy.items()}
        return {**found, "mean": statistics.fmean(found.values())}

    def value(self, column: str) -> float:
        """One of them, or per cent of all test images together (`images`)."""
        if column != "images":
            return self.accuracy[column]
        return sum(self.accuracy[domain] * count for domain, count in IMAGES.items()) / sum(IMAGES.values())

    def after(self, rounds: int) -> float:
        """The mean of the five rounds up to this one: what the run would have given, had it ended there."""
        means = [line.mean for line in self.runs[0].rounds if line.mean is not None]
        return statistics.fmean(means[rounds - 5 : rounds])

    @property
    def cross(self) -> Values:
        """FedCode's measures, where the clients' own models were tested."""
        if (found := self.summaries[0].cross) is None:
            return {}
        means = {"LTA": found.lta, "GATA": found.gata, "GASA": found.gasa, "CPRR": found.cprr}
        return {name: value for name, value in means.items() if value is not None}

    @property
    def seconds(self) -> list[float]:
        """Of its rounds."""
        return [line.seconds["total"] for run in self.runs for line in run.rounds]

    def megabytes(self, way: str) -> float:
        """What one client sends (up) or receives (down) in a round."""
        (run, *_), (summary, *_) = self.runs, self.summaries
        sent = {"up": summary.bytes_up, "down": summary.bytes_down}[way]
        return sent / sum(line.clients for line in run.rounds) / 1e6


@dataclass(frozen=True)
class Measured:
    """An experiment: its finished rows by seed."""

    name: str
    experiment: Experiment
    dataset: str
    rows: dict[str, dict[int, Seed]]
    missing: int

    def of(self, row: str, column: str = "mean") -> list[float]:
        """The values of a row over its seeds."""
        return [seed.value(column) for seed in self.rows[row].values()]

    def gains(self, row: str, column: str = "mean", base: str = BASE) -> list[float]:
        """How far a row is above another, seed by seed."""
        mine, other = self.rows[row], self.rows[base]
        return [mine[seed].value(column) - other[seed].value(column) for seed in mine if seed in other]

    def mark(self, row: str) -> str:
        """What stands behind the numbers of a row that were not repeated after a fix."""
        return " †" if (self.name, row) in OUTDATED else ""

    def by_accuracy(self) -> list[str]:
        """The rows, the best first."""
        return sorted(self.rows, key=lambda row: -statistics.fmean(self.of(row)))

    def seconds(self, row: str) -> float:
        """Of a round: what its fastest tenth took at most, which other work on the machine disturbs least."""
        every = [seconds for seed in self.rows[row].values() for seconds in seed.seconds]
        return statistics.quantiles(every, n=10)[0]

    @property
    def papers(self) -> list[tuple[str, str, str]]:
        """The papers that print it."""
        left_out = any(dataset.leave_out for dataset in self.experiment.datasets)
        return (UNSEEN if left_out else PAPERS)[self.dataset]

    @property
    def columns(self) -> list[str]:
        """The domains, and the mean."""
        return list(next(iter(next(iter(self.rows.values())).values())).accuracy)


def ends(values: Sequence[float]) -> tuple[float, float]:
    """Where the mean of more seeds would be expected, with 95 % confidence, by Student's t."""
    half = student.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    middle = statistics.fmean(values)
    return float(middle - half), float(middle + half)


@cache
def runs() -> Path:
    """The runs' directories, for as long as this process lives."""
    place = TemporaryDirectory(prefix="protolith-measured-")
    atexit.register(place.cleanup)
    unpack(PACKED, Path(place.name))
    return Path(place.name)


@cache
def measured(name: str) -> Measured:
    """Read what is finished of an experiment, which has one data set."""
    experiment = get_experiment(str(MEASURED / f"{name}.toml"))
    (dataset,) = experiment.datasets
    jobs = plan(experiment, Reduction())
    rows: dict[str, dict[int, Seed]] = {}
    missing = 0
    for row in experiment.rows:
        for seed in experiment.seeds:
            mine = [job for job in jobs if job.variant == row and job.config.seed == seed]
            found = [run_of(job, runs()) for job in mine]
            summaries = [summary for run in found if (summary := run.finished)]
            if len(summaries) == len(mine):
                rows.setdefault(row.name, {})[seed] = Seed(found, summaries)
            else:
                missing += len(mine) - len(summaries)
    return Measured(name, experiment, dataset.name, rows, missing)
