"""Figures: what is drawn is what the runs hold, and the files are there."""

import json
import math

import pytest
import torch
from PIL import Image

from protolith import records
from protolith.data.tasks import load_task
from protolith.errors import UserError
from protolith.models import build_model
from protolith.prototypes import PrototypeSet
from protolith.report import figures, style
from protolith.report.features import Features
from protolith.runs.config import complete_for, resolve
from protolith.runs.directory import RunDirectory
from protolith.runs.run import Run


@pytest.fixture
def make_run(tmp_path):
    """Write the directory of a finished run; a round's accuracy by domain, or None where it was not tested."""

    def make(name, rounds, finished=True, **settings):
        config = resolve([{"rounds": max(1, len(rounds)), "method": "fedavg", **settings}])
        run = RunDirectory.create(tmp_path / name, config)
        for index, accuracy in enumerate(rounds):
            tested = {} if accuracy is None else {"accuracy": accuracy, "mean": plain_mean(accuracy.values())}
            run.append_metrics({"round": index + 1, **tested, "loss": {"ce": 1.0 / (index + 1)}})
        if finished:
            run.write_summary(summary_of(config))
        return Run(run.path)

    return make


def summary_of(config):
    said = {"method": config.method, "task": config.task, "protocol": "shift", "seed": config.seed, "rounds": 1}
    return {**said, "rule": "of the last round", "accuracy": {"a": 1.0}, "mean": 1.0}


def plain_mean(values):
    total, count = 0.0, 0
    for value in values:
        total, count = total + value, count + 1
    return total / count


def plain_deviation(values):
    middle = plain_mean(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))


def rounds_of(*pairs):
    return [None if pair is None else {"a": pair[0], "b": pair[1]} for pair in pairs]


def line_of(ax, index=0):
    return [tuple(point) for point in ax.lines[index].get_xydata()]


def band_of(ax, index=0):
    """The corners of a band: {round: (low, high)}."""
    found = {}
    for x, y in ax.collections[index].get_paths()[0].vertices:
        found.setdefault(float(x), []).append(float(y))
    return {x: (min(ys), max(ys)) for x, ys in found.items()}


def legend_of(figure, index=0):
    return [text.get_text() for text in figure.legends[index].get_texts()]


def test_a_curve_is_the_mean_over_seeds_with_a_band_of_their_deviation(make_run):
    held = [[(10, 30), (20, 45), (50, 60)], [(14, 20), (10, 55), (70, 66)], [(1, 3), (2, 9), (8, 8)]]
    runs = [make_run(f"r{seed}", rounds_of(*pairs), seed=seed) for seed, pairs in enumerate(held)]
    figure = figures.draw_curves({"digits": {"FedAvg": runs, "FPL": runs[:1]}, "pacs": {"FPL": runs[1:]}})
    assert [ax.get_title() for ax in figure.axes] == ["digits", "pacs"] and legend_of(figure) == ["FedAvg", "FPL"]
    first, second = figure.axes
    for ax, index, seeds in ((first, 0, held), (first, 1, held[:1]), (second, 0, held[1:])):
        for at, (x, y) in enumerate(line_of(ax, index)):
            assert x == at + 1 and y == pytest.approx(plain_mean([(p[at][0] + p[at][1]) / 2 for p in seeds]))
    assert len(first.collections) == 1  # one seed has no band
    for ax, seeds in ((first, held), (second, held[1:])):
        assert sorted(band_of(ax)) == [1, 2, 3]
        for x, (low, high) in band_of(ax).items():
            values = [plain_mean(pairs[int(x) - 1]) for pairs in seeds]
            assert low == pytest.approx(plain_mean(values) - plain_deviation(values))
            assert high == pytest.approx(plain_mean(values) + plain_deviation(values))
    assert first.get_ylabel() == "accuracy (%)" and second.get_xlabel() == "communication round"


def test_rounds_that_are_missing_are_joined_and_unequal_lengths_averaged(make_run):
    long = make_run("long", rounds_of((10, 10), None, (30, 30), (40, 40), (50, 50)), seed=0)
    short = make_run("short", rounds_of((20, 20), None, (10, 10)), seed=1)
    (ax,) = figures.draw_curves({"p": {"FedAvg": [long, short]}}).axes
    assert line_of(ax) == [(1, 15), (3, 20), (4, 40), (5, 50)]
    band = band_of(ax)
    assert sorted(band) == [1, 3]  # none where one seed is left
    for x, (low, high) in band.items():
        values = {1: [10, 20], 3: [30, 10]}[int(x)]
        assert (low + high) / 2 == pytest.approx(plain_mean(values))
        assert (high - low) / 2 == pytest.approx(plain_deviation(values))


def test_one_domain_and_other_values(make_run):
    run = make_run("r", rounds_of((10, 30), (20, 50)))
    groups = {"p": {"FedAvg": [run]}}
    assert line_of(figures.draw_curves(groups, "b").axes[0]) == [(1, 30), (2, 50)]
    by_key = figures.draw_curves(groups, value="loss.ce", ylabel="cross-entropy")
    assert line_of(by_key.axes[0]) == [(1, 1), (2, 0.5)] and by_key.axes[0].get_ylabel() == "cross-entropy"
    by_function = figures.draw_curves(groups, value=lambda line: line.accuracy["a"] / 10 if line.round > 1 else None)
    assert line_of(by_function.axes[0]) == [(2, 2)]


def test_what_cannot_be_drawn_is_refused(make_run):
    run, untested = make_run("r", rounds_of((1, 2))), make_run("u", rounds_of(None))
    with pytest.raises(UserError, match=r"unknown domain of p 'c'\. Allowed: a, b"):
        figures.draw_curves({"p": {"FedAvg": [run]}}, "c")
    for runs, value in (([untested], None), ([run], "gata")):
        with pytest.raises(UserError, match="'FedAvg' of p cannot be drawn: its runs hold no such value"):
            figures.draw_curves({"p": {"FedAvg": runs}}, value=value)
    with pytest.raises(UserError, match="nothing to draw"):
        figures.draw_curves({})
    with pytest.raises(UserError, match="unknown panel in base 'q'"):
        figures.draw_study({"p": {"s": {1: [2.0]}}}, "x", base={"q": 1.0})


def test_a_panel_for_each_domain(make_run):
    run = make_run("r", [{"a": 10, "syn*": 20}, {"a": 12, "syn*": 24}])
    figure = figures.draw_by_domain({"p": {"FedAvg": [run]}})
    assert [ax.get_title() for ax in figure.axes] == ["a", "syn*"]
    assert [line_of(ax) for ax in figure.axes] == [[(1, 10), (2, 12)], [(1, 20), (2, 24)]]
    (only,) = figures.draw_by_domain({"p": {"FedAvg": [run]}}, ["syn"]).axes
    assert line_of(only) == [(1, 20), (2, 24)]
    both = figures.draw_by_domain({"p": {"FedAvg": [run]}, "q": {"FPL": [run]}})
    assert [ax.get_title() for ax in both.axes] == ["p\na", "p\nsyn*", "q\na", "q\nsyn*"]
    with pytest.raises(UserError, match="unknown domain 'b'"):
        figures.draw_by_domain({"p": {"FedAvg": [run]}}, ["b"])


STUDY = {
    "digits": {
        "I2PFL": {0.5: [70, 74], 0.02: [80.0, 81.0, 85.0], "off": [60]},
        "FPL": {0.5: [50, 52], "off": [49, 51]},
    },
    "pacs": {"FPL": {1: [40]}},
}


def test_a_study_has_even_places_in_the_order_given_and_error_bars():
    figure = figures.draw_study(STUDY, r"$\tau$", base={"digits": 65.0}, base_label="FedAvg")
    digits, pacs = figure.axes
    assert [text.get_text() for text in digits.get_xticklabels()] == ["0.5", "0.02", "off"]
    assert digits.get_xticks().tolist() == [0, 1, 2] and pacs.get_xticks().tolist() == [0]
    first, second = digits.containers
    assert first.lines[0].get_xydata().tolist() == [[0, 72], [1, 82], [2, 60]]
    assert second.lines[0].get_xydata().tolist() == [[0, 51], [2, 50]]
    drawn = [segment[:, 1].tolist() for segment in first.lines[2][0].get_segments() if len(segment)]
    for segment, values in zip(drawn, STUDY["digits"]["I2PFL"].values(), strict=False):
        if len(values) > 1:
            middle, deviation = plain_mean(values), plain_deviation(values)
            assert segment == pytest.approx([middle - deviation, middle + deviation])
    assert not pacs.containers[0].has_yerr
    across = [line for line in digits.lines if list(line.get_ydata()) == [65, 65]]
    assert len(across) == 1 and across[0].get_linestyle() == "--"
    assert legend_of(figure) == ["I2PFL", "FPL", "FedAvg"] and pacs.get_xlabel() == r"$\tau$"


def test_bars_stand_side_by_side_and_are_as_high_as_the_means():
    figure = figures.draw_bars(STUDY, bottom=30.0)
    digits, pacs = figure.axes
    first, second = digits.containers[1], digits.containers[3]
    tops = [bar.get_y() + bar.get_height() for bar in (*first, *second)]
    assert tops == pytest.approx([72, 82, 60, 51, 50])
    assert digits.get_ylim()[0] == 30 and all(bar.get_y() == 30 for bar in first)
    middles = [bar.get_x() + bar.get_width() / 2 for bar in (*first, *second)]
    assert middles == pytest.approx([-0.2, 0.8, 1.8, 0.2, 2.2])
    drawn = digits.containers[0].lines[2][0].get_segments()[1][:, 1]
    deviation = plain_deviation([80.0, 81.0, 85.0])
    assert drawn.tolist() == pytest.approx([82 - deviation, 82 + deviation])
    assert [text.get_text() for text in digits.texts] == ["72.0", "82.0", "60.0", "51.0", "50.0"]
    assert all(math.isfinite(text.xy[1]) for text in digits.texts)
    assert len(pacs.containers) == 1  # one seed: bars alone


@pytest.mark.parametrize("name", ["f.pdf", "f.png", "f", "f.v1"])
def test_both_files_are_written_whatever_the_suffix(make_run, tmp_path, name):
    run = make_run("r", rounds_of((10, 30), (20, 50)))
    written = figures.curves({"p": {"FedAvg": [run]}}, tmp_path / "new" / name)
    stem = "f.v1" if name == "f.v1" else "f"
    assert written == [tmp_path / "new" / f"{stem}.pdf", tmp_path / "new" / f"{stem}.png"]
    pdf = written[0].read_bytes()
    assert pdf.startswith(b"%PDF") and b"/FontFile2" in pdf and len(pdf) > 3000  # the font is in it
    with Image.open(written[1]) as image:
        assert 800 < image.width < 1200 and 500 < image.height < 1000 and round(image.info["dpi"][0]) == 300
        assert len(image.convert("RGB").getcolors(1 << 24)) > 20


def test_the_same_figure_gives_the_same_file(make_run, tmp_path):
    groups = {"p": {"FedAvg": [make_run("r", rounds_of((10, 30), (20, 50)))]}}
    first, second = (figures.curves(groups, tmp_path / name)[0].read_bytes() for name in ("a", "b"))
    assert first == second


def test_a_figure_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="the figure cannot be written to"):
        figures.study({"p": {"s": {1: [2.0]}}}, tmp_path / "file" / "f.pdf", "x")


def test_every_method_has_a_look_of_its_own_in_all_figures():
    pairs = {(look.colour, look.line) for look in style.LOOKS.values()}
    assert len(pairs) == len(style.LOOKS)
    for others in ([], ["FPL", "MOON"], ["mine", "yours"]):
        assert style.looks([*others, "I2PFL"])["I2PFL"] == style.LOOKS["I2PFL"]
    many = style.looks([*style.LOOKS, *(f"mine {index}" for index in range(8))])
    assert len({(look.colour, look.line) for look in many.values()}) == len(many)
    variants = style.looks(["FedAvg", "FPL, tau=1", "FPL, tau=2", "MOON, mu=1", "FedBN †"])
    assert variants["FPL, tau=1"] == style.LOOKS["FPL"] and variants["MOON, mu=1"] == style.LOOKS["MOON"]
    assert variants["FPL, tau=2"].colour == style.LOOKS["FPL"].colour and variants["FPL, tau=2"].line != "-"
    assert variants["FedBN †"] == style.LOOKS["FedBN"]
    styled = style.looks(["FedAvg", "FPL", "I2PFL", "FPL + styles", "I2PFL + styles", "FPL, fixed styles"])
    assert {styled[name].colour for name in styled if name.startswith("FPL")} == {style.LOOKS["FPL"].colour}
    assert len({(look.colour, look.line) for look in styled.values()}) == len(styled)
    assert len({(look.colour, look.marker) for look in styled.values()}) == len(styled)
    alone = style.looks([f"FPL, tau={tau}" for tau in range(5)])
    assert len({look.colour for look in alone.values()}) == 5


def test_runs_are_grouped_by_task_protocol_and_method(make_run):
    rounds = rounds_of((1, 2))
    runs = [
        make_run("a1", rounds, seed=1),
        make_run("a0", rounds, seed=0, workers=0),
        make_run("copy", rounds, seed=0),
        make_run("f", rounds, method="fpl"),
        make_run("e", rounds, protocol={"name": "equal"}),
        make_run("unfinished", rounds, finished=False, seed=5),
    ]
    groups = figures.finished_groups([*runs, runs[0]])
    assert list(groups) == ["mini, shift", "mini, equal"]
    assert [run.path.name for run in groups["mini, shift"]["FedAvg"]] == ["a0", "a1"]
    assert list(groups["mini, shift"]) == ["FedAvg", "FPL"] and list(groups["mini, equal"]) == ["FedAvg"]
    with pytest.raises(UserError, match="no run is finished yet"):
        figures.finished_groups(runs[-1:])


def test_runs_that_differ_are_labelled_by_what_they_differ_in(make_run):
    rounds = rounds_of((1, 2))
    runs = [
        make_run("i10", rounds, method="i2pfl", params={"lambda_intra": 10}),
        make_run("i1", rounds, method="i2pfl", params={"lambda_intra": 1}),
        make_run("i1-1", rounds, method="i2pfl", params={"lambda_intra": 1}, seed=1),
        make_run("i1-lr", rounds, method="i2pfl", params={"lambda_intra": 1}, training={"lr": 0.5}),
        make_run("a", rounds),
    ]
    lr = runs[0].config.training.lr
    (group,) = figures.finished_groups(runs).values()
    assert {label: [run.path.name for run in found] for label, found in group.items()} == {
        f"I2PFL, lr={lr}, lambda_intra=1.0": ["i1", "i1-1"],
        f"I2PFL, lr={lr}": ["i10"],  # ten is the default and needs no word
        "I2PFL, lr=0.5, lambda_intra=1.0": ["i1-lr"],
        "FedAvg": ["a"],
    }


def points(n=12, domains=("east", "west"), classes=("a", "b", "c"), **others):
    rng = torch.Generator().manual_seed(0)
    rows = torch.arange(n)
    return Features(
        torch.randn(n, 5, generator=rng), rows % len(classes), rows % len(domains), rows, domains, classes, **others
    )


def drawn(ax):
    """The number of points of each scatter."""
    return [len(found.get_offsets()) for found in ax.collections]


def test_tsne_is_a_grid_with_one_legend(tmp_path):
    stars = PrototypeSet(torch.rand(3, 5), torch.arange(3))
    small = PrototypeSet(torch.rand(5, 5), torch.tensor([0, 0, 1, 2, 2]))
    grid = {"first": {"FedAvg": points(), "FPL": points(clusters=small)}, "second": {"FPL": points(prototypes=stars)}}
    figure = figures.draw_tsne(grid)
    assert [ax.get_title() for ax in figure.axes] == ["FedAvg", "FPL", "", ""]
    assert [ax.get_ylabel() for ax in figure.axes] == ["first", "", "second", ""]
    assert [drawn(ax) for ax in figure.axes] == [[4, 4, 4], [4, 4, 4, 5], [], [4, 4, 4, 3]]
    assert all(len(ax.get_xticks()) == len(ax.get_yticks()) == 0 for ax in figure.axes)
    assert len(figure.legends) == 1 and legend_of(figure) == ["a", "b", "c", "prototype", "cluster prototype"]
    look = style.point_looks(("a", "b", "c"), "class")
    assert same_colours(figure.axes[3].collections[3], [look[name].colour for name in "abc"])
    for path in style.save(figure, tmp_path / "t"):
        assert path.stat().st_size > 3000


def same_colours(scatter, colours):
    from matplotlib.colors import to_rgba

    return [tuple(colour) for colour in scatter.get_facecolors()] == [to_rgba(colour) for colour in colours]


def test_tsne_by_class_and_domain_is_two_blocks_of_the_same_points():
    figure = figures.draw_tsne({"mini": {"FedAvg": points(), "FPL": points(9)}}, "both")
    assert [drawn(ax) for ax in figure.axes] == [[4, 4, 4], [3, 3, 3], [6, 6], [5, 4]]
    assert [legend_of(figure, index) for index in range(2)] == [["a", "b", "c"], ["east", "west"]]
    both = [
        sorted(tuple(offset) for found in figure.axes[index].collections for offset in found.get_offsets().tolist())
        for index in (0, 2)
    ]
    assert both[0] == both[1]


def test_rows_with_other_classes_have_a_legend_of_their_own():
    figure = figures.draw_tsne({"x": {"FPL": points(6)}, "y": {"FPL": points(6, classes=("dog", "$cat"))}})
    assert [legend_of(figure, index) for index in range(2)] == [["a", "b", "c"], ["dog", r"\$cat"]]
    with pytest.raises(UserError, match="unknown colour 'clas'"):
        figures.draw_tsne({}, "clas")
    with pytest.raises(UserError, match="a t-SNE needs features"):
        figures.draw_tsne({})


def test_the_command_draws_runs(protolith, make_run):
    make_run("runs/a", [{"pen": 10, "photo": 20}, {"pen": 15, "photo": 25}])
    make_run("runs/b", [{"pen": 10, "photo": 20}], method="fpl")
    make_run("runs/c", [], method="fpl", finished=False, seed=1)
    for kind in ("curves", "domains"):
        code, out, err = protolith("figure", "runs", "--kind", kind, "--out", f"{kind}.pdf")
        assert code == 0 and out.split() == [f"{kind}.pdf", f"{kind}.png"]
        assert err == "1 run(s) not finished and left out\n"
    assert protolith("figure", "runs/a", "runs/b", "--domains", "pen", "--out", "pen")[0] == 0


def test_the_command_draws_the_models_of_runs(protolith, tmp_path):
    about = {"model": "resnet10", "width": 2, "size": 32, "classes": [str(digit) for digit in range(10)]}
    for name, files in (("fedavg", ["model"]), ("fedbn", ["models/pen-1", "models/print-1"])):
        config = complete_for(resolve([{"method": name, "model": {"width": 2}}]), load_task("mini"))
        run = RunDirectory.create(tmp_path / "runs" / name, config)
        run.write_summary(summary_of(config))
        for file in files:
            path = run.path / f"{file}.safetensors"
            path.parent.mkdir(exist_ok=True)
            records.write(path, build_model("resnet10", 10, 2, 0).state_dict(), about=about)
    asked = ("figure", "runs", "--kind", "tsne", "--limit", "4", "--out", "t.png", "--domains")
    code, out, _ = protolith(*asked, "pen,photo")
    assert code == 0 and out.split() == ["t.pdf", "t.png"]
    assert (tmp_path / "runs" / "fedbn" / "features" / "print-1-4.safetensors").is_file()
    code, out, err = protolith(*asked, "pencil")
    assert code == 2 and out == "" and "unknown domain 'pencil'. Did you mean 'pen'?" in err
    (tmp_path / "runs" / "fedavg" / "model.safetensors").unlink()
    code, _, err = protolith(*asked, "pen")
    assert code == 2 and "model.safetensors does not exist: features need the model of a finished run" in err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--kind", "curvs"], "unknown kind 'curvs'. Did you mean 'curves'? Allowed: curves, domains, tsne."),
        (["--colour", "red"], "unknown colour 'red'"),
        (["--domains", "moon"], "unknown domain 'moon'. Allowed: pen."),
        (["--kind", "tsne", "--limit", "0"], "--limit"),
    ],
)
def test_the_command_refuses_what_is_wrong(protolith, make_run, tmp_path, given, said):
    make_run("a", [{"pen": 10}])
    code, out, err = protolith("figure", "a", "--out", "f.pdf", *given)
    assert code == 2 and out == "" and said in err and err.count("\n") == 1
    assert not (tmp_path / "f.pdf").exists()


def test_the_command_needs_a_finished_run(protolith, make_run):
    make_run("a", [{"pen": 10}], finished=False)
    code, _, err = protolith("figure", "a", "--out", "f.pdf")
    assert code == 2 and "no run is finished yet: a figure needs at least one" in err
    code, _, err = protolith("figure", "nowhere", "--out", "f.pdf")
    assert code == 2 and "nowhere does not exist" in err


def test_values_that_are_no_numbers_are_left_out(make_run):
    run = make_run("r", [{"a": float("nan")}, {"a": 5.0}])
    assert json.loads((run.path / "metrics.jsonl").read_text().splitlines()[0])["mean"] is None
    assert line_of(figures.draw_curves({"p": {"FedAvg": [run]}}).axes[0]) == [(2, 5)]
