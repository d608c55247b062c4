"""Fuzz whatever reads bytes from outside, guided by coverage (pip install 'protolith[fuzz]').

    python benchmarks/fuzz/run.py --seconds 60
    python benchmarks/fuzz/run.py --seconds 600 --targets records,config

Each target is a small file with `one(data)`, which must neither raise, hang nor take much memory. Seeds, and inputs
that once found a fault, are in corpus/. Prints executions and findings; the exit code is 1 if there are any.
"""

import argparse
import importlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
TARGETS = ("records", "checkpoint", "answers", "wire", "config", "manifest", "images")
LENGTH = 8192  # bytes of an input
MEGABYTES = 4096
SLOW = 20  # seconds for one input


def fuzz(target: str, seconds: int, found: Path) -> tuple[int, int, list[Path]]:
    """Fuzz one target in a process of its own: executions, inputs that reached new code, and findings."""
    room = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory() as new, tempfile.TemporaryDirectory(dir=room) as place:
        options = [f"-max_total_time={seconds}", f"-max_len={LENGTH}", f"-rss_limit_mb={MEGABYTES}"]
        options += [f"-timeout={SLOW}", f"-artifact_prefix={found}/{target}-", "-print_final_stats=1"]
        command = [sys.executable, __file__, "--one", target, *options, new, str(HERE / "corpus" / target)]
        env = {**os.environ, "PROTOLITH_FUZZ": place}
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=env)
        reached = len(list(Path(new).iterdir()))
    count = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
    findings = sorted(found.glob(f"{target}-*"))
    if findings or done.returncode:
        (found / f"{target}.log").write_text(done.stdout[-20_000:] + done.stderr[-20_000:])
        findings = findings or [found / f"{target}.log"]
    return int(count[1]) if count else 0, reached, findings


def one_target(target: str, arguments: list[str]) -> None:
    import atheris  # an extra

    with atheris.instrument_imports(include=["protolith"]):
        one = importlib.import_module(target).one
    atheris.Setup([sys.argv[0], *arguments], one)
    atheris.Fuzz()


def main() -> int:
    if sys.argv[1:2] == ["--one"]:
        one_target(sys.argv[2], sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--found", type=Path, default=Path("runs/fuzz"), help="where findings are kept")
    arguments = parser.parse_args()
    arguments.found.mkdir(parents=True, exist_ok=True)
    every: list[Path] = []
    for target in arguments.targets.split(","):
        count, reached, findings = fuzz(target, arguments.seconds, arguments.found)
        every += findings
        print(f"{target:<12}{arguments.seconds:>6} s{count:>12,} executions{reached:>8} new inputs  "
              f"{', '.join(map(str, findings)) or 'nothing found'}", flush=True)  # fmt: skip
    return 1 if every else 0


if __name__ == "__main__":
    sys.exit(main())
