"""The tutorial as a notebook: it is made from the page, and every cell of it runs."""

import importlib.util
import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("notebook_of_the_tutorial", ROOT / "docs" / "notebook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def stored(script):
    return nbformat.read(script.NOTEBOOK, as_version=4)


def test_the_notebook_is_valid_and_says_what_the_page_says(script, stored):
    nbformat.validate(stored)
    made = script.notebook(PAGE)
    assert [cell.source for cell in stored.cells] == [cell.source for cell in made.cells], "run docs/notebook.py"


def test_the_notebook_has_all_code_of_the_page_and_shows_what_came(stored):
    typed = [text.strip() for _, text in re.findall(r"^```(sh|python)\n(.*?)^```", PAGE, re.S | re.M)]
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.source.removeprefix("%%sh -e\n") for cell in code] == typed
    shown = "".join(output.get("text", "") for cell in code for output in cell.outputs)
    assert all(cell.execution_count for cell in code)
    assert "street" in shown and "\x1b" not in shown and "/tmp/" not in shown


def test_links_of_the_notebook_lead_somewhere(stored):
    for cell in stored.cells:
        if cell.cell_type == "markdown":
            for link in re.findall(r"\]\(([^)#]+)", cell.source):
                assert link.startswith("https://") or (ROOT / "examples" / link).exists()


def test_a_command_that_fails_in_the_notebook_is_an_error(script, tmp_path):
    made = script.notebook("Look.\n\n```sh\nfalse\ntrue\n```\n")
    with pytest.raises(nbclient.exceptions.CellExecutionError):
        script.execute(made, tmp_path)


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs(script, tmp_path):
    pytest.importorskip("onnxruntime")
    script.execute(script.notebook(PAGE), tmp_path)
    assert (tmp_path / "predictions.csv").stat().st_size > 0 and (tmp_path / "runs/first/report.html").exists()
