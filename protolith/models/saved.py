"""A model's file: the one writer and the one opener."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from protolith import records
from protolith.errors import UserError
from protolith.models.backbones import open_backbone
from protolith.models.registry import build_model
from protolith.models.spec import InputSpec
from protolith.records import BadRecord, Record, under_prefix, with_prefix


@dataclass(frozen=True)
class Saved:
    """A network from a file, in evaluation mode, and what its method knows besides."""

    model: nn.Module
    knowledge: Record
    name: str
    width: int
    classes: tuple[str, ...]
    spec: InputSpec
    backbone: dict[str, Any] | None = None  # what is said of a pretrained one: name, tag, SHA-256, input


def about(
    method: str, name: str, width: int, classes: Sequence[str], spec: InputSpec, backbone: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What a model's file says about itself."""
    said = {
        "method": method, "model": name, "width": width, "size": spec.size, "classes": list(classes),
        "input": spec.plain(),
    }  # fmt: skip
    return said | ({"backbone": backbone} if backbone else {})


def write_model(
    path: Path, weights: Mapping[str, Tensor], said: Mapping[str, Any], knowledge: Mapping[str, Tensor] | None = None
) -> None:
    """Write a model whole, or not at all."""
    records.write(path, {**weights, **with_prefix("knowledge", dict(knowledge or {}))}, about=said, sync=True)


def open_model(path: Path) -> Saved:
    """Open a model that a run wrote."""
    try:
        record, said = records.read_with_about(path)
        name, classes, width = str(said["model"]), tuple(map(str, said["classes"])), int(said["width"])
        spec = InputSpec.of(said["input"]) if "input" in said else InputSpec(int(said["size"]))
        backbone = dict(said["backbone"]) if "backbone" in said else None
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist: this method has no global model, or the run is not finished."
        ) from None
    except (BadRecord, LookupError, TypeError, ValueError):
        raise UserError(f"{path} is not a model that a run wrote.") from None
    try:
        model = build_model(name, len(classes), width, seed=0, size=spec.size, empty=True, said=backbone)
        load_weights(model, completed(model, record, backbone))
    except (LookupError, RuntimeError):
        raise UserError(f"{path}: its weights are not those of a {name} for {len(classes)} classes.") from None
    model.spec = spec  # type: ignore[assignment]  # as it was trained, whatever its builder says today
    return Saved(model.eval(), under_prefix("knowledge", record), name, width, classes, spec, backbone)


def completed(model: nn.Module, record: Record, backbone: Mapping[str, Any] | None) -> Record:
    """A record with the weights of a frozen backbone, where it has only what was trained."""
    if backbone is None or model.state_dict().keys() <= record.keys():
        return record
    held = open_backbone(str(backbone["name"]), sha256=str(backbone["sha256"])).network.state_dict()
    return {**{f"backbone.{name}": tensor for name, tensor in held.items()}, **record}


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a resident model, in place."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(weights[name])
