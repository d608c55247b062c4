"""Tasks by name or by folder, from whichever source has them, decoded once."""

import os
from collections.abc import Mapping
from pathlib import Path

from protolith.data import cache as decoded
from protolith.data.domain import Domain, Task
from protolith.data.own import load_own
from protolith.data.sources import classic, folder, parquet
from protolith.data.sources.decode import resized
from protolith.data.sources.found import Found, Progress, listed, plain, silent
from protolith.data.sources.hub import HubUnavailable, download
from protolith.data.sources.hub import domain as hub_domain
from protolith.data.sources.manifest import is_manifest
from protolith.data.spec import RULES, HubSource, TaskSpec, all_tasks
from protolith.errors import UserError, unknown
from protolith.records import BadRecord

SIZES = (8, 512)
ALIASES = {"syn": ("syntheticdigits",)}  # other folder names, as `plain` writes them


Place = Found | HubSource | None


def load_task(
    name: str,
    *,
    data: Path | None = None,
    size: int | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
    skip_bad: bool = False,
) -> Task:
    """Load a task by name, a folder of `domain/class/image` or a manifest; the images are mapped from a file.

    `skip_bad` leaves out what cannot be read of images of one's own; otherwise that is an error.
    """
    if size is not None and not SIZES[0] <= size <= SIZES[1]:
        raise UserError(f"size must be from {SIZES[0]} to {SIZES[1]} pixels, not {size}.")
    store, say = decoded.folder(cache), progress or silent
    if (spec := all_tasks().get(name)) is None:
        return load_own(folder_of(name), size or 32, store, say, skip_bad)
    if Path(name).is_dir():
        say(f"'{name}' is a task of that name; for the folder of that name write ./{name}")
    if "mini" in spec.drawn.values():
        return _load_mini(spec, size or spec.size, store, say)
    return _load_named(spec, data_folder(data), size or spec.size, store, say)


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
    raise unknown("task", name, [*all_tasks(), "any folder of domain/class/image or manifest"])


def locate(spec: TaskSpec, data: Path | None, size: int, store: Path) -> dict[str, Place]:
    """Say for each domain where it would come from, without the network; None when nowhere is known."""
    places: dict[str, Place] = {}
    for domain in spec.domains:
        place: Place = in_folder(data, spec.name, domain) if data else None
        place = place or _in_cache(spec, domain, size, store) or spec.hub.get(domain)
        places[domain] = place or (_rendered() if domain in spec.drawn else None)
    return places


def in_folder(data: Path, task: str, domain: str) -> Found | None:
    """Find a domain in a directory of data, in any of the layouts."""
    names = {plain(domain), *ALIASES.get(domain, ())}
    inside = [*folder.subfolders(data), *folder.subfolders(data / task)]
    for place in inside:
        if plain(place.name) in names:
            found = parquet.find_domain(place, domain) or classic.find(place, domain) or folder.find(place, domain)
            if found:
                return found
    shared = parquet.find_shared(data / task, domain) or parquet.find_shared(data, domain)
    return shared or classic.find(data, domain)


def _load_named(spec: TaskSpec, data: Path | None, size: int, store: Path, progress: Progress) -> Task:
    places = locate(spec, data, size, store)
    if missing := [domain for domain, place in places.items() if place is None]:
        raise _absent(spec, missing, data, "")
    fingerprints = {
        place.domain if isinstance(place, Found) else domain: _fingerprint(place) for domain, place in places.items()
    }
    path = decoded.file_for(store, spec.name, size, fingerprints)
    if task := decoded.read_if_good(path, progress):
        return task
    found = _fetched(spec, places, data, progress)
    domains = tuple(source.read(spec.classes, size, progress) for source in found)
    notes = tuple(note for source in found for note in _notes(spec, source))
    return decoded.write(path, Task(spec.name, spec.classes, domains, notes), fingerprints)


def _load_mini(spec: TaskSpec, size: int, store: Path, progress: Progress) -> Task:
    from protolith.data.drawn import mini

    fingerprints = {"mini": f"mini {mini.VERSION}"}
    path = decoded.file_for(store, spec.name, size, fingerprints)
    if task := decoded.read_if_good(path, progress):
        return task
    progress("mini: drawing the images")
    classes, domains = mini.build()
    sized = tuple(_resized(domain, size) for domain in domains)
    return decoded.write(path, Task(spec.name, classes, sized), fingerprints)


def _resized(domain: Domain, size: int) -> Domain:
    parts = (type(part)(resized(part.images, size), part.labels) for part in (domain.train, domain.test))
    return Domain(domain.name, *parts)


def _in_cache(spec: TaskSpec, domain: str, size: int, store: Path) -> Found | None:
    for path, header in decoded.candidates(store, spec.name, size):
        if domain in header.domains and header.classes == spec.classes:

            def read(classes: tuple[str, ...], size: int, progress: Progress, path: Path = path) -> Domain:
                return read_task_file(path).by_name[domain]

            notes = tuple(note for note in header.notes if note.startswith(f"{domain}:"))
            given = spec.split == "given"  # whether it was another way is among the notes
            return Found(domain, header.fingerprints[domain], f"decoded: {path}", read, given, notes=notes)
    return None


def _rendered() -> Found:
    from protolith.data.drawn import syn

    def read(classes: tuple[str, ...], size: int, progress: Progress) -> Domain:
        progress("syn*: drawing the images")
        return syn.render(size)

    note = "syn*: drawn by Protolith, because the SYN data set (Roy et al. 2018) was not found"
    return Found(
        "syn*",
        f"syn {syn.VERSION}",
        "drawn by Protolith (the real SYN was not found)",
        read,
        True,
        notes=(note,),
    )


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
        hub_domain(place, domain, files[place]) if isinstance(place, HubSource) else place
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
