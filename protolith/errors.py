"""How Protolith says no, and how a run is stopped."""

from collections.abc import Iterable, Sequence
from pathlib import Path


class UserError(Exception):
    """The request was wrong: one clear sentence, exit code 2, never a traceback."""


class NothingRead(UserError):
    """There are files, and none of them is of a type that is read as an image."""


class RunFailed(Exception):
    """The request was right, the work failed: exit code 1."""


class DiskRefused(RunFailed):
    """A disk took nothing more (full, read-only, not ours): nothing is lost, and the run can be resumed."""


class Interrupted(Exception):
    """The user stopped the run; it can be resumed."""

    def __init__(self, path: Path, round_: int) -> None:
        super().__init__(f"stopped before round {round_ + 1}; go on with: protolith resume {path}")


def unknown(what: str, given: str, allowed: Iterable[str], listed: str = "") -> UserError:
    """Build the error for a name that is not among the allowed ones, with the nearest right one.

    `listed` says where a set of names is that is too long for a sentence; then the nearest three are named.
    """
    names = list(allowed)
    near = nearest(given, names, 3 if listed else 1)
    hint = f" Did you mean {either(near)}?" if near else ""
    return UserError(f"unknown {what} '{given}'.{hint} " + (f"{listed}." if listed else _all_of(names)))


def nearest(given: str, allowed: Iterable[str], most: int = 1) -> list[str]:
    """The names that look most like the given one, capitals or not; a dotted one first if its last word is the same."""
    import difflib  # only who errs waits for it

    names = {name.casefold(): name for name in allowed}
    word = given.casefold()
    same = [name for name in names if name.rpartition(".")[2] == word.rpartition(".")[2]]
    near = difflib.get_close_matches(word, names, n=most, cutoff=0.5)
    return [names[name] for name in dict.fromkeys([*same, *near])][:most]


def right_name(what: str, given: str, allowed: Iterable[str], listed: str = "") -> str:
    """The allowed name that was meant, whether in capitals or not; else the error that says which there are."""
    names = list(allowed)
    if given in names:
        return given
    if len(same := [name for name in names if name.casefold() == given.casefold()]) == 1:
        return same[0]
    raise unknown(what, given, names, listed)


def either(names: Sequence[str]) -> str:
    """Names as a choice: 'a', 'b' or 'c'."""
    *others, last = [f"'{name}'" for name in names]
    return f"{', '.join(others)} or {last}" if others else last


def _all_of(names: Sequence[str]) -> str:
    return f"Allowed: {', '.join(names)}."
