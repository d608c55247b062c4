"""Fixtures that all tests share."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protolith.cli.main import main


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data sets in the Hugging Face parquet layout; the tests that need them are skipped without."""
    given = os.environ.get("PROTOLITH_TEST_DATA")
    path = Path(given) if given else Path(__file__).parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"no real data in '{path}' (set PROTOLITH_TEST_DATA)")
    return path


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of decoded tasks that the tests share and that is nobody else's."""
    base = tmp_path_factory.getbasetemp()
    path = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "protolith-cache"
    os.environ["PROTOLITH_CACHE"] = str(path)
    os.environ.pop("PROTOLITH_DATA", None)
    return path


@pytest.fixture
def tiny() -> dict[str, Any]:
    """Settings of a run on the embedded task that takes about a second a round."""
    return {
        "task": "mini",
        "rounds": 3,
        "workers": 0,
        "model": {"width": 4},
        "training": {"epochs": 1, "batch": 16},
        "protocol": {"clients": {"pen": 2, "photo": 1, "print": 1}, "samples": 24},
    }


@pytest.fixture
def protolith(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[Any, str, str]]:
    """Run a command in this process, in the test's directory: exit code, output, error output."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["protolith", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return call


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build leaves files beside its source."""
    root, place = Path(__file__).parents[1], tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "protolith", "examples", "tests"):
        if (root / name).is_dir():
            shutil.copytree(root / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        elif (root / name).exists():
            shutil.copy(root / name, place / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(place / "dist"), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = (place / "dist").glob("*.whl")
    return made
