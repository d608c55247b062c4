"""The wheel: what a user gets who has no clone."""

import os
import subprocess
import sys
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import protolith

ROOT = Path(__file__).parents[1]


def source_files() -> set[str]:
    """The package's own files: neither caches nor parts of a write."""
    files = (path for path in (ROOT / "protolith").rglob("*") if path.is_file())
    return {f.relative_to(ROOT).as_posix() for f in files if "__pycache__" not in f.parts and f.name[0] != "."}


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == source_files()


def test_the_wheel_has_the_version_of_the_code_its_licence_and_its_command(wheel):
    files = {name.split(".dist-info/")[1]: name for name in ZipFile(wheel).namelist() if ".dist-info/" in name}
    metadata = Parser().parsestr(ZipFile(wheel).read(files["METADATA"]).decode())
    assert metadata["Version"] == protolith.__version__
    assert "licenses/LICENSE" in files
    assert b"protolith = protolith.cli.main:main" in ZipFile(wheel).read(files["entry_points.txt"])


def test_the_wheel_runs_where_there_is_no_clone(wheel, tmp_path):
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    script = (
        "import sys, protolith; from protolith.cli.main import main; print(protolith.__file__); "
        "sys.argv = ['protolith', 'run', '--config', 'quick', '--rounds', '1', '--out', 'run']; main()"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path)) and (tmp_path / "run" / "summary.json").exists()
