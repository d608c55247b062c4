"""What the methods' files say of themselves, read without importing them: a list must not wait for torch.

A test keeps it equal to what the imported methods say.
"""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

START = "\nMETHOD = Method("


@dataclass(frozen=True)
class Facts:
    """A method's name, its paper, its idea in one line, and the module that has the rest."""

    name: str
    paper: str
    idea: str
    module: str


@cache
def built_in() -> dict[str, Facts]:
    """The methods of this folder, by name."""
    found = {}
    for file in sorted(Path(__file__).parent.glob("*.py")):
        source = file.read_text(encoding="utf-8")
        if (start := source.find(START)) >= 0:
            said = _plain_arguments(source[start:])
            found[said["name"]] = Facts(said["name"], said["paper"], said["idea"], f"protolith.methods.{file.stem}")
    return dict(sorted(found.items()))


def _plain_arguments(source: str) -> dict[str, str]:
    """The arguments of the call that are written as plain strings."""
    statement = ast.parse(source).body[0]
    assert isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
    plain = [(word.arg, word.value.value) for word in statement.value.keywords if isinstance(word.value, ast.Constant)]
    return {name: value for name, value in plain if name is not None and isinstance(value, str)}
