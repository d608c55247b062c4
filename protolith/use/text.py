"""Columns of text, for people."""

import shlex
from collections.abc import Sequence
from pathlib import Path


def columns(rows: Sequence[Sequence[object]], left: int = 1) -> str:
    """Align rows of cells; the first `left` columns to the left, the others to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[place]) for row in cells) for place in range(len(cells[0]))]
    lines = []
    for row in cells:
        parts = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def span(seconds: float) -> str:
    """A time that nobody needs to the second."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def predict_line(run: Path) -> str:
    """What to type with images that are new."""
    return f"protolith predict {shlex.quote(str(run))} FOLDER-OF-NEW-IMAGES"
