"""A manifest: a CSV or parquet file with columns path, label, site and, where there are parts, split."""

import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from protolith import files
from protolith.data.sources.inventory import Inventory, Part, Row, file_row, inventory, part_of, printable
from protolith.errors import UserError
from protolith.extras import need

SUFFIXES = (".csv", ".parquet")
COLUMNS = ("path", "label", "site")
BYTES = 2 << 30  # of a manifest, unpacked
ROWS = 20_000_000
SPLITS = "train, val or test"

Line = tuple[int, Sequence[str]]  # its number in the file, and the cells of COLUMNS and split


def is_manifest(path: Path) -> bool:
    """Tell whether a path names a manifest."""
    return path.suffix.lower() in SUFFIXES


def read_manifest(path: Path) -> Inventory:
    """List the images of a manifest. Its paths are relative to it and stay inside its folder."""
    lines = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    root = path.parent
    inside = os.path.realpath(root)
    rows: list[Row] = []
    seen: dict[str, int] = {}
    for number, cells in lines:
        row = _row(path, number, cells, root, inside)
        key = os.path.normpath(root / cells[0].strip())
        if key in seen:
            raise _fault(path, number, f"the path '{printable(cells[0])}' is also in line {seen[key]}")
        seen[key] = number
        rows.append(row)
    if not rows:
        raise UserError(f"manifest '{printable(str(path))}' lists no image.")
    _complete_parts(path, rows)
    return inventory(path.stem, path, rows)


def _row(path: Path, number: int, cells: Sequence[str], root: Path, inside: str) -> Row:
    name, label, site, split = (cell.strip() for cell in cells)
    for column, value in zip(COLUMNS, (name, label, site), strict=True):
        if not value:
            raise _fault(path, number, f"the {column} is empty")
    part: Part | None = part_of(split.lower()) if split else ""
    if part is None:
        raise _fault(path, number, f"the split '{printable(split)}' is not {SPLITS}")
    if "\x00" in name:
        raise _fault(path, number, "the path holds a zero byte")
    real = os.path.realpath(root / name)
    if Path(name).is_absolute() or not real.startswith(inside.rstrip(os.sep) + os.sep):
        raise _fault(path, number, f"the path '{printable(name)}' leads out of the manifest's folder")
    return file_row(site, part, label, root / name, root)


def _complete_parts(path: Path, rows: Iterable[Row]) -> None:
    """Within a site either every image has a split or none has."""
    said: dict[str, bool] = {}
    for row in rows:
        if said.setdefault(row.domain, bool(row.part)) != bool(row.part):
            raise UserError(
                f"manifest '{printable(str(path))}': some images of site '{printable(row.domain)}' have a split and "
                f"some have none; give all of them one ({SPLITS}), or none."
            )


def _csv(path: Path) -> Iterable[Line]:
    try:
        with io.StringIO(files.read_bytes(path, BYTES).decode("utf-8-sig"), newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [cell.strip().lower() for cell in next(reader, [])]
            places = _places(path, header)
            found: list[Line] = []
            for cells in reader:
                if not any(cell.strip() for cell in cells):
                    continue
                if len(cells) != len(header):
                    what = f"it has {len(cells)} cells, and the header has {len(header)}"
                    raise _fault(path, reader.line_num, what)
                if len(found) >= ROWS:
                    raise _fault(path, reader.line_num, f"more than the {ROWS:,} rows that are allowed")
                found.append((reader.line_num, [cells[place] if place >= 0 else "" for place in places]))
            return found
    except UnicodeDecodeError:  # before ValueError, which it is too
        raise UserError(f"manifest '{printable(str(path))}' is not a text in UTF-8.") from None
    except csv.Error as error:
        raise UserError(f"manifest '{printable(str(path))}' is not a proper CSV file ({error}).") from None
    except OSError as error:
        raise UserError(f"manifest '{printable(str(path))}' cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise UserError(f"manifest '{printable(str(path))}' cannot be read ({printable(str(error))}).") from None


def _parquet(path: Path) -> Iterable[Line]:
    need(f"manifest '{printable(str(path))}', which is parquet,", "formats", "pyarrow")
    import pyarrow as pa  # 40 MB that only those pay who have such a manifest
    import pyarrow.parquet as pq

    try:
        if not path.is_file():
            raise OSError("not a regular file")
        opened = pq.ParquetFile(path)
        present = opened.schema_arrow.names
        places = _places(path, [name.strip().lower() for name in present])
        _check_size(opened.metadata)
        table = opened.read(columns=[present[place] for place in places if place >= 0])
        if table.nbytes > BYTES:
            raise ValueError(f"its columns take {table.nbytes:,} bytes, and {BYTES:,} are allowed")
        columns = [
            table.column(present[place]).cast(pa.string()).to_pylist() if place >= 0 else None for place in places
        ]
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = printable(" ".join(str(error).split()))[:300]
        raise UserError(f"manifest '{printable(str(path))}' is not a readable parquet file ({reason}).") from None
    whole = [column or [""] * len(table) for column in columns]
    return [(row + 1, [cell or "" for cell in cells]) for row, cells in enumerate(zip(*whole, strict=True))]


def _check_size(described: Any) -> None:
    """Look at the sizes that a parquet file gives before any of it is unpacked."""
    if described.num_rows > ROWS:
        raise ValueError(f"{described.num_rows:,} rows, and {ROWS:,} are allowed")
    unpacked = sum(described.row_group(group).total_byte_size for group in range(described.num_row_groups))
    if unpacked > BYTES:
        raise ValueError(f"{unpacked:,} bytes when unpacked, and {BYTES:,} are allowed")


def _places(path: Path, header: Sequence[str]) -> list[int]:
    """Where the columns are; -1 for a split that is not there."""
    if twice := [name for name in (*COLUMNS, "split") if header.count(name) > 1]:
        raise UserError(f"manifest '{printable(str(path))}' has the column {twice[0]} twice.")
    if missing := [name for name in COLUMNS if name not in header]:
        present = printable(", ".join(header)) or "none"
        raise UserError(
            f"manifest '{printable(str(path))}' has no column {missing[0]}: it needs {', '.join(COLUMNS)} and may "
            f"have split; it has {present}."
        )
    return [header.index(name) if name in header else -1 for name in (*COLUMNS, "split")]


def _fault(path: Path, number: int, what: str) -> UserError:
    return UserError(f"manifest '{printable(str(path))}', line {number}: {what}.")
