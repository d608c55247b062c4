"""What the documentation says is run as it stands."""

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from PIL import Image

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
    assert sum(pl.load(tmp_path / "runs/first").rounds[-1].accuracy.values()) / 4 > 60  # it has learned something
    images = len(list((tmp_path / "photos/pen/test").rglob("*.png")))
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == images + 1
    assert "street" in said and "plain/digits.safetensors" in said


def test_the_method_of_the_page_trains(tmp_path, tiny):
    ((_, text),) = blocks("adding-a-method.md", "python")
    plugin = tmp_path / "pull.py"
    plugin.write_text(text)
    run = pl.fit("pull", out=tmp_path / "run", plugins=[str(plugin)], params={"weight": 1.0}, **{**tiny, "rounds": 2})
    assert "pull" not in run.rounds[0].loss and run.rounds[1].loss["pull"] > 0


def test_the_task_of_the_page_is_checked_and_trained(tmp_path, protolith):
    ((_, text),) = blocks("adding-a-task.md", "toml")
    (tmp_path / "pets.toml").write_text(text)
    for number, name in enumerate(f"{domain}/{label}" for domain in ("park", "home") for label in ("cat", "dog")):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        for index in range(10):
            Image.new("RGB", (20, 30), (60 * number, 20 * index, 90)).save(folder / f"{index:03}.jpg")
    for line in re.findall("^protolith .*", (DOCS / "adding-a-task.md").read_text(), re.M):
        quick = ["--rounds", "1", "--set", "width=4", "--workers", "0"] if " run " in line else []
        code, out, err = protolith(*line.split()[1:], *quick)
        assert code == 0, err
    assert "protocol shift" in out and "park" in out


def navigation(part):
    """The pages below a part of the navigation."""
    if isinstance(part, str):
        return [part]
    inner = part.values() if isinstance(part, dict) else part
    return [page for one in inner for page in navigation(one)]


def test_the_site_has_every_page_once_in_at_most_five_groups():
    nav = (DOCS.parent / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    groups = yaml.safe_load(nav)
    pages = navigation(groups)
    assert len(groups) <= 5 and len(pages) == len(set(pages))
    own = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert own == {page for page in pages if not page.startswith("results/")}
    assert all((DOCS.parent / page).exists() for page in pages if page.startswith("results/"))


def test_the_site_asks_no_other_host_for_anything():
    """Pages load styles, scripts, fonts and pictures from their own folder."""
    settings = (DOCS.parent / "mkdocs.yml").read_text()
    assert "font: false" in settings and "offline" not in settings  # that plug-in loads a script from elsewhere
    for file in [*DOCS.rglob("*.md"), *DOCS.rglob("*.css")]:
        text = re.sub(r"^```.*?^```", "", file.read_text(), flags=re.S | re.M)
        assert not re.search(r"!\[[^\]]*\]\(https?:|src=.https?:|url\(.?https?:|@import", text), file


def test_the_walk_from_the_command_to_a_prototype_is_as_the_page_on_the_house_draws_it():
    """Each function that is named is in the file that is named, and calls or begins the next one."""
    page = (DOCS / "architecture.md").read_text()
    drawn = page.split("## A walk from the command to a prototype")[1].split("```")[1]
    steps, file = [], ""
    for line in drawn.strip().splitlines():
        file = found[0] if (found := re.findall(r"^[a-z_/]+\.py", line)) else file
        steps += [(file, name) for name in re.findall(r"(\w+)\(\)", line)]
    sources = {name: (DOCS.parent / "protolith" / name).read_text() for name, _ in steps}
    assert "in nine functions of six files" in page and (len(steps), len(sources)) == (9, 6)
    for here, name in steps:
        assert f"def {name}(" in sources[here], (here, name)
    for (here, _), (_, called) in pairwise(steps):
        assert re.search(rf"\b{called}\(", sources[here]), (here, called)
    who = page.split("| name | in a line |")[1].split("\n\n")[0]
    package = "".join(path.read_text() for path in (DOCS.parent / "protolith").rglob("*.py"))
    for name in re.findall(r"`([A-Z]\w+)`", who.replace("`Setup`, and", "")):
        assert f"class {name}" in package, name
