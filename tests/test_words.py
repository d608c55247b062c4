"""One thing has one word, and one word is one thing: the table of docs/architecture.md and the names of the classes."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

import protolith

ROOT = Path(protolith.__file__).parent
DOCS = ROOT.parent / "docs"
# The parts of a method have the same names in every file of methods/: a file is read as one with the others, and a
# method is known by its file. So a composed one says `fpl.Client`.
METHODS = {"Client", "Server", "Params"}
# Several classes have each of these names still: none may be added.
OPEN = {"Encoder", "Form", "Progress", "Prototypes", "Run", "Trained"}


def words():
    """The table's words and their meanings."""
    table = (DOCS / "architecture.md").read_text().split("## Words\n")[1].split("\n## ")[0]
    return re.findall(r"^\| ([a-z ]+) \| (.+) \|$", table, re.M)[1:]


def homes(root=ROOT):
    """The files that have a public class of a name."""
    found = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.relative_to(root).as_posix())
    return found


def doubled(found):
    """The names that stand in several files, but for a method's parts in the methods' files."""
    outside = {
        name: [file for file in files if name not in METHODS or not file.startswith("methods/")]
        for name, files in found.items()
    }
    return {name for name, files in outside.items() if len(files) > 1}


def test_a_word_is_explained_once_and_explained():
    named = [word for word, _ in words()]
    assert len(named) >= 15 and len(named) == len(set(named))
    assert all(len(meaning.split()) > 3 for _, meaning in words())


def test_a_public_class_has_one_home():
    assert doubled(homes()) <= OPEN


def test_the_check_finds_a_second_home(tmp_path):
    (tmp_path / "methods").mkdir()
    for name in ("a", "b", "methods/c", "methods/d"):
        (tmp_path / f"{name}.py").write_text("class Client: ...\nclass _Own: ...\n")
    assert doubled(homes(tmp_path)) == {"Client"}
    (tmp_path / "b.py").write_text("")
    assert doubled(homes(tmp_path)) == set()


@pytest.mark.parametrize("word", ["broadcast", "upload", "measure", "method", "engine", "task", "domain", "partition"])
def test_the_class_of_a_word_has_its_name(word):
    assert word in dict(words()) and len(homes()[word.capitalize()]) == 1


def test_a_site_is_never_called_a_source():
    """For people it is a site, in code a domain; `sources/` are the files that images come from."""
    for path in [ROOT.parent / "README.md", *DOCS.rglob("*.md")]:
        text = path.read_text().replace("sources/", "")
        assert not re.findall(r"\b(?:each|every|a|the|all|other|its) sources?\b(?! code| file)", text), path


def test_a_command_is_called_experiment():
    for path in [ROOT.parent / "README.md", *DOCS.rglob("*.md"), *ROOT.rglob("*.py")]:
        assert "protolith paper" not in path.read_text(), path
