"""What answers at once must not wait for what computes."""

import json
import subprocess
import sys

import pytest

from protolith import __version__
from protolith.data.tasks import load_task
from protolith.methods import facts
from protolith.methods.registry import all_methods

HEAVY = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "plotly", "pyarrow", "pydantic", "rich", "PIL", "h5py")
PROGRAM = """
import json, sys
from protolith.cli.main import main
sys.argv = ["protolith", *json.loads(sys.argv[1])]
try:
    main()
finally:
    print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})), file=sys.stderr)
"""


def imported_by(*arguments):
    """The output of a command in a process of its own, and the packages that it imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(arguments)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["methods"],
        ["presets"],
        ["run", "--help"],
        ["sweep", "--help"],
        ["predict", "--help"],
    ],
)
def test_what_computes_nothing_imports_nothing_heavy(arguments):
    out, imported = imported_by(*arguments)
    assert out.strip() and imported & set(HEAVY) == set()


def test_a_run_imports_no_compiler_and_nothing_that_only_reports_need(tmp_path):
    load_task("mini")  # drawn once, then read from the cache
    small = ["--set", "width=4", "--set", "epochs=1", "--set", "samples=16", "--rounds", "1", "--no-diagnostics"]
    out, imported = imported_by("run", "--workers", "0", *small, "--out", str(tmp_path / "r"))
    assert "accuracy by round" in out
    assert imported & {"sympy", "scipy", "sklearn", "matplotlib", "plotly", "pyarrow", "h5py", "ray", "flwr"} == set()


def test_the_check_sees_a_heavy_import():
    out, imported = imported_by("options", "fedavg")
    assert "training.lr" in out and "torch" in imported


def test_the_version_is_the_packages(protolith):
    assert protolith("--version") == (0, f"protolith {__version__}\n", "")


def test_the_list_says_what_the_methods_say():
    said = {name: (found.name, found.paper, found.idea) for name, found in facts.built_in().items()}
    known = all_methods().items()  # tests before this one may have registered others
    methods = {name: method for name, method in known if method.server.__module__.startswith("protolith.")}
    assert said == {name: (name, method.paper, method.idea) for name, method in methods.items()}
    for name, found in facts.built_in().items():
        assert sys.modules[found.module].METHOD is methods[name]
