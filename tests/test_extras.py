"""What is installed only on demand: without it, one sentence says which line helps, before anything is computed."""

import sys
import tomllib
from pathlib import Path

import pytest

from protolith.data.drawn import glyphs
from protolith.data.sources import classic, hub, manifest, parquet
from protolith.data.spec import HubSource
from protolith.errors import UserError
from protolith.extras import EXTRAS, need

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture
def hide(monkeypatch):
    """Have a module not be installed; what was imported with its help is forgotten."""

    def without(module):
        monkeypatch.setitem(sys.modules, module, None)
        for name in [name for name in sys.modules if name.startswith(("protolith.report", f"{module}."))]:
            monkeypatch.delitem(sys.modules, name)

    return without


def packages(requirements):
    return {line.split(">=")[0].split("[")[0].strip() for line in requirements}


def test_ten_packages_are_needed_and_the_rest_are_extras():
    assert len(PROJECT["dependencies"]) <= 10
    for extra, modules in EXTRAS.items():
        brought = packages(PROJECT["optional-dependencies"][extra])
        assert brought == set(modules.values())
        assert not brought & packages(PROJECT["dependencies"])


@pytest.mark.parametrize("module", EXTRAS["report"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--report"],
        ["sweep", "--methods", "fedavg", "--out", "s", "--report"],
        ["report", "."],
        ["watch", "."],
        ["figure", ".", "--out", "f"],
        ["experiment", "fpl-fig4", "--data", "."],
    ],
    ids=lambda arguments: arguments[0],
)
def test_reports_and_figures_name_their_extra(protolith, tmp_path, hide, arguments, module):
    (tmp_path / "config.toml").write_text("")
    hide(module)
    code, out, error = protolith(*arguments)
    assert (code, out) == (2, "")
    assert f"needs {EXTRAS['report'][module]}, which is not installed: pip install 'protolith[report]'." in error
    assert not (tmp_path / "runs").exists() and not (tmp_path / "s").exists()


@pytest.mark.parametrize("module", ["matplotlib", "sklearn"])
def test_mini_cannot_be_drawn_without_what_others_ship(tmp_path, monkeypatch, protolith, hide, module):
    monkeypatch.setenv("PROTOLITH_CACHE", str(tmp_path / "cache"))  # a decoded copy does without
    for held in (glyphs.regions, glyphs.cells):
        held.cache_clear()
    hide(module)
    code, _, error = protolith("data", "check", "mini")
    assert code == 2 and "pip install 'protolith[report]'" in error and "drawing mini and syn*" in error


@pytest.mark.parametrize(
    ("module", "extra", "call"),
    [
        ("pyarrow", "formats", lambda file: parquet.read_schema(file)),
        ("pyarrow", "formats", lambda file: manifest.read_manifest(file.with_suffix(".parquet"))),
        ("h5py", "formats", lambda file: classic.read_h5(file, "train")),
        ("huggingface_hub", "hub", lambda file: hub.download(HubSource(repo="a/b"), print)),
        ("pyarrow", "hub", lambda file: hub.download(HubSource(repo="a/b"), print)),
    ],
    ids=["parquet", "manifest", "h5", "hub", "hub's parquet"],
)
def test_formats_name_their_extra(tmp_path, hide, module, extra, call):
    hide(module)
    with pytest.raises(UserError, match=rf"needs {EXTRAS[extra][module]}, .*: pip install 'protolith\[{extra}\]'\.$"):
        call(tmp_path / "x")


def test_only_what_is_needed_is_asked_for(hide):
    hide("h5py")
    need("parquet", "formats", "pyarrow")
    need("the report", "report")


def test_a_table_of_a_paper_needs_no_figures(protolith, hide):
    hide("matplotlib")
    assert protolith("experiment", "fpl-table1", "--dry-run")[0] == 0
