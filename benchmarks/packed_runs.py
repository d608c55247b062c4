"""Finished runs in one file, a line each: what every table under results/ is computed from.

    python benchmarks/packed_runs.py pack runs/measured results/measured/runs.jsonl
    python benchmarks/packed_runs.py unpack results/measured/runs.jsonl runs/measured [NAME ...]

A line has a run's name (its path below the directory), its settings, its rounds and its summary. Unpacked, config.toml,
metrics.jsonl and summary.json are byte for byte what was packed, so every command takes the run for a finished one.
Only where the data lay is left out. Packing keeps the lines of runs that the directory does not have.
"""

import argparse
import json
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import tomli_w

Line = dict[str, Any]


def files_of(line: Line) -> dict[str, str]:
    """The three files of a run, as a run writes them."""
    return {
        "config.toml": tomli_w.dumps(line["settings"]),
        "metrics.jsonl": "".join(json.dumps(found) + "\n" for found in line["rounds"]),
        "summary.json": json.dumps(line["summary"], indent=2) + "\n",
    }


def line_of(run: Path, name: str) -> Line:
    """A finished run as a line; it must come back as it was."""
    held = {file: (run / file).read_text() for file in ("config.toml", "metrics.jsonl", "summary.json")}
    line = {
        "name": name,
        "settings": tomllib.loads(held["config.toml"]),
        "rounds": [json.loads(text) for text in held["metrics.jsonl"].splitlines()],
        "summary": json.loads(held["summary.json"]),
    }
    if changed := [file for file, text in files_of(line).items() if text != held[file]]:
        raise SystemExit(f"{run / changed[0]} is not as a run writes it, so it would not come back as it is.")
    return {**line, "settings": {**line["settings"], "data": ""}}


def lines_in(packed: Path) -> Iterator[Line]:
    """The runs of a file."""
    with packed.open() as file:
        yield from map(json.loads, file)


def pack(directory: Path, packed: Path) -> int:
    """Take in the finished runs at any depth below a directory; say how many there were."""
    found = {line["name"]: line for line in lines_in(packed)} if packed.exists() else {}
    runs = [summary.parent for summary in directory.rglob("summary.json")]
    for run in runs:
        name = run.relative_to(directory).as_posix()
        found[name] = line_of(run, name)
    packed.write_text("".join(json.dumps(found[name]) + "\n" for name in sorted(found)))
    return len(runs)


def unpack(packed: Path, directory: Path, names: Collection[str] = ()) -> list[Path]:
    """Make the directories of these runs, or of all; one that is there stays as it is."""
    made = []
    for line in lines_in(packed):
        run = directory / line["name"]
        if (names and line["name"] not in names) or run.exists():
            continue
        run.mkdir(parents=True)
        for file, text in files_of(line).items():
            (run / file).write_text(text)
        made.append(run)
    return made


def main() -> None:
    """Pack or unpack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    into = what.add_parser("pack")
    into.add_argument("directory", type=Path)
    into.add_argument("packed", type=Path)
    out = what.add_parser("unpack")
    out.add_argument("packed", type=Path)
    out.add_argument("directory", type=Path)
    out.add_argument("names", nargs="*")
    said = parser.parse_args()
    if said.what == "pack":
        print(f"{pack(said.directory, said.packed)} runs packed into {said.packed}")
    else:
        print(f"{len(unpack(said.packed, said.directory, said.names))} runs unpacked into {said.directory}")


if __name__ == "__main__":
    main()
