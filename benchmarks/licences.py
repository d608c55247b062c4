"""List the dependencies of the package and of its extras, with versions and licences, as installed here.

    python benchmarks/licences.py > docs/licences.md

From the packages' own metadata; nothing is asked of the network.
"""

import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

HEAD = """# Licences of the dependencies

Protolith itself is under the Apache License 2.0. What it is built on, direct and indirect, base and extras, as the
packages say it in their own metadata. Made by `python benchmarks/licences.py > docs/licences.md` from what is
installed (the versions of `constraints.txt`); `–` under *needed by* means that Protolith asks for it itself.

**Known vulnerabilities.** `pip-audit` asks PyPI's JSON interface or OSV. Where this page was made the package index
answers 404 for the one, and the other cannot be reached: the list has **not** been checked against advisories. Where
there is a network, check it with `pip install pip-audit && pip-audit -r constraints.txt`.
"""
SHORT = 60  # letters of a licence; some packages put the whole text into that field


def name_of(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def licence(found: Distribution) -> str:
    """The licence by its expression, its field, or its classifiers, whichever is there."""
    metadata = found.metadata
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classifiers = [
        line.rsplit(" :: ", 1)[-1] for line in metadata.get_all("Classifier") or [] if line.startswith("License ::")
    ]
    field = " ".join(str(metadata.get("License") or "").split())
    if field and len(field) <= SHORT and field.upper() != "UNKNOWN":
        return field
    return ", ".join(line for line in classifiers if line != "OSI Approved") or "not stated"


def needs(found: Distribution, extras: Iterable[str]) -> list[Requirement]:
    """What a package needs here, with these extras."""
    chosen = list(extras) or [""]
    requirements = [Requirement(text) for text in found.requires or []]
    return [one for one in requirements if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in chosen)]


def closure(roots: Iterable[Requirement]) -> tuple[dict[str, Distribution], dict[str, set[str]], set[str]]:
    """Every package that is needed, who needs it, and what is not installed."""
    found: dict[str, Distribution] = {}
    needed_by: dict[str, set[str]] = {}
    missing: set[str] = set()
    waiting = [("–", one) for one in roots]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        parent, one = waiting.pop()
        name, wanted = name_of(one.name), frozenset(one.extras)
        needed_by.setdefault(name, set()).add(parent)
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            missing.add(name)
            continue
        waiting += [(name, inner) for inner in needs(found[name], wanted)]
    return found, needed_by, missing


def table(roots: Iterable[Requirement]) -> str:
    found, needed_by, missing = closure(roots)
    lines = ["| package | version | licence | needed by |", "|---|---|---|---|"]
    for name in sorted(found):
        parents = sorted(needed_by[name])
        shown = ", ".join(parents[:4]) + (f" and {len(parents) - 4} more" if len(parents) > 4 else "")
        lines.append(f"| {name} | {found[name].version} | {licence(found[name]).replace('|', '/')} | {shown} |")
    if missing:
        lines.append(f"\nNot installed here, and so not listed with a licence: {', '.join(sorted(missing))}.")
    return "\n".join(lines)


def main() -> int:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(text for texts in extras.values() for text in texts)]
    asked = [text for text in asked if not text.startswith("protolith[")]  # extras that hold other extras
    print(f"{HEAD}\nExtras: {', '.join(sorted(extras))}.\n\n{table(map(Requirement, asked))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
