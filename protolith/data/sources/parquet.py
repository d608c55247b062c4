"""Parquet in the Hugging Face layout: columns image, label, and `domain` where a file holds several.

pyarrow is imported where it is needed: a run whose images have been decoded before spares its 40 MB in every process.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protolith.data.sources.found import Found, listed, plain, spellings, stamps
from protolith.data.sources.inventory import TEST_NAMES, Part, Row
from protolith.data.spec import Columns
from protolith.errors import UserError
from protolith.extras import need

COLUMNS = Columns()


@dataclass(frozen=True)
class Schema:
    """The columns that matter in a file, and the class names that its metadata gives."""

    image: str
    label: str
    domain: str | None
    classes: tuple[str, ...] | None
    domains: tuple[str, ...] | None


def find_domain(folder: Path, domain: str, columns: Columns = COLUMNS) -> Found | None:
    """Find one domain in the parquet files of its own folder."""
    files = _files(folder)
    return from_files(files, domain, str(folder), columns=columns) if files else None


def find_shared(folder: Path, domain: str, columns: Columns = COLUMNS) -> Found | None:
    """Find one domain in parquet files that hold several, by their column of domains."""
    files = [file for file in _files(folder) if read_schema(file, columns).domain]
    if not files or domain not in {name for file in files for name in _domains(file, columns)}:
        return None
    return from_files(files, domain, str(folder), columns=columns)


def from_files(
    files: Sequence[Path], domain: str, where: str, fingerprint: str = "", columns: Columns = COLUMNS
) -> Found:
    """Describe one domain that these files hold, alone or among others."""
    parts = by_part(files)
    given = bool(parts["train"]) and bool(parts["test"])
    used = parts["train"] + parts["test"] if given else parts["train"] or parts["test"] or parts[""]

    def rows(classes: tuple[str, ...]) -> list[Row]:
        if not given:
            return _in_folder_order(used, domain, classes, columns)
        train, test = (
            [row for file in parts[part] for _, row in _rows(file, domain, part, classes, columns)]
            for part in ("train", "test")
        )
        return train + test

    return Found(domain, fingerprint or stamps(used), where, rows, given, read_schema(used[0], columns).classes)


def by_part(files: Sequence[Path]) -> dict[Part, list[Path]]:
    """Sort files into training, test and other by their names; SVHN's `extra` part is left out."""
    words = {file: set(re.split(r"[^a-z]+", file.stem.lower())) for file in files}
    train = [file for file in files if "train" in words[file]]
    tests = ([file for file in files if name in words[file] and file not in train] for name in TEST_NAMES)
    test = next((part for part in tests if part), [])
    other = [file for file in files if not words[file] & {"train", "extra", *TEST_NAMES}]
    return {"train": train, "test": test, "": other}


def read_schema(file: Path, columns: Columns = COLUMNS) -> Schema:
    """Find the image, label and domain columns of a file."""
    need(f"file '{file}', which is parquet,", "formats", "pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"file '{file}' is not a readable parquet file ({error}).") from error
    described = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = described.get("info", {}).get("features", {})
    chosen = []
    for kind, allowed in (("image", columns.image), ("label", columns.label)):
        column = next((name for name in allowed if name in schema.names), None)
        if column is None:
            needed, present = " or ".join(allowed), ", ".join(schema.names)
            raise UserError(f"file '{file}' has no {kind} column: it needs {needed}, and has {present}.")
        chosen.append(column)
    domain = columns.domain if columns.domain in schema.names else None
    return Schema(chosen[0], chosen[1], domain, _names(features, chosen[1]), _names(features, columns.domain))


def _names(features: dict[str, Any], column: str) -> tuple[str, ...] | None:
    names = (features.get(column) or {}).get("names")
    return tuple(str(name) for name in names) if names else None


def _files(folder: Path) -> list[Path]:
    # The hub keeps the files of a data set in `data/`.
    return sorted(folder.glob("*.parquet")) or sorted(folder.glob("data/*.parquet"))


def _domains(file: Path, columns: Columns) -> set[str]:
    schema = read_schema(file, columns)
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    values = pc.unique(pq.read_table(file, columns=[columns.domain])[columns.domain]).to_pylist()
    names = schema.domains
    return {names[value] if names and isinstance(value, int) else str(value) for value in values}


def stored(folder: Path, domain: str, classes: tuple[str, ...]) -> list[bytes]:
    """The images of a domain as its files hold them, encoded: all in the order of class folders."""
    rows = _in_folder_order(_files(folder), domain, classes, COLUMNS)
    return [row.picture for row in rows if isinstance(row.picture, bytes)]


def _in_folder_order(files: Sequence[Path], domain: str, classes: tuple[str, ...], columns: Columns) -> list[Row]:
    """By class and file name: a rule of holding out counts positions as class folders have them."""
    rows = [found for file in files for found in _rows(file, domain, "", classes, columns)]
    return [row for _, row in sorted(rows, key=lambda found: (found[1].label, found[0]))]


def _rows(file: Path, domain: str, part: Part, classes: tuple[str, ...], columns: Columns) -> Iterator[tuple[str, Row]]:
    """The images of a domain in a file, each with the file name that it had before."""
    schema = read_schema(file, columns)
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    wanted = schema.domains.index(domain) if schema.domains and domain in schema.domains else domain
    filters = [(schema.domain, "=", wanted)] if schema.domain else None
    try:
        table = pq.read_table(file, columns=[schema.image, schema.label], filters=filters)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"file '{file}' is not a readable parquet file ({error}).") from error
    column = table[schema.image]
    nested = pa.types.is_struct(column.type)
    names = {field.name for field in column.type} if nested else set()
    encoded = (pc.struct_field(column, "bytes") if nested else column).cast(pa.large_binary())
    paths = pc.struct_field(column, "path").to_pylist() if "path" in names else [None] * len(column)
    labels = _labels(table[schema.label].to_pylist(), schema.classes, classes, file)
    for index, (image, path, label) in enumerate(zip(encoded, paths, labels, strict=True)):
        yield path or "", Row(domain, part, label, image.as_py() or b"", f"{path or f'row {index}'} in {file.name}")


def _labels(values: list[Any], names: tuple[str, ...] | None, classes: tuple[str, ...], file: Path) -> list[str]:
    if values and isinstance(values[0], str):
        return _from_names(values, classes, file)
    if wrong := [value for value in values if value is None or not 0 <= value < len(names or classes)]:
        raise UserError(
            f"file '{file}' has the label {wrong[0]}, and its labels must be 0 to {len(names or classes) - 1}."
        )
    own = spellings(names, classes, f"file '{file}'") if names else {}
    return [own[names[value]] if names else classes[value] for value in values]


def _from_names(values: list[str], classes: tuple[str, ...], file: Path) -> list[str]:
    known = {plain(name): name for name in classes}
    if strange := sorted({value for value in values if plain(value) not in known}):
        raise UserError(f"file '{file}' has labels that are no classes of its task: {listed(strange)}.")
    return [known[plain(value)] for value in values]
