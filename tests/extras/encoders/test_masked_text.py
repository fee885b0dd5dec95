"""Text of which a part is hidden: how much, what becomes of it, and on what that depends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_jax.batch import BOS_ID, EOS_ID
from t2t_jax.config import DataConfig
from t2t_jax.data.batching import Batches
from t2t_jax.data.rows import Examples
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.errors import UserError
from t2t_jax.extras.encoders.labelled import MASK, MaskedText, mask_id, with_masks

_SIZE, _MASK_ID = 50, 4


def text_of(lengths, seed=0):
    """Sequences of so many subwords between begin and end, as sources and as targets."""
    rng = np.random.default_rng(seed)
    rows = [[BOS_ID, *rng.integers(5, _SIZE, n), EOS_ID] for n in lengths]
    offsets = np.cumsum([0, *map(len, rows)])
    sides = (np.concatenate(rows).astype(np.int32), offsets) * 2
    return Examples(*sides, {}, len(rows))


def batches_of(lengths, *, share=0.15, seed=0, batching="pack", tokens=256):
    config = DataConfig(
        max_length=32,
        batching=batching,
        source_tokens_per_step=tokens,
        target_tokens_per_step=tokens,
    )
    text = text_of(lengths)
    return text, Batches(
        MaskedText(*vars(text).values(), _MASK_ID, _SIZE, share, seed), config, seed=0
    )


def whole_rows(text, placement, batch):
    """The rows of a batch as they were before anything was hidden."""
    rows = np.zeros_like(batch.inputs.tokens)
    filled = np.zeros(len(rows), int)
    for example, row in zip(placement.examples, placement.rows, strict=True):
        own = text.target_tokens[text.target_offsets[example] : text.target_offsets[example + 1]]
        rows[row, filled[row] : filled[row] + len(own)] = own
        filled[row] += len(own)
    return rows


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 28), min_size=1, max_size=30),
    share=st.sampled_from([0.05, 0.15, 0.5]),
    batching=st.sampled_from(["bucket", "pack"]),
    step=st.integers(0, 5),
)
def test_what_is_to_be_predicted_is_what_stood_there(lengths, share, batching, step):
    text, batches = batches_of(lengths, share=share, batching=batching)
    batch, placement = batches(step), batches.placement(step)
    rows = whole_rows(text, placement, batch)
    shape = batches.shape(step)
    assert batch.targets.tokens.shape == (shape.rows, shape.target_length)
    for row, shown, segments, targets in zip(
        rows,
        batch.inputs.tokens,
        batch.inputs.segments,
        zip(*batch.targets, strict=True),
        strict=True,
    ):
        starts = [int(np.argmax(segments == segment)) for segment in range(1, segments.max() + 1)]
        places = [
            starts[segment - 1] + position
            for _, segment, position in zip(*targets, strict=True)
            if segment
        ]
        wanted = [token for token, segment, _ in zip(*targets, strict=True) if segment]
        assert places == sorted(set(places))
        assert row[places].tolist() == wanted
        assert min(wanted, default=5) >= 5
        untouched = np.delete(np.arange(len(row)), places)
        np.testing.assert_array_equal(row[untouched], shown[untouched])
        candidates = int((row >= 5).sum())
        budget = max(1, int(share * candidates + 0.5)) if candidates else 0
        assert len(places) == budget


def test_eight_of_ten_are_hidden_one_is_another_and_one_stays():
    text, batches = batches_of([28] * 400, tokens=25_600)
    batch = batches(0)
    rows = whole_rows(text, batches.placement(0), batch)
    hidden = batch.inputs.tokens == _MASK_ID
    other = (batch.inputs.tokens != rows) & ~hidden
    predicted = int((batch.targets.segments != 0).sum())
    assert predicted == pytest.approx(0.15 * (rows >= 5).sum(), rel=0.1)
    assert hidden.sum() / predicted == pytest.approx(0.8, abs=0.04)
    # One in 46 of the others is, by chance, the one that stood there.
    assert other.sum() / predicted == pytest.approx(0.1 * 45 / 46, abs=0.03)


def test_the_choice_depends_on_seed_step_and_row_alone():
    _, batches = batches_of([20] * 40)
    _, again = batches_of([20] * 40)
    _, other = batches_of([20] * 40, seed=1)
    whole = batches(3)
    for ours, theirs in zip(
        whole.inputs + whole.targets, again(3).inputs + again(3).targets, strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    some = np.array([1, 4, 6])
    part = batches(3, some)
    np.testing.assert_array_equal(part.inputs.tokens, whole.inputs.tokens[some])
    np.testing.assert_array_equal(part.targets.tokens, whole.targets.tokens[some])
    assert (other(3).inputs.tokens != whole.inputs.tokens).any()
    epoch = batches.steps_per_epoch
    hidden = [(batches(step).inputs.tokens == _MASK_ID).sum(0) for step in (3, 3 + epoch)]
    assert (hidden[0] != hidden[1]).any()


def test_the_mask_is_an_entry_of_the_vocabulary():
    lines = ["a small house", "the long street"] * 5
    learned = train_vocabulary([(lines, lines)], 50, protected_tokens=[MASK])
    number = mask_id(learned)
    assert learned.encode([f"a {MASK} house"])[0].count(number) == 1
    whole, hidden = learned.encode(["a small house", f"a {MASK} house"])
    [small] = learned.encode(["small"])
    place = len(learned.encode(["a"])[0]) - 1
    wanted = [*whole[:place], number, *whole[place + len(small) - 1 :]]
    assert hidden != wanted  # there is a space before the mask
    assert with_masks(learned, number, hidden) == wanted
    assert with_masks(learned, number, whole) == whole
    with pytest.raises(UserError, match="no <mask>"):
        mask_id(train_vocabulary([(lines, lines)], 50))
