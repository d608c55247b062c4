"""Presets: settings with a name, shipped as readable TOML files."""

import tomllib
from importlib.resources import files
from pathlib import Path

from protolith.errors import UserError, unknown
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


def read_settings(config: str) -> Tree:
    """The settings of a preset, or of a TOML file."""
    from protolith.runs.config import read_toml  # imports torch, and names of presets are wanted without

    if config in preset_names():
        return read_preset(config)
    if Path(config).is_file():
        return read_toml(Path(config))
    if config.endswith(".toml"):
        raise UserError(f"--config {config}: the file does not exist.")
    raise unknown("preset in --config", config, preset_names())


def describe_preset(name: str) -> str:
    """The first line of a preset, which says what it is."""
    return _folder()[name].splitlines()[0].lstrip("# ")
