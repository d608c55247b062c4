"""All measurements in one run: a table, a file of results, and what got worse since the last."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.speed import parts
from benchmarks.speed.measure import machine
from benchmarks.speed.methods import method_cost
from benchmarks.speed.parts import FULL, QUICK, Line, Size
from protolith.errors import unknown
from protolith.files import write_text
from protolith.runs.directory import plain_json

WORSE = 0.15  # by how much a figure must differ before it is called worse

Part = Callable[[Size, str], Iterator[Line]]
PARTS: dict[str, Part] = {
    "throughput": lambda size, data: parts.throughput(size),
    "round": parts.full_round,
    "loops": parts.against_loops,
    "engine": lambda size, data: parts.engine(size),
    "clients": lambda size, data: parts.many_clients(size),
    "server": lambda size, data: parts.server_work(size),
    "start": lambda size, data: parts.second_start(),
    "methods": lambda size, data: method_cost(size),
}


def run_bench(
    quick: bool, data: str, chosen: list[str], say: Callable[[str], None], keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Measure; every figure is said as soon as it is there, and kept when its part is done."""
    for name in chosen:
        if name not in PARTS:
            raise unknown("part", name, PARTS)
    found: dict[str, Any] = {"machine": machine(), "quick": quick, "lines": []}
    for name in chosen or list(PARTS):
        for entry in PARTS[name](QUICK if quick else FULL, data):
            found["lines"].append({"part": name, **entry})
            say(describe(entry))
        keep(found)
    return found


def describe(entry: Line) -> str:
    """A figure in one line."""
    spread = f" ({entry['low']:.3g} to {entry['high']:.3g})" if entry["low"] != entry["high"] else ""
    text = f"{entry['what']:<62} {entry['value']:>9.4g} {entry['unit']:<9}{spread}"
    if entry.get("explained") is not None:
        text += f"  explained {entry['explained']:.3g}"
    if (bound := entry.get("at_least")) is not None:
        text += f"  aim ≥ {bound:g}: {'met' if entry['value'] >= bound else 'MISSED'}"
    if (bound := entry.get("at_most")) is not None:
        text += f"  aim ≤ {bound:.3g}: {'met' if entry['value'] <= bound else 'MISSED'}"
    return text


def compare(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Name what got worse: ratios only, because seconds of another machine say nothing."""
    old = {entry["what"]: entry for entry in before["lines"]}
    said = []
    for entry in now["lines"]:
        was = old.get(entry["what"])
        if was is None or entry["unit"] not in ("×", "of peak"):
            continue
        lower_is_better = entry.get("at_most") is not None
        change = entry["value"] / was["value"] - 1 if was["value"] else 0.0
        if (change > WORSE) if lower_is_better else (change < -WORSE):
            said.append(f"worse: {entry['what']}: {entry['value']:.3g} after {was['value']:.3g}")
    return said


def write(found: dict[str, Any], path: Path) -> None:
    """Write the figures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(plain_json(found), indent=1) + "\n")
