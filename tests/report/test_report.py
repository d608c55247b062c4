"""The report: what it shows is what the runs hold, it needs nothing from outside, and names cannot break it."""

import json
import re
import shlex
from html.parser import HTMLParser
from itertools import pairwise

import pytest
import torch
from PIL import Image

import protolith as pl
from protolith import records
from protolith.cli import request, result
from protolith.data.tasks import load_task
from protolith.errors import UserError
from protolith.report.page.across import mean_matrix
from protolith.report.page.build import PARTS, make_page, plotly, render, script, write_report
from protolith.report.page.convergence import convergence
from protolith.report.page.failures import class_accuracy
from protolith.report.page.html import script_json, tag
from protolith.report.page.plots import Figures
from protolith.report.page.prototypes import cosines, movement
from protolith.report.page.repeat import commands
from protolith.report.page.study import read_study
from protolith.runs.config import complete_for, resolve
from protolith.runs.diagnostics import FOLDER, TESTS, read_prototypes, read_tests
from protolith.runs.directory import RunDirectory
from protolith.runs.run import Run


class Reader(HTMLParser):
    """Elements, their attributes and the text of a page, without what is inside scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.words, self.inside = [], [], [], ""
        self.feed(page)

    def handle_starttag(self, name, attributes):
        self.tags.append(name)
        self.attributes += [(name, key, value) for key, value in attributes]
        self.inside = name

    def handle_endtag(self, name):
        self.inside = ""

    def handle_data(self, data):
        if self.inside not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def page(tmp_path):
    """The page of everything in the directory, and its data."""

    def make(*names):
        paths = [tmp_path / name for name in names] or [tmp_path]
        made = make_page(read_study(paths))
        return Reader(render(made)), made

    return make


METHODS = ("fedavg", "fpl", "i2pfl", "fedcode", "fedapc")


def test_all_parts_are_there_in_their_order_with_headings_in_order(make_run, page):
    for method in METHODS:
        for seed in (0, 1):
            make_run(f"{method}-{seed}", method, seed)
    reader, made = page()
    titles = [part.title for part in PARTS]
    assert [reader.text.index(part.look) for part in PARTS] == sorted(reader.text.index(part.look) for part in PARTS)
    assert len(titles) == 9 and reader.tags.count("h1") == 1 and reader.tags.count("h2") == 9
    levels = [int(name[1]) for name in reader.tags if re.fullmatch(r"h[1-6]", name)]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert "Bold is the best of a column" in reader.text
    drawn = {value for name, key, value in reader.attributes if name == "div" and key == "id"} - {"tip"}
    assert drawn == set(made.figures) and len(drawn) > 12
    labelled = [value for _, key, value in reader.attributes if key == "aria-label"]
    assert len(labelled) >= len(drawn) and all(labelled)


def test_the_file_needs_nothing_from_outside(make_run, tmp_path):
    make_run("r", "fpl")
    out = write_report([tmp_path / "r"], tmp_path / "new" / "report.html")
    text = out.read_text()
    assert len(text) < 6_000_000
    reader = Reader(text)
    assert "link" not in reader.tags and "iframe" not in reader.tags
    for _, key, value in reader.attributes:
        assert key not in ("src", "href") or value.startswith(("data:image/webp;base64,", "#")), value
    assert not [key for _, key, _ in reader.attributes if key.startswith("on")]
    policy = next(value for _, key, value in reader.attributes if key == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'") and "http" not in policy and "connect-src" not in policy
    assert policy.count("sha256-") == 2 and "'unsafe-inline'; script-src" in policy
    assert text.count(plotly()) == 1 and text.count(script()) == 1


HOSTILE = "</script><script>alert('x')</script><img src=x onerror=alert(1)>&amp;\u2028"


def test_hostile_names_are_text(make_run, page):
    classes = (HOSTILE, "<b>dog</b>", "owl")
    domains = (f"pen{HOSTILE}", "<a href='javascript:alert(1)'>photo</a>")
    clients = tuple(f"{HOSTILE}-{index}" for index in range(3))
    for method in METHODS:
        make_run(f"run <script>alert(2)<{method}", method, classes=classes, domains=domains, clients=clients)
    reader, made = page()
    assert reader.tags.count("script") == 3  # the data, plotly, the page's own
    assert not [key for _, key, _ in reader.attributes if key.startswith("on")]
    assert all(value.startswith("data:") for _, key, value in reader.attributes if key == "src")
    assert "<script>alert('x')</script>" in reader.text and "<script>alert(2)" in reader.text
    whole = render(made)
    assert "<script>alert" not in whole and "\u2028" not in script_json(made.data())
    in_figures = json.dumps(made.figures)
    spoken = re.sub(r'"customdata": \[.*?\]\]', "", in_figures)  # shown as text by the page's script, never as HTML
    assert "<b>dog" not in spoken and "<a href" not in spoken and "&lt;b&gt;dog" in spoken


def test_json_in_a_script_cannot_end_it():
    value = {"</script>": ["<!--", "a & b", "\u2028\u2029", float("nan"), 1.23456789]}
    written = script_json(value)
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == {"</script>": ["<!--", "a & b", "\u2028\u2029", None, 1.2346]}


def test_a_tag_escapes_all_but_html():
    inner = tag("b", "1 < 2")
    assert tag("p", inner, " & ", data_x='"') == '<p data-x="&quot;"><b>1 &lt; 2</b> &amp; </p>'
    assert tag("div", hidden=True, id=None, title=False) == "<div hidden></div>"


def parsed(command):
    """What the command line makes of a command: configurations, complete."""
    words = shlex.split(command)
    options = {"--set": [], "--plugin": []}
    for key, value in zip(words[2::2], words[3::2], strict=True):
        options[key] = [*options[key], value] if key in ("--set", "--plugin") else value
    flags = request.flags_of(
        protocol=options["--protocol"], task=options["--task"], rounds=int(options["--rounds"]),
        data=options.get("--data"), plugins=options["--plugin"] or None,
    )  # fmt: skip
    found = []
    for seed in options.get("--seeds", options.get("--seed")).split(","):
        for method in options.get("--methods", options.get("--method")).split(","):
            asked = request.given(None, {**flags, "method": method, "seed": int(seed)}, options["--set"])
            found.append(complete_for(resolve([asked]), load_task(options["--task"])))
    return found


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"protocol": {"clients": {"pen": 2, "photo": 1, "print": 1}, "samples": 24}, "training": {"lr": 0.5}},
        {"protocol": {"name": "unseen", "unseen": "print"}},
        {"protocol": {"name": "local", "clients": {"pen": 4, "street": 1}}, "keep_models": [1, 2]},
        {"protocol": {"samples": {"pen": 30, "photo": 0.5}}, "training": {"flip": False}, "buffers": "local"},
        {"protocol": {"allocation": "mini-uneven"}, "model": {"width": 4}, "rounds": 7},
    ],
)
def test_the_command_repeats_the_runs(more):
    configs = [
        complete_for(resolve([{"method": method, "seed": seed, **more}]), load_task("mini"))
        for seed in (0, 3)
        for method in ("fedavg", "fpl")
    ]
    (command,) = commands(configs)
    assert command.startswith("protolith sweep") and parsed(command) == configs
    (alone,) = commands(configs[:1])
    assert alone.startswith("protolith run") and parsed(alone) == configs[:1]


PLUGIN = """
from dataclasses import replace
from protolith.methods.fedavg import METHOD

METHOD = replace(METHOD, name="mine")
"""


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Make a folder of images, a directory of data and a plug-in in a directory; as options of a run."""
    monkeypatch.setattr("protolith.methods.registry._PLUGGED", {})

    def make(place):
        for site in ("north", "south"):
            for label in ("cat", "dog"):
                folder = tmp_path / place / "sites" / site / label
                folder.mkdir(parents=True)
                for number in range(5):
                    Image.new("RGB", (16, 16), (40 * number, 9, 9)).save(folder / f"{number}.png")
        (tmp_path / place / "data").mkdir()
        (tmp_path / place / "mine.py").write_text(PLUGIN)
        return {"--task": f"{place}/sites", "--data": f"{place}/data", "--plugin": f"{place}/mine.py"}

    return make


def test_the_command_has_no_path_of_this_machine_and_repeats_the_run_from_the_working_directory(
    protolith, places, tmp_path
):
    options = [word for pair in places("here").items() for word in pair]
    small = ["--method", "mine", "--rounds", "1", "--workers", "0", "--set", "width=2", "--set", "epochs=1"]
    code, _, err = protolith("run", *options, *small, "--out", "r")
    assert code == 0, err
    config = RunDirectory.open(tmp_path / "r").config()
    assert config.task == str(tmp_path / "here" / "sites")
    (command,) = commands([config])
    assert "--task here/sites" in command and "--data here/data" in command and "--plugin here/mine.py" in command
    (again,) = parsed(command)
    assert again.model_copy(update={"workers": 0}) == config
    page = Reader(render(make_page(read_study([tmp_path / "r"])))).text
    assert command in page and str(tmp_path) not in page and "your own paths" not in page


def test_what_lies_elsewhere_is_a_word_that_is_explained_and_never_a_path_of_somebodys_home(
    make_run, places, page, tmp_path, monkeypatch
):
    here = tmp_path / "work"
    here.mkdir()
    monkeypatch.chdir(here)
    found = {key: str(tmp_path / value) for key, value in places("home/anna").items()}
    more = {"task": found["--task"], "data": found["--data"], "plugins": [found["--plugin"]], "method": "mine"}
    make_run("r", more={**more, "init": str(tmp_path / "home" / "anna" / "w.safetensors")}, diagnostics=False)
    reader, _ = page()
    assert "--task TASK --protocol" in reader.text and "--data DATA --plugin PLUGINS/mine.py" in reader.text
    assert "--set init=WEIGHTS/w.safetensors" in reader.text and "anna" not in reader.text
    assert (
        "Put in your own paths: TASK is the folder of images, DATA is the directory of data, PLUGINS is the directory "
        "of the plug-in, WEIGHTS is the directory of the weights to start from."
    ) in reader.text


def test_options_of_one_method_make_a_command_of_their_own():
    configs = [
        resolve([{"method": "fpl", "params": {"tau": 0.5}}]),
        resolve([{"method": "fpl", "params": {"tau": 0.5}, "seed": 1}]),
        resolve([{"method": "fedavg"}]),
    ]
    first, second = commands(configs)
    assert "--methods fpl --seeds 0,1" in first and "--set params.tau=0.5" in first and "--method fedavg" in second


def test_accuracy_by_class_is_that_of_a_plain_loop(make_run):
    tests = read_tests(make_run("r").path)
    rates, counts = class_accuracy([tests, tests])
    for domain in range(2):
        for label in range(3):
            places = [i for i in range(24) if tests.domain[i] == domain and tests.label[i] == label]
            right = sum(bool(tests.predicted[i] == label) for i in places)
            assert counts[domain, label] == 2 * len(places)
            assert rates[domain, label] == pytest.approx(100 * right / len(places))


def test_prototypes_of_a_domain_are_a_block_and_ways_are_by_the_round(make_run):
    found = read_prototypes(make_run("r", "fpl", rounds=3).path)
    assert [held.round for held in found] == [1, 2, 3]
    maps = cosines(found[-1])
    assert maps.shape == (3, 3, 3) and torch.allclose(maps[:, range(3), range(3)], torch.ones(3, 3))
    vectors = found[-1].record["prototypes"].double()
    for label in range(3):
        a, b = vectors[0, label], vectors[2, label]
        assert float(maps[label, 0, 2]) == pytest.approx(float(a @ b / (a.norm() * b.norm())), abs=1e-5)
    assert (maps[:, 0, 1] > 0.99).all() and (maps[:, 0, 1] > maps[:, 0, 2]).all()
    near, far = movement(found), movement([found[0], found[2]])
    assert list(near) == ["pen-1", "pen-2", "photo-1"] and list(near["pen-1"]) == [2, 3] and list(far["pen-1"]) == [3]
    a, b = (found[at].record["prototypes"][0].double() for at in (0, 2))
    mean = sum(1 - float(x @ y / (x.norm() * y.norm())) for x, y in zip(a, b, strict=True)) / 3
    assert far["pen-1"][3] == pytest.approx(mean / 2, abs=1e-5)


def test_what_methods_made_of_prototypes_is_said(make_run, page):
    for method in METHODS[1:]:
        make_run(method, method)
    reader, made = page()
    assert "Clusters of the clients' prototypes, round 3" in reader.text
    assert "Clients in each cluster of styles, by their true domain" in reader.text
    (weights,) = [figure for key, figure in made.figures.items() if "-made-" in key]
    for column in zip(*weights["views"][0]["data"][0]["z"], strict=True):
        assert sum(column) == pytest.approx(100, abs=0.01)
    assert "One prototype for each class: the mean of the clients'" in reader.text


def test_matrices_are_averaged_over_seeds():
    names, values = mean_matrix(
        [{"a": [1.0, 2.0], "b": [3.0, 4.0], "c": [9.0, 9.0]}, {"b": [5.0, 8.0], "a": [3.0, 2.0]}]
    )
    assert names == ["a", "b"] and values == [[2.0, 2.0], [4.0, 6.0]]


def test_the_matrix_and_its_measures_are_shown(make_run, page):
    run = make_run("r", "fedcode")
    summary = run.summary().to_json()
    summary["cross"] = {"lta": 50.0, "ata": {"pen": 10.0}, "gata": 12.5, "gasa": 40.0, "cprr": 31.25}
    summary["matrix"] = {"pen-1": [50.0, 5.0], "photo-1": [4.0, 60.0]}
    run.write_summary(summary)
    reader, made = page()
    assert "31.25" in reader.text and made.figures["s0-matrix"]["views"][0]["data"][0]["z"] == [[50, 5], [4, 60]]


def test_every_point_of_the_feature_space_has_its_picture(make_run, page):
    for method in ("fedavg", "fpl"):
        make_run(method, method)
    _, made = page()
    pictures = made.thumbnails["s0-space"]
    assert len(pictures) == 24  # the same images for both methods are in the page once
    for key in ("s0-space-0", "s0-space-1"):
        for view in made.figures[key]["views"]:
            points = [point for trace in view["data"] for point in trace["customdata"]]
            images = [index for index, _ in points if index is not None]
            assert sorted(images) == list(range(24))
            assert (len(points) > 24) == (key == "s0-space-1")  # prototypes have no picture


def test_the_mean_and_each_domain_can_be_chosen(make_run, page):
    for seed in range(3):
        make_run(f"r{seed}", seed=seed)
    _, made = page()
    views = made.figures["s0-rounds"]["views"]
    assert len(views) == 3
    band, line = views[1]["data"]
    assert line["y"] == [21.0, 28.0, 35.0] and line["x"] == [1, 2, 3] and band["y"][0] == 22.0 and band["y"][-1] == 20.0


def test_the_line_of_the_mean_breaks_where_a_site_was_not_tested(make_run, metrics_line):
    run = make_run("run", rounds=0, finished=False, diagnostics=False)
    for round_, found in enumerate([{"a": 10.0, "b": 30.0}, {"a": 12.0}, {"a": 14.0, "b": 34.0}]):
        run.append_metrics(metrics_line(round_, found))
    figures = Figures()
    said = convergence(read_study([run.path]), figures)
    mean, of_a, of_b = (view["data"] for view in figures.held["s0-rounds"]["views"])
    assert [(trace["name"], trace["x"], trace["y"], trace["line"]["dash"]) for trace in mean] == [
        ("FedAvg", [1, 2, 3], [20.0, None, 24.0], "solid"),
        ("FedAvg without b", [2], [12.0], "dot"),
    ]
    assert "FedAvg without b in round(s) 2." in said
    assert (of_a[0]["x"], of_b[0]["x"]) == ([1, 2, 3], [1, 3])


def test_runs_of_unequal_length_and_one_that_is_not_finished(make_run, page):
    make_run("long", rounds=5)
    make_run("short", seed=1, rounds=2, finished=False)
    make_run("none", "fpl", rounds=0, finished=False)
    reader, _ = page()
    assert "Runs of unequal length: the longest has 5 rounds, short has 2, none has 0" in reader.text
    assert "Run short is not finished: 2 of 4 rounds." in reader.text and "2 run(s) not finished" in reader.text


def test_a_run_that_has_just_begun(make_run, page):
    make_run("r", rounds=1, finished=False)
    reader, _ = page("r")
    assert "FedAvg, so far (round 1 of 3)" in reader.text and "No predictions were saved by FedAvg" in reader.text
    make_run("empty", rounds=0, finished=False)
    reader, made = page("empty")
    assert "No round has been tested yet." in reader.text and made.figures == {}


def test_a_failed_job_is_named_with_its_reason(make_run, page, tmp_path):
    make_run("good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "failed.json").write_text(json.dumps({"error": "no <data> here"}))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.toml").write_text("rounds = ")
    reader, _ = page()
    assert "Job bad failed: no <data> here" in reader.text and "Job broken failed: the configuration" in reader.text


def test_a_run_without_diagnostics_says_so(make_run, page):
    make_run("with", "fpl")
    make_run("without", "i2pfl", diagnostics=False)
    damaged = make_run("damaged", "fedapc")
    (damaged.path / FOLDER / TESTS).write_bytes(b"nonsense")
    reader, made = page()
    assert "Run without was run with diagnostics off" in reader.text
    assert "Run damaged saved no predictions" in reader.text
    assert "No predictions were saved by FedAPC, I2PFL" in reader.text
    assert [key for key in made.figures if "space" in key] == ["s0-space-0"]


def test_one_client_one_domain_one_class_at_most_is_still_a_report(make_run, page):
    run = make_run("one", "fpl", domains=("pen",))
    for file in (run.path / FOLDER).glob("prototypes-*"):
        record, about = records.read_with_about(file)
        light = {name: held[:1] if not name.startswith("server/") else held for name, held in record.items()}
        records.write(file, light, about={**about, "clients": ["pen-1"], "domains": ["pen"]})
    reader, made = page()
    assert made.figures["s0-alike-0"]["views"][0]["data"][0]["z"] == [[pytest.approx(1.0)]]
    assert "Not measured in these runs" in reader.text


def test_features_that_are_not_finite_are_said(make_run, page):
    run = make_run("r")
    record, about = records.read_with_about(run.path / FOLDER / TESTS)
    record["features"] = torch.full_like(record["features"], torch.inf)
    records.write(run.path / FOLDER / TESTS, record, about=about)
    assert "the training has diverged" in page()[0].text


def test_rejected_uploads_and_dropped_clients_are_events(make_run, page):
    run = make_run("r")
    last = {**run.metrics()[-1].to_json(), "round": 4, "dropped": ["pen-1"]}
    run.append_metrics({**last, "rejected": [{"client": "pen-2", "reason": "weight 'w' is <not> finite"}]})
    reader, _ = page()
    assert "Run r, round 4: pen-2's upload was rejected: weight 'w' is <not> finite" in reader.text
    assert "pen-1 1 times" in reader.text


def test_attacks_flags_and_who_sits_out_are_events(tiny, page, tmp_path):
    """Two real runs under attack: what the guards did is on the page."""
    settings = {**tiny, "rounds": 5, "evaluate_every": 100}
    attacks = {kind: {"kind": kind, "share": 0.25} for kind in ("nan", "scale")}
    runs = {kind: pl.fit(out=tmp_path / kind, attack=attack, **settings) for kind, attack in attacks.items()}
    text = page()[0].text
    assert "Run nan: simulated attack: nan by 25% of the clients." in text
    liar = runs["nan"].rounds[0].rejected[0].client
    assert f"Run nan, round 3: {liar}'s upload was rejected: weight" in text
    assert f"Run nan: clients sat out after rejected uploads ({liar} from round 4 on)." in text
    flags = [flag.what for line in runs["scale"].rounds for flag in line.flagged if flag.client == liar]
    assert "weights" in flags
    assert (
        f"{liar}'s weights {flags.count('weights')} times" in text.split("Run scale: norms far beyond the others'")[1]
    )


def test_the_command_writes_the_page(protolith, make_run, tmp_path):
    make_run("runs/a")
    make_run("runs/b", "fpl")
    make_run("c", "fedapc")
    code, out, _ = protolith("report", "runs", "c", "--out", "x/page.html")
    assert code == 0 and out == "wrote x/page.html\n"
    assert "FedAPC" in (tmp_path / "x" / "page.html").read_text()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["nowhere"], "nowhere does not exist."),
        (["empty"], "empty holds no run: there is no config.toml in it or one level below."),
        (["run", "--out", "run/config.toml/r.html"], "--out run/config.toml/r.html cannot be written"),
    ],
)
def test_the_command_refuses_what_is_wrong(protolith, make_run, tmp_path, given, said):
    make_run("run")
    (tmp_path / "empty").mkdir()
    code, out, err = protolith("report", *given)
    assert code == 2 and out == "" and said in err and err.count("\n") == 1


def test_reading_needs_a_run(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        read_study([tmp_path])


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([], "none"),
        ([5.0], "5.0 ▁ 5.0"),
        ([1.0, 2.0, 3.0], "1.0 ▁▅█ 3.0"),
        ([3.0, 3.0], "3.0 ▁▁ 3.0"),
        ([0.0, None, 3.0], "0.0 ▁ █ 3.0"),
        ([1.0, 2.0, None, None], "1.0 ▁█   –"),
        ([None, None], "–    –"),
    ],
)
def test_a_line_of_bars(values, shown):
    from protolith.cli.progress import sparkline

    assert sparkline(values) == shown
    assert len(sparkline([float(i) for i in range(500)]).split()[1]) == 60
    assert len(sparkline([float(i) if i % 2 else None for i in range(500)]).split()[1]) == 60


def test_the_line_of_bars_has_gaps_where_not_all_sites_were_tested_and_says_so(make_run, metrics_line, capsys):
    """Accuracies of the three rounds before: 22.5, 29.5 and 36.5 on both sites."""
    run = make_run("run", diagnostics=False)
    result.show(Run(run.path), as_json=False)
    assert "accuracy by round  22.5 ▁▅█ 36.5\n" in capsys.readouterr().out
    for round_, found in ((3, {"pen": 90.0}), (4, {"pen": 40.0, "photo": 40.0})):
        run.append_metrics(metrics_line(round_, found))
    run.append_metrics({key: value for key, value in metrics_line(5, {"pen": 1.0}).items() if key in ("round", "loss")})
    result.show(Run(run.path), as_json=False)
    assert (
        "accuracy by round  22.5 ▁▄▇ █ 40.0 (a gap: a round in which not all sites were tested)\n"
        in capsys.readouterr().out
    )


def test_a_run_ends_with_a_line_of_bars_and_the_report(protolith, tmp_path):
    tiny = ["--rounds", "1", "--workers", "0", "--set", "width=2", "--set", "epochs=1", "--set", "protocol.samples=12"]
    code, out, _ = protolith("run", *tiny, "--out", "r", "--report")
    assert code == 0 and "accuracy by round  " in out and out.endswith("the report is r/report.html\n")
    assert (tmp_path / "r" / "report.html").stat().st_size < 6_000_000
    code, out, _ = protolith("run", *tiny, "--out", "q", "--no-diagnostics")
    assert code == 0 and out.endswith("see it: protolith report q\n") and not (tmp_path / "q" / "diagnostics").exists()
