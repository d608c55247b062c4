"""Presets: settings with a name, shipped as readable TOML files."""

import tomllib
from importlib.resources import files

from protolith.runs.defaults import Tree


def _folder() -> dict[str, str]:
    folder = files("protolith.experiments") / "presets"
    return {
        item.name.removesuffix(".toml"): item.read_text() for item in folder.iterdir() if item.name.endswith(".toml")
    }


def preset_names() -> list[str]:
    """Every preset."""
    return sorted(_folder())


def read_preset(name: str) -> Tree:
    """The settings of a preset."""
    return tomllib.loads(_folder()[name])


def describe_preset(name: str) -> str:
    """The first line of a preset, which says what it is."""
    return _folder()[name].splitlines()[0].lstrip("# ")
