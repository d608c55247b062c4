"""Looking at a task: counts, a contact sheet, and what is known about it."""

from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

from protolith.data import cache as decoded
from protolith.data.domain import Domain, Task
from protolith.data.own import list_own
from protolith.data.sources.found import Found
from protolith.data.sources.inventory import settled
from protolith.data.spec import RULES, HubSource, TaskSpec, all_tasks
from protolith.data.tasks import data_folder, folder_of, locate
from protolith.errors import UserError

CELL = 64  # pixels of an image on the contact sheet
WIDEST = 120  # pixels of a column, at most, whatever the name of its class
GAP = 4
TEXT = 13  # height of the letters
Font = ImageFont.ImageFont | ImageFont.FreeTypeFont
PAPER, INK, FAINT = (255, 255, 255), (20, 20, 20), (110, 110, 110)


@dataclass(frozen=True)
class CountRow:
    """The images of one part of one domain, in total and by class."""

    domain: str
    split: str
    total: int
    per_class: tuple[int, ...]


@dataclass(frozen=True)
class DomainPlace:
    """Where a domain of a task is, or would come from; `here` is whether no download is needed."""

    domain: str
    here: bool
    where: str


@dataclass(frozen=True)
class TaskInfo:
    """What is known about a task before it is loaded."""

    name: str
    description: str
    licence: str
    origin: str
    classes: tuple[str, ...]
    split: str
    places: tuple[DomainPlace, ...]


def counts_table(task: Task) -> list[CountRow]:
    """Count the images by domain, part and class."""
    return [
        CountRow(domain.name, part, len(split), tuple(split.counts(len(task.classes))))
        for domain in task.domains
        for part, split in (("train", domain.train), ("test", domain.test))
    ]


def contact_sheet(task: Task, path: Path, *, per_class: int = 3) -> None:
    """Draw a PNG with a block per domain, a column per class and the first few training images of each."""
    if per_class < 1:
        raise UserError(f"a contact sheet needs at least 1 image per class, not {per_class}.")
    font = ImageFont.load_default(TEXT)
    block = 3 * TEXT + 4 * GAP + per_class * (CELL + GAP)
    column = min(WIDEST, max(CELL, *(round(font.getlength(name)) for name in task.classes))) + GAP
    width = max(GAP + len(task.classes) * column, 320)
    sheet = Image.new("RGB", (width, block * len(task.domains) + GAP), PAPER)
    for index, domain in enumerate(task.domains):
        _draw_block(sheet, task, domain, GAP + index * block, column, per_class, font)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sheet.save(path, format="PNG")
    except OSError as error:
        raise UserError(f"the contact sheet cannot be written to '{path}' ({error.strerror or error}).") from error


def task_info(name: str, *, data: Path | None = None, size: int | None = None, cache: Path | None = None) -> TaskInfo:
    """Say what a task is and where its domains are, without loading, drawing or downloading anything."""
    if (spec := all_tasks().get(name)) is None:
        return _folder_info(folder_of(name))
    places = _places(spec, data_folder(data), size or spec.size, decoded.folder(cache))
    return TaskInfo(name, spec.description, spec.licence, spec.origin, spec.classes, RULES[spec.split], places)


def _folder_info(path: Path) -> TaskInfo:
    found = list_own(path)
    given = all(settled(found.of(site))[1] for site in found.domains)
    split = RULES["given" if given else "by-class"]
    places = tuple(DomainPlace(site, True, str(path)) for site in found.domains)
    return TaskInfo(found.name, "images of your own", "yours", str(path), found.classes, split, places)


def _places(spec: TaskSpec, data: Path | None, size: int, store: Path) -> tuple[DomainPlace, ...]:
    places = []
    for domain, place in locate(spec, data, size, store).items():
        if isinstance(place, Found):
            places.append(DomainPlace(place.domain, True, place.where))
        elif isinstance(place, HubSource):
            places.append(DomainPlace(domain, False, f"to be downloaded: {place.address}"))
        else:
            places.append(DomainPlace(domain, False, "not here, and no hub repository is known"))
    return tuple(places)


def _draw_block(
    sheet: Image.Image, task: Task, domain: Domain, top: int, column: int, per_class: int, font: Font
) -> None:
    draw = ImageDraw.Draw(sheet)
    counts = f"{len(domain.train):,} train, {len(domain.test):,} test"
    draw.text((GAP, top), f"{domain.name}   {counts}", fill=INK, font=font)
    for label, name in enumerate(task.classes):
        left = GAP + label * column
        draw.text((left, top + TEXT + 2 * GAP), _shortened(name, font), fill=FAINT, font=font)
        chosen = torch.nonzero(domain.train.labels == label).flatten()[:per_class]
        for row, index in enumerate(chosen.tolist()):
            picture = Image.fromarray(domain.train.images[index].numpy())
            large = picture.resize((CELL, CELL), Image.Resampling.BICUBIC)
            sheet.paste(large, (left, top + 2 * TEXT + 4 * GAP + row * (CELL + GAP)))


def _shortened(name: str, font: Font) -> str:
    if font.getlength(name) <= WIDEST:
        return name
    while name and font.getlength(f"{name}…") > WIDEST:
        name = name[:-1]
    return f"{name}…"
