"""What a run at the sites keeps beside its other files."""

import json
import os
import uuid
from typing import Any

from protolith.files import write_text
from protolith.flower.wire import SiteFacts
from protolith.machine import began_at, is_there
from protolith.runs.directory import RunDirectory


class RunNote:
    """What a run at the sites keeps beside its other files, in flower.json."""

    def __init__(self, directory: RunDirectory) -> None:
        self.file = directory.path / "flower.json"
        self.values: dict[str, Any] = json.loads(self.file.read_text()) if self.file.is_file() else {}

    @property
    def run(self) -> str:
        """The run's own id, under which the sites keep their memories; Flower's changes with every submission."""
        return str(self.values["run"])

    def begin(self) -> None:
        """Note that this process works on the run: its number, and when it began (numbers are used again)."""
        pid, run = os.getpid(), self.values.get("run") or uuid.uuid4().hex
        self._write(run=run, pid=pid, began=began_at(pid), failed=None, said="")

    @property
    def process(self) -> tuple[int, int | None] | None:
        """The process that worked on the run last: its number, and when it began."""
        return (int(self.values["pid"]), self.values.get("began")) if self.values.get("pid") else None

    def works(self) -> bool:
        """Tell whether that process is still there."""
        return self.process is not None and is_there(*self.process)

    def say(self, sentence: str) -> None:
        """Pass a sentence on to the one who submitted the run."""
        print(sentence, flush=True)
        self._write(said=sentence)

    def fail(self, kind: str, sentence: str) -> None:
        """Note why the run stopped, for the one who submitted it."""
        print(sentence, flush=True)
        self._write(failed={"kind": kind, "sentence": sentence})

    def facts(self) -> list[SiteFacts]:
        """What the sites had when the run began."""
        return [SiteFacts.from_plain(values) for values in self.values.get("sites", [])]

    def keep_facts(self, facts: list[SiteFacts]) -> None:
        """Keep what the sites have."""
        self._write(sites=[one.plain() for one in facts])

    def _write(self, **values: Any) -> None:
        self.values |= values
        write_text(self.file, json.dumps(self.values, indent=2) + "\n")
