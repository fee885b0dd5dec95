"""The parametric law of Hoffmann et al. 2022 (section 3.3): L(N, D) = E + A / N^alpha + B / D^beta.

The constants minimise the sum over cells of the Huber loss (delta 1e-3) of the difference between
the logarithms of the law and of the measured loss. Besiroglu et al. 2024 could not reproduce the
published constants: the mean over cells, instead of the sum, made gradients so small that L-BFGS
ended before the minimum; the published digits were too few to compute with; and the intervals were
so narrow that 600,000 trainings would have been needed. Here the sum is minimised to the end from
many starts, and intervals come from resampled cells. The five variables are few enough for BFGS
itself; the routine of SciPy for L-BFGS calls threaded BLAS, which stalls on a busy machine.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from t2t_jax.errors import UserError
from t2t_jax.sweep.scaling.cells import Observations
from t2t_jax.sweep.scaling.frontier import CostLine, Draws, Frontier

FEWEST_CELLS = 8
"""The fewest cells that a law is fitted to: it has 5 constants."""
_DELTAS = 1.0, 3e-2, 1e-3
"""The deltas of the Huber loss in the order in which it is minimised. With the last one alone the
loss has so many kinks that a descent from afar ends in one."""
_EXPONENTS = np.geomspace(0.03, 2.0, 14)
"""The exponents of the starts, of which every pair is considered."""
_LARGEST = np.log(5.0)  # of the logarithms of exponents, which noise may drive without end
_STARTS = 12  # the best of the pairs, from which the loss is minimised
_DRAWS = 300
_TRIES = 100


class Law(NamedTuple):
    """The constants of the law, with draws as `frontier` describes them."""

    e: Draws
    """E, the loss in nats that no size and no number of tokens goes below."""
    a: Draws
    """A, the factor of the term of the size."""
    alpha: Draws
    """The exponent of N."""
    b: Draws
    """B, the factor of the term of the tokens."""
    beta: Draws
    """The exponent of D."""

    def loss(self, log_n: float, log_d: float) -> Draws:
        """Return the loss that the law has for a size and a number of tokens."""
        return self.e + self.a * np.exp(-self.alpha * log_n) + self.b * np.exp(-self.beta * log_d)

    def frontier(self, cost: CostLine) -> Frontier:
        """Return the best sizes by operations, where the law has its minimum along C = k N^gamma D.

        With k = 6 and gamma = 1 it is equation 4 of Hoffmann et al. 2022.
        """
        together = self.alpha + cost.gamma * self.beta
        with np.errstate(divide="ignore"):  # where a draw has no term of the tokens
            at_one = np.log(self.alpha * self.a / (cost.gamma * self.beta * self.b))
        log_n0 = (at_one - self.beta * cost.log_k) / together
        return Frontier(self.beta / together, log_n0, cost)


def fit_law(seen: Observations, *, draws: int = _DRAWS, seed: int = 0) -> Law:
    """Fit the law to cells, and to as many cells drawn from them with replacement.

    Raises:
      UserError: there are too few cells, sizes or numbers of tokens, or the losses are all equal.
    """
    _check(seen)
    best = _fitted(seen, np.ones(len(seen.loss)))
    random = np.random.default_rng(seed)
    found = [best]
    for _ in range(draws):
        found.append(_fitted(seen, _drawn(seen, random), best))
    a, log_alpha, b, log_beta, e = np.array(found).T
    alpha, beta = np.exp(np.minimum([log_alpha, log_beta], _LARGEST))
    # The variables are those of sizes and tokens around their means.
    a, b = a + alpha * seen.log_n.mean(), b + beta * seen.log_d.mean()
    return Law(np.exp(e), np.exp(a), alpha, np.exp(b), beta)


def _check(seen: Observations) -> None:
    cells, sizes, tokens = len(seen.loss), len(_distinct(seen.log_n)), len(_distinct(seen.log_d))
    if cells < FEWEST_CELLS or sizes < 3 or tokens < 3:
        raise UserError(
            f"{cells} cell(s) of {sizes} size(s) and {tokens} number(s) of tokens are too few for "
            f"a law with 5 constants, which needs {FEWEST_CELLS} cells, 3 sizes and 3 numbers of "
            "tokens; train more cells, as configs/isoflop_small.py has them"
        )
    if np.ptp(seen.loss) == 0:
        raise UserError(f"all losses are {seen.loss[0]:.4f}; there is nothing to fit")


def _distinct(logs: Float[np.ndarray, " cells"]) -> Float[np.ndarray, " values"]:
    """Return the values that differ by more than a thousandth."""
    return np.unique(np.round(logs, 3))


def _drawn(seen: Observations, random: np.random.Generator) -> Float[np.ndarray, " cells"]:
    """Return how often each cell is drawn, with enough sizes and tokens among those drawn."""
    cells = len(seen.loss)
    for _ in range(_TRIES):
        counts = np.bincount(random.integers(cells, size=cells), minlength=cells)
        there = counts > 0
        kinds = [len(_distinct(logs[there])) for logs in (seen.log_n, seen.log_d)]
        if there.sum() >= 5 and min(kinds) >= 3:
            break
    return counts.astype(float)


def _fitted(
    seen: Observations,
    counts: Float[np.ndarray, " cells"],
    start: Float[np.ndarray, "5"] | None = None,
) -> Float[np.ndarray, "5"]:
    """Return the logarithms of A, alpha, B, beta and E for sizes and tokens around their means.

    Args:
      counts: how often each cell counts.
      start: where the descent begins, if it is near the end; None is for many starts.
    """
    from scipy.optimize import minimize  # slow to import

    x, y = seen.log_n - seen.log_n.mean(), seen.log_d - seen.log_d.mean()
    data = x, y, np.log(seen.loss), counts
    starts = _starts(x, y, seen.loss) if start is None else [start]
    ends = []
    for point in starts:
        for delta in _DELTAS if start is None else _DELTAS[1:]:
            point = minimize(
                _objective,
                point,
                (*data, delta),
                method="BFGS",
                jac=True,
                options={"maxiter": 1000, "gtol": 1e-7},
            ).x
        ends.append((_objective(point, *data, _DELTAS[-1])[0], point))
    return min(ends, key=lambda end: end[0])[1]


def _objective(
    point: Float[np.ndarray, "5"],
    x: Float[np.ndarray, " cells"],
    y: Float[np.ndarray, " cells"],
    log_loss: Float[np.ndarray, " cells"],
    counts: Float[np.ndarray, " cells"],
    delta: float,
) -> tuple[float, Float[np.ndarray, "5"]]:
    """Return the sum of Huber losses over cells, in units of delta, and its derivative."""
    a, log_alpha, b, log_beta, e = point
    alpha, beta = np.exp(np.minimum([log_alpha, log_beta], _LARGEST))
    terms = np.array([a - alpha * x, b - beta * y, np.full_like(x, e)])
    law = np.logaddexp.reduce(terms)
    shares = np.exp(terms - law)
    off = law - log_loss
    slope = np.clip(off / delta, -1, 1) * counts
    value = counts @ np.where(np.abs(off) < delta, off**2 / (2 * delta), np.abs(off) - delta / 2)
    of_n, of_d, of_e = slope * shares
    of_alpha, of_beta = -alpha * (of_n @ x), -beta * (of_d @ y)
    of_alpha, of_beta = of_alpha * (log_alpha < _LARGEST), of_beta * (log_beta < _LARGEST)
    return float(value), np.array([of_n.sum(), of_alpha, of_d.sum(), of_beta, of_e.sum()])


def _starts(
    x: Float[np.ndarray, " cells"],
    y: Float[np.ndarray, " cells"],
    loss: Float[np.ndarray, " cells"],
) -> list[Float[np.ndarray, "5"]]:
    """Return the starts of the descent, the best first.

    For given exponents the law is linear in E, A and B, which least squares give; those that are
    not positive become small.
    """
    alpha, beta = (grid.ravel() for grid in np.meshgrid(_EXPONENTS, _EXPONENTS))
    design = np.stack(
        [np.exp(-np.outer(alpha, x)), np.exp(-np.outer(beta, y)), np.ones((len(alpha), len(x)))],
        axis=-1,
    )
    factors = np.maximum(np.linalg.pinv(design) @ loss, 1e-3 * loss.min())
    squares = ((np.einsum("sck,sk->sc", design, factors) - loss) ** 2).sum(axis=1)
    points = np.log([*factors.T, alpha, beta])[[0, 3, 1, 4, 2]].T
    return list(points[np.argsort(squares)[:_STARTS]])
