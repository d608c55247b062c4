"""What the papers print: their result tables as data, with the errors that were found in them mended."""

import csv
import tomllib
from functools import cache
from importlib.resources import files

# The papers' names of domains, by data set, and ours.
_DIGITS = {"mnist": "mnist", "mt": "mnist", "usps": "usps", "up": "usps", "svhn": "svhn", "sv": "svhn", "syn": "syn"}
_OFFICE = {"c": "caltech", "a": "amazon", "w": "webcam", "d": "dslr"}
_PACS = {"p": "photo", "a": "art_painting", "c": "cartoon", "s": "sketch"}
_DOMAINS = {
    "Digits": _DIGITS,
    "Digit5": {**_DIGITS, "mnist-m": "mnistm"},
    "Office-10": {**_OFFICE, **{name: name for name in _OFFICE.values()}},
    "Office Caltech": {**_OFFICE, **{name: name for name in _OFFICE.values()}},
    "PACS": {**_PACS, "art-painting": "art_painting", **{name: name for name in _PACS.values()}},
}
_MEASURES = ("LTA", "GATA", "GASA", "CPRR")

Cells = dict[str, dict[str, dict[str, float]]]  # data set -> row -> column -> value


@cache
def printed_table(name: str) -> Cells:
    """A table of a paper, with our names of the columns; differences that it prints are left out."""
    folder = files("protolith.experiments") / "papers" / "tables"
    mended = {
        (fault["method"], fault["dataset"], fault["column"]): float(fault["used"])
        for fault in tomllib.loads((folder / "errata.toml").read_text(encoding="utf-8"))["errata"]
        if fault["table"] == name
    }
    found: Cells = {}
    for line in csv.DictReader((folder / f"{name}.csv").read_text(encoding="utf-8").splitlines()):
        if column := our_column(line["dataset"], line["column"]):
            place = (line["method"], line["dataset"], line["column"])
            row = found.setdefault(line["dataset"], {}).setdefault(line["method"], {})
            row[column] = mended.get(place, float(line["value"]))
    return found


def our_column(dataset: str, column: str) -> str | None:
    """Translate a paper's column; None for a difference that follows from other columns."""
    if column in _MEASURES:
        return column
    if column.startswith("ATA_"):
        return f"ATA {_DOMAINS[dataset][column.removeprefix('ATA_').lower()]}"
    if column.lower() in ("avg", "average"):
        return "mean"
    if column.startswith("Delta"):
        return None
    return _DOMAINS[dataset][column.removeprefix("->").lower()]
