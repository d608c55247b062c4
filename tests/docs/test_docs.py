"""What the documentation says is run as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import protolith as pl

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page, *kinds):
    """The code blocks of a page, in order."""
    return re.findall(rf"^```({'|'.join(kinds)})\n(.*?)^```", (DOCS / page).read_text(), re.S | re.M)


def test_the_tutorial_runs_as_it_stands(tmp_path):
    pytest.importorskip("onnxruntime")
    said = ""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for kind, text in blocks("tutorial.md", "python", "sh"):
        command = [sys.executable, "-c", text] if kind == "python" else ["sh", "-e", "-c", text]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{text}\n{done.stderr}"
        said += done.stdout
    for file in ("runs/first/report.html", "predictions.csv", "model/digits.onnx", "model/MODEL_CARD.md"):
        assert (tmp_path / file).stat().st_size > 0
    images = len(list((tmp_path / "sites/pen/test").rglob("*.png")))
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == images + 1
    assert "street" in said and "plain/digits.safetensors" in said


def test_the_method_of_the_page_trains(tmp_path, tiny):
    ((_, text),) = blocks("adding-a-method.md", "python")
    plugin = tmp_path / "pull.py"
    plugin.write_text(text)
    run = pl.fit("pull", out=tmp_path / "run", plugins=[str(plugin)], params={"weight": 1.0}, **{**tiny, "rounds": 2})
    assert "pull" not in run.metrics[0]["loss"] and run.metrics[1]["loss"]["pull"] > 0


def test_every_page_is_in_the_site():
    nav = (DOCS.parent / "mkdocs.yml").read_text()
    for page in DOCS.rglob("*.md"):
        assert f": {page.relative_to(DOCS).as_posix()}\n" in nav
