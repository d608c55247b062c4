"""Starting weights from a file: which of its tensors go where, and which may stay behind."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from protolith import records
from protolith.data.sources.found import listed
from protolith.errors import UserError
from protolith.federation.local_update import Workplace
from protolith.methods.fedavg import is_buffer
from protolith.records import BadRecord, Record
from protolith.runs.config import RunConfig

PREFIXES = ("module.", "model.", "backbone.", "encoder.")  # what wrappers put before all names
HEADS = ("head.", "fc.", "classifier.")  # names of the last layer elsewhere; here it is head
MAY_DIFFER = ("head.", "conv1.")  # other classes, and the 7 × 7 stem of ImageNet networks, where ours is 3 × 3


@dataclass(frozen=True)
class Start:
    """The weights that a run starts from, and what is to be said about them."""

    weights: Record
    notes: tuple[str, ...] = ()


def starting_weights(config: RunConfig, workplace: Workplace) -> Start:
    """The weights of the file that `init` names, over those that the seed draws."""
    if not config.init:
        return Start(workplace.initial)
    path = Path(config.init)
    try:
        record, about = records.read_with_about(path)
    except FileNotFoundError:
        raise UserError(f"--init {path}: the file does not exist.") from None
    except BadRecord:
        raise UserError(f"--init {path}: not a safetensors file.") from None
    return mapped(record, about, workplace.initial, workplace.task.classes, str(path))


def mapped(record: Record, about: dict[str, Any], ours: Record, classes: Iterable[str], where: str) -> Start:
    """Put a file's tensors into the network's names; everything but head and stem must be there and fit."""
    given = {_our_name(name, record): tensor for name, tensor in record.items() if not name.startswith("knowledge/")}
    given = {name: tensor for name, tensor in given.items() if name in ours or not _counter(name)}
    other_classes = "classes" in about and tuple(about["classes"]) != tuple(classes)
    taken: Record = {}
    drawn, wrong = [], []
    for name, tensor in ours.items():
        found = given.get(name)
        fits = found is not None and found.shape == tensor.shape
        if name.startswith("head.") and other_classes:
            drawn.append(name)
        elif fits and found is not None:
            taken[name] = found.to(tensor.dtype)
        elif name.startswith(MAY_DIFFER):
            drawn.append(name)
        elif not _counter(name):
            wrong.append(f"{name} ({_shape(found)} there, {_shape(tensor)} here)")
    strange = [name for name in given if name not in ours and not name.startswith("head.")]
    if wrong or strange:
        raise UserError(f"--init {where} does not fit the network: {_first(wrong, strange)}.")
    if not records.is_finite(taken):
        raise UserError(f"--init {where} has numbers that are not finite.")
    notes = [f"starting from {where}: {len(taken)} of {len(ours)} tensors"]
    if drawn:
        notes.append(f"drawn from the seed instead, because of another shape or other classes: {', '.join(drawn)}")
    return Start({**ours, **taken}, tuple(notes))


def _our_name(name: str, record: Record) -> str:
    for prefix in PREFIXES:
        if all(other.startswith(prefix) for other in record):
            name = name.removeprefix(prefix)
    for head in HEADS:
        if name.startswith(head):
            return f"head.{name.removeprefix(head)}"
    return name


def _counter(name: str) -> bool:
    return is_buffer(name) and name.endswith("num_batches_tracked")


def _shape(tensor: Tensor | None) -> str:
    return "absent" if tensor is None else "×".join(map(str, tensor.shape)) or "one number"


def _first(wrong: list[str], strange: list[str]) -> str:
    parts = []
    if wrong:
        parts.append(f"{wrong[0]}" + (f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""))
    if strange:
        parts.append(f"it also has {listed(strange, 3)}")
    return "; ".join(parts)
