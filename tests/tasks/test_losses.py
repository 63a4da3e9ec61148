"""Losses and metrics: those of torch, exact over any cut of the data, per token, with ignored targets."""

import math

import pytest
import torch
from torch.nn import functional

from heatbath.tasks.losses import LOSSES, METRICS, class_scores, read_loss, read_metrics

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(12, 5, generator=GENERATOR)
LABELS = torch.randint(0, 5, (12,), generator=GENERATOR)
TOKEN_LOGITS = torch.randn(6, 7, 11, generator=GENERATOR)
CLASSES_SECOND = TOKEN_LOGITS.movedim(2, 1)
TOKENS = torch.randint(0, 11, (6, 7), generator=GENERATOR)
TOKENS[0, 3:] = -100
REALS, OTHERS = torch.randn(12, 2, generator=GENERATOR), torch.randn(12, 2, generator=GENERATOR)


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "expected"),
    [
        ("cross_entropy", LOGITS, LABELS, functional.cross_entropy(LOGITS, LABELS)),
        ("cross_entropy", TOKEN_LOGITS, TOKENS, functional.cross_entropy(TOKEN_LOGITS.flatten(0, 1), TOKENS.flatten())),
        (
            "cross_entropy",
            TOKEN_LOGITS.movedim(2, 1),
            TOKENS,
            functional.cross_entropy(TOKEN_LOGITS.movedim(2, 1), TOKENS),
        ),
        ("mse", REALS, OTHERS, functional.mse_loss(REALS, OTHERS)),
        ("mae", REALS, OTHERS, functional.l1_loss(REALS, OTHERS)),
        ("mse", REALS[:, :1], OTHERS[:, 0], functional.mse_loss(REALS[:, 0], OTHERS[:, 0])),
        (
            "binary_cross_entropy",
            REALS,
            (OTHERS > 0).long(),
            functional.binary_cross_entropy_with_logits(REALS, (OTHERS > 0).float()),
        ),
    ],
    ids=range(7),
)
def test_losses_are_torchs_and_add_up(name, outputs, targets, expected):
    loss = read_loss(name)
    torch.testing.assert_close(loss.mean(outputs, targets), expected)
    pairs = [loss.sums(outputs[a:b], targets[a:b]) for a, b in ((0, 1), (1, 5), (5, 12))]
    total, count = (sum(parts) for parts in zip(*pairs, strict=True))
    assert float(total / count) == pytest.approx(float(expected), rel=1e-6)


def test_metrics_are_their_definitions():
    def value(name, outputs, targets):
        total, count = METRICS[name].sums(outputs, targets)
        return METRICS[name].finish(float(total / count))

    assert value("accuracy", LOGITS, LABELS) == pytest.approx(float((LOGITS.argmax(1) == LABELS).double().mean()))
    hits = (TOKEN_LOGITS.argmax(2) == TOKENS)[TOKENS != -100]
    assert value("accuracy", TOKEN_LOGITS, TOKENS) == pytest.approx(float(hits.double().mean()))
    assert value("top5_accuracy", LOGITS, LABELS) == 1.0
    assert 0 < value("top5_accuracy", TOKEN_LOGITS, TOKENS) < 1
    assert value("rmse", REALS, OTHERS) == pytest.approx(math.sqrt(float(functional.mse_loss(REALS, OTHERS))))
    assert value("binary_accuracy", REALS, OTHERS > 0) == pytest.approx(
        float(((REALS > 0) == (OTHERS > 0)).double().mean())
    )
    loss = float(functional.cross_entropy(LOGITS, LABELS))
    assert value("perplexity", LOGITS, LABELS) == pytest.approx(math.exp(loss))


def test_functions_return_a_mean_or_a_number_for_each_sample():
    def margin(outputs, targets):
        return outputs.gather(1, targets[:, None])[:, 0]

    def mean_margin(outputs, targets):
        return margin(outputs, targets).mean().item()

    each, whole = read_metrics((margin, mean_margin))
    assert [each.name, whole.name] == ["margin", "mean_margin"]
    assert float(each.sums(LOGITS, LABELS)[0]) == pytest.approx(float(whole.sums(LOGITS, LABELS)[0]), rel=1e-6)
    wrong = read_metrics(lambda_named("wrong", lambda outputs, targets: outputs[:3, 0]))[0]
    with pytest.raises(ValueError, match=r"metric wrong returns a tensor of shape \(3,\): .* each of the 12 samples"):
        wrong.sums(LOGITS, LABELS)


def lambda_named(name, function):
    function.__name__ = name
    return function


@pytest.mark.parametrize(
    ("read", "given", "error", "message"),
    [
        (read_loss, "crossentropy", ValueError, "unknown loss 'crossentropy': choose one of cross_entropy, "),
        (read_loss, 3, TypeError, "loss must be a name or a function"),
        (read_metrics, ("accuracy", "f1"), ValueError, "unknown metric 'f1': choose one of accuracy, "),
        (read_metrics, 3, TypeError, "metrics must be names and functions, got 3"),
        (read_metrics, (lambda outputs, targets: 1,), TypeError, "a function with a name of its own"),
        (read_metrics, ("mse", "mse"), ValueError, "two metrics are called 'mse'"),
    ],
)
def test_what_is_no_measure_is_refused(read, given, error, message):
    with pytest.raises(error, match=message):
        read(given)


def test_shapes_that_do_not_fit_are_told():
    with pytest.raises(
        ValueError, match=r"outputs of shape \(12, 5\) are not class scores for targets of shape \(6,\)"
    ):
        class_scores(LOGITS, LABELS[:6])
    with pytest.raises(ValueError, match=r"outputs have shape \(12, 2\), targets \(12,\)"):
        LOSSES["mse"](REALS, OTHERS[:, 0])
