"""Images of one's own as a task: listed, decoded, divided, and looked at for what is wrong with them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from protolith.data import cache as decoded
from protolith.data.domain import Domain, Split, Task
from protolith.data.duplicates import near_identical
from protolith.data.sources.decode import FilePictures, decode_good
from protolith.data.sources.found import Progress, held_out_by_class, listed
from protolith.data.sources.inventory import Inventory, Row, printable, settled
from protolith.data.sources.manifest import is_manifest, read_manifest
from protolith.data.sources.tree import read_tree
from protolith.data.spec import RULES
from protolith.errors import UserError

SHOWN = 5  # names in a note


@dataclass(frozen=True)
class Site:
    """A site's images, the names of their files in the same order, and the sizes [n, 2] of what was readable."""

    domain: Domain
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    sizes: Tensor
    given: bool  # whether the test part is its own


@dataclass(frozen=True)
class Bad:
    """A file that is no readable image."""

    file: str
    reason: str


@dataclass(frozen=True)
class Own:
    """Everything that was found out about images of one's own."""

    name: str
    classes: tuple[str, ...]
    sites: tuple[Site, ...]
    bad: tuple[Bad, ...]
    duplicates: tuple[tuple[str, str], ...]  # a test image, and a training image that looks the same
    listed: int
    notes: tuple[str, ...]

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The sites as domains."""
        return tuple(site.domain for site in self.sites)


def list_own(path: Path) -> Inventory:
    """List the images of a folder of sites or of a manifest."""
    return read_manifest(path) if is_manifest(path) else read_tree(path)


def load_own(path: Path, size: int, store: Path, progress: Progress, skip_bad: bool = False) -> Task:
    """Load images of one's own; what cannot be trained on is refused in one sentence."""
    found = list_own(path)
    said = "\n".join([f"skip_bad {skip_bad}", *found.notes])  # the notes are kept with the images
    fingerprints = {site: found.fingerprint(site) for site in found.sites} | {"": said}
    file = decoded.file_for(store, f"folder-{found.name}", size, fingerprints)  # never mistaken for one of our tasks
    if task := decoded.read_if_good(file, progress):
        return task
    own = read_own(found, size, progress)
    if own.bad and not skip_bad:
        raise _unreadable(own)
    if wrong := faults(own):
        raise UserError(f"'{printable(str(path))}': {wrong[0]}.")
    return decoded.write(file, Task(own.name, own.classes, own.domains, notes_on(own)), fingerprints)


def read_own(found: Inventory, size: int, progress: Progress) -> Own:
    """Decode what can be decoded, hold out test parts where there are none, and look for duplicates."""
    classes = found.classes
    bad: list[Bad] = []
    notes = [*found.notes, *_alike(classes)]
    sites = [_read_site(found, site, classes, size, progress, bad, notes) for site in found.sites]
    progress("looking for images that are in both parts")
    return Own(found.name, classes, tuple(sites), tuple(bad), _duplicates(sites), len(found.rows), tuple(notes))


def faults(own: Own) -> list[str]:
    """Say what makes training impossible."""
    found = []
    if len(own.classes) < 2:
        found.append(f"there is only the class {listed(own.classes)}, and at least two are needed")
    for site in own.sites:
        name = site.domain.name
        if not len(site.domain.train):
            found.append(f"site '{name}' has no readable training image")
        elif not len(site.domain.test):
            found.append(
                f"site '{name}' has no test image: a class needs two readable images for one to be held out, or the "
                "site a test part"
            )
    trained = _trained(own)
    if own.sites and (never := [name for name, count in zip(own.classes, trained, strict=True) if not count]):
        found.append(f"no site has a training image of {listed(never)}")
    return found


def notes_on(own: Own) -> tuple[str, ...]:
    """What a table made from these images has to say about them."""
    notes = list(own.notes)
    if without := [site.domain.name for site in own.sites if not site.given]:
        notes.insert(0, f"no test folder in {listed(without)}: {RULES['by-class']}")
    if own.bad:
        names = listed([bad.file for bad in own.bad], SHOWN)
        notes.append(f"{len(own.bad)} of {own.listed:,} images could not be read and were left out: {names}")
    if own.duplicates:
        test, train = own.duplicates[0]
        count = len({pair[0] for pair in own.duplicates})
        notes.append(
            f"{count} test image(s) look the same as a training image, which flatters the accuracy; the first: "
            f"'{test}' and '{train}'"
        )
    return tuple(notes)


def lacking(own: Own) -> dict[str, list[str]]:
    """The classes of which a site has no training image, by site."""
    found = {}
    for domain in own.domains:
        counts = domain.train.counts(len(own.classes))
        if names := [name for name, count in zip(own.classes, counts, strict=True) if not count]:
            found[domain.name] = names
    return found


def _trained(own: Own) -> list[int]:
    return [sum(column) for column in zip(*(d.train.counts(len(own.classes)) for d in own.domains), strict=True)]


def _unreadable(own: Own) -> UserError:
    first = own.bad[0]
    return UserError(
        f"{len(own.bad)} of {own.listed:,} images cannot be used, the first: '{first.file}' {first.reason}; "
        "mend or remove them, or leave them out with --skip-bad (`protolith data check` lists all)."
    )


def _read_site(
    found: Inventory,
    site: str,
    classes: tuple[str, ...],
    size: int,
    progress: Progress,
    bad: list[Bad],
    notes: list[str],
) -> Site:
    train, test, unused = settled(found.of(site))
    if unused:
        notes.append(f"{site}: the part 'val' is not used")
    rows = train + test
    result = decode_good(FilePictures([row.file for row in rows]), size, site, progress)
    bad += [Bad(found.shown(rows[place].file), reason) for place, reason in result.bad.items()]
    good = torch.tensor([place for place in range(len(rows)) if place not in result.bad], dtype=torch.int64)
    labels = _labels(rows, classes)
    is_test = good >= len(train)
    if not test:
        is_test = held_out_by_class(labels[good])
    parts = good[~is_test], good[is_test]
    splits = (Split(result.images[part], labels[part]) for part in parts)
    names = [tuple(found.shown(rows[place].file) for place in part.tolist()) for part in parts]
    return Site(Domain(site, *splits), names[0], names[1], result.sizes[good], bool(test))


def _labels(rows: Sequence[Row], classes: tuple[str, ...]) -> Tensor:
    index = {name: position for position, name in enumerate(classes)}
    return torch.tensor([index[row.label] for row in rows], dtype=torch.int64)


def _alike(classes: Sequence[str]) -> list[str]:
    """Name classes that only capitals tell apart."""
    names: dict[str, list[str]] = {}
    for name in classes:
        names.setdefault(name.casefold(), []).append(name)
    return [f"the classes {listed(same)} differ by capitals only: one class?" for same in names.values() if same[1:]]


def relabelled(own: Own) -> list[tuple[str, ...]]:
    """Files that show the very same pixels under different labels, a group for each picture."""
    seen: dict[bytes, dict[str, int]] = {}
    for site in own.sites:
        for split, names in ((site.domain.train, site.train_files), (site.domain.test, site.test_files)):
            for image, label, name in zip(split.images, split.labels.tolist(), names, strict=True):
                key = hashlib.sha256(image.numpy().tobytes()).digest()
                seen.setdefault(key, {})[name] = label
    return [tuple(files) for files in seen.values() if len(set(files.values())) > 1]


def _duplicates(sites: Sequence[Site]) -> tuple[tuple[str, str], ...]:
    """Compare every test image with every training image, also those of other sites."""
    pairs = []
    for tested in sites:
        for trained in sites:
            same = near_identical(tested.domain.test.images, trained.domain.train.images)
            pairs += [(tested.test_files[test], trained.train_files[train]) for test, train in same.tolist()]
    return tuple(sorted(pairs))
