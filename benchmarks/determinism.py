"""Are results byte-identical on 0, 1 and 2 workers, after SIGKILLs and after killed workers?

    python benchmarks/determinism.py --methods fedavg --rounds 10 --kills 10
    python benchmarks/determinism.py --methods all --rounds 3 --kills 1 --set width=8 --set epochs=1

Prints one line per method; the exit code is 1 if any result differs.
"""

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from protolith.methods.registry import all_methods

PROTOLITH = [sys.executable, "-m", "protolith"]


def digest(run: Path) -> str:
    """One hash of the model or models of a run."""
    files = sorted([*run.glob("model.safetensors"), *run.glob("models/*.safetensors")])
    if not files or not (run / "summary.json").exists():
        return "unfinished"
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def command(method: str, out: Path, workers: int, rounds: int, more: list[str]) -> list[str]:
    options = ["--method", method, "--rounds", str(rounds), "--workers", str(workers), "--out", str(out)]
    return [*PROTOLITH, "run", *options, *[word for setting in more for word in ("--set", setting)]]


def finish(arguments: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(arguments, check=True, capture_output=True)
    return time.monotonic() - began


def killed_run(arguments: list[str], out: Path, kills: int, seconds: float, rng: random.Random) -> int:
    """Kill the whole run at random moments, resume each time, and let it finish; says how often it was hit."""
    hits = 0
    call = arguments
    for _ in range(kills):
        process = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(rng.uniform(0.1, seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            hits += 1
        process.wait()
        if (out / "summary.json").exists():  # done before all kills were spent: begin anew
            shutil.rmtree(out)
        if (out / "config.toml").exists():
            call = [*PROTOLITH, "resume", str(out)]
        else:
            shutil.rmtree(out, ignore_errors=True)
            call = arguments
    finish(call)
    return hits


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def run_with_killed_workers(arguments: list[str], seconds: float, rng: random.Random) -> int:
    """Kill a worker process now and then while the run goes on."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    hits = 0
    stop = threading.Event()
    while process.poll() is None:
        stop.wait(rng.uniform(0.3, 1.0) * seconds / 3)
        workers = children(process.pid) if process.poll() is None else []
        if workers and hits < 3:
            os.kill(rng.choice(workers), signal.SIGKILL)
            hits += 1
    return hits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="fedavg")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    methods = list(all_methods()) if arguments.methods == "all" else arguments.methods.split(",")
    rng = random.Random(0)
    different = 0
    for method in methods:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            seconds = 0.0
            for workers in (0, 1, 2):
                seconds = finish(command(method, folder / str(workers), workers, arguments.rounds, arguments.set))
            killed = folder / "killed"
            call = command(method, killed, 2, arguments.rounds, arguments.set)
            hits = killed_run(call, killed, arguments.kills, seconds, rng)
            lamed = folder / "lamed"
            worker_hits = run_with_killed_workers(
                command(method, lamed, 2, arguments.rounds, arguments.set), seconds, rng
            )
            digests = [digest(folder / name) for name in ("0", "1", "2", "killed", "lamed")]
        same = len(set(digests)) == 1 and "unfinished" not in digests
        different += not same
        print(
            f"{method:<18} {'identical' if same else 'DIFFERENT ' + str(digests)}  {digests[0]}  "
            f"{hits} SIGKILLs of the run, {worker_hits} of workers",
            flush=True,
        )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
