"""Paths as a page shows them: from the working directory, or a word in place of what lies elsewhere.

A page is passed on, and whose machine it was made on is nobody's business.
"""

from collections.abc import Iterable
from pathlib import Path

from protolith.data.spec import all_tasks
from protolith.runs.config import RunConfig

WORDS = {
    "task": ("TASK", "the folder of images"),
    "data": ("DATA", "the directory of data"),
    "deployment": ("DEPLOYMENT", "the directory of the deployment"),
    "plugins": ("PLUGINS", "the directory of the plug-in"),
    "init": ("WEIGHTS", "the directory of the weights to start from"),
}
FILES = (".py", ".safetensors", ".csv", ".parquet")  # whose own names stay


def shown(config: RunConfig) -> RunConfig:
    """A configuration with its paths as a page shows them."""
    said = {name: [_place(name, path) for path in paths] for name, paths in _paths(config).items()}
    return config.model_copy(update={name: said[name] if name == "plugins" else said[name][0] for name in WORDS})


def meanings(configs: Iterable[RunConfig]) -> str:
    """A sentence that says what the words stand for; empty where none was needed."""
    held = [_paths(config) for config in configs]
    used = [name for name in WORDS if any(_away(_near(path)) for paths in held for path in paths[name])]
    said = ", ".join(f"{WORDS[name][0]} is {WORDS[name][1]}" for name in used)
    return f"Put in your own paths: {said}." if said else ""


def _paths(config: RunConfig) -> dict[str, list[str]]:
    singles = {name: [getattr(config, name)] for name in WORDS if name != "plugins"}
    return {**singles, "plugins": config.plugins}


def _place(name: str, path: str) -> str:
    near = _near(path)
    if _away(near):
        word, own = WORDS[name][0], Path(near)
        return f"{word}/{own.name}" if own.suffix in FILES else word
    return f"./{near}" if near != path and near in all_tasks() else near


def _away(near: str) -> bool:
    """Tell whether a path leads to somewhere that is not below the working directory."""
    return Path(near).is_absolute() or near.startswith("~")


def _near(path: str) -> str:
    """A path as it is from the working directory; names, and paths that are relative already, stay as they are."""
    if not Path(path).is_absolute():
        return path
    whole, here = Path(path).resolve(), Path.cwd()
    return str(whole.relative_to(here) if whole.is_relative_to(here) else whole)
