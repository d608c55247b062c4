"""Measures: what is counted on answers. Counts add exactly, over chunks, clients and engines.

A measure of one's own is a class like these; `register_measure` adds it, in a file that `plugins` names, and so does an
entry point `protolith.measures`.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from protolith.doors import brought
from protolith.errors import UserError, unknown
from protolith.methods.base import Spec
from protolith.records import Record

Counts = dict[str, Record]  # the counts of each measure, by its name
ACCURACY = "accuracy"  # the measure that every run has


class Measure:
    """Something counted on the answers to test images."""

    name: ClassVar[str]
    idea: ClassVar[str]  # in a line, for people
    higher_is_better: ClassVar[bool] = True

    def schema(self, classes: int) -> dict[str, Spec]:
        """What its counts look like."""
        raise NotImplementedError

    def count(self, logits: Tensor, labels: Tensor) -> Record:
        """Count on answers [n, K] to images of these labels [n]."""
        raise NotImplementedError

    def result(self, total: Record) -> float | None:
        """The value of counts that were added up; None where they say nothing."""
        raise NotImplementedError

    def by_class(self, total: Record) -> list[float | None] | None:
        """The same for each class, where the measure has such values."""
        return None

    def problem(self, total: Record, classes: int, images: int) -> str | None:
        """Say why these cannot be the counts on so many images, or nothing."""
        schema = self.schema(classes)
        if total.keys() != schema.keys():
            return f"it has other counts than {', '.join(schema)}"
        faults = ((name, spec.problem(total[name], {})) for name, spec in schema.items())
        return next((f"'{name}' {fault}" for name, fault in faults if fault), None)


def _whole(*shape: int) -> Spec:
    return Spec(shape, torch.int64, least=0)


class Accuracy(Measure):
    """How often the most likely class is the label, in per cent."""

    name = ACCURACY
    idea = "how often the most likely class is the label, in per cent"

    def schema(self, classes: int) -> dict[str, Spec]:
        """Two whole numbers."""
        return {"correct": _whole(), "images": _whole()}

    def count(self, logits: Tensor, labels: Tensor) -> Record:
        """Count the images whose most likely class is their label."""
        return {"correct": (logits.argmax(1) == labels).sum(), "images": torch.tensor(len(labels))}

    def result(self, total: Record) -> float | None:
        """Per cent of the images."""
        images = total["images"].item()
        return 100.0 * total["correct"].item() / images if images else None

    def problem(self, total: Record, classes: int, images: int) -> str | None:
        """No more can be right than there are."""
        if fault := super().problem(total, classes, images):
            return fault
        if int(total["images"]) != images or int(total["correct"]) > images:
            return f"{int(total['correct'])} of {int(total['images'])} images are right, but there are {images}"
        return None


class PerClass(Measure):
    """Accuracy on the images of each class, and their mean, which is balanced accuracy."""

    name = "per-class"
    idea = "accuracy on the images of each class, in per cent; the mean over classes is balanced accuracy"

    def schema(self, classes: int) -> dict[str, Spec]:
        """Two whole numbers for each class."""
        return {"correct": _whole(classes), "images": _whole(classes)}

    def count(self, logits: Tensor, labels: Tensor) -> Record:
        """Count right answers and images by class."""
        classes = logits.shape[1]
        right = labels[logits.argmax(1) == labels]
        return {
            "correct": torch.bincount(right, minlength=classes),
            "images": torch.bincount(labels, minlength=classes),
        }

    def by_class(self, total: Record) -> list[float | None]:
        """Per cent of the images of each class; None for a class without images."""
        pairs = zip(total["correct"].tolist(), total["images"].tolist(), strict=True)
        return [100.0 * correct / images if images else None for correct, images in pairs]

    def result(self, total: Record) -> float | None:
        """The mean over the classes that have images."""
        values = [value for value in self.by_class(total) if value is not None]
        return sum(values) / len(values) if values else None

    def problem(self, total: Record, classes: int, images: int) -> str | None:
        """No more of a class can be right than there are."""
        if fault := super().problem(total, classes, images):
            return fault
        if int(total["images"].sum()) != images or bool((total["correct"] > total["images"]).any()):
            return f"more images of a class are right than it has, or they are not {images} together"
        return None


MEASURES: dict[str, Measure] = {measure.name: measure for measure in (Accuracy(), PerClass())}


def register_measure(measure: Measure) -> Measure:
    """Add a measure for this process (worker processes learn of it through a plug-in)."""
    MEASURES[measure.name] = measure
    return measure


@cache
def _installed() -> dict[str, Measure]:
    found: dict[str, Measure] = brought(
        "measures", "Measure", lambda one: isinstance(one, Measure), lambda one: str(one.name)
    )
    ours = {name for name, measure in MEASURES.items() if _is_ours(measure)}
    if taken := found.keys() & ours:
        raise UserError(f"an entry point of protolith.measures has the name of a measure of ours, '{min(taken)}'.")
    return found


def _is_ours(measure: Measure) -> bool:
    return type(measure).__module__ == __name__


def only_here(name: str) -> bool:
    """Tell whether a measure was registered in this process, so that workers know it only through a plug-in."""
    return name in MEASURES.keys() - _installed().keys() and not _is_ours(MEASURES[name])


def measures_of(names: Sequence[str]) -> list[Measure]:
    """The measures of these names, accuracy first."""
    known = {**_installed(), **MEASURES}
    for name in names:
        if name not in known:
            raise unknown("measure", name, known)
    return [known[name] for name in dict.fromkeys((ACCURACY, *names))]


def count(measures: Iterable[Measure], logits: Tensor, labels: Tensor) -> Counts:
    """The counts of all measures on some answers."""
    return {measure.name: measure.count(logits, labels) for measure in measures}


def added(parts: Iterable[Counts]) -> Counts:
    """Counts added up, in the order in which they come, on the CPU."""
    total: Counts = {}
    for part in parts:
        for name, counts in part.items():
            before = total.get(name, {})
            total[name] = {key: before[key] + value if key in before else value for key, value in counts.items()}
    return {name: {key: value.cpu() for key, value in counts.items()} for name, counts in total.items()}


def to_plain(counts: Counts) -> dict[str, dict[str, object]]:
    """Counts as plain numbers and lists, for a message or a file."""
    return {name: {key: value.tolist() for key, value in part.items()} for name, part in counts.items()}


def from_plain(values: Any, measures: Iterable[Measure], classes: int, images: int) -> Counts:
    """Read counts on so many images that came from elsewhere; ValueError where they cannot be."""
    found: Counts = {}
    for measure in measures:
        schema = measure.schema(classes)
        try:
            given = values[measure.name]
            found[measure.name] = {name: _tensor(given[name], spec) for name, spec in schema.items()}
        except (LookupError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ValueError(f"counts of '{measure.name}' that cannot be read ({type(error).__name__})") from None
        if fault := measure.problem(found[measure.name], classes, images):
            raise ValueError(f"counts of '{measure.name}' that cannot be: {fault}")
    return found


def _tensor(value: object, spec: Spec) -> Tensor:
    """A tensor of the kind that is expected; a float is no whole number, and a bool is neither."""
    kind = torch.tensor(value).dtype
    if spec.dtype.is_floating_point != kind.is_floating_point or kind == torch.bool:
        raise ValueError("numbers of another kind")
    return torch.tensor(value, dtype=spec.dtype)


def results(measure: Measure, counts: Mapping[str, Counts]) -> dict[str, float]:
    """A measure's value on each test set that has one."""
    found = {test: measure.result(held[measure.name]) for test, held in counts.items() if measure.name in held}
    return {test: value for test, value in found.items() if value is not None}
