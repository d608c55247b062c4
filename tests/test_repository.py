"""What stands around the package: the citation, the change log, the files for hosting."""

import re
import tomllib
from pathlib import Path

import pytest

import protolith
from protolith.methods.registry import all_methods

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
YAML = [*ROOT.glob(".github/**/*.yml"), ROOT / ".pre-commit-config.yaml", ROOT / "CITATION.cff"]


def read(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_the_file_is_yaml_with_something_in_it(path):
    assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)


def test_hosted_ci_runs_lint_and_tests_on_three_systems_and_pins_its_actions():
    jobs = read(".github/workflows/ci.yml")["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+@v\d+", step["uses"]) for step in steps if "uses" in step)
    assert {"make lint", "python -m pytest -n auto"} <= {step.get("run") for step in steps}
    matrix = jobs["test"]["strategy"]["matrix"]
    assert matrix["os"] == ["ubuntu-latest", "macos-latest", "windows-latest"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.split(" :: ")[-1] for line in project["classifiers"] if ":: Python :: 3." in line]
    assert matrix["python"] == named == ["3.11", "3.12", "3.13"]


def test_the_head_of_hosted_ci_says_what_was_run():
    head = (ROOT / ".github/workflows/ci.yml").read_text().split("name:")[0]
    assert "Only Linux with Python 3.11 was run" in head


def test_the_hooks_before_a_commit_are_those_of_make_lint():
    lint = (ROOT / "Makefile").read_text().split("\nlint:")[1].split("\n\n")[0]
    typed = [line.split("/", 1)[1].removesuffix(" .") for line in lint.splitlines()[1:]]
    hooks = [hook["entry"].split("bin/")[1] for hook in read(".pre-commit-config.yaml")["repos"][0]["hooks"]]
    assert typed == [entry.removesuffix(" --force-exclude") for entry in hooks]


def test_the_citation_has_this_version_and_the_four_papers_as_the_methods_name_them():
    citation = read("CITATION.cff")
    assert citation["version"] == protolith.__version__
    assert citation["authors"] == [{"name": "The Protolith developers"}]
    methods = all_methods()
    for name, reference in zip(("fpl", "i2pfl", "fedapc", "fedcode"), citation["references"], strict=True):
        assert reference["notes"] == methods[name].title
        first = reference["authors"][0]["family-names"]
        assert methods[name].paper.startswith(f"{first} et al., {reference['title']}, ")
        assert methods[name].paper.endswith(str(reference["year"]))


def test_the_change_log_begins_with_this_version_and_can_be_read():
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (\S+)(.*)$", text, re.M)
    release = protolith.__version__.split(".dev")[0]
    assert versions[0] == (release, " (unreleased)" if "dev" in protolith.__version__ else versions[0][1])
    assert [number for number, _ in versions] == ["0.2.0", "0.1.0"]
    assert set(re.findall(r"^### (.*)$", text, re.M)) <= {"Added", "Changed", "Fixed", "Removed", "Security"}
    assert all(len(line) <= 120 for line in text.splitlines())
