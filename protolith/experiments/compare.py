"""Which runs belong side by side: same data and protocol together, seeds together, variants with a name."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from protolith.data.protocols import partition_of
from protolith.experiments.sweep import PLACE
from protolith.methods.registry import get_method, method_names
from protolith.runs.config import RunConfig
from protolith.runs.defaults import options_for
from protolith.runs.run import Run

NETWORK = "model.name"  # as options are named here
# What makes no variant of a method: the seed, where and how it was run, and what was kept of it.
ALIKE = {*PLACE, "seed", "plugins", "evaluate_every", "keep_models"}
WRITTEN = {
    "weights",
    "sha256",
    "tag",
    "input",
}  # of a backbone: they follow from its name, or `_weights` tells them apart

Group = dict[str, list[Run]]  # method or variant -> its runs, one for each seed
Member = tuple[Run, RunConfig]


def group_runs(runs: Iterable[Run]) -> dict[str, Group]:
    """Arrange runs as {task and protocol: {method or variant: its runs by seed}}.

    Runs of a method that differ in more than the seed stand apart, labelled by the settings in which they differ.
    """
    members = [(run, run.config) for run in {run.path.resolve(): run for run in runs}.values()]
    tasks = {config.task for _, config in members}
    kinds: dict[str, dict[str, list[Member]]] = {}
    for run, config in members:
        kinds.setdefault(_setting(config, tasks), {}).setdefault(config.method, []).append((run, config))
    groups: dict[str, Group] = {}
    for setting, methods in kinds.items():
        groups[setting] = {}
        for found in methods.values():
            groups[setting] |= _variants(found)
    return groups


def _setting(config: RunConfig, tasks: Iterable[str]) -> str:
    """Task and protocol; a folder by its name, unless two have the same."""
    name = Path(config.task).name
    task = name if sum(Path(other).name == name for other in tasks) == 1 else config.task
    return f"{task}, {config.protocol.name} {partition_of(config.protocol).unseen or ''}".rstrip()


def _variants(members: Sequence[Member]) -> Group:
    """The runs of one method by what sets them apart."""
    title, usual = _title_and_defaults(members[0][1])
    apart = zip(members, _codes(members), _weights(members), strict=True)
    options = [_options(config) | code | weights for (_, config), code, weights in apart]
    keys = list(dict.fromkeys(key for found in options for key in found))
    differing = [key for key in keys if any(found.get(key) != options[0].get(key) for found in options)]
    differing = [key for key in differing if key == NETWORK or not _follows(key, options)]
    variants: dict[str, dict[int, Run]] = {}
    for (run, config), found in sorted(
        zip(members, options, strict=True), key=lambda pair: [_order(pair[1].get(key)) for key in differing]
    ):
        said = [f"{key}={found[key]}" for key in differing if key in found and usual.get(key, found) != found[key]]
        variants.setdefault(", ".join([title, *said]), {}).setdefault(config.seed, run)
    return {label: [seeds[seed] for seed in sorted(seeds)] for label, seeds in variants.items()}


def _follows(key: str, options: Sequence[dict[str, Any]]) -> bool:
    """Whether a setting differs only because the networks do, which brings each its own."""
    networks = {found.get(NETWORK) for found in options}
    pairs = {(found.get(NETWORK), str(found.get(key))) for found in options}
    return len(networks) > 1 and len(pairs) == len(networks)


def _codes(members: Sequence[Member]) -> list[dict[str, str]]:
    """The content of each run's plug-ins, as far as it tells runs apart; one under way has not said it yet."""
    summaries = [run.finished if config.plugins else None for run, config in members]
    codes = [summary.plugins if summary else {} for summary in summaries]
    held = {name: {code[name] for code in codes if name in code} for code in codes for name in code}
    return [{name: digest for name, digest in code.items() if len(held[name]) > 1} for code in codes]


def _weights(members: Sequence[Member]) -> list[dict[str, str]]:
    """The beginning of each backbone's SHA-256, where one name stands for several."""
    models = [config.model for _, config in members]
    held = {model.name: {other.sha256 for other in models if other.name == model.name} for model in models}
    return [{"weights": model.sha256[:12]} if len(held[model.name]) > 1 else {} for model in models]


def _title_and_defaults(config: RunConfig) -> tuple[str, dict[str, object]]:
    """A method's title, and its own options as they are when nobody asks for anything else."""
    if config.method not in method_names():  # a plug-in that is not at hand
        return config.method, {}
    method = get_method(config.method)
    usual = method.params(**options_for(config.task, method)).model_dump(mode="json")
    return method.title, {**usual, **method.settings.get("training", {})}


def _options(config: RunConfig) -> dict[str, object]:
    """The settings that can change a result, by their names; by short ones where only one setting has it."""
    full: dict[tuple[str, str], object] = {}
    left_out: dict[str, Any] = {**dict.fromkeys(ALIKE, True), "model": WRITTEN}
    for section, value in config.model_dump(mode="json", exclude=left_out).items():
        for name, inner in value.items() if isinstance(value, dict) else [("", value)]:
            # Clients or samples by domain are one number where all domains have the same.
            alike = isinstance(inner, dict) and len(set(map(str, inner.values()))) == 1
            full[section, name] = next(iter(inner.values())) if alike else inner
    names = [name for _, name in full]
    return {
        name if name and names.count(name) == 1 else f"{section}.{name}".rstrip("."): value
        for (section, name), value in full.items()
    }


def _order(value: object) -> tuple[int, float, str]:
    """Numbers by size, then everything else as text."""
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))
