"""Parquet in the Hugging Face layout: columns image, label, and `domain` where a file holds several.

pyarrow is imported where it is needed: a run whose images have been decoded before spares its 40 MB in every process.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protolith.data.domain import Domain, Split
from protolith.data.sources.decode import EncodedPictures, decode
from protolith.data.sources.found import (
    TEST_NAMES,
    Found,
    Progress,
    hold_out,
    listed,
    numbering,
    plain,
    stamps,
)
from protolith.errors import UserError

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels")


@dataclass(frozen=True)
class Schema:
    """The columns that matter in a file, and the class names that its metadata gives."""

    image: str
    label: str
    domain: str | None
    classes: tuple[str, ...] | None
    domains: tuple[str, ...] | None


@dataclass(frozen=True)
class Rows:
    """Encoded images with their labels as indices of the task's classes, in the order of the files."""

    images: Any
    paths: list[str | None]
    labels: list[int]

    def sorted(self, classes: Sequence[str]) -> "Rows":
        """Order by class and file name, which is the order of class folders."""
        import pyarrow as pa

        keys = [(classes[label], path or "") for label, path in zip(self.labels, self.paths, strict=True)]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        return Rows(self.images.take(pa.array(order)), [self.paths[i] for i in order], [self.labels[i] for i in order])


def find_domain(folder: Path, domain: str) -> Found | None:
    """Find one domain in the parquet files of its own folder."""
    files = _files(folder)
    return from_files(files, domain, str(folder)) if files else None


def find_shared(folder: Path, domain: str) -> Found | None:
    """Find one domain in parquet files that hold several, by their `domain` column."""
    files = [file for file in _files(folder) if read_schema(file).domain]
    if not files or domain not in {name for file in files for name in _domains(file)}:
        return None
    return from_files(files, domain, str(folder))


def from_files(files: Sequence[Path], domain: str, where: str, fingerprint: str = "") -> Found:
    """Describe one domain that these files hold, alone or among others."""
    parts = by_part(files)
    given = bool(parts["train"]) and bool(parts["test"])
    used = parts["train"] + parts["test"] if given else parts["train"] or parts["test"] or parts["other"]

    def read(classes: tuple[str, ...], size: int, progress: Progress) -> Domain:
        if given:
            return Domain(
                domain,
                *(_split(parts[part], domain, part, classes, size, progress) for part in ("train", "test")),
            )
        return hold_out(domain, _split(used, domain, "", classes, size, progress))

    return Found(domain, fingerprint or stamps(used), where, read, given, read_schema(used[0]).classes)


def by_part(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Sort files into training, test and other by their names; SVHN's `extra` part is left out."""
    words = {file: set(re.split(r"[^a-z]+", file.stem.lower())) for file in files}
    train = [file for file in files if "train" in words[file]]
    tests = ([file for file in files if name in words[file] and file not in train] for name in TEST_NAMES)
    test = next((part for part in tests if part), [])
    other = [file for file in files if not words[file] & {"train", "extra", *TEST_NAMES}]
    return {"train": train, "test": test, "other": other}


def read_schema(file: Path) -> Schema:
    """Find the image, label and domain columns of a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"file '{file}' is not a readable parquet file ({error}).") from error
    described = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = described.get("info", {}).get("features", {})
    columns = []
    for kind, allowed in (("image", IMAGE_COLUMNS), ("label", LABEL_COLUMNS)):
        column = next((name for name in allowed if name in schema.names), None)
        if column is None:
            needed, present = " or ".join(allowed), ", ".join(schema.names)
            raise UserError(f"file '{file}' has no {kind} column: it needs {needed}, and has {present}.")
        columns.append(column)
    domain = "domain" if "domain" in schema.names else None
    return Schema(columns[0], columns[1], domain, _names(features, columns[1]), _names(features, "domain"))


def _names(features: dict[str, Any], column: str) -> tuple[str, ...] | None:
    names = (features.get(column) or {}).get("names")
    return tuple(str(name) for name in names) if names else None


def _files(folder: Path) -> list[Path]:
    # The hub keeps the files of a data set in `data/`.
    return sorted(folder.glob("*.parquet")) or sorted(folder.glob("data/*.parquet"))


def _domains(file: Path) -> set[str]:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    schema = read_schema(file)
    values = pc.unique(pq.read_table(file, columns=["domain"])["domain"]).to_pylist()
    names = schema.domains
    return {names[value] if names and isinstance(value, int) else str(value) for value in values}


def _split(
    files: Sequence[Path], domain: str, part: str, classes: tuple[str, ...], size: int, progress: Progress
) -> Split:
    rows = _ordered_rows(files, domain, part, classes)
    pictures = EncodedPictures(rows.images, rows.paths, files[0].name)
    return Split(
        decode(pictures, size, f"{domain} {part}".strip(), progress),
        torch.tensor(rows.labels, dtype=torch.int64),
    )


def stored(folder: Path, domain: str, classes: tuple[str, ...]) -> list[bytes]:
    """The images of a domain as its files hold them, encoded: all in the order of class folders."""
    images: list[bytes] = _ordered_rows(_files(folder), domain, "", classes).images.to_pylist()
    return images


def _ordered_rows(files: Sequence[Path], domain: str, part: str, classes: tuple[str, ...]) -> Rows:
    rows = _join([_rows(file, domain, classes) for file in files])
    # The hold-out rule counts positions in the order of class folders.
    return rows if part else rows.sorted(classes)


def _join(parts: Sequence[Rows]) -> Rows:
    import pyarrow as pa

    return Rows(
        pa.concat_arrays([part.images for part in parts]),
        [path for part in parts for path in part.paths],
        [label for part in parts for label in part.labels],
    )


def _rows(file: Path, domain: str, classes: tuple[str, ...]) -> Rows:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    schema = read_schema(file)
    wanted = schema.domains.index(domain) if schema.domains and domain in schema.domains else domain
    filters = [("domain", "=", wanted)] if schema.domain else None
    try:
        table = pq.read_table(file, columns=[schema.image, schema.label], filters=filters)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"file '{file}' is not a readable parquet file ({error}).") from error
    column = table[schema.image]
    nested = pa.types.is_struct(column.type)
    names = {field.name for field in column.type} if nested else set()
    encoded = pc.struct_field(column, "bytes") if nested else column
    paths = pc.struct_field(column, "path").to_pylist() if "path" in names else [None] * len(column)
    labels = _labels(table[schema.label].to_pylist(), schema.classes, classes, file)
    return Rows(encoded.cast(pa.large_binary()).combine_chunks(), paths, labels)


def _labels(values: list[Any], names: tuple[str, ...] | None, classes: tuple[str, ...], file: Path) -> list[int]:
    if values and isinstance(values[0], str):
        return _from_names(values, classes, file)
    count = len(names or classes)
    numbers = np.array([-1 if value is None else value for value in values], dtype=np.int64)
    if len(wrong := numbers[(numbers < 0) | (numbers >= count)]):
        raise UserError(f"file '{file}' has the label {wrong[0]}, and its labels must be 0 to {count - 1}.")
    index = np.array(numbering(names, classes, f"file '{file}'")) if names else np.arange(count)
    return [int(number) for number in index[numbers]]


def _from_names(values: list[str], classes: tuple[str, ...], file: Path) -> list[int]:
    index = {plain(name): position for position, name in enumerate(classes)}
    if strange := sorted({value for value in values if plain(value) not in index}):
        raise UserError(f"file '{file}' has labels that are no classes of its task: {listed(strange)}.")
    return [index[plain(value)] for value in values]
