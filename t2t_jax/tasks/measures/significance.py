"""A test of whether one system is better than another, beyond the choice of sentences."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from t2t_jax.errors import needs_extra
from t2t_jax.tasks.measures.bleu import bleu_metric, check_references

_SEED_VARIABLE = "SACREBLEU_SEED"


class PairedBootstrap(NamedTuple):
    """The comparison of two systems on the same sentences."""

    baseline_bleu: float
    """sacreBLEU's BLEU of the baseline; 0 to 100."""
    system_bleu: float
    """sacreBLEU's BLEU of the system that is compared with it; 0 to 100."""
    p_value: float
    """Probability, 0 to 1, that the choice of sentences alone makes a larger difference than the
    one observed; 1 if there is no difference."""
    signature: str
    """sacreBLEU's signature of the scores and the test."""


def paired_bootstrap(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[str],
    *,
    num_samples: int = 1000,
    seed: int = 12345,
) -> PairedBootstrap:
    """Compare the BLEU of two systems by sacreBLEU's paired bootstrap resampling (Koehn 2004).

    The result depends on the arguments alone, and is that of `sacrebleu --paired-bs`, except for
    two systems of the same score. Meanwhile sacreBLEU's own variable for the seed is set in the
    environment of the process.

    Args:
      baseline: translations of one system, as plain text.
      system: translations of the other system.
      references: a reference for each sentence, as plain text.
      num_samples: number of resamples, each of as many sentences as there are, with replacement.
      seed: seed of the draws; positive, as sacreBLEU takes 0 for none.

    Raises:
      UserError: a system has not as many translations as there are references, or sacreBLEU is not
        installed.
      ValueError: `num_samples` or `seed` is not positive.
    """
    check_references(baseline, references)
    check_references(system, references)
    if num_samples < 1 or seed < 1:
        raise ValueError(f"{num_samples=} and {seed=} must be positive")
    with needs_extra("train", "the paired bootstrap"):
        from sacrebleu.significance import PairedTest
    with _seeded(seed):
        # `force` is not to be warned of periods after a space.
        test = PairedTest(
            [("baseline", baseline), ("system", system)],
            {"BLEU": bleu_metric(force=True)},
            [references],
            test_type="bs",
            n_samples=num_samples,
        )
        signatures, scores = test()
    results: Any = scores["BLEU"]  # sacreBLEU's type has the names of the systems among them
    before, after = results
    # sacreBLEU counts the resamples that differ more than the systems do: of equal ones, none.
    p_value = after.p_value if after.score != before.score else 1.0
    return PairedBootstrap(before.score, after.score, p_value, str(signatures["BLEU"]))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Set the seed of sacreBLEU, which reads it from the environment alone, within a block."""
    before = os.environ.get(_SEED_VARIABLE)
    os.environ[_SEED_VARIABLE] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SEED_VARIABLE]
        else:
            os.environ[_SEED_VARIABLE] = before
