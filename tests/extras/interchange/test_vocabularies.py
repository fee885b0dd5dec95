"""Vocabularies of imported models are refused in one line where they are damaged."""

import pytest

from t2t_jax.config import DataConfig
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError
from t2t_jax.extras.interchange.vocabularies.paired import paired_vocabulary


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"target_pieces": ["<pad>"', '"target_pieces": [0', "Expected `str`, got `int`"),
        ('["<pad>", "</s>"', '["</s>", "<pad>"', "it does not begin with <pad> </s>"),
        ('"source_model": "', '"source_model": "-', "Invalid base64"),
        ('"source_model"', '"model"', "missing required field `source_model`"),
        ("]}", "", "it is not JSON"),
    ],
)
def test_a_damaged_vocabulary_of_two_models_is_refused(old, new, message, tmp_path):
    pieces = ["<pad>", "</s>", "<unk>"]
    model = train_vocabulary([open_corpus(DataConfig()).lines("dev")], 300).serialized
    pair = paired_vocabulary((model, model), (pieces, pieces))
    path = tmp_path / "vocabulary.model"
    text = pair.serialized.decode()
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=rf"vocabulary\.model is damaged: .*{message}"):
        Vocabulary.load(path)
