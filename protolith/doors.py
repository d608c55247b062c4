"""The four doors: methods, models, tasks and measures that other packages bring, each by an entry point."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.metadata import entry_points
from typing import Any, Literal

from protolith.errors import UserError

Door = Literal["methods", "models", "tasks", "measures"]


def any_installed(door: Door) -> bool:
    """Tell whether a package brings something, which has to be imported to be known."""
    return bool(entry_points(group=f"protolith.{door}"))


def brought(
    door: Door, what: str, fits: Callable[[Any], bool], name: Callable[[Any], str] | None = None
) -> dict[str, Any]:
    """What installed packages bring, by its own name or that of its entry point; what does not fit is refused."""
    found: dict[str, Any] = {}
    for point in entry_points(group=f"protolith.{door}"):
        named = f"the entry point '{point.name}' of protolith.{door}"
        try:
            with redirect_stdout(sys.stderr):  # a command's output is its result alone
                one = point.load()
        except Exception as error:
            raise UserError(f"{named} cannot be loaded: {error}.") from error
        if not fits(one):
            raise UserError(f"{named} is not a protolith {what}.")
        found[name(one) if name else point.name] = one
    return found
