"""The measuring sticks themselves: the plain loop is the same FedAvg, operations are counted right."""

import dataclasses

import pytest
import torch

from benchmarks.speed import parts
from benchmarks.speed.measure import Timing, in_process, interleaved, matmul_gflops, training_operations
from benchmarks.speed.plain_loop import Images, PlainLoop, stored_files
from benchmarks.speed.run import compare, describe, run_bench
from benchmarks.speed.slow_losses import SlowFPL, SlowMOON
from protolith.data.domain import Split
from protolith.data.tasks import load_task
from protolith.engines.in_process import InProcessEngine
from protolith.errors import UserError
from protolith.federation.coordinator import Coordinator
from protolith.federation.local_update import Workplace, local_update
from protolith.federation.rounds import run_round
from protolith.methods.base import Batch, Output
from protolith.methods.registry import get_method
from protolith.models import build_model
from protolith.records import with_prefix
from protolith.runs.config import complete_for, resolve


def test_the_plain_loop_is_the_same_fedavg(tmp_path):
    """With one batch an epoch and no augmentation the order of the images does not matter, and all must agree.

    Up to rounding: in channels-last memory BatchNorm sums in float32, which flat images feel more than photographs.
    """
    config = resolve(
        [
            {
                "task": "mini", "rounds": 2, "workers": 0, "model": {"width": 4},
                "training": {"epochs": 1, "batch": 64, "crop": 0, "flip": False},
                "protocol": {"clients": {"photo": 1, "street": 2}, "samples": {"photo": 40, "street": 20}},
            }
        ]
    )  # fmt: skip
    task = load_task("mini")
    config = complete_for(config, task)
    loop = PlainLoop(config, task)
    workplace = Workplace(config, task)
    server = workplace.method.server(workplace.params, workplace.initial, workplace.roster)
    coordinator = Coordinator(config, workplace.allocation, server, InProcessEngine(workplace), tmp_path)
    for _ in range(2):
        plain, ours = loop.round(), run_round(coordinator)
        for name, tensor in loop.model.state_dict().items():
            torch.testing.assert_close(server.weights[name], tensor, rtol=1e-3, atol=1e-4)
        assert ours["accuracy"] == pytest.approx(plain, abs=1.0)


def test_the_stored_files_are_the_tasks_images(shared_data):
    task = load_task("office10", data=shared_data)
    config = complete_for(resolve([{"task": "office10", "data": str(shared_data), "model": {"width": 2}}]), task)
    files = stored_files(task, str(shared_data))
    for domain in task.domains:
        images = torch.cat([domain.train.images, domain.test.images])
        assert len(images) == len(files[domain.name])
        read = Images(Split(images, torch.zeros(len(images), dtype=torch.int64)), False, 0, False, files[domain.name])
        for row in (0, 1, len(domain.train), len(images) - 1):
            assert torch.equal(read.pixels(row), images[row])
    loop, plain = PlainLoop(config, task, files), PlainLoop(config, task)
    for with_files, without in zip(loop.tests.values(), plain.tests.values(), strict=True):
        assert torch.equal(with_files.dataset[3][0], without.dataset[3][0])


def test_operations_of_the_papers_network():
    # 0.253 · 10⁹ products forward at width 64 and 32 × 32 pixels; three times that, but no gradient for the image.
    stem = 64 * 3 * 9 * 32 * 32
    found = training_operations(build_model("resnet10", 10, 64, 0), 32)
    assert (found / 2 + stem) / 3 == pytest.approx(0.253e9, rel=0.005)


def test_the_slow_losses_are_fpls():
    rng = torch.Generator().manual_seed(0)
    config = resolve([{"method": "fpl", "task": "mini", "model": {"width": 2}, "protocol": {"samples": 8}}])
    task = load_task("mini")
    context = parts.context(Workplace(complete_for(config, task), task), parts.some_clusters(10, 16))
    batch = Batch(torch.zeros(6, 3, 8, 8), torch.tensor([0, 3, 3, 9, 1, 0]), 0, torch.arange(6))
    out = Output(torch.randn(6, 16, generator=rng), torch.randn(6, 10, generator=rng))
    ours, slow = (kind(context).loss(batch, out) for kind in (get_method("fpl").client, SlowFPL))
    assert ours.keys() == slow.keys() == {"ce", "cpcl", "upcr"}
    for name, value in ours.items():
        torch.testing.assert_close(value, slow[name], rtol=1e-4, atol=1e-5)


def test_the_slow_pass_is_moons():
    config = resolve([{"method": "moon", "task": "mini", "model": {"width": 2}, "protocol": {"samples": 8}}])
    task = load_task("mini")
    workplace = Workplace(complete_for(config, task), task)
    other = {name: tensor * 1.5 for name, tensor in workplace.initial.items()}
    given = dataclasses.replace(parts.context(workplace, {}), memory=with_prefix("previous", other))
    uploads = []
    for kind in (workplace.method.client, SlowMOON):
        given.rng.manual_seed(0)
        uploads.append(local_update(kind, given)[0])
    assert uploads[0].metrics["con"] > 0
    for name, tensor in uploads[0].weights.items():
        assert torch.equal(tensor, uploads[1].weights[name])


def test_measurements_take_turns_and_give_medians():
    order = []
    values = {"a": iter([3.0, 1.0, 2.0]), "b": iter([6.0, 5.0, 4.0])}

    def take(name):
        order.append(name)
        return next(values[name])

    found = interleaved({name: lambda name=name: take(name) for name in values}, 3)
    assert order == ["a", "b"] * 3 and found == {"a": Timing(2.0, 1.0, 3.0), "b": Timing(5.0, 4.0, 6.0)}
    faster = parts.ratio("x", found["a"], found["b"])
    assert (faster["value"], faster["low"], faster["high"]) == (2.5, 4 / 3, 6.0)
    assert matmul_gflops(128, 2) > 0


def test_what_got_worse_is_named_and_seconds_are_not_compared():
    def lines(faster, memory, spent):
        return {
            "lines": [
                {"what": "times faster", "value": faster, "unit": "×", "at_least": 2.0},
                {"what": "memory", "value": memory, "unit": "×", "at_most": 1.2},
                {"what": "a round", "value": spent, "unit": "s"},
            ]
        }

    assert compare(lines(2.9, 1.05, 9.0), lines(3.0, 1.0, 1.0)) == []
    assert compare(lines(2.0, 1.3, 1.0), lines(3.0, 1.0, 1.0)) == [
        "worse: times faster: 2 after 3",
        "worse: memory: 1.3 after 1",
    ]
    text = describe({"what": "w", "value": 1.0, "low": 1.0, "high": 1.0, "unit": "×", "at_least": 2.0})
    assert text.endswith("aim ≥ 2: MISSED")


def test_a_small_part_runs_and_an_unknown_one_is_refused(monkeypatch):
    monkeypatch.setattr("benchmarks.speed.run.QUICK", dataclasses.replace(parts.QUICK, points=(20,)))
    said = []
    kept = []
    found = run_bench(True, "", ["server"], said.append, lambda so_far: kept.append(len(so_far["lines"])))
    assert kept == [3]
    assert [line["what"] for line in found["lines"]] == [
        "FINCH, 20 × 512", "FINCH, 20 × 512: memory", "reweighting, 20 × 10 × 512",
    ]  # fmt: skip
    assert len(said) == 3 and found["machine"]["cores"] >= 1
    with pytest.raises(UserError, match="unknown part 'sever'"):
        run_bench(True, "", ["sever"], said.append, kept.append)


def test_a_measurement_in_a_fresh_process_finds_this_package_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert in_process("parts:one_batch")["seconds"] > 0


def test_the_old_command_says_where_it_is_now(protolith):
    code, out, error = protolith("bench", "--quick", "--data", "x")
    assert (code, out) == (2, "") and "make bench" in error
    assert "bench" not in protolith("--help")[1]
