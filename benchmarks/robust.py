"""What attackers do to FedAvg, FPL and I2PFL on `mini`, and what robust aggregation and I2PFL's cap do about it.

    python benchmarks/robust.py --runs runs/robust --out results/robust --seeds 0,1

Every run is a job of a sweep in its own directory: when this is stopped, the same command goes on with what is missing.
Writes README.md and table.csv. The rule in bold is the best in its column by measurement, not a choice made before it.
"""

import argparse
import csv
import statistics
import sys
from pathlib import Path
from typing import Any

from protolith.cli.sweep_progress import sweep_observer
from protolith.experiments.sweep import Outcome, run_sweep
from protolith.methods.registry import get_method
from protolith.runs.config import RunConfig, resolve
from protolith.runs.run import Run

METHODS = ("fedavg", "fpl", "i2pfl")
ATTACKS: dict[str, dict[str, Any]] = {
    "no attack": {},
    "sign-flip 20 %": {"kind": "sign-flip", "share": 0.2},
    "prototype-far 10 %": {"kind": "prototype-far", "share": 0.1},
}
Key = tuple[str, str, str]  # method, how the server aggregates, attack


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/robust"))
    parser.add_argument("--out", type=Path, default=Path("results/robust"))
    parser.add_argument("--rules", default="trimmed,median,geometric-median,multi-krum")
    parser.add_argument("--cap", type=float, default=2.0)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=None)
    arguments = parser.parse_args()
    wanted = plan(arguments)
    watcher = sweep_observer()
    try:
        every = [config for configs in wanted.values() for config in configs]
        outcomes = run_sweep(every, arguments.runs, watcher, arguments.jobs)
    finally:
        watcher.close()
    found = {key: accuracies(configs, outcomes) for key, configs in wanted.items()}
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_csv(arguments.out / "table.csv", found)
    (arguments.out / "README.md").write_text(page(arguments, wanted, found))
    failed = [outcome for outcome in outcomes if outcome.state != "done"]
    for outcome in failed:
        print(f"failed: {outcome.path}: {outcome.error}", file=sys.stderr)
    print(f"wrote {arguments.out / 'README.md'}")
    return 1 if failed else 0


def plan(arguments: argparse.Namespace) -> dict[Key, list[RunConfig]]:
    """All runs by their place in the table, one for each seed."""
    rules = ["mean", *arguments.rules.split(",")]
    variants = [(method, rule, {"robust": rule}) for method in METHODS for rule in rules]
    capped = {"params": {"cap": arguments.cap}}
    variants.append(("i2pfl", f"mean, cap {arguments.cap:g}", capped))
    return {
        (method, label, attack): [
            resolve([common(arguments, seed), {"method": method, "attack": settings}, more])
            for seed in map(int, arguments.seeds.split(","))
        ]
        for method, label, more in variants
        for attack, settings in ATTACKS.items()
    }


def common(arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """What all runs share: enough steps for `mini` to be learned in a short time."""
    return {
        "task": "mini",
        "seed": seed,
        "rounds": arguments.rounds,
        "diagnostics": False,
        "model": {"width": arguments.width},
        "training": {"epochs": arguments.epochs, "batch": 16, "lr": 0.02},
    }


def accuracies(configs: list[RunConfig], outcomes: list[Outcome]) -> list[float]:
    """The mean accuracy of each finished seed."""
    summaries = [Run(o.path).finished for o in outcomes if o.config in configs and o.state == "done"]
    return [summary.mean for summary in summaries if summary]


def write_csv(path: Path, found: dict[Key, list[float]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["method", "aggregation", "attack", "mean", "sd", "seeds"])
        for key, values in found.items():
            if values:
                deviation = f"{statistics.stdev(values):.4f}" if len(values) > 1 else ""
                writer.writerow([*key, f"{statistics.fmean(values):.4f}", deviation, len(values)])


def page(arguments: argparse.Namespace, wanted: dict[Key, list[RunConfig]], found: dict[Key, list[float]]) -> str:
    """The table as a page, with the command that made it."""
    options = " ".join(
        f"--{name} {getattr(arguments, name)}" for name in ("rules", "cap", "seeds", "rounds", "epochs", "width")
    )
    config = next(iter(wanted.values()))[0]
    lines = [
        "# Attackers on `mini`, and what the server can do",
        "",
        f"Task mini (embedded; not Office-Caltech10), protocol shift, 8 clients, {config.rounds} rounds of "
        f"{config.training.epochs} epochs, batch {config.training.batch}, lr {config.training.lr:g}, ResNet-10 of "
        f"width {config.model.width}, seeds {arguments.seeds}. Accuracy in per cent, mean over the four domains and "
        "the last five rounds (never the best). Of 8 clients, 20 % are two attackers and 10 % one; which ones is drawn "
        "from the seed. Attacks are simulated (`docs/robust.md`); `robust_share` is 0.2. FedAvg "
        "sends no prototypes, so that prototype-far changes nothing there.",
        "",
        f"Command: `python benchmarks/robust.py {options}`",
        "",
        f"| method | aggregation | {' | '.join(ATTACKS)} |",
        "|---|---|" + "---:|" * len(ATTACKS),
    ]
    for method, label in dict.fromkeys((method, label) for method, label, _ in wanted):
        cells = [cell(found, method, label, attack) for attack in ATTACKS]
        lines.append(f"| {get_method(method).title} | {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def cell(found: dict[Key, list[float]], method: str, label: str, attack: str) -> str:
    """Mean ± deviation over the seeds, in bold where it is the method's best under that attack."""
    values = found[method, label, attack]
    if not values:
        return "–"
    text = f"{statistics.fmean(values):.2f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.2f}"
    rivals = [statistics.fmean(v) for (m, _, a), v in found.items() if m == method and a == attack and v]
    return f"**{text}**" if statistics.fmean(values) == max(rivals) else text


if __name__ == "__main__":
    sys.exit(main())
