import subprocess
import sys

import pytest
import torch

import protolith as pl

PLUGIN = """
from protolith.models import ResNet, register_model

@register_model("tests_own")
def build(classes, width):
    return ResNet((1, 1, 1, 1), classes, width)
"""


def test_fit_resume_and_load(tiny, tmp_path):
    run = pl.fit(method="fedprox", out=tmp_path / "run", params={"mu": 0.1}, **tiny)
    assert run.config.params == {"mu": 0.1} and len(run.rounds) == 3
    assert "FedProx" in run.table() and "FedProx" in run.table("latex")
    assert 0 <= run.summary.mean <= 100
    logits = run.model()(torch.zeros(2, 3, 32, 32))
    assert logits.shape == (2, 10) and not run.model().training
    assert run.report() == run.path / "report.html" and "FedProx" in run.report().read_text()
    assert pl.load(run.path).summary == pl.resume(run.path).summary == run.summary


def test_the_saved_model_has_the_accuracy_that_was_reported(tiny, tmp_path):
    run = pl.fit(out=tmp_path / "run", **tiny)
    task, model = pl.load_task("mini"), run.model()
    from protolith.data.augment import to_input

    for domain in task.domains:
        with torch.inference_mode():
            predicted = model(to_input(domain.test.images, torch.device("cpu"))).argmax(1)
        accuracy = 100 * float((predicted == domain.test.labels).float().mean())
        assert accuracy == pytest.approx(run.rounds[-1].accuracy[domain.name], abs=0.4)


def test_solo_has_no_global_model(tiny, tmp_path):
    run = pl.fit(method="solo", out=tmp_path / "run", **{**tiny, "rounds": 1})
    with pytest.raises(pl.UserError, match="no global model"):
        run.model()
    assert sorted(file.stem for file in (run.path / "models").iterdir()) == ["pen-1", "pen-2", "photo-1", "print-1"]


def test_the_model_of_a_run_with_plugins_opens_in_a_new_process(tiny, tmp_path):
    plugin = tmp_path / "own_network.py"
    plugin.write_text(PLUGIN)
    given = {**tiny, "rounds": 1, "plugins": [str(plugin)], "model": {"name": "tests_own", "width": 4}}
    run = pl.fit(out=tmp_path / "run", **given)
    code = f"import protolith as pl; print(type(pl.load(r'{run.path}').model()).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "ResNet\n", done.stderr


def test_there_is_nothing_else():
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        _ = pl.fitt
    assert all(getattr(pl, name) for name in pl.__all__)


def test_a_preset_gives_what_is_not_typed(tmp_path, tiny):
    run = pl.fit(config="demo", out=tmp_path / "run", **{**tiny, "rounds": 1})
    training = run.config.training
    assert (run.config.size, training.lr, training.schedule) == (20, 0.1, "cosine")  # the preset's
    assert (run.config.rounds, training.epochs, training.batch) == (1, 1, 16)  # what was typed
    with pytest.raises(pl.UserError, match="demo"):
        pl.fit(config="demoo", out=tmp_path / "other")
