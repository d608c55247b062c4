"""A worker process: reads jobs as lines of JSON, does them, answers with lines of JSON.

Tensors go through slots in the spool directory. The worker ends when its input ends, so that it never
outlives the process that started it.
"""

import json
import os
import queue
import shutil
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

from protolith import records
from protolith.data.tasks import read_task_file
from protolith.engines.messages import fault
from protolith.engines.slots import Slot
from protolith.evaluation.accuracy import Chunk
from protolith.evaluation.measures import to_plain
from protolith.federation.local_update import Workplace
from protolith.federation.setup import Setup
from protolith.methods.registry import load_plugin
from protolith.records import Broadcast, Record, with_prefix

Message = dict[str, Any]


class Worker:
    """Answers messages."""

    def __init__(self, workplace: Workplace) -> None:
        self.workplace = workplace
        self._slots: dict[str, Slot] = {}
        self._held: dict[str, tuple[int, Record]] = {}

    def answer(self, message: Message) -> Message:
        """Do what a message asks for."""
        try:
            return {"ok": True, **(self._train(message) if message["kind"] == "train" else self._evaluate(message))}
        except Exception as error:
            return fault(error)

    def _slot(self, path: str) -> Slot:
        """Map a slot once: its pages are then there for good."""
        if path not in self._slots:
            self._slots[path] = Slot(Path(path))
        return self._slots[path]

    def _record(self, part: str, where: Message) -> Record:
        """Find a record of the broadcast, unless it is the one that was found last."""
        if self._held.get(part, (0, {}))[0] != where["number"]:
            self._held[part] = (where["number"], self._slot(where["slot"]).get(where["layout"]))
        return self._held[part][1]

    def _train(self, message: Message) -> Message:
        broadcast = Broadcast(
            self._record("weights", message["weights"]), self._record("knowledge", message["knowledge"])
        )
        memory = records.read(Path(message["memory_in"])) if message["memory_in"] else {}
        slot = self._slot(message["upload"])
        slot.clear()
        upload, remembered = self.workplace.update(
            message["client"], message["round"], broadcast, memory, message["evaluate"], copy=slot.put
        )
        if remembered:
            records.write(Path(message["memory_out"]), remembered)
        if message["model_out"]:
            self.workplace.write_model(Path(message["model_out"]))
        record = {**with_prefix("weights", upload.weights), **with_prefix("knowledge", upload.knowledge)}
        layout = slot.layout(record)
        tested = {name: to_plain(counts) for name, counts in upload.counts.items()}
        said = {"count": upload.count, "metrics": upload.metrics, "tested": tested, "remembered": bool(remembered)}
        return {**said, "layout": layout}

    def _evaluate(self, message: Message) -> Message:
        weights = self._record("weights", message["weights"])
        knowledge = self._record("knowledge", message["knowledge"])
        chunk = Chunk(*message["chunk"])
        return {"counts": to_plain(self.workplace.count(weights, knowledge, chunk))}


def read_lines(source: TextIO, lines: "queue.SimpleQueue[str]", spool: Path) -> None:
    """Pass lines on; when they end, end this process, even in the middle of a job."""
    for line in source:
        lines.put(line)
    shutil.rmtree(spool, ignore_errors=True)
    os._exit(0)


def main() -> None:
    """Serve one engine until it goes away."""
    spool = Path(sys.argv[1])
    # Only answers may go to the pipe: whatever a method prints goes to standard error.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=read_lines, args=(sys.stdin, lines, spool), daemon=True).start()
    start = json.loads((spool / "start.json").read_text())
    setup = Setup.model_validate(start["setup"])
    for plugin in setup.plugins:
        load_plugin(plugin)
    worker = Worker(Workplace(setup, read_task_file(Path(start["task"]))))
    while True:
        answers.write(json.dumps(worker.answer(json.loads(lines.get()))) + "\n")


if __name__ == "__main__":
    main()
