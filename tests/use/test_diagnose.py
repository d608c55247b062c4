import sys

import pytest
import torch
from site_helpers import SMALL

import protolith as pl
from protolith.cli.main import main
from protolith.data.tasks import load_task
from protolith.errors import UserError
from protolith.use.diagnose import _groups, confusion, diagnose
from protolith.use.familiarity import familiarity_of
from protolith.use.trained import open_trained


def test_a_diagnosis_is_true_to_the_run(run):
    found = diagnose(run)
    task = load_task(run.config.task)
    assert {site.site: site.accuracy for site in found.sites} == pytest.approx(run.rounds[-1].accuracy)
    assert [site.accuracy for site in found.sites] == sorted(site.accuracy for site in found.sites)
    for site in found.sites:
        domain = task.by_name[site.site]
        assert (site.tested, site.trained) == (len(domain.test), len(domain.train))
        wrong = round((100 - site.accuracy) / 100 * site.tested)
        assert sum(c.count for c in site.confusions) == wrong  # two classes: all of them are named
        assert all(f"{c.count} of {c.of} images of '{c.true}'" in " ".join(site.reasons) for c in site.confusions)
    assert found.distances.keys() == {"beam", "post"} and len(found.distances["beam"]) == 3
    assert "what a new site could expect is not known" in found.text()
    assert sorted(name for group in found.alike_by_colours for name in group) == ["east", "north", "west"]


def test_distances_by_a_plain_loop(run):
    found, known = diagnose(run), familiarity_of(open_trained(run))
    precision = known.whitening @ known.whitening.T
    a, b = (known.prototypes[place, 0].double() for place in (0, 2))
    expected = float(torch.sqrt((a - b) @ precision @ (a - b) / len(a)))
    assert found.distances["beam"]["east – west"] == pytest.approx(expected, rel=1e-6)


def test_confusion_counts():
    labels, predicted = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 1, 1, 0, 0, 2])
    assert confusion(labels, predicted, 3).tolist() == [[1, 1, 0], [0, 1, 0], [2, 0, 1]]


def test_groups_are_finchs():
    points = torch.tensor([[1.0, 0.1], [1.0, 0.0], [-1.0, 0.2], [-1.0, 0.1]])
    assert _groups(points, "abcd") == (("a", "b"), ("c", "d"))
    assert _groups(points[:2], "ab") == ()


def test_what_a_new_site_could_expect(run, tmp_path, monkeypatch, capsys):
    left_out = []
    for site in ("east", "west"):
        protocol = {"name": "unseen", "unseen": site}
        left_out.append(
            pl.fit(task=run.config.task, protocol=protocol, rounds=1, out=tmp_path / "unseen" / site, **SMALL)
        )
    found = run.diagnose(left_out)
    wanted = {site: lone.summary.accuracy[site] for site, lone in zip(("east", "west"), left_out, strict=True)}
    assert found.expectation.accuracy == pytest.approx(wanted)
    assert found.expectation.mean == pytest.approx(sum(wanted.values()) / 2)
    assert found.expectation.differs == ("rounds",)
    monkeypatch.setattr(sys, "argv", ["protolith", "diagnose", str(run.path), "--unseen", str(tmp_path / "unseen")])
    with pytest.raises(SystemExit) as left:
        main()
    out = capsys.readouterr().out
    assert left.value.code == 0 and "a new site could expect about" in out and "differ from this one in rounds" in out
    with pytest.raises(UserError, match="its protocol is 'sites', not 'unseen'"):
        run.diagnose([run])


def test_the_same_from_python(run, tmp_path):
    assert run.predictor().classes == ("beam", "post")
    assert run.export("safetensors", tmp_path / "m.safetensors").files[-1].name == "MODEL_CARD.md"
