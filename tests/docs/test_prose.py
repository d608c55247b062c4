"""The pages are written in short sentences, and what they show can be typed."""

import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer

from protolith.cli.main import app
from protolith.errors import UserError
from protolith.experiments.paper import get_experiment
from protolith.experiments.presets import read_settings
from protolith.methods.registry import all_methods
from protolith.runs import runner
from protolith.runs.config import RunConfig, keys_of, parse_set, resolve

ROOT = Path(__file__).parents[2]
LONGEST, MEDIAN = 30, 15  # words of a sentence
DOCS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
PAGES = ["README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md", *DOCS]
FIRST = ["README.md", "docs/index.md", "docs/use.md"]  # that lead from own photographs to a model
COMMAND = typer.main.get_command(app)
FENCED = re.compile(r"^(<!-- runs -->\n)?```(\w*)\n(.*?)^```", re.S | re.M)


def sentences(text):
    """The sentences of a page without code, tables and headings: they end at . ! ? : or with a list item."""
    text = FENCED.sub("\n", re.sub(r"<!--.*?-->", "", text, flags=re.S))
    text = re.sub(r"^ *(\||#|:::|options:|members:).*$", "\n", text, flags=re.M)
    text = re.sub(r"^ *([-*+]|\d+\.) ", "\n\n", text, flags=re.M)
    for block in re.split(r"\n\s*\n", text):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(block.split()))
        plain = re.sub(r"`[^`]*`", "code", plain)
        yield from (part for part in re.split(r"(?<=[.!?:])[\"')*_”]*\s+", plain) if words(part))


def words(text):
    """How many words a sentence has."""
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def code_of(page):
    """The code blocks of a page: whether it is marked to run, the language, the text."""
    return [(bool(mark), kind, text) for mark, kind, text in FENCED.findall((ROOT / page).read_text())]


def typed(page):
    """The lines of a page that call the program, without comments, redirections and dots."""
    for _, kind, text in code_of(page):
        if kind in ("", "sh", "bash"):
            for line in text.replace("\\\n", " ").splitlines():
                if found := re.match(r"(?:\$ )?(?:\S*/)?protolith( .*)", line):
                    yield re.sub(r" (#|>) .*| …| \.\.\.", "", found[1])


def understand(arguments):
    """Read a command line as the program does, up to where it would do something."""
    context, command = None, COMMAND
    while isinstance(command, click.Group):
        context = command.make_context("protolith", list(arguments), context)
        _, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])
    given = command.make_context(command.name, list(arguments), context).params
    if command.name == "experiment" and given["name"]:
        get_experiment(given["name"])
    if command.name in ("run", "sweep") and not given["plugin"]:
        for method in (given.get("methods") or given.get("method") or "fedavg").split(","):
            named = {"method": method, **({"task": given["task"]} if given["task"] else {})}
            protocol = {"protocol": {"name": given["protocol"]}} if given["protocol"] else {}
            resolve([named, protocol, parse_set(given["set_"] or [], method)])


def options_of(command):
    """The options of a command and of all below it."""
    yield from (option for parameter in command.params for option in parameter.opts)
    for below in getattr(command, "commands", {}).values():
        yield from options_of(below)


def test_a_sentence_is_measured_as_a_reader_would():
    page = (
        "# A head. Of two\n\nOne `two three`, four. Five:\n- six [seven](x.md) eight\n\n| a | b |\n\n```\na b. c\n```\n"
    )
    assert [words(sentence) for sentence in sentences(page)] == [3, 1, 3]


def test_no_sentence_is_longer_than_a_breath():
    for page in PAGES:
        found = list(sentences((ROOT / page).read_text()))
        long = [sentence for sentence in found if words(sentence) > LONGEST]
        assert not long, f"{page}: {long}"
        assert not found or statistics.median(map(words, found)) <= MEDIAN, page


def test_every_block_of_python_compiles():
    for page in PAGES:
        for _, kind, text in code_of(page):
            if kind == "python":
                compile(text, page, "exec")


def test_every_block_that_is_marked_to_run_runs(tmp_path):
    marked = [(page, kind, text) for page in PAGES for mark, kind, text in code_of(page) if mark]
    assert marked
    for page, kind, text in marked:
        assert kind == "python"
        done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{page}\n{done.stderr}"


def test_every_command_line_of_a_page_can_be_typed():
    lines = [(page, line) for page in PAGES for line in typed(page)]
    assert len(lines) > 40
    for page, line in lines:
        try:
            understand(shlex.split(line))
        except (click.ClickException, UserError) as error:
            pytest.fail(f"{page}: protolith{line}\n{error!r}")


def test_own_photographs_are_three_commands_the_same_wherever_one_begins():
    """Each starts the program that `make` installs; that the options exist is tested above."""
    blocks = [text for page in FIRST for _, _, text in code_of(page) if "data check photos" in text]
    assert len(blocks) == len(FIRST) and len(set(blocks)) == 1
    program, verbs = ".venv/bin/protolith ", ("data check photos ", "run --task photos ", "predict runs/first ")
    lines = blocks[0].splitlines()
    assert len(lines) == 3 and all(line.startswith(program + verb) for line, verb in zip(lines, verbs, strict=True))
    for page in PAGES:  # `run` takes these settings by itself, but for a deployment, whose server sees no image
        for line in typed(page):
            assert "--task photos" not in line or "--set size=" not in line, page


def test_the_front_page_is_short_and_names_the_directory_of_its_run(tmp_path, monkeypatch):
    page = (ROOT / "README.md").read_text()
    assert len(page.splitlines()) <= 120
    monkeypatch.chdir(tmp_path)
    config = resolve([read_settings("demo"), {"method": "strata"}])
    place = runner.free_directory(config, Path("runs")).as_posix()
    assert set(re.findall(r"runs/[\w-]+(?=/report\.html)", page)) == {place}


def test_no_page_installs_from_an_index_that_does_not_have_it():
    wheel = "'./protolith-VERSION-py3-none-any.whl"  # a file is there
    for page in [*PAGES, *(path.relative_to(ROOT).as_posix() for path in (ROOT / "results").glob("*.md"))]:
        text = (ROOT / page).read_text().replace("no page says `pip install protolith`", "").replace(wheel, "")
        assert not re.search(r"pip install [^\n`]*?(?<![\w/])protolith", text), page


def test_every_option_within_a_sentence_exists():
    options = {*options_of(COMMAND), "--help"}
    settings = [*keys_of(RunConfig), *(key for method in all_methods().values() for key in method.params.model_fields)]
    short = {*settings, *(key.rsplit(".", 1)[-1] for key in settings)}
    for page in PAGES:
        for code in re.findall(r"`([^`\n]+)`", FENCED.sub("", (ROOT / page).read_text())):
            if code.startswith(("protolith ", "--")):
                assert set(re.findall(r"(?<!\S)--[a-z][a-z-]+", code)) <= options, f"{page}: {code}"
            for key in re.findall(r"--set ([a-z][\w.]+)=", code):
                assert key in short or key.startswith(("params.", "key")), f"{page}: {code}"


PRIOR = {  # training in other clients' colours: whoever calls a part of Strata its own cites these beside it
    "StatMix": "2207.04103", "FedFA": "2301.12995", "StableFDG": "2311.00227",
    "FedRDN": "2306.09363", "FedCCRL": "2410.11267", "PARDON": "2410.22622",
}  # fmt: skip


def test_what_is_called_stratas_own_stands_beside_the_work_before_it():
    page = (ROOT / "docs/methods/strata.md").read_text()
    for name, number in PRIOR.items():
        assert re.search(rf"^\| {name}\b[^\n]*/abs/{number}", page, re.M), name
    claims = {page: re.findall(r"[^\n]*\bown part\b[^\n]*", (ROOT / page).read_text()) for page in PAGES}
    assert claims["README.md"] and all("FedRDN and StatMix" in line for found in claims.values() for line in found)
    assert {"FedRDN", "StatMix"} <= set(re.findall(r"\w+", all_methods()["strata"].paper))


def test_fedcodes_temperature_is_named_wherever_its_accuracy_stands_in_a_table():
    """It was chosen on a task that the tables report, or, in older tables, was another one."""
    pages = {ROOT / page for page in PAGES} | {*(ROOT / "results").rglob("*.md")}
    pages -= {ROOT / "results/flower.md"}  # seconds
    rows = [page for page in pages if re.search(r"^\| *FedCode\b[^|\n]*\|[^\n]*\d\d\.\d", page.read_text(), re.M)]
    assert len(rows) >= 5
    for page in rows:
        assert re.search(r"temperature|τ", page.read_text()), page
