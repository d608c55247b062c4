"""Labels for new images, how sure the model is, and whether it has seen anything like them."""

import csv
import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from protolith.data.sources.decode import about_unread, decode, suffixes, unread
from protolith.data.sources.found import Progress, silent
from protolith.data.sources.inventory import printable
from protolith.errors import UserError
from protolith.runs.run import Run
from protolith.use.familiarity import FALSE_ALARMS, Familiarity, checked_rate, familiarity_of
from protolith.use.text import columns
from protolith.use.trained import Trained, open_trained

CHUNK = 256  # files that are decoded at once


@dataclass(frozen=True)
class Prediction:
    """What the model says about one file; `error` instead where it is no readable image.

    `familiarity` is None where the run's images were not at hand to compute it from.
    """

    file: str
    label: str | None = None
    confidence: float | None = None
    familiarity: float | None = None
    unfamiliar: bool | None = None
    error: str | None = None


@dataclass(frozen=True)
class Judged:
    """What the model says about images: classes [n], confidences [n], and familiarity [n] where it is known."""

    labels: Tensor
    confidence: Tensor
    familiarity: Tensor | None


class Predictor:
    """A finished run's model in use.

    `note` says why there is no familiarity, where there is none.
    """

    def __init__(self, run: Run, false_alarms: float = FALSE_ALARMS, progress: Progress = silent) -> None:
        self.trained: Trained = open_trained(run)
        self.false_alarms = checked_rate(false_alarms)
        self.progress = progress
        self.familiarity: Familiarity | None = None
        self.note = ""
        try:
            self.familiarity = familiarity_of(self.trained, progress)
            if self.familiarity.threshold(false_alarms) == float("inf"):
                self.note = (
                    f"only {len(self.familiarity.calibration)} images were held out: too few to flag at a false-alarm "
                    f"rate of {false_alarms:g}"
                )
        except UserError as error:
            self.note = f"no familiarity: {error}"

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.trained.classes

    def __call__(self, images: Tensor) -> Judged:
        """Judge uint8 images [n, size, size, 3]."""
        answers = self.trained.ask(images)
        confidence, labels = torch.softmax(answers.logits, dim=1).max(dim=1)
        scores = self.familiarity.scores(answers.looks) if self.familiarity else None
        return Judged(labels, confidence, scores)

    def files(self, paths: Iterable[str | Path]) -> Iterator[Prediction]:
        """Judge image files, and those in folders, in batches."""
        found = image_files([Path(path) for path in paths], self.progress)
        for start in range(0, len(found), CHUNK):
            yield from self._chunk(found[start : start + CHUNK])
            self.progress(f"{min(start + CHUNK, len(found)):,} of {len(found):,} images")

    def _chunk(self, files: Sequence[Path]) -> list[Prediction]:
        decoded = decode(files, self.trained.size, "images", silent, self.trained.saved.spec.fit)
        judged = self(decoded.images)
        found = []
        for place, file in enumerate(files):
            name = printable(str(file))
            if place in decoded.bad:
                found.append(Prediction(name, error=decoded.bad[place]))
                continue
            known = None if judged.familiarity is None else float(judged.familiarity[place])
            found.append(
                Prediction(
                    name,
                    self.classes[int(judged.labels[place])],
                    float(judged.confidence[place]),
                    known,
                    None if known is None else known <= self.false_alarms,
                )
            )
        return found


def image_files(paths: Sequence[Path], say: Progress = silent) -> list[Path]:
    """The image files among these paths and below the folders among them; links to folders are not followed."""
    found: list[Path] = []
    others: Counter[str] = Counter()
    for path in paths:
        if path.is_dir():
            below = [Path(place) / name for place, _, names in os.walk(path) for name in names]
            others += (here := unread(below))
            inside = _images_among(below)
            if not inside:
                raise UserError(f"'{printable(str(path))}' holds no image. {about_unread(here)}".rstrip(". ") + ".")
            found += sorted(inside, key=os.fsencode)
        elif path.is_file():
            found.append(path)
        else:
            raise UserError(f"'{printable(str(path))}' is neither a file nor a folder.")
    if others:
        say(about_unread(others))
    return found


def _images_among(files: Sequence[Path]) -> list[Path]:
    read = suffixes()
    return [file for file in files if file.suffix.lower() in read and not file.name.startswith(".")]


def as_table(predictions: Sequence[Prediction]) -> str:
    """Predictions as text for people."""
    rows = [["file", "label", "confidence", "familiarity (low is strange)", ""]]
    for item in predictions:
        if item.error is not None:
            rows.append([item.file, "–", "–", "–", item.error])
            continue
        known = "–" if item.familiarity is None else f"{item.familiarity:.3f}"
        rows.append(
            [item.file, str(item.label), f"{item.confidence:.3f}", known, "unfamiliar" if item.unfamiliar else ""]
        )
    return columns([[*row[:2], *row[2:4], row[4]] for row in rows], left=2)


def as_csv(predictions: Sequence[Prediction]) -> str:
    """Predictions as CSV, a line each."""
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, list(Prediction.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(item) for item in predictions)
    return buffer.getvalue()


def as_plain(predictions: Sequence[Prediction]) -> list[dict[str, object]]:
    """Predictions for other programs."""
    return [asdict(item) for item in predictions]
