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
from protolith.runs.result import Began

PREFIXES = ("module.", "model.", "backbone.", "encoder.")  # what wrappers put before all names
HEADS = ("head.", "fc.", "classifier.")  # names of the last layer elsewhere; here it is head
MAY_DIFFER = ("head.", "conv1.")  # other classes, and the 7 × 7 stem of ImageNet networks, where ours is 3 × 3


@dataclass(frozen=True)
class Start:
    """The weights that a run starts from, and what became of the file's: names with shapes."""

    weights: Record
    file: str = ""
    kept: int = 0
    counters: int = 0  # of BatchNorm's batches, which many files lack
    drawn: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user is told; nothing where all weights are drawn."""
        if not self.file:
            return ()
        begin = f" ({self.counters} counters of batches begin at 0)" if self.counters else ""
        notes = [f"starting from {self.file}: {self.kept} of {len(self.weights)} tensors kept{begin}"]
        if self.drawn:
            notes.append(f"{len(self.drawn)} drawn from the seed: {', '.join(self.drawn)}")
        if self.left_out:
            notes.append(f"{len(self.left_out)} left out of the file: {listed(self.left_out, 5)}")
        return tuple(notes)

    def summary(self) -> Began | None:
        """The same for the run's summary; nothing where all weights are drawn."""
        held = {"drawn": self.drawn, "left_out": self.left_out}
        return Began(file=self.file, kept=self.kept, of=len(self.weights), **held) if self.file else None


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
    record = _above_frozen(record, about, workplace.initial, config, path)
    return mapped(record, about, workplace.initial, workplace.task.classes, str(path))


def _above_frozen(record: Record, about: dict[str, Any], ours: Record, config: RunConfig, where: Path) -> Record:
    """A file's tensors without those of a frozen backbone, which has to be the same."""
    if not config.model.frozen or not isinstance(about.get("backbone"), dict):
        return record
    if about["backbone"].get("sha256") != config.model.sha256:
        raise UserError(f"--init {where}: its backbone has other weights than {config.model.name} has here.")
    return {name: held for name, held in record.items() if not name.startswith("backbone.") or name in ours}


def mapped(record: Record, about: dict[str, Any], ours: Record, classes: Iterable[str], where: str) -> Start:
    """Put a file's tensors into the network's names; everything but head and stem must be there and fit."""
    named = {name: "" if name.startswith("knowledge/") else _our_name(name, record) for name in record}
    given = {target: record[name] for name, target in named.items() if target in ours or _must_fit(target)}
    other_classes = "classes" in about and tuple(about["classes"]) != tuple(classes)
    taken: Record = {}
    drawn, wrong, counters = [], [], 0
    for name, tensor in ours.items():
        found = given.get(name)
        shapes = f"{name} ({_shape(found)} there, {_shape(tensor)} here)"
        if name.startswith("head.") and other_classes:
            drawn.append(f"{name} (other classes)")
        elif found is not None and found.shape == tensor.shape:
            taken[name] = found.to(tensor.dtype)
        elif name.startswith(MAY_DIFFER):
            drawn.append(shapes)
        elif _counter(name):
            counters += 1
        else:
            wrong.append(shapes)
    strange = [name for name in given if name not in ours]
    if wrong or strange:
        raise UserError(f"--init {where} does not fit the network: {_first(wrong, strange)}.")
    if not records.is_finite(taken):
        raise UserError(f"--init {where} has numbers that are not finite.")
    left_out = tuple(name for name, target in named.items() if target not in ours)
    return Start({**ours, **taken}, where, len(taken), counters, tuple(drawn), left_out)


def _must_fit(name: str) -> bool:
    """Tell whether a tensor that the network lacks speaks against the whole file."""
    return bool(name) and not name.startswith("head.") and not _counter(name)


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
