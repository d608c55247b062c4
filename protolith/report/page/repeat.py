"""The commands that repeat runs."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping

import torch

from protolith.data.domain import Domain, Split, Task
from protolith.data.protocols import Protocol, complete
from protolith.errors import UserError
from protolith.experiments.sweep import PLACE
from protolith.report.page.places import shown
from protolith.runs.config import RunConfig, resolve

SAID = {*PLACE, "method", "task", "seed", "rounds", "plugins"}  # what has an option of its own


def commands(configs: Iterable[RunConfig]) -> list[str]:
    """As few commands as give these runs again: one where methods and seeds are all that differs."""
    alike: dict[tuple[str, ...], dict[str, set[int]]] = {}
    for config in map(shown, configs):
        alike.setdefault(tuple(_options(config)), {}).setdefault(config.method, set()).add(config.seed)
    written = []
    for options, methods in alike.items():
        by_seeds: dict[tuple[int, ...], list[str]] = {}
        for method, seeds in methods.items():
            by_seeds.setdefault(tuple(sorted(seeds)), []).append(method)
        written += [_command(names, seeds, options) for seeds, names in by_seeds.items()]
    return written


def _command(methods: list[str], seeds: tuple[int, ...], options: Iterable[str]) -> str:
    if len(methods) == 1 and len(seeds) == 1:
        words = ["protolith", "run", "--method", methods[0], "--seed", str(seeds[0])]
    else:
        words = ["protolith", "sweep", "--methods", ",".join(methods), "--seeds", ",".join(map(str, seeds))]
        options = [*options, "--out", "repeated"]
    return shlex.join([*words, *options])


def _options(config: RunConfig) -> list[str]:
    """The options of a run besides method and seed, as far as they are not the defaults."""
    words = ["--task", config.task, "--protocol", config.protocol.name, "--rounds", str(config.rounds)]
    for name in ("data", "deployment"):
        if value := getattr(config, name):
            words += [f"--{name}", value]
    for plugin in config.plugins:
        words += ["--plugin", plugin]
    for setting in settings(config):
        words += ["--set", setting]
    return words


def settings(config: RunConfig) -> list[str]:
    """The settings that differ from the defaults of task, protocol and method, as `--set` wants them."""
    base = _defaults(config)
    usual = base.model_dump(mode="json", exclude=SAID)
    return [
        f"{key}={_written(value)}"
        for key, value in _flat(config.model_dump(mode="json", exclude=SAID), usual)
        if key != "protocol.name"
    ]


def _defaults(config: RunConfig) -> RunConfig:
    protocol = config.protocol
    given = {"method": config.method, "task": config.task, "protocol": {"name": protocol.name}}
    try:
        base = resolve([given])
    except UserError:  # a method or model of the user's that is not at hand
        base = RunConfig(protocol=Protocol(name=protocol.name))
    domains = list(protocol.samples) if isinstance(protocol.samples, dict) else []
    if not domains:  # never completed: nothing was run
        return base
    usual = base.protocol.model_copy(update={"unseen": protocol.unseen, "allocation": protocol.allocation})
    usual = complete(usual, _hollow(config.task, domains))
    if usual.clients != protocol.clients:  # how many images a client has depends on how many clients there are
        fresh = base.protocol.model_copy(update={"unseen": protocol.unseen, "clients": protocol.clients})
        usual = complete(fresh, _hollow(config.task, domains)).model_copy(update={"clients": usual.clients})
    return base.model_copy(update={"protocol": usual.model_copy(update={"unseen": "", "allocation": ""})})


def _hollow(task: str, domains: Iterable[str]) -> Task:
    """A task without images: all that the defaults of clients and samples depend on."""
    empty = Split(torch.zeros(0, 1, 1, 3, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64))
    return Task(task, (), tuple(Domain(name, empty, empty) for name in domains))


def _flat(tree: Mapping[str, object], usual: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Keys and values that differ, dotted; a table by domain comes as a whole."""
    for key, value in tree.items():
        before = usual.get(key)
        if value == before:
            continue
        if not isinstance(value, dict):
            yield f"{prefix}{key}", value
        elif key == "samples" and len(set(value.values())) == 1:
            yield f"{prefix}{key}", next(iter(value.values()))
        elif key in ("clients", "samples") or not isinstance(before, dict):
            yield from _flat(value, {}, f"{prefix}{key}.")
        else:
            yield from _flat(value, before, f"{prefix}{key}.")


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
