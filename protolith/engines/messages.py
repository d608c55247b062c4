"""What comes back from a process or a site as plain values: read with care, whoever sent it."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protolith import files
from protolith.errors import DiskRefused, UserError

LINE = 16 << 20  # letters of an answer
LARGEST = 1 << 1023  # whole numbers beyond have no float
COUNT = 1 << 53  # images of a client, at most
WORDS = 1000  # letters of a sentence from outside


@dataclass(frozen=True)
class Trained:
    """What a client says besides its tensors."""

    count: int
    metrics: dict[str, float]
    remembered: bool


def fault(error: Exception) -> dict[str, Any]:
    """What a worker answers that could not do its job; a trace only where doing it again may help."""
    if isinstance(error, UserError):
        return {"ok": False, "error": str(error), "user": True}
    if isinstance(error, OSError) and (reason := files.refusal(error)):
        return {"ok": False, "error": reason, "disk": True}
    return {"ok": False, "error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def refuse_hopeless(answer: Mapping[str, Any], who: str = "") -> None:
    """Stop where doing the job again would not help: with the worker's own sentence, once."""
    if answer.get("user"):
        raise UserError(f"{who}{answer['error']}")
    if answer.get("disk"):
        raise DiskRefused(f"{who}{answer['error']}")


def read_line(line: str) -> dict[str, Any]:
    """Read a line of JSON with an answer in it; ValueError when it is anything else."""
    if len(line) > LINE:
        raise ValueError(f"an answer of {len(line):,} letters, and {LINE:,} are allowed")
    found = files.parse_json(line)
    if not isinstance(found, dict) or not isinstance(found.get("ok"), bool):
        raise ValueError("a line that is no answer")
    return found


def read_trained(values: Mapping[str, Any]) -> Trained:
    """Read what a client says besides its tensors; ValueError when it is anything else.

    How many metrics and how long their names may be is for the guard to say, who rejects the upload.
    """
    metrics = values.get("metrics")
    if not isinstance(metrics, Mapping):
        raise ValueError("metrics that are none")
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise ValueError("a metric without a proper name")
        too_large = isinstance(value, int) and abs(value) > LARGEST
        if isinstance(value, bool) or not isinstance(value, int | float) or too_large:
            raise ValueError(f"the metric '{name[:80]}' is no number")
    remembered = values.get("remembered")
    if not isinstance(remembered, bool):
        raise ValueError("it does not say whether it remembers anything")
    return Trained(
        whole(values.get("count"), COUNT), {name: float(value) for name, value in metrics.items()}, remembered
    )


def whole(value: Any, most: int) -> int:
    """Read a count; ValueError when it is anything but a whole number from 0 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{str(value)[:40]} is not a whole number from 0 to {most}")
    return value


def sentence(words: object) -> str:
    """Words from outside, on one line, printable and not too many."""
    return files.printable(str(words)[:WORDS]).strip()
