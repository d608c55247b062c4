"""What was asked for on the command line, as layers of settings."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from protolith.data.sources.found import Progress
from protolith.data.spec import all_tasks
from protolith.errors import UserError
from protolith.experiments.presets import read_settings
from protolith.models.backbones import absolute
from protolith.runs.config import RunConfig, merge, parse_set, resolve
from protolith.runs.defaults import Tree
from protolith.use.own_run import ON_RESNETS, default_method, unsaid


def flags_of(protocol: str | None = None, **others: Any) -> Tree:
    """The options that were given, as a layer of settings."""
    flags = {name: value for name, value in others.items() if value is not None}
    if "task" in flags and flags["task"] not in all_tasks() and Path(flags["task"]).exists():
        flags["task"] = str(Path(flags["task"]).resolve())
    if "data" in flags:
        if not Path(flags["data"]).is_dir():
            raise UserError(f"--data {flags['data']}: the directory does not exist.")
        flags["data"] = str(Path(flags["data"]).resolve())
    if "plugins" in flags:
        flags["plugins"] = [str(Path(p).resolve()) if p.endswith((".py", ".toml")) else p for p in flags["plugins"]]
    return flags | ({"protocol": {"name": protocol}} if protocol is not None else {})


def attack_of(kind: str | None, share: float | None) -> Tree | None:
    """The options of an attack, as a layer of settings."""
    if share is not None and kind is None:
        raise UserError("--attackers needs --attack KIND.")
    given = {"kind": kind, "share": share}
    return {name: value for name, value in given.items() if value is not None} or None


def model_of(name: str | None, weights: str | None, tune: str | None = None) -> Tree | None:
    """The options of the network, as a layer of settings; folders and files by their whole path."""
    files = [str(Path(file).resolve()) if file else "" for file in (weights or "").split("+")]
    found = {"name": absolute(name) if name else None, "weights": "+".join(files) if weights else None, "tune": tune}
    return {key: value for key, value in found.items() if value is not None} or None


def model_settings(name: str | None, weights: str | None, tune: str | None = None) -> tuple[str, ...]:
    """The same as `--set` takes them."""
    return tuple(f"model.{key}={value}" for key, value in (model_of(name, weights, tune) or {}).items())


def given(config: str | None, flags: Tree, settings: Iterable[str], below: Tree | None = None) -> Tree:
    """All that was asked for: file, then flags, then --set; the later wins."""
    asked = merge(merge(below or {}, {} if config is None else read_settings(config)), flags)
    settings = list(settings)
    early = merge(asked, _plain(settings))
    method = str(early.get("method") or default_method(early))
    return merge(asked, parse_set(settings, method, asked.get("plugins", [])))


def _plain(settings: Iterable[str]) -> Tree:
    """What --set says about the task, the engine and the method: the meaning of other settings depends on them."""
    pairs = (setting.partition("=") for setting in settings)
    return {key.strip(): value.strip(" \"'") for key, _, value in pairs if key.strip() in ("task", "engine", "method")}


def resolved(asked: Tree, say: Progress) -> RunConfig:
    """The configuration of a run; where images of one's own leave a setting open, a sentence says what it takes."""
    return resolve([unsaid(asked, say), asked])


def seeds_of(text: str) -> list[int]:
    """Seeds that were given with commas."""
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds {text}: whole numbers separated by commas, such as 0,1,2.") from None


def configs_of(
    methods: str, seeds: str, config: str | None, flags: Tree, settings: Iterable[str], say: Progress
) -> list[RunConfig]:
    """The configurations of a sweep: every method with every seed."""
    settings = list(settings)
    asked = [
        given(config, merge(flags, {"method": name, "seed": seed}), settings)
        for seed in seeds_of(seeds)
        for name in words(methods)
    ]
    deciding = [one for one in asked if one.get("method") in ON_RESNETS] + asked  # all have one network
    weakest = unsaid(deciding[0], say) if asked else {}
    return [resolve([weakest, one]) for one in asked]


def words(text: str) -> tuple[str, ...]:
    """A list that was given with commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())
