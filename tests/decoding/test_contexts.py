"""Translation and scoring by models that read the sentences before a sentence."""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from t2t_jax.batch import Batch, one_a_row, padded
from t2t_jax.data.context import CONTEXT_BREAK
from t2t_jax.decoding.row_group import Sentence
from t2t_jax.decoding.scoring import score
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.tasks import task_of
from t2t_jax.tasks.task import Scoring

LINES = ["ein haus", "zwei rot", "", "blau", "große tür", "nicht sehen oder gehen"]
TARGETS = ["baum", "ein baum", "", "haus und haus", "oder", "zwei"]


@pytest.fixture(scope="module")
def vocabulary(tiny):
    """The vocabulary of `tiny`, in which one of the longest subwords is now the break."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(tiny.vocabulary.serialized)
    piece = next(one for one in model.pieces if len(one.piece) == 2 and one.type == one.NORMAL)
    piece.piece, piece.type = CONTEXT_BREAK, piece.USER_DEFINED
    return type(tiny.vocabulary)(model.SerializeToString())


@pytest.fixture(scope="module", params=["source", "both"])
def translator(request, tiny, vocabulary):
    changes = {"data.context_sentences": 2, "data.context_sides": request.param}
    return Translator(tiny.config.replace(changes), vocabulary, tiny.params)


def joined(translator, *lines, targets=False):
    """The ids of lines, each of which ends with the break, but for the last."""
    encode = translator.encode_targets if targets else translator.encode
    *before, own = encode(lines)
    is_break = translator.context.source_break
    return [*(token for row in before for token in [*row[:-1], is_break]), *own]


def test_lines_have_the_lines_before_them_in_their_document_as_context(translator):
    rows = [part.tokens for part in translator.parts(LINES, translator.config.decoding)]
    wanted = [LINES[:1], LINES[:2], [""], [LINES[3]], LINES[3:5], LINES[3:6]]
    assert rows[:5] == [joined(translator, *lines) for lines in wanted[:5]]
    # The longest source is of 16 subwords, so that the first sentences of a context are left out.
    fitting = [n for n in range(3) if len(joined(translator, *wanted[5][n:])) <= 16]
    assert rows[5] == joined(translator, *wanted[5][fitting[0] :])


def test_a_translation_is_what_the_search_finds_after_the_context(translator):
    decoding = translator.config.decoding
    [best] = translator.nbest([LINES[1]], 1, before=LINES[:1])
    ids = joined(translator, *LINES[:2])
    sentences = [Sentence(ids, len(ids) + decoding.max_extra_length, 1)]
    [(_, found)] = translator.search(sentences, decoding, 1, 0)
    tokens = found.tokens[0, : int(found.lengths[0])].tolist()
    if translator.context.target_break in tokens:
        tokens = tokens[len(tokens) - tokens[::-1].index(translator.context.target_break) :]
    assert list(best[0].tokens) == tokens
    assert best[0].text == translator.vocabulary.decode([tokens])[0]


def test_a_text_in_chunks_has_the_translations_of_the_whole(translator):
    whole = translator.translate(LINES)
    assert whole[2] == ""
    for cut in (1, 2, 4, 5):
        rest = translator.translate(LINES[cut:], before=LINES[max(0, cut - 2) : cut])
        assert translator.translate(LINES[:cut]) + rest == whole
    alone = [translator.translate([line])[0] for line in LINES]
    assert translator.translate(LINES, before=None) == alone


def test_scores_are_of_targets_after_their_contexts(translator):
    found = score(translator, LINES, TARGETS)
    both = translator.config.data.context_sides == "both"
    first = {0: 0, 1: 0, 3: 3, 4: 3, 5: 3}

    @jax.jit
    def of_tokens(params, source, target):
        batch = Batch(one_a_row(source), one_a_row(target))
        return translator.model.losses(params, batch, 0.0)[1]

    for line, start in first.items():
        source = joined(translator, *LINES[start : line + 1])
        target = joined(translator, *TARGETS[start if both else line : line + 1], targets=True)
        own = len(translator.encode_targets([TARGETS[line]])[0])
        losses = of_tokens(translator.params, padded([source], 1, 32), padded([target], 1, 32))
        wanted = -np.asarray(losses)[0, len(target) - own : len(target)]
        np.testing.assert_allclose(found[line].token_log_probs, wanted, rtol=1e-4, atol=1e-5)
        assert len(found[line].tokens) == own
    assert found[2].tokens == ()


def test_a_prefix_is_for_targets_without_context(translator):
    if translator.config.data.context_sides == "source":
        [one] = translator.translate([LINES[1]], prefixes=["ein"], before=LINES[:1])
        assert one.startswith("ein")
        return
    with pytest.raises(UserError, match="context_sides='both'"):
        translator.translate(LINES[:1], prefixes=["ein"])
    assert translator.translate(LINES[:1], prefixes=[""]) == translator.translate(LINES[:1])


def test_the_breaks_between_documents_are_no_sentences_of_a_score(translator):
    corpus = SimpleNamespace(lines=lambda split: (LINES, TARGETS))
    decoding = dataclasses.replace(translator.config.decoding, beam_size=1)
    asked = Scoring(translator, corpus, "dev", lambda: None, None, 0, decoding)
    found = task_of("text:corpus").scored(asked)
    assert found.sources == [line for line in LINES if line]
    assert found.references == [line for line in TARGETS if line]
    texts = translator.translate(LINES, beam_size=1)
    kept = [text for text, line in zip(texts, LINES, strict=True) if line]
    assert found.hypotheses == kept


def test_a_long_line_that_is_split_has_no_context(translator):
    decoding = dataclasses.replace(translator.config.decoding, long_lines="split")
    long = " ".join(["haus tür baum"] * 12)
    parts = [part for part in translator.parts(["ein haus", long], decoding) if part.line == 1]
    assert len(parts) > 1
    assert all(translator.context.source_break not in part.tokens for part in parts)
