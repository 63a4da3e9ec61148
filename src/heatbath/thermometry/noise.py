"""The gradient noise of a model at fixed weights: how large it is, in which layers, and in which directions.

With ``g_i`` the gradient of sample ``i`` and ``g`` its mean, the covariance ``S1 = <(g_i - g)(g_i - g)^T>`` makes the
noise of SGD. A mini-batch of ``C`` samples and a random multiplier of variance ``s2`` give the noise
``xi = g - alpha g_B`` the covariance

    <xi xi^T> = (1 + s2) S1 / C + s2 g g^T.

Everything here follows from the rows ``y_1 ... y_K`` of a matrix of gradients with covariance ``S1 / C``: those of
single samples (``C = 1``), or of disjoint mini-batches where the single ones are out of reach.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from heatbath.draws import check_integer
from heatbath.laws import Law, parse_law
from heatbath.thermometry.containers import Data, collect, count_samples
from heatbath.thermometry.logs import show_numbers
from heatbath.thermometry.moments import central_moments, participation_ratio, squares, widened
from heatbath.thermometry.per_sample import (
    BatchGradients,
    LossFn,
    Objective,
    SampleGradients,
    activation_bytes,
    as_real,
    check_mean_reduction,
    why_no_sample_gradients,
)

__all__ = ["CovarianceTrace", "GradientNoise", "measure_noise"]

Method = Literal["auto", "exact", "two-batch"]
Direction = Tensor | Sequence[Tensor] | Mapping[str, Tensor]


class CovarianceTrace(NamedTuple):
    """The trace of the covariance of ``xi = g - alpha g_B``, term by term.

    Attributes:
        sampling: ``(1 + s2) tr S1 / C``, the noise of the mini-batch, which shrinks as the batch grows.
        multiplier: ``s2 |g|^2``, the noise of the random rate alone, which does not.
        dropped: ``s2 (1 - 1/C) |g|^2``, the part of ``multiplier`` that the paper's covariance leaves out.
    """

    sampling: float
    multiplier: float
    dropped: float

    @property
    def total(self) -> float:
        """The trace of the whole covariance."""
        return self.sampling + self.multiplier

    @property
    def dropped_fraction(self) -> float:
        """The part of the trace that the paper's covariance leaves out."""
        return self.dropped / self.total if self.total else 0.0


@dataclass(frozen=True, eq=False, repr=False)
class GradientNoise:
    """What `measure_noise` found.

    The data are seen as independent draws from a law; ``g`` and ``S1`` belong to that law, and the estimates of
    ``|g|^2``, ``tr S1`` and each layer's trace are unbiased for it (denominators ``n - 1``). If the data are the whole
    training set and that set is all that counts, ``g`` is the mean over it: its square is
    ``gradient_norm_squared + trace / samples``, and ``S1`` with denominator ``n`` is ``(n - 1) / n`` times this one;
    its effective rank is ``spectrum.sum()**2 / (spectrum**2).sum()`` with all rows in the spectrum. That is far below
    the rank of the law where single samples have directions of their own, as in a network that fits all its images.

    Attributes:
        gradient_norm_squared: ``|y_mean|^2 - tr S1 / n``, unbiased for ``|g|^2``; below zero where ``g`` drowns.
        trace: ``tr S1``.
        trace_error: its standard error by the jackknife over the rows, which errs on the large side; it accounts for
            the draw of the data. NaN for 2 rows. Where few samples carry the trace, draws without them fall short of
            it by more than the error tells.
        layer_traces: the part of ``trace`` in each trainable parameter, by name.
        spectrum: the largest eigenvalues of ``S1``, falling, from the Gram matrix of ``spectrum_rows`` rows; all that
            are not zero by construction. An eigenvalue ``s`` comes out too large by about ``(trace - s) C / K`` for
            ``K`` rows of ``C`` samples, and the small ones too small; `trace` and `effective_rank` have no such bias.
        effective_rank: the participation ratio ``(tr S1)^2 / tr S1^2``, the number of directions that share the noise:
            1 if it is all in one, the number of parameters if it is isotropic. From ``spectrum_rows`` rows, with
            ``tr S1^2`` by pairs of distinct rows, so that it is not bounded by their number; the equations are those of
            `moments.participation_ratio`. Infinite where no two rows overlap; NaN for fewer than 4 rows.
        effective_rank_error: its standard error by the jackknife over these rows; it accounts for the draw of the data.
            NaN for fewer than 5 rows, or where the rank without one of them is not finite. Of laws with a known rank,
            twice the error on either side covers it in 90 to 99 of 100 draws, heavy tails included. These make the
            error large: 512 images of mnist5k give the perceptron's rank to 5 % at the start, but to about 30 % after
            30 epochs, when 20 of 4000 images carry ``tr S1^2``. An estimate as uncertain as that is mostly too large.
        variances: the variance along each direction asked for, see `along`.
        method: "exact" (per-sample gradients) or "two-batch" (gradients of disjoint mini-batches).
        reason: why "auto" did not take the exact method, else empty.
        samples: the number of samples used.
        batch_size: the samples ``C`` in a row: 1 if exact.
        spectrum_rows: the rows in the Gram matrix.
        chunk_size: the rows that were taken at a time.
        dimension: the number of trainable parameters, two for a complex one.
    """

    gradient_norm_squared: float
    trace: float
    trace_error: float
    layer_traces: dict[str, float]
    spectrum: np.ndarray[Any, np.dtype[np.float64]]
    effective_rank: float
    effective_rank_error: float
    variances: dict[str, float]
    method: Literal["exact", "two-batch"]
    reason: str
    samples: int
    batch_size: int
    spectrum_rows: int
    chunk_size: int
    dimension: int

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={value:.4g}" for name, value in self._numbers().items())
        return f"GradientNoise({numbers}, method={self.method!r}, samples={self.samples})"

    def _repr_html_(self) -> str:
        return show_numbers(f"Gradient noise of {self.samples} samples, method {self.method!r}", self._numbers())

    def _numbers(self) -> dict[str, float]:
        names = ("trace", "trace_error", "gradient_norm_squared", "noise_scale", "effective_rank")
        return {name: getattr(self, name) for name in names}

    @property
    def noise_scale(self) -> float:
        """The simple noise scale ``tr S1 / |g|^2``, in samples; infinite where ``|g|^2`` is not above zero."""
        return self.trace / self.gradient_norm_squared if self.gradient_norm_squared > 0.0 else math.inf

    def along(self, direction: str = "gradient") -> float:
        """Return the variance ``u^T S1 u`` of a sample's gradient along the unit vector ``u`` of a direction.

        Args:
            direction: "gradient" for the measured mean gradient, or a name in the ``directions`` of `measure_noise`.
                The gradients themselves are not kept, so that the directions must be known when they are computed.
        """
        if direction not in self.variances:
            raise ValueError(
                f"no direction {direction!r} was measured, only {', '.join(map(repr, self.variances))}: pass it to "
                "measure_noise(..., directions={name: vector})"
            )
        return self.variances[direction]

    def covariance_trace(self, law: Law | str, batch_size: int, dataset_size: int | None = None) -> CovarianceTrace:
        """Return the trace of ``(1 + s2) S1 / C + s2 g g^T``, the noise of SGD with a random rate, term by term.

        Args:
            law: the law of the multiplier, or its name such as ``"uniform:1"``.
            batch_size: ``C``.
            dataset_size: ``N`` if mini-batches are drawn without replacement from ``N`` samples. Then ``S1 / C`` gains
                the factor ``1 - C/N``, which is ``(N - C) / (N - 1)`` for a covariance with denominator ``N``, and
                ``g`` is the mean over these samples: ``|g|^2`` gains ``tr S1 / N``.
        """
        size, samples = check_integer("batch_size", batch_size, least=1), math.inf
        if dataset_size is not None:
            samples = check_integer("dataset_size", dataset_size, least=size)
        s2 = parse_law(law).variance
        squared = self.gradient_norm_squared + self.trace / samples
        sampling = (1.0 + s2) * self.trace * (1.0 / size - 1.0 / samples)
        return CovarianceTrace(sampling, s2 * squared, s2 * (1.0 - 1.0 / size) * squared)


@torch.inference_mode(mode=False)
def measure_noise(
    model: nn.Module,
    loss_fn: LossFn,
    inputs: Data,
    targets: Data = None,
    *,
    batches: int | None = None,
    method: Method = "auto",
    batch_size: int | None = None,
    directions: Mapping[str, Direction] | None = None,
    spectrum_samples: int = 512,
    memory_budget: int = 2**30,
    chunk_size: int | None = None,
    seed: int = 0,
) -> GradientNoise:
    """Measure the covariance of a model's gradient over the given data, at its present weights and in its present mode.

    Method "exact" takes the gradient of each sample by ``torch.func``. Method "two-batch" takes the gradients of ``K``
    disjoint mini-batches of ``C`` samples, by plain backward passes: ``C`` times the variance between them is unbiased
    for ``S1``, at a larger error. It serves where a sample has no gradient of its own: dropout is then part of the
    noise, and with BatchNorm in training mode, or with a loss that couples the samples of a batch (contrastive ones,
    class weights), the result belongs to the ``batch_size`` of the measurement, for which that of the training is the
    choice. "auto" takes the exact method where it exists and fits into memory.

    The model is left as it was: weights, ``.grad``, ``requires_grad``, buffers, mode, and the global random state.

    Args:
        model: any module; parameters that do not require gradients are left out.
        loss_fn: ``loss_fn(outputs, targets)``, the mean over the samples.
        inputs: a tensor; a tuple or list of tensors, for ``model(*inputs)``; or a dict, for ``model(**inputs)``. The
            samples lie along the first dimension. Chunks move to the model's device as they are used. Without targets,
            a loader: an iterable of pairs (inputs, targets), or of mappings, with which the model is called as
            ``model(**batch)`` and the loss as ``loss_fn(outputs, batch)``.
        targets: a tensor, or a tuple, list or dict of tensors, as ``loss_fn`` takes it.
        batches: how many batches of a loader are used, all if None; the samples of these are held in memory.
        method: "auto", "exact" or "two-batch".
        batch_size: ``C`` of method "two-batch"; None makes about 32 batches, fewer if they had less than 8 samples.
        directions: vectors to project the noise on, by name: flat, or tensors in the order of the trainable parameters,
            or a dict by parameter name in which those left out are zero. They are scaled to length 1.
        spectrum_samples: at most so many rows, drawn at random, enter the spectrum and the effective rank, whose error
            falls as their number grows; the time for them grows with its square. Beyond what fits into memory at once
            they are computed again: if half the budget holds ``H`` of ``K`` rows, each one ``K / (2 H)`` times. For a
            large network take fewer, or a larger budget.
        memory_budget: bytes for gradients and the activations of a chunk, from which the chunk size follows; the
            temporary memory of the kernels comes on top.
        chunk_size: samples at a time in method "exact", in place of what the budget gives; no result depends on it.
        seed: for the order of the samples and for dropout.

    Raises:
        ValueError: the data, the loss or the model do not allow the measurement; the message says what to do.
    """
    if method not in ("auto", "exact", "two-batch"):
        raise ValueError(f"method must be 'auto', 'exact' or 'two-batch', got {method!r}")
    objective = Objective(model, loss_fn)
    if targets is None:
        inputs, targets = collect(inputs, None if batches is None else check_integer("batches", batches, least=1))
    elif batches is not None:
        raise ValueError("batches goes with a loader: leave it out if inputs and targets are given")
    samples = count_samples(inputs, targets)
    budget, limit = (
        check_integer("memory_budget", memory_budget, least=1),
        check_integer("spectrum_samples", spectrum_samples, least=2),
    )
    if batch_size is None:
        batch_size = samples // min(32, max(4, samples // 8), samples)
    size = check_integer("batch_size", batch_size, least=1)
    if not isinstance(directions, Mapping | None):
        raise TypeError(f"directions must be a dict of vectors by name, got {type(directions).__name__}")
    units = {name: _unit_vector(name, d, objective.parameters) for name, d in (directions or {}).items()}
    if "gradient" in units:
        raise ValueError("direction 'gradient' is always measured, as that of the mean gradient: choose another name")
    check_mean_reduction(objective, inputs, targets, seed)

    held = budget // (2 * objective.row_bytes)
    chunk, reason = 1, None
    if method != "two-batch":
        chunk, reason = _plan_exact(objective, inputs, targets, budget, chunk_size, seed)
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
    if method != "two-batch" and not reason:
        rows = SampleGradients(objective, inputs, targets, order, min(chunk, samples))
        noise = _measure_rows(rows, objective, units, limit, held)
        reason = rows.why_not()
        if not reason:
            return noise
    if reason and method == "exact":
        raise ValueError(f"{reason}; use method='two-batch'")
    if samples < 2 * size:
        raise ValueError(f"batch_size={size} leaves less than 2 batches of {samples} samples: lower it or add data")
    held //= 2  # the gradients are held as well as their deviations
    means = BatchGradients(objective, inputs, targets, order, size, seed, held)
    return _measure_rows(means, objective, units, limit, held, reason or "")


def _measure_rows(
    rows: SampleGradients | BatchGradients,
    objective: Objective,
    units: dict[str, list[Tensor]],
    limit: int,
    held: int,
    reason: str = "",
) -> GradientNoise:
    names = list(objective.parameters)
    mean = rows.mean()
    if bad := [name for name, g in zip(names, mean, strict=True) if not bool(torch.isfinite(g).all())]:
        raise ValueError(f"the gradient is not finite (NaN or infinite) in {', '.join(bad)}: check weights and data")
    length = math.sqrt(sum(squares(g.reshape(1, -1)).item() for g in mean))
    if length > 0.0:
        units = {**units, "gradient": [g.flatten() / length for g in mean]}
    moments = central_moments(rows, mean, units, min(limit, rows.count), held)
    count, size = rows.count, rows.size
    layers = size * moments.norms.sum(axis=0) / (count - 1)
    trace = float(layers.sum())
    # The jackknife's replicates are linear in |d_k|^2: leaving row k out gives (sum - K/(K-1) |d_k|^2) / (K-2).
    spread = float(np.var(moments.norms.sum(axis=1))) * count
    error = size * math.sqrt(count / (count - 1) * spread) / (count - 2) if count > 2 else math.nan
    gram = moments.gram - moments.gram.mean(axis=0)
    gram -= gram.mean(axis=1, keepdims=True)
    rank, rank_error = participation_ratio(gram)
    gram *= size / (len(gram) - 1)
    spectrum = np.linalg.eigvalsh(gram)[::-1][: min(len(gram) - 1, objective.dimension)].clip(min=0.0)
    spectrum.flags.writeable = False
    variances = size * moments.projections.var(axis=0, ddof=1)
    found = {name: float(variance) for name, variance in zip(units, variances, strict=True)}
    return GradientNoise(
        gradient_norm_squared=length**2 - trace / (count * size),
        trace=trace,
        trace_error=error,
        layer_traces={name: float(part) for name, part in zip(names, layers, strict=True)},
        spectrum=spectrum,
        effective_rank=rank,
        effective_rank_error=rank_error,
        variances={"gradient": math.nan, **found},
        method="exact" if isinstance(rows, SampleGradients) else "two-batch",
        reason=reason,
        samples=count * size,
        batch_size=size,
        spectrum_rows=len(gram),
        chunk_size=rows.chunk,
        dimension=objective.dimension,
    )


def _plan_exact(
    objective: Objective, inputs: Data, targets: Data, budget: int, chunk_size: int | None, seed: int
) -> tuple[int, str | None]:
    """The samples to take at a time, and why per-sample gradients cannot be had, if so."""
    too_large = "one sample's gradient and activations need a memory_budget of at least {} bytes, it is {}"
    # Half of the budget is for rows that are held, half for a chunk: its rows, deviations, squares and activations.
    least = 6 * objective.row_bytes
    if chunk_size is None and least > budget:
        return 1, too_large.format(least, budget)
    if reason := why_no_sample_gradients(objective, inputs, targets, seed):
        return 1, reason
    if chunk_size is not None:
        return check_integer("chunk_size", chunk_size, least=1), None
    least += 2 * activation_bytes(objective, inputs, targets)
    return (budget // least, None) if least <= budget else (1, too_large.format(least, budget))


def _unit_vector(name: str, direction: Direction, parameters: dict[str, Tensor]) -> list[Tensor]:
    """The direction in parts like the parameters, flat, with length 1."""
    if isinstance(direction, Tensor):
        expected = sum(p.numel() for p in parameters.values())
        if direction.shape != (expected,):
            raise ValueError(
                f"direction {name!r} must be flat with {expected} components, got shape {tuple(direction.shape)}"
            )
        parts = list(direction.split([p.numel() for p in parameters.values()]))
    elif isinstance(direction, Mapping):
        if unknown := set(direction) - set(parameters):
            raise ValueError(
                f"direction {name!r} names something that is not a trainable parameter: {', '.join(sorted(unknown))}"
            )
        parts = [direction.get(key, torch.zeros_like(p)) for key, p in parameters.items()]
    else:
        parts = list(direction)
    if not all(isinstance(part, Tensor) for part in parts):
        raise TypeError(f"direction {name!r} must be made of tensors, got {type(direction).__name__} of others")
    parts = [as_real(part) for part in parts]
    shapes = [(p.shape, p.flatten().shape) for p in parameters.values()]
    if len(parts) != len(shapes) or any(d.shape not in fits for d, fits in zip(parts, shapes, strict=True)):
        raise ValueError(f"direction {name!r} must have one tensor for each trainable parameter, of its shape")
    parts = [d.detach().to(widened(p)).flatten() for d, p in zip(parts, parameters.values(), strict=True)]
    length = math.sqrt(sum(squares(d[None]).item() for d in parts))
    if not 0.0 < length < math.inf:
        raise ValueError(f"direction {name!r} must have a finite length above 0, got {length}")
    return [d / length for d in parts]
