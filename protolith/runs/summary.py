"""The result of a run: means of its last rounds, and how they were taken."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protolith.errors import RunFailed
from protolith.federation.coordinator import LAST, Coordinator
from protolith.federation.layers.attack import attackers
from protolith.federation.local_update import Workplace
from protolith.methods import registry
from protolith.models.backbones import told
from protolith.runs import attendance, stopping
from protolith.runs.accounting import summary_of
from protolith.runs.config import RunConfig
from protolith.runs.directory import Metrics, RunDirectory, versions

MODELS = {
    "global": "the global model",
    "trained": "the clients' own models",
    "aggregated": "the aggregated weights with each client's own BatchNorm statistics",
}


def summarise(
    directory: RunDirectory, config: RunConfig, workplace: Workplace, coordinator: Coordinator
) -> dict[str, Any]:
    """Average the last rounds, and say how that was done."""
    lines = directory.metrics()
    tested = [line for line in lines if "accuracy" in line][-LAST:]
    if not tested:
        raise RunFailed(f"{directory.path / 'metrics.jsonl'} holds no tested round: there is nothing to summarise.")
    is_global = coordinator.tested == "global"  # clients' own models count from when they had trained
    tested = attendance.last_shared(tested) if is_global else tested
    rule = f"mean of the last {len(tested)} rounds ({tested[0]['round']} to {tested[-1]['round']})"
    if config.patience and (best := stopping.best_round(lines)):
        tested = [best]
        rule = f"of round {best['round']} of {len(lines)}, chosen by validation images"
    accuracy = _means(tested, "accuracy")
    if is_global:
        accuracy = {site: accuracy[site] for site in attendance.always_there(tested)}
    summary: dict[str, Any] = {
        "method": config.method,
        "task": config.task,
        "protocol": config.protocol.name,
        "seed": config.seed,
        "rounds": config.rounds,
        "rule": rule,
        "accuracy_of": MODELS[coordinator.tested],
        "accuracy": accuracy,
        "mean": sum(accuracy.values()) / len(accuracy),
        "by_images": _mean([line["by_images"] for line in tested if line.get("by_images") is not None]),
        "notes": list(workplace.task.notes),
        "bytes_down": sum(line["bytes_down"] for line in lines),
        "bytes_up": sum(line["bytes_up"] for line in lines),
        "rejected": sum(len(line["rejected"]) for line in lines),
        "flagged": sum(len(line.get("flagged", [])) for line in lines),
        "sitting_out": lines[-1].get("sitting_out", []),
        "seconds": sum(line["seconds"]["total"] for line in lines),
        "versions": versions(),
        **summary_of(lines),
    }
    if is_global and (absent := attendance.absences(lines, tested, coordinator.tested_domains())):
        summary["absent"] = absent
    if workplace.backbone:
        summary["backbone"] = told(workplace.backbone)
    if config.plugins:
        summary["plugins"] = {Path(plugin).name: registry.plugin_digest(plugin) for plugin in config.plugins}
    if config.robust != "mean":
        summary["robust"] = {"rule": config.robust, "share": config.robust_share}
    if attack := config.attack.said():
        clients = workplace.allocation.clients
        names = [clients[client].name for client in sorted(attackers(config.attack, len(clients), config.seed))]
        summary["attack"] = {"kind": config.attack.kind, "said": attack, "clients": names}
    if "measures" in tested[-1]:
        summary["measures"] = {name: _measure_means(tested, name) for name in tested[-1]["measures"]}
    if "across" in tested[-1]:
        summary["across"] = _means(tested, "across")
    if "cross" in tested[-1]:
        summary["cross"] = _cross_means(tested)
        summary["matrix"] = {name: list(map(_mean, zip(*rows, strict=True))) for name, rows in _matrix(tested).items()}
    return summary


def _cross_means(lines: list[Metrics]) -> Metrics:
    """Average FedCode's measures over the rounds (its ratio too is taken in each round, then averaged)."""
    ata = _means([line["cross"] for line in lines], "ata")
    others = {
        name: _mean([line["cross"][name] for line in lines if line["cross"][name] is not None])
        for name in ("lta", "gata", "gasa", "cprr")
    }
    return {**others, "ata": ata}


def _matrix(lines: list[Metrics]) -> dict[str, list[list[float]]]:
    """The accuracies of each client's model in all rounds that have them."""
    found: dict[str, list[list[float]]] = {}
    for line in lines:
        for name, values in line.get("matrix", {}).items():
            found.setdefault(name, []).append(values)
    return found


def _measure_means(lines: list[Metrics], name: str) -> Metrics:
    """A measure averaged over the rounds: by domain, its mean, by images, and by class where it has such values."""
    held = [line["measures"][name] for line in lines if name in line.get("measures", {})]
    domains = _means(held, "domains")
    found: Metrics = {"domains": domains, "mean": sum(domains.values()) / len(domains)}
    found["by_images"] = _mean([part["by_images"] for part in held if part["by_images"] is not None])
    if "classes" in held[-1]:
        columns = zip(*(part["classes"] for part in held), strict=True)
        found["classes"] = [_mean([value for value in column if value is not None]) for column in columns]
    return found


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _means(lines: list[Metrics], key: str) -> dict[str, float]:
    """Average by domain over the rounds; a domain whose clients had not trained yet counts from when they had."""
    found: dict[str, list[float]] = {}
    for line in lines:
        for domain, value in line[key].items():
            found.setdefault(domain, []).append(value)
    return {domain: sum(found[domain]) / len(found[domain]) for domain in lines[-1][key]}
