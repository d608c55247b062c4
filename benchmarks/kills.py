"""SIGKILL at random moments: does every resume reach the byte-identical result, and is no run lost?

    python benchmarks/kills.py --kills 100

Four kinds of work are killed: `run` and `resume` at any moment; the same while a checkpoint is written; `report` while
it works and writes; `sweep`, or one of its jobs. A run is killed up to three times, then finished, and compared with
one that nobody disturbed: models, metrics without times, diagnostics. Commands run in forks of this process, which
saves each of them the seconds of importing PyTorch; a sweep's jobs are processes of their own, as always.
The exit code is 1 if anything differs.
"""

import argparse
import hashlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from protolith.cli.main import main as command_line
from protolith.report.page import build
from protolith.runs.checkpoints import Checkpoints

KINDS = {"run": 0.4, "checkpoint": 0.3, "report": 0.2, "sweep": 0.1}
METHODS = ("fedavg", "solo", "i2pfl")  # a global model; clients' own models and memories; prototypes
SETTINGS = ["--set", "width=4", "--set", "epochs=1", "--set", "samples=24", "--rounds", "4"]
SETTINGS += ["--set", "protocol.clients={pen=2, photo=1}"]
CHAIN = 3  # kills of one run, at most
PATIENCE = 300.0  # seconds after which a command hangs

Arguments = list[str]


class Command:
    """A command in a fork of this process; `told` becomes readable when a moment that it was asked for begins."""

    def __init__(self, arguments: Arguments, log: Path, moment: str = "") -> None:
        self.told, tell = os.pipe()
        self.began = time.monotonic()
        self.code: int | None = None  # with which it ended
        self.pid = os.fork()
        if self.pid == 0:
            self._work(arguments, log, moment, tell)
        os.close(tell)

    @staticmethod
    def _work(arguments: Arguments, log: Path, moment: str, tell: int) -> None:
        code = 1
        try:
            os.setsid()
            with log.open("ab") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            announce(moment, tell)
            sys.argv = ["protolith", *arguments]
            command_line()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0
        finally:
            sys.stdout.flush()
            os._exit(code)

    def wait(self, seconds: float) -> int | None:
        """Wait so long for its end; its exit code, or nothing while it works."""
        until = time.monotonic() + seconds
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.told)
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= until:
                return None
            else:
                time.sleep(0.002)
        return self.code

    def finish(self) -> float:
        """Wait for the end, which must be a good one; seconds that it took."""
        if (code := self.wait(PATIENCE)) != 0:
            raise SystemExit(f"a command ended with {code}")
        return time.monotonic() - self.began

    def reaches(self, seconds: float) -> None:
        """Wait for the moment that was asked for, and take note of it."""
        if self.wait(0) is None and select.select([self.told], [], [], seconds)[0]:
            os.read(self.told, 1)

    def kill(self) -> bool:
        """Kill it; tell whether it was still there."""
        if self.wait(0) is None:
            os.kill(self.pid, signal.SIGKILL)
        return self.wait(PATIENCE) == -signal.SIGKILL


def announce(moment: str, tell: int) -> None:
    """Have the process say when it begins to write a checkpoint, or the report."""

    def telling(function: Callable[..., object]) -> Callable[..., object]:
        def told(*given: object, **named: object) -> object:
            os.write(tell, b".")
            return function(*given, **named)

        return told

    if moment == "checkpoint":
        Checkpoints.write = telling(Checkpoints.write)  # type: ignore[method-assign, assignment]
    if moment == "report":
        build.write_text = telling(build.write_text)  # type: ignore[assignment]


def fingerprint(run: Path) -> str:
    """One hash of everything that a run produced, without its times."""
    digest = hashlib.sha256()
    for file in sorted([*run.glob("*.safetensors"), *run.glob("models/*"), *run.glob("diagnostics/*")]):
        digest.update(f"{file.relative_to(run)}\n".encode() + file.read_bytes())
    for text in (run / "metrics.jsonl").read_text().splitlines():
        line = {key: value for key, value in json.loads(text).items() if key != "seconds"}
        digest.update(json.dumps(line).encode())
    summary = json.loads((run / "summary.json").read_text())
    digest.update(json.dumps({key: value for key, value in summary.items() if key != "seconds"}).encode())
    return digest.hexdigest()[:16]


def left_over(folder: Path) -> list[str]:
    """Half-written files that are still there."""
    return [str(path) for path in folder.rglob(".*") if path.name.endswith(".part") or path.name.startswith(".round-")]


class Trial:
    """Kills of all kinds, and what came of them."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place = place
        self.random = random.Random(seed)
        self.log = place / "log"
        self.kills: Counter[str] = Counter()
        self.missed = 0  # the command was faster than the kill
        self.compared: Counter[str] = Counter()
        self.faults: list[str] = []
        self.number = 0
        self.whole = {method: self._undisturbed(method) for method in METHODS}

    def _undisturbed(self, method: str) -> tuple[Path, str, float]:
        path = self.place / f"whole-{method}"
        Command(self._run(method, path), self.log).finish()  # the first also decodes the task
        seconds = Command(self._run(method, again := self.place / f"again-{method}"), self.log).finish()
        if fingerprint(path) != fingerprint(again):
            raise SystemExit(f"{method}: two undisturbed runs differ")
        return path, fingerprint(path), seconds

    @staticmethod
    def _run(method: str, out: Path) -> Arguments:
        return ["run", "--method", method, "--workers", "0", "--out", str(out), *SETTINGS]

    def _hit(self, kind: str, killed: bool) -> None:
        self.kills[kind] += killed
        self.missed += not killed

    def _new(self, kind: str) -> Path:
        self.number += 1
        return self.place / f"{kind}-{self.number}"

    def run(self, kind: str, most: int) -> None:
        """Kill a run and what resumes it, then let it finish."""
        method, path = self.random.choice(METHODS), self._new(kind)
        _, expected, seconds = self.whole[method]
        for _ in range(self.random.randint(1, min(CHAIN, most))):
            command = Command(self._next(method, path), self.log, kind)
            if kind == "checkpoint":
                for _ in range(self.random.randint(1, 3)):  # at one of several checkpoints
                    command.reaches(seconds)
                time.sleep(self.random.uniform(0, 0.03))
            else:
                time.sleep(self.random.uniform(0, seconds))
            self._hit(kind, command.kill())
            if (path / "summary.json").exists():
                break
        Command(self._next(method, path), self.log).finish()
        self._compare(kind, path, fingerprint(path), expected)

    def _next(self, method: str, path: Path) -> Arguments:
        return ["resume", str(path)] if (path / "config.toml").exists() else self._run(method, path)

    def _compare(self, kind: str, path: Path, found: str, expected: str) -> None:
        self.compared[kind] += 1
        if found != expected:
            self.faults.append(f"{path.name}: {found} instead of {expected}")
        self.faults += [f"left behind: {name}" for name in left_over(path)]

    def report(self, kind: str, most: int) -> None:
        """Kill the writing of a report: what is there is whole or absent, and the next one is as it should be."""
        path, _, _ = self.whole[self.random.choice(METHODS)]
        page = self._new(kind) / "report.html"
        arguments = ["report", str(path), "--out", str(page)]
        seconds = Command(arguments, self.log).finish()
        whole = page.read_bytes()
        page.unlink()
        for _ in range(min(most, 2 * CHAIN)):
            command = Command(arguments, self.log, kind)
            if self.random.random() < 0.5:
                time.sleep(self.random.uniform(0, seconds))
            else:
                command.reaches(PATIENCE)
                time.sleep(self.random.uniform(0, 0.02))
            self._hit(kind, command.kill())
            if page.exists() and page.read_bytes() != whole:
                self.faults.append(f"{page}: a report that is not whole")
        Command(arguments, self.log).finish()
        self._compare(
            kind, page.parent, hashlib.sha256(page.read_bytes()).hexdigest(), hashlib.sha256(whole).hexdigest()
        )

    def sweep(self, kind: str, most: int) -> None:
        """Kill a sweep, or one of its jobs; the same command goes on with the rest."""
        out = self._new(kind)
        methods = self.random.sample(METHODS, 2)
        arguments = ["sweep", "--methods", ",".join(methods), "--jobs", "1", "--workers", "0", "--out", str(out)]
        seconds = sum(self.whole[method][2] for method in methods) + 8
        for _ in range(self.random.randint(1, min(CHAIN, most))):
            command = Command([*arguments, *SETTINGS], self.log)
            time.sleep(self.random.uniform(0, seconds))
            jobs = children(command.pid)
            if jobs and self.random.random() < 0.5:
                os.kill(self.random.choice(jobs), signal.SIGKILL)
                self.kills[kind] += 1
                command.wait(PATIENCE)  # it names the job that failed, and ends with the others done
            else:
                self._hit(kind, command.kill())
        Command([*arguments, *SETTINGS], self.log).finish()
        for method in methods:
            (run,) = out.glob(f"{method}-seed0-*/")
            self._compare(kind, run, fingerprint(run), self.whole[method][1])

    def go(self, kills: int) -> None:
        """Kill so often, each kind as often as its share says."""
        for kind, share in KINDS.items():
            wanted = max(1, round(kills * share))
            while (left := wanted - self.kills[kind]) > 0 and not self.faults:
                {"report": self.report, "sweep": self.sweep}.get(kind, self.run)(kind, left)
            print(f"{kind:<12}{self.kills[kind]:>5} kills, {self.compared[kind]} results compared", flush=True)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(child) for child in found.split()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a fork has one thread
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder), arguments.seed)
        trial.go(arguments.kills)
        if trial.faults:
            print(trial.log.read_text(errors="replace")[-5000:], file=sys.stderr)
    for fault in trial.faults:
        print(f"FAULT {fault}")
    total, compared = sum(trial.kills.values()), sum(trial.compared.values())
    print(
        f"{total} SIGKILLs ({trial.missed} more came too late), {compared} results compared, "
        f"{len(trial.faults)} faults, {time.monotonic() - began:.0f} s"
    )
    return 1 if trial.faults else 0


if __name__ == "__main__":
    sys.exit(main())
