"""Backbones by name: our own, `timm:` and `hf:` through their libraries, and several of them joined by +."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from protolith.errors import UserError, unknown
from protolith.models import from_timm, from_transformers, packaged
from protolith.models.encoder import Backbone, Divided, Encoder
from protolith.models.packaged import PACKAGED
from protolith.models.side_by_side import MOST, beside, joint_spec
from protolith.models.spec import InputSpec

__all__ = ["PACKAGED", "Backbone", "Divided", "Encoder"]


class Source(Protocol):
    """Where backbones of one kind come from; each is a file of this room."""

    def input_of(self, name: str) -> InputSpec:
        """What a backbone wants to see."""
        ...

    def open_backbone(self, name: str, weights: str = "", size: int | None = None) -> Backbone:
        """Open a backbone with its weights."""
        ...

    def empty_backbone(self, name: str, size: int | None = None, said: Mapping[str, Any] | None = None) -> Backbone:
        """Build it with random weights, from what a model's file says of it."""
        ...


LIBRARIES: Mapping[str, Source] = {"timm:": from_timm, "hf:": from_transformers}
# A + in a folder's name joins nothing.
JOINT = re.compile(r"\+(?=" + "|".join(map(re.escape, (*PACKAGED, *LIBRARIES))) + ")")


def backbone_names() -> list[str]:
    """The backbones that are known by a plain name."""
    return sorted(PACKAGED)


def is_backbone(name: str) -> bool:
    """Tell whether a model's name is that of a pretrained backbone, or of several."""
    return all(part in PACKAGED or part.startswith(tuple(LIBRARIES)) for part in parts_of(name))


def is_offline(name: str) -> bool:
    """Tell whether a network's weights come from a package or a seed, never from a hub or a folder."""
    return ":" not in name


def parts_of(name: str) -> list[str]:
    """The backbones that a name joins by +."""
    return JOINT.split(name)


def absolute(name: str) -> str:
    """The same name with folders by their whole path."""
    found = []
    for part in parts_of(name):
        prefix, _, place = part.partition(":")
        here = part.startswith(tuple(LIBRARIES)) and Path(place).is_dir()
        found.append(f"{prefix}:{Path(place).resolve()}" if here else part)
    return "+".join(found)


def shown(name: str) -> str:
    """The same name for other people: where a folder lies on somebody's disk is nobody's business."""
    parts = [part.partition(":") for part in parts_of(name)]
    return "+".join(f"{kind}:{Path(place).name}" if Path(place).is_absolute() else kind + colon + place
                    for kind, colon, place in parts)  # fmt: skip


def told(about: Mapping[str, Any], built: bool = False) -> dict[str, Any]:
    """What other people are told of a backbone: no place on a disk and, unless wanted, not what it is built from."""
    found = {key: value for key, value in about.items() if built or key != "built"} | {"name": shown(about["name"])}
    return found | ({"parts": [told(part, built) for part in about["parts"]]} if "parts" in about else {})


def input_of(name: str) -> InputSpec:
    """What a backbone wants to see; its weights are not needed for that."""
    names = _checked(name)
    return joint_spec(names, [_source(part).input_of(part) for part in names])


def open_backbone(name: str, weights: str = "", size: int | None = None, sha256: str = "") -> Backbone:
    """Open a backbone with its pretrained weights, from a file where one is named.

    Weights that have another SHA-256 than a run began with are refused. Of several backbones, all are taken at the
    first one's size.
    """
    names = _checked(name)
    files = _files(names, weights)
    if size is None and len(names) > 1:
        size = input_of(name).size
    found = [_source(part).open_backbone(part, file, size) for part, file in zip(names, files, strict=True)]
    backbone = found[0] if len(found) == 1 else beside(found)
    if sha256 and backbone.sha256 != sha256:
        raise UserError(
            f"the weights of {name} here ('{backbone.tag}') are not those that the run began with: SHA-256 "
            f"{_short(backbone.sha256)}, not {_short(sha256)}."
        )
    return backbone


def empty_backbone(name: str, size: int | None = None, said: Mapping[str, Any] | None = None) -> Backbone:
    """The same network with random weights, for one that is filled from a model's file, which says what it is."""
    names = _checked(name)
    about = (said or {}).get("parts") or [said] * len(names)
    found = [_source(part).empty_backbone(part, size, one) for part, one in zip(names, about, strict=True)]
    return found[0] if len(found) == 1 else beside(found)


def _short(sha256: str) -> str:
    return "+".join(f"{part[:16]}…" for part in sha256.split("+"))


def _checked(name: str) -> list[str]:
    names = parts_of(name)
    if len(names) > MOST:
        raise UserError(f"model '{name}': at most {MOST} backbones can stand side by side.")
    return names


def _files(names: list[str], weights: str) -> list[str]:
    """A file for each backbone; none for any of them is fine too."""
    if len(names) == 1 or not weights:
        return [weights] * len(names)
    files = weights.split("+")
    if len(files) != len(names):
        raise UserError(
            f"--weights '{weights}' names {len(files)} of {len(names)} files: join them by + as the backbones are, and "
            "leave one empty where a package has it."
        )
    return files


def _source(name: str) -> Source:
    for prefix, source in LIBRARIES.items():
        if name.startswith(prefix):
            return source
    if name not in PACKAGED:
        raise unknown("backbone", name, backbone_names())
    return packaged
