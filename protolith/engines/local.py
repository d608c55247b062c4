"""Worker processes on this machine, one thread each."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from protolith.data.domain import Task
from protolith.data.protocols import TestSet
from protolith.engines.messages import LINE, read_line, read_trained, refuse_hopeless
from protolith.engines.slots import Slot, read_once
from protolith.engines.spool import make_spool
from protolith.errors import RunFailed
from protolith.evaluation.accuracy import by_test, chunks
from protolith.evaluation.measures import Counts, from_plain, measures_of
from protolith.federation.engine import Job, Result
from protolith.federation.setup import Setup
from protolith.files import write_text
from protolith.records import Broadcast, Record, Upload, clone, under_prefix

Message = dict[str, Any]
ATTEMPTS = 3
# One thread a process; and freed memory is kept, because the next batch needs as much again (5 to 9 % faster).
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
}
AHEAD = 1 << 30  # bytes of uploads that may wait for their turn


class WorkerDied(Exception):
    """The worker process went away before it answered."""


class WorkerProcess:
    """One worker process and the pipe to it."""

    def __init__(self, spool: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "protolith.engines.worker", str(spool)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, **ENVIRONMENT},
            start_new_session=True,  # Ctrl-C is for the run, which then ends its workers
        )

    def ask(self, message: Message) -> Message:
        """Send one message and wait for the answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            line = self.process.stdout.readline(LINE + 1)
            if not line.endswith("\n"):
                raise WorkerDied
            return read_line(line)
        except (OSError, ValueError) as error:  # what is no answer comes from a process that has lost its way
            raise WorkerDied from error

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class LocalEngine:
    """Executes jobs in worker processes; a worker that dies is replaced and its job run again."""

    def __init__(self, setup: Setup, task: Task, tests: Sequence[TestSet], workers: int, model_bytes: int) -> None:
        if task.file is None:
            raise ValueError("worker processes need the task as a file")
        self.tests = tests
        self.measures, self.classes = measures_of(setup.measures), len(task.classes)
        settings = setup.model_dump(mode="json", include=set(Setup.model_fields))
        self.spool = make_spool()
        try:
            write_text(self.spool / "start.json", json.dumps({"setup": settings, "task": str(task.file)}))
        except OSError:
            shutil.rmtree(self.spool, ignore_errors=True)
            raise
        # How many jobs may be out of order, so that the uploads that wait for their turn stay within bounds.
        self._group = max(2 * workers, min(64, AHEAD // max(1, model_bytes)))
        self._closed = False
        self._lock = threading.RLock()
        self._slots = 0
        self._free: list[Path] = []
        self._writes = 0
        self._shared: dict[tuple[tuple[str, int], ...], tuple[Record, Message]] = {}
        self._idle: SimpleQueue[WorkerProcess] = SimpleQueue()
        self.processes = [WorkerProcess(self.spool) for _ in range(workers)]
        for process in self.processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(workers)

    def train(self, jobs: Sequence[Job], broadcast: Callable[[int], Broadcast]) -> Iterator[Result]:
        """Start the largest clients first; hand results over in the order of the jobs."""
        groups = (jobs[first : first + self._group] for first in range(0, len(jobs), self._group))
        waiting = iter([job for group in groups for job in sorted(group, key=lambda job: -job.size)])
        asked: dict[int, Future[tuple[Path, Message]]] = {}

        def ask_for(count: int) -> None:
            for job in islice(waiting, count):
                asked[job.client] = self._threads.submit(self._train, job, broadcast)

        try:
            # With a whole group under way, the job whose turn it is is always one of them.
            ask_for(self._group + len(self.processes))
            for job in jobs:
                yield self._result(job, *asked.pop(job.client).result())
                ask_for(1)
        finally:
            self._forget_shared()

    def _train(self, job: Job, broadcast: Callable[[int], Broadcast]) -> tuple[Path, Message]:
        """Have a client's work done: the slot with the upload, and the worker's answer."""
        message = broadcast(job.client)
        slot = self._take_slot()
        answer = self._ask(
            f"client {job.name}",
            {
                "kind": "train",
                "client": job.client,
                "round": job.round,
                "weights": self._share(message.weights),
                "knowledge": self._share(message.knowledge),
                "memory_in": str(job.memory_in) if job.memory_in else "",
                "memory_out": str(job.memory_out),
                "upload": str(slot),
                "evaluate": job.evaluate,
                "model_out": str(job.model_out) if job.model_out else "",
            },
        )
        return slot, answer

    def _result(self, job: Job, slot: Path, answer: Message) -> Result:
        """Take an upload out of its slot, which is free again when nobody holds the weights any more."""
        try:
            said = read_trained(answer)
            record = read_once(slot, answer["layout"], lambda: self._free.append(slot))
            sizes = {test.name: len(test.rows) for test in self.tests}
            counts = {name: self._counts(values, sizes[name]) for name, values in answer["tested"].items()}
        except (ValueError, LookupError, TypeError) as error:
            raise RunFailed(f"client {job.name} gave an answer that cannot be used: {error}.") from None
        # Servers keep the knowledge of all clients until the round ends: it must not keep the slots.
        knowledge = clone(under_prefix("knowledge", record))
        upload = Upload(job.client, said.count, under_prefix("weights", record), knowledge, said.metrics, counts)
        return Result(upload, said.remembered)

    def evaluate(self, weights: Record, knowledge: Record) -> dict[str, Counts]:
        """Test weights on every test set, in chunks."""
        files = {"weights": self._share(weights), "knowledge": self._share(knowledge)}
        pieces = chunks(self.tests)
        asked = [
            self._threads.submit(
                self._ask,
                "the evaluation",
                {"kind": "evaluate", **files, "chunk": [piece.test, piece.start, piece.stop]},
            )
            for piece in pieces
        ]
        counts = (
            self._counts(answer.result()["counts"], p.stop - p.start) for p, answer in zip(pieces, asked, strict=True)
        )
        found = by_test(self.tests, pieces, counts)
        self._forget_shared()
        return found

    def _counts(self, values: Any, images: int) -> Counts:
        return from_plain(values, self.measures, self.classes, images)

    def close(self) -> None:
        """End the workers and remove the spool."""
        with self._lock:
            self._closed = True
            for process in self.processes:
                process.end()
        self._threads.shutdown(cancel_futures=True)
        shutil.rmtree(self.spool, ignore_errors=True)

    def _ask(self, who: str, message: Message) -> Message:
        """Have one worker answer; run the job again when the worker dies or the job fails."""
        problem = ""
        for _ in range(ATTEMPTS):
            worker = self._idle.get()
            try:
                answer = worker.ask(message)
            except WorkerDied:
                if self._closed:
                    raise
                worker.process.kill()  # it may still be there, and have answered nonsense
                code = worker.process.wait()
                problem = f"its worker process ended with code {code}"
                worker = self._replace(worker)
                continue
            finally:
                self._idle.put(worker)
            if answer["ok"]:
                return answer
            refuse_hopeless(answer)
            problem = answer["error"]
            print(answer["trace"], file=sys.stderr)
        raise RunFailed(f"{who} failed {ATTEMPTS} times: {problem}.")

    def _replace(self, worker: WorkerProcess) -> WorkerProcess:
        worker.end()
        with self._lock:
            if self._closed:
                raise WorkerDied
            fresh = WorkerProcess(self.spool)
            self.processes[self.processes.index(worker)] = fresh
        return fresh

    def _take_slot(self) -> Path:
        with self._lock:
            if self._free:
                return self._free.pop()
            self._slots += 1
            return self.spool / f"slot-{self._slots}"

    def _share(self, record: Record) -> Message:
        """Write a record that several jobs need once, and say where it is."""
        key = tuple((name, id(tensor)) for name, tensor in record.items())
        with self._lock:
            if key not in self._shared:
                self._writes += 1
                slot = Slot(self._take_slot())
                where = {"slot": str(slot.path), "layout": slot.layout(record), "number": self._writes}
                self._shared[key] = (record, where)
            return self._shared[key][1]

    def _forget_shared(self) -> None:
        self._free.extend(Path(where["slot"]) for _, where in self._shared.values())
        self._shared.clear()
