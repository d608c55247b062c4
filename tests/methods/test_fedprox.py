"""FedProx's proximal term."""

import pytest
import torch
from baseline_helpers import QUICK, Federation, batch_of, context, random_weights, split, tiny

from protolith.methods.registry import get_method
from protolith.records import clone


@pytest.mark.parametrize("mu", [0.0, 0.01, 3.0])
def test_the_objective(mu):
    model = tiny(dtype=torch.float64)
    client = get_method("fedprox").client(context("fedprox", model=model, params={"mu": mu}))
    client.start()
    anchor = clone(model.state_dict())
    with torch.no_grad():
        for parameter, new in zip(
            model.parameters(), random_weights(dict(model.named_parameters()), 5).values(), strict=True
        ):
            parameter.copy_(new)
    batch = batch_of(split(9))
    out = client.forward(batch)
    terms = client.loss(batch, out)
    squares = 0.0
    for name, parameter in model.named_parameters():
        for a, b in zip(parameter.flatten().tolist(), anchor[name].flatten().tolist(), strict=True):
            squares += (a - b) ** 2
    assert terms["prox"].item() == pytest.approx(mu / 2 * squares, rel=1e-12)
    ce = -sum(torch.log_softmax(out.logits, 1)[i, y].item() for i, y in enumerate(batch.labels.tolist())) / 9
    assert terms["ce"].item() == pytest.approx(ce, rel=1e-12)
    assert set(terms) == {"ce", "prox"}


def test_the_term_is_zero_where_the_round_begins():
    client = get_method("fedprox").client(context("fedprox"))
    client.start()
    batch = batch_of(split(9), torch.float32)
    assert client.loss(batch, client.forward(batch))["prox"].item() == 0.0


def moved(method, training=QUICK, **options):
    federation = Federation(method, [split(20)], training=training, **options)
    start = clone(dict(federation.model.named_parameters()))
    (upload,) = federation.step()
    return sum(float((upload.weights[name] - t).square().sum()) for name, t in start.items()) ** 0.5


def test_a_large_mu_stays_at_the_global_model():
    training = QUICK.model_copy(update={"epochs": 20, "lr": 0.001, "weight_decay": 0.0})
    free, held = moved("fedavg", training), moved("fedprox", training, mu=500.0)
    assert held < 0.02 * free


def test_without_mu_it_is_fedavg():
    assert moved("fedprox", mu=0.0) == moved("fedavg")
