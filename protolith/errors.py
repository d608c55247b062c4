"""The two ways in which Protolith says no."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """The request was wrong: one clear sentence, exit code 2, never a traceback."""


class NothingRead(UserError):
    """There are files, and none of them is of a type that is read as an image."""


class RunFailed(Exception):
    """The request was right, the work failed: exit code 1."""


class DiskRefused(RunFailed):
    """A disk took nothing more (full, read-only, not ours): nothing is lost, and the run can be resumed."""


def unknown(what: str, given: str, allowed: Iterable[str]) -> UserError:
    """Build the error for a name that is not among the allowed ones, with the nearest right name."""
    names = list(allowed)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return UserError(f"unknown {what} '{given}'.{hint} Allowed: {', '.join(names)}.")
