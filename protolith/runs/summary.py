"""How a run is summed up: means of its last rounds, and how they were taken."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from protolith.errors import RunFailed
from protolith.evaluation.cross import CrossDomain
from protolith.evaluation.tested import Tested
from protolith.federation.coordinator import LAST, Coordinator
from protolith.federation.layers.attack import attackers
from protolith.federation.local_update import Workplace
from protolith.methods import registry
from protolith.models.backbones import told
from protolith.runs import allocation, attendance, stopping
from protolith.runs.accounting import in_the_end
from protolith.runs.config import RunConfig
from protolith.runs.directory import RunDirectory, versions
from protolith.runs.result import Attacked, Robustness, Summary
from protolith.runs.round import Measured, Round
from protolith.runs.starting import Start


def summarise(
    directory: RunDirectory, config: RunConfig, workplace: Workplace, coordinator: Coordinator, began: Start
) -> Summary:
    """Average the last rounds, and say how that was done."""
    lines = directory.metrics()
    tested = [line for line in lines if line.tested][-LAST:]
    if not tested:
        raise RunFailed(f"{directory.path / 'metrics.jsonl'} holds no tested round: there is nothing to summarise.")
    is_global = coordinator.tested is Tested.GLOBAL  # clients' own models count from when they had trained
    tested = attendance.last_shared(tested) if is_global else tested
    rule = f"mean of the last {len(tested)} rounds ({tested[0].round} to {tested[-1].round})"
    if config.patience and (best := stopping.best_round(lines)):
        tested = [best]
        rule = f"of round {best.round} of {len(lines)}, chosen by validation images"
    accuracy = _means([line.accuracy for line in tested])
    if is_global:
        accuracy = {site: accuracy[site] for site in attendance.always_there(tested)}
    summary = Summary(
        method=config.method,
        task=config.task,
        protocol=config.protocol.name,
        seed=config.seed,
        rounds=config.rounds,
        rule=rule,
        tested=coordinator.tested,
        accuracy=accuracy,
        mean=sum(accuracy.values()) / len(accuracy),
        by_images=_mean(line.by_images for line in tested),
        notes=workplace.task.notes,
        bytes_down=sum(line.bytes_down for line in lines),
        bytes_up=sum(line.bytes_up for line in lines),
        rejected=sum(len(line.rejected) for line in lines),
        flagged=sum(len(line.flagged) for line in lines),
        sitting_out=lines[-1].sitting_out,
        seconds=sum(line.seconds.get("total", 0.0) for line in lines),
        versions=versions(),
        allocation=allocation.digest(directory.path),
    )
    absent = attendance.absences(lines, tested, coordinator.tested_domains()) if is_global else {}
    besides: dict[str, object] = {"privacy": in_the_end(lines), "absent": absent, "init": began.summary()}
    besides |= _asked(config, workplace) | _measured(tested)
    return summary.model_copy(update={name: value for name, value in besides.items() if value})


def _asked(config: RunConfig, workplace: Workplace) -> dict[str, object]:
    """What the settings ask for besides, where they do."""
    found: dict[str, object] = {}
    if workplace.backbone:
        found["backbone"] = told(workplace.backbone)
    found["plugins"] = {Path(plugin).name: registry.plugin_digest(plugin) for plugin in config.plugins}
    if config.robust != "mean":
        found["robust"] = Robustness(rule=config.robust, share=config.robust_share)
    if attack := config.attack.said():
        clients = workplace.allocation.clients
        names = [clients[client].name for client in sorted(attackers(config.attack, len(clients), config.seed))]
        found["attack"] = Attacked(kind=config.attack.kind, said=attack, clients=tuple(names))
    return found


def _measured(tested: Sequence[Round]) -> dict[str, object]:
    """What was measured besides accuracy, where it was."""
    last, found = tested[-1], dict[str, object]()
    found["measures"] = {name: _measure_means(tested, name) for name in last.measures}
    found["across"] = _means([line.across for line in tested])
    if last.cross:
        found["cross"] = _cross_means([line.cross for line in tested if line.cross])
        found["matrix"] = {name: [*map(_mean, zip(*rows, strict=True))] for name, rows in _matrix(tested).items()}
    return found


def _cross_means(lines: Sequence[CrossDomain]) -> CrossDomain:
    """Average FedCode's measures over the rounds (its ratio too is taken in each round, then averaged)."""
    return CrossDomain(
        lta=sum(line.lta for line in lines) / len(lines),
        ata=_means([line.ata for line in lines]),
        gata=_mean(line.gata for line in lines),
        gasa=sum(line.gasa for line in lines) / len(lines),
        cprr=_mean(line.cprr for line in lines),
    )


def _matrix(lines: Sequence[Round]) -> dict[str, list[list[float]]]:
    """The accuracies of each client's model in all rounds that have them."""
    found: dict[str, list[list[float]]] = {}
    for line in lines:
        for name, values in line.matrix.items():
            found.setdefault(name, []).append(values)
    return found


def _measure_means(lines: Sequence[Round], name: str) -> Measured:
    """A measure averaged over the rounds: by domain, its mean, by images, and by class where it has such values."""
    held = [line.measures[name] for line in lines if name in line.measures]
    domains = _means([part.domains for part in held])
    by_images = _mean(part.by_images for part in held)
    found = Measured(domains=domains, mean=sum(domains.values()) / len(domains), by_images=by_images)
    if held[-1].classes is None:
        return found
    columns = zip(*(part.classes or [] for part in held), strict=True)
    return found.model_copy(update={"classes": [_mean(column) for column in columns]})


def _mean(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def _means(lines: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average by domain over the rounds; a domain whose clients had not trained yet counts from when they had."""
    found: dict[str, list[float]] = {}
    for line in lines:
        for domain, value in line.items():
            found.setdefault(domain, []).append(value)
    return {domain: sum(found[domain]) / len(found[domain]) for domain in lines[-1]}
