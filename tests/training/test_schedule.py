"""Schedules of the learning rate against hand-computed numbers."""

import numpy as np
import pytest

from t2t_jax.config import TrainingConfig
from t2t_jax.training.schedule import learning_rate, scheduled_rate


def test_learning_rate_is_equation_3_at_hand_computed_steps():
    # d_model 512, 4000 warmup steps: 512^-0.5 = 0.04419417, 4000^-1.5 = 3.952847e-6
    assert float(learning_rate(1, 512, 4000)) == pytest.approx(1.746928e-7, rel=1e-6)
    assert float(learning_rate(4000, 512, 4000)) == pytest.approx(6.987712e-4, rel=1e-6)
    assert float(learning_rate(16_000, 512, 4000)) == pytest.approx(3.493856e-4, rel=1e-6)


def _rates(steps, **training):
    config = TrainingConfig(**{"warmup_steps": 4, "num_train_steps": 12} | training)
    return [float(scheduled_rate(config, 64, step)) for step in steps]


# With d_model 64 and 4 warmup steps, equation 3 has its peak of 1 / 16 at step 4.
@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        ("inverse_sqrt", {1: 1 / 4, 2: 1 / 2, 4: 1, 16: 1 / 2, 64: 1 / 4}),
        ("constant", {1: 1 / 4, 4: 1, 5: 1, 1000: 1}),
        ("linear", {1: 1 / 4, 2: 1 / 2, 4: 1, 6: 3 / 4, 8: 1 / 2, 11: 1 / 8, 12: 0, 13: 0, 99: 0}),
        ("cosine", {2: 1 / 2, 4: 1, 6: 0.8535534, 8: 1 / 2, 10: 0.1464466, 12: 0, 99: 0}),
        ("wsd(decay_fraction=0.25)", {2: 1 / 2, 4: 1, 9: 1, 10: 2 / 3, 11: 1 / 3, 12: 0, 99: 0}),
    ],
)
def test_a_schedule_has_its_share_of_the_peak_at_hand_computed_steps(schedule, shares):
    expected = np.array([*shares.values()])
    for changes, peak in (
        ({}, 1 / 16),
        ({"learning_rate_factor": 3.0}, 3 / 16),
        ({"peak_learning_rate": 0.5}, 0.5),
        ({"num_train_steps": 99, "schedule_steps": 12}, 1 / 16),
    ):
        if schedule in ("inverse_sqrt", "constant"):
            changes.pop("schedule_steps", None)
        found = _rates(shares, schedule=schedule, **changes)
        np.testing.assert_allclose(found, peak * expected, rtol=1e-5, atol=1e-9)


def test_the_end_of_a_cosine_keeps_its_digits():
    found = _rates([999_000], schedule="cosine", num_train_steps=1_000_000, peak_learning_rate=1.0)
    assert found == pytest.approx([2.467419e-6], rel=1e-5)  # (1 - cos(pi 1000 / 999996)) / 2


def test_the_default_is_equation_3_bit_for_bit():
    for step in (1, 3999, 4000, 4001, 123_456):
        assert scheduled_rate(TrainingConfig(), 512, step) == learning_rate(step, 512, 4000)
