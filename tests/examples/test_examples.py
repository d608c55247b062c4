"""The files in `examples/` run as they stand, with few rounds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
INSTALLED = (Path(sys.executable).parent / "flower-superlink").exists()


def run_example(name, place, *words, timeout=300):
    """Run an example in a directory of its own: exit code, what it said, what it complained about."""
    command = [sys.executable, str(EXAMPLES / name), *words]
    done = subprocess.run(command, cwd=place, env={**os.environ}, capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stdout, done.stderr


def test_the_example_of_a_method_trains_it(tmp_path):
    code, said, complained = run_example("my_method.py", tmp_path, "1")
    assert code == 0, complained
    assert "Modest" in said and "'sure'" in said


@pytest.mark.parametrize(
    ("file", "words"),
    [("my_method.py", ["--method", "modest", "--set", "weight=0.2"]), ("my_model.py", ["--set", "model.name=small"])],
)
def test_the_example_is_a_plug_in_of_the_command_line(protolith, tmp_path, file, words):
    small = ["--rounds", 1, "--set", "width=4", "--set", "epochs=1", "--workers", 0, "--out", "run"]
    code, _, complained = protolith("run", "--plugin", EXAMPLES / file, *words, *small)
    assert code == 0, complained
    text = (tmp_path / "run/config.toml").read_text()
    assert 'method = "modest"' in text or 'name = "small"' in text


def test_the_example_of_a_model_trains_it(tmp_path):
    code, said, complained = run_example("my_model.py", tmp_path, "1")
    assert code == 0, complained
    assert "small" in said and "parameters" in said


def test_the_example_of_a_measure_is_in_summary_and_table(tmp_path):
    code, said, complained = run_example("my_measure.py", tmp_path, "1")
    assert code == 0, complained
    assert "top-3 by domain" in said and "by images" in said


def test_the_example_of_own_data_checks_trains_and_predicts(tmp_path):
    code, said, complained = run_example("my_own_data.py", tmp_path, "1")
    assert code == 0, complained
    assert len(list((tmp_path / "sites").glob("*/*/*.png"))) == 4 * 3 * 30
    assert "suggestion" in said and "blueprint" in said and "new.png: " in said


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="Flower is not installed (pip install 'protolith[flower]')")
def test_the_example_of_a_deployment_trains_at_two_sites_and_stops_them(tmp_path):
    code, said, complained = run_example("my_deployment.py", tmp_path, "1", timeout=900)
    assert code == 0, said + complained
    assert "FPL" in said and "paper" in said and "$ protolith deploy down" in said
    assert (tmp_path / "runs/hospitals/summary.json").exists()
    started = [line for line in said.splitlines() if "process" in line]
    assert not any(str(tmp_path) in line for line in processes()), started


def processes():
    """The command lines of all processes here."""
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout.splitlines()


def test_the_example_of_a_deployment_ends_with_a_sentence_without_flower(tmp_path):
    hide = "import sys; sys.modules['flwr'] = None; import runpy; "
    script = (
        f"sys.path.insert(0, {str(EXAMPLES)!r}); runpy.run_path('{EXAMPLES / 'my_deployment.py'}', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", hide + script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == (
        "Flower is not installed, so there is nothing to start: pip install 'protolith[flower]'.\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_every_example_is_in_the_list_and_has_a_test():
    text = (EXAMPLES / "README.md").read_text()
    for path in [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")]:
        assert f"({path.name})" in text
        assert f'"{path.name}"' in Path(__file__).read_text() or path.suffix == ".ipynb"
