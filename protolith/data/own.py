"""Images of one's own as a task: listed, decoded, divided, and looked at for what is wrong with them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from protolith.data import cache as decoded
from protolith.data.domain import Domain, Task
from protolith.data.duplicates import near_identical
from protolith.data.reading import HOLD_OUT, Bad, Read, read_rows
from protolith.data.sources import folder
from protolith.data.sources.decode import PLAIN, Fit
from protolith.data.sources.found import Progress, listed
from protolith.data.sources.inventory import Inventory, printable, settled
from protolith.data.sources.manifest import is_manifest, read_manifest
from protolith.data.spec import RULES, Rule
from protolith.errors import UserError

RULE: Rule = "by-class"  # by which test parts are held out
SHOWN = 5  # names in a note


@dataclass(frozen=True)
class Own:
    """Everything that was found out about images of one's own."""

    name: str
    classes: tuple[str, ...]
    sites: tuple[Read, ...]
    duplicates: tuple[tuple[str, str], ...]  # a test image, and a training image that looks the same
    listed: int
    notes: tuple[str, ...]

    @property
    def bad(self) -> tuple[Bad, ...]:
        """The files that are no readable images."""
        return tuple(bad for site in self.sites for bad in site.bad)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The sites as domains."""
        return tuple(site.domain for site in self.sites)


def list_own(path: Path) -> Inventory:
    """List the images of a folder of sites or of a manifest."""
    return read_manifest(path) if is_manifest(path) else folder.read_tree(path)


def load_own(
    found: Inventory, size: int, store: Path, progress: Progress, skip_bad: bool = False, fit: Fit = PLAIN
) -> Task:
    """Load images of one's own; what cannot be trained on is refused in one sentence."""
    # The notes are kept with the images.
    said = "\n".join([f"skip_bad {skip_bad}", *found.notes, *[f"fit {fit}"] * (fit != PLAIN)])
    fingerprints = {domain: found.fingerprint(domain) for domain in found.domains} | {"": said}
    file = decoded.file_for(store, f"folder-{found.name}", size, fingerprints)  # never mistaken for one of our tasks
    if task := decoded.read_if_good(file, progress):
        return task
    own = read_own(found, size, progress, fit)
    if own.bad and not skip_bad:
        raise _unreadable(own)
    if wrong := faults(own):
        raise UserError(f"'{printable(str(found.path))}': {wrong[0]}.")
    return decoded.write(file, Task(own.name, own.classes, own.domains, notes_on(own)), fingerprints)


def read_own(found: Inventory, size: int, progress: Progress, fit: Fit = PLAIN) -> Own:
    """Decode what can be decoded, hold out test parts where there are none, and look for duplicates."""
    classes = found.classes
    sites = tuple(read_rows(name, found.of(name), classes, size, RULE, progress, fit) for name in found.domains)
    unused = [f"{site.domain.name}: the part 'val' is not used" for site in sites if site.unused]
    progress("looking for images that are in both parts")
    notes = (*found.notes, *_alike(classes), *unused)
    return Own(found.name, classes, sites, _duplicates(sites), len(found.rows), notes)


def divided(found: Inventory, site: str) -> tuple[int, int]:
    """Count a site's training and test images as they would be divided, without opening one."""
    train, test, _ = settled(found.of(site))
    index = {label: position for position, label in enumerate(found.classes)}
    held = len(test) or int(HOLD_OUT[RULE](torch.tensor([index[row.label] for row in train])).sum())
    return len(train) - (0 if test else held), held


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
        notes.insert(0, f"no test folder in {listed(without)}: {RULES[RULE]}")
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


def _duplicates(sites: Sequence[Read]) -> tuple[tuple[str, str], ...]:
    """Compare every test image with every training image, also those of other sites."""
    pairs = []
    for tested in sites:
        for trained in sites:
            same = near_identical(tested.domain.test.images, trained.domain.train.images)
            pairs += [(tested.test_files[test], trained.train_files[train]) for test, train in same.tolist()]
    return tuple(sorted(pairs))
