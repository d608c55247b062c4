"""The scripts that made the results still find what they use of the package."""

import importlib
import re
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_finds_what_it_imports_of_the_package(script, monkeypatch):
    monkeypatch.syspath_prepend(str(script.parent))
    try:
        module = importlib.import_module(f"benchmarks.{script.stem}")
    except ModuleNotFoundError as error:
        name = (error.name or "").split(".")[0]
        assert name not in ("protolith", "benchmarks", *(path.stem for path in SCRIPTS)), error
        pytest.skip(f"{name} is not installed")
    assert Path(module.__file__).samefile(script)
    assert re.match(r"\S.*[.?:]", module.__doc__), "a script begins with what it is for"
