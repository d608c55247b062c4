"""Tasks by name or by folder, from whichever source has them, decoded once."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from protolith.data import cache as decoded
from protolith.data import drawn
from protolith.data.domain import Domain, Split, Task
from protolith.data.own import list_own, load_own
from protolith.data.reading import read_found
from protolith.data.sources import classic, folder, parquet
from protolith.data.sources.decode import PLAIN, Fit
from protolith.data.sources.found import Found, Progress, decoded_rows, listed, plain, silent
from protolith.data.sources.hub import HubUnavailable, download
from protolith.data.sources.hub import domain as hub_domain
from protolith.data.sources.inventory import Row
from protolith.data.sources.manifest import is_manifest
from protolith.data.spec import RULES, Columns, HubSource, Rule, TaskSpec, all_tasks
from protolith.errors import UserError, unknown
from protolith.records import BadRecord

SIZES = (8, 512)
ALIASES = {"syn": ("syntheticdigits",)}  # other folder names, as `plain` writes them


COLUMNS = Columns()
Place = Found | HubSource | None


def load_task(
    name: str,
    *,
    data: Path | None = None,
    size: int | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
    skip_bad: bool = False,
    fit: Fit = PLAIN,
) -> Task:
    """Load a task by name, a folder of `site/class/image` or a manifest; the images are mapped from a file.

    `skip_bad` leaves out what cannot be read of images of one's own; otherwise that is an error. `fit` is how an image
    becomes a square.
    """
    if size is not None and not SIZES[0] <= size <= SIZES[1]:
        raise UserError(f"size must be from {SIZES[0]} to {SIZES[1]} pixels, not {size}.")
    store, say = decoded.folder(cache), progress or silent
    if (spec := all_tasks().get(name)) is None:
        return load_own(list_own(folder_of(name)), size or 32, store, say, skip_bad, fit)
    if Path(name).is_dir():
        say(f"'{name}' is a task of that name; for the folder of that name write ./{name}")
    return _load_named(spec, data_folder(data), size or spec.size, store, say, fit)


def read_task_file(path: Path) -> Task:
    """Read a decoded task: its images are mapped from the file, not copied."""
    try:
        return decoded.read(path)
    except FileNotFoundError as error:
        raise UserError(f"the decoded task '{path}' does not exist.") from error
    except BadRecord as error:
        raise UserError(f"the decoded task '{path}' is damaged, so load the task again by its name.") from error


def data_folder(given: Path | None) -> Path | None:
    """Return the directory of data that was given or that PROTOLITH_DATA names; it must exist."""
    named = os.environ.get("PROTOLITH_DATA")
    if given is None and not named:
        return None
    path = (given if given is not None else Path(named or "")).expanduser()
    if not path.is_dir():
        origin = "" if given is not None else " (from PROTOLITH_DATA)"
        raise UserError(f"the data directory '{path}'{origin} does not exist.")
    return path


def folder_of(name: str) -> Path:
    """Return the folder or manifest that a task's name stands for when it is not one of ours."""
    path = Path(name).expanduser()
    if path.is_dir() or (path.is_file() and is_manifest(path)):
        return path
    if path.is_file():
        raise UserError(f"the task '{name}' is a file but no manifest: a manifest ends in .csv or .parquet.")
    if is_manifest(path):
        raise UserError(f"the manifest '{name}' does not exist.")
    if path.name != name or name in (".", ".."):
        raise UserError(f"the folder '{name}' does not exist; a task is a folder or one of {', '.join(all_tasks())}.")
    raise unknown("task", name, [*all_tasks(), "any folder of site/class/image or manifest"])


def locate(spec: TaskSpec, data: Path | None, size: int, store: Path, fit: Fit = PLAIN) -> dict[str, Place]:
    """Say for each domain where it would come from, without the network; None when nowhere is known."""
    places: dict[str, Place] = {}
    for domain in spec.domains:
        by = spec.drawn.get(domain)
        place: Place = drawn.find(by, domain, size) if by and not drawn.stands_in(by) else None
        place = place or (in_folder(data, spec.name, domain, spec.columns) if data else None)
        place = place or _in_cache(spec, domain, size, store, fit) or spec.hub.get(domain)
        places[domain] = place or (drawn.find(by, domain, size) if by else None)
    return places


def in_folder(data: Path, task: str, domain: str, columns: Columns = COLUMNS) -> Found | None:
    """Find a domain in a directory of data, in any of the layouts."""
    names = {plain(domain), *ALIASES.get(domain, ())}
    inside = [*folder.subfolders(data), *folder.subfolders(data / task)]
    for place in inside:
        if plain(place.name) in names and (found := alone(place, domain, columns)):
            return found
    shared = parquet.find_shared(data / task, domain, columns) or parquet.find_shared(data, domain, columns)
    return shared or classic.find(data, domain)


def alone(place: Path, domain: str, columns: Columns = COLUMNS) -> Found | None:
    """Find a domain in a folder of its own."""
    found = parquet.find_domain(place, domain, columns) or classic.find(place, domain)
    return found or folder.find(place, domain)


def load_site(
    name: str,
    place: Path,
    task: str,
    classes: tuple[str, ...],
    size: int,
    store: Path,
    skip_bad: bool = False,
    fit: Fit = PLAIN,
) -> Task:
    """Load the one domain that a real site has, by the rules of the task: a named one, or images of one's own."""
    spec = all_tasks().get(task)
    if spec is None and not parquet.find_domain(place, name):
        own = load_own(folder.read_domain(place, name), size, store, silent, skip_bad, fit)
        if strange := [label for label in own.classes if label not in (classes or own.classes)]:
            raise UserError(f"site '{name}' has classes that the run does not know: {', '.join(strange)}.")
        return own if classes in ((), own.classes) else _renumbered(own, classes)
    found = alone(place, name, spec.columns if spec else COLUMNS)
    if found is None:
        raise UserError(f"site '{name}': '{place}' holds no images (class/image, or parquet files).")
    if not (names := classes or tuple(sorted(found.classes or ()))):
        raise UserError(f"site '{name}': the files in '{place}' do not name their classes.")
    fingerprints = {name: found.fingerprint} | _said(spec, fit)
    path = decoded.file_for(store, f"site-{name}", size, fingerprints)
    if (task_there := decoded.read_if_good(path, silent)) and task_there.classes == names:
        return task_there
    rule: Rule = spec.rule if spec else "by-position"
    domain = read_found(found, names, size, rule, silent, fit)
    held_out = () if found.given else (f"{name}: no test part was found, so {RULES[rule]}",)
    named = Task(name, names, (Domain(name, domain.train, domain.test),), (*found.notes, *held_out))
    return decoded.write(path, named, fingerprints)


def _renumbered(task: Task, classes: tuple[str, ...]) -> Task:
    """The same images with their labels counted by other classes."""
    index = torch.tensor([classes.index(name) for name in task.classes])
    domains = (
        Domain(domain.name, *(Split(part.images, index[part.labels]) for part in (domain.train, domain.test)))
        for domain in task.domains
    )
    return Task(task.name, classes, tuple(domains), task.notes)


def _load_named(spec: TaskSpec, data: Path | None, size: int, store: Path, progress: Progress, fit: Fit) -> Task:
    places = locate(spec, data, size, store, fit)
    if missing := [domain for domain, place in places.items() if place is None]:
        raise _absent(spec, missing, data, "")
    fingerprints = {
        place.domain if isinstance(place, Found) else domain: _fingerprint(place) for domain, place in places.items()
    }
    fingerprints |= _said(spec, fit)
    path = decoded.file_for(store, spec.name, size, fingerprints)
    if (task := decoded.read_if_good(path, progress)) and task.classes == spec.classes:
        return task
    found = _fetched(spec, places, data, progress)
    domains = tuple(read_found(source, spec.classes, size, spec.rule, progress, fit) for source in found)
    notes = tuple(note for source in found for note in _notes(spec, source))
    return decoded.write(path, Task(spec.name, spec.classes, domains, notes), fingerprints)


def _said(spec: TaskSpec | None, fit: Fit) -> dict[str, str]:
    """What else decides on the images: as a fingerprint without a domain, where it is not the usual."""
    by_class = ["by-class"] * (spec is not None and spec.rule == "by-class")
    columns = [spec.columns.model_dump_json()] if spec is not None and spec.columns != COLUMNS else []
    said = [*by_class, *columns, *[str(fit)] * (fit != PLAIN)]
    return {"": " ".join(said)} if said else {}


def _in_cache(spec: TaskSpec, domain: str, size: int, store: Path, fit: Fit) -> Found | None:
    for path, header in decoded.candidates(store, spec.name, size):
        alike = header.classes == spec.classes and header.fingerprints.get("", "") == _said(spec, fit).get("", "")
        if domain in header.domains and alike:

            def rows(classes: tuple[str, ...], path: Path = path) -> list[Row]:
                return decoded_rows(read_task_file(path).by_name[domain], classes)

            notes = tuple(note for note in header.notes if note.startswith(f"{domain}:"))
            given = spec.split == "given"  # whether it was another way is among the notes
            return Found(domain, header.fingerprints[domain], f"decoded: {path}", rows, given, notes=notes)
    return None


def _fingerprint(place: Place) -> str:
    if isinstance(place, Found):
        return place.fingerprint
    return place.address if place else ""


def _fetched(spec: TaskSpec, places: Mapping[str, Place], data: Path | None, progress: Progress) -> list[Found]:
    # All downloads come first: one sentence for all that fail, before any time is spent on decoding.
    files: dict[HubSource, list[Path]] = {}
    failed: dict[HubSource, str] = {}
    for source in dict.fromkeys(place for place in places.values() if isinstance(place, HubSource)):
        try:
            files[source] = download(source, progress)
        except HubUnavailable as error:
            failed[source] = str(error)
    if missing := [domain for domain, place in places.items() if place in failed]:
        raise _absent(spec, missing, data, next(iter(failed.values())))
    return [
        hub_domain(place, domain, files[place], spec.columns) if isinstance(place, HubSource) else place
        for domain, place in places.items()
        if place is not None
    ]


def _notes(spec: TaskSpec, source: Found) -> tuple[str, ...]:
    if spec.split == "given" and not source.given:
        return (*source.notes, f"{source.domain}: no test part was found, so {RULES[spec.rule]}")
    if spec.split != "given" and source.given:
        return (*source.notes, f"{source.domain}: divided as its files are, not {spec.split.replace('-', ' ')}")
    return source.notes


def _absent(spec: TaskSpec, missing: list[str], data: Path | None, reason: str) -> UserError:
    place = str(data) if data else "DIR"
    own = [classic.EXPECTED[domain] for domain in missing if domain in classic.EXPECTED]
    layouts = [f"{domain}/*.parquet" for domain in missing] + own + [f"{missing[0]}/<class>/<image>"]
    if spec.split != "given":
        layouts.insert(0, f"{spec.name}/*.parquet with a 'domain' column")
    hub = f"the Hugging Face hub did not help ({reason})" if reason else "no hub repository is known for it"
    how = "there" if data else "in a directory DIR given by --data or PROTOLITH_DATA"
    return UserError(
        f"task {spec.name} lacks the images of {listed(missing)} and {hub}: put files {how} "
        f"as {' or '.join(f'{place}/{layout}' for layout in layouts)}."
    )
