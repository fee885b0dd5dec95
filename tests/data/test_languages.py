"""Codes of languages: every spelling of a language chooses the rules of that language."""

import pytest

from t2t_jax.config import Config
from t2t_jax.data.languages import language_of
from t2t_jax.extras.interchange.publishing.card import _metadata
from t2t_jax.extras.serving.engine import split_sentences
from t2t_jax.tasks import task_of
from t2t_jax.tasks.measures.bleu import corpus_scores, split_words

_SPELLINGS = {
    "de": "de DE De deu ger DEU de-AT de_DE de_DE.UTF-8 de-Latn-CH deu_Latn",
    "fr": "fr fra fre FR fr-CA fr_FR fra_Latn",
    "zh": "zh zho chi cmn zh_CN zh-Hant-TW zho_Hans cmn_Hans ZH",
    "ja": "ja jpn ja_JP jpn_Jpan",
    "ar": "ar ara arb ar_AR arb_Arab",
    "lv": "lv lav lvs lv_LV lvs_Latn",
    "yue": "yue yue_Hant yue-HK",  # it has no code of two letters
}


@pytest.mark.parametrize("language", _SPELLINGS)
def test_every_spelling_of_a_code_is_read_as_one_language(language):
    assert {language_of(code) for code in _SPELLINGS[language].split()} == {language}


@pytest.mark.parametrize("code", _SPELLINGS["de"].split())
def test_every_spelling_chooses_the_rules_of_its_language_wherever_there_are_rules(code):
    # In German, "3." before a month and "usw." end no sentence, and "Ca." is one word.
    text = "Am 3. Mai kam Dr. Meier usw. und ging. Danach regnete es."
    assert split_sentences(text, code)[1::2] == [
        "Am 3. Mai kam Dr. Meier usw. und ging.",
        "Danach regnete es.",
    ]
    assert split_words(["Das war Ca. Meier"], code) == ["Das war Ca. Meier"]
    scores = corpus_scores(["Das ist es bzw. war es"], ["Das ist es bzw. war es"], code)
    assert scores.tokenized_split_bleu_signature.endswith(", de")
    config = Config().replace({"data.target_language": code})
    assert _metadata(config, [], "a run", "mit")["language"] == ["en", "de"]


@pytest.mark.parametrize("code", _SPELLINGS["fr"].split())
def test_the_paper_s_french_model_is_known_by_every_spelling(code):
    config = Config().replace({"data.corpus": "text:x", "data.target_language": code})
    assert task_of("text:x").experiment(config).name == "base, English-French"


@pytest.mark.parametrize("code", ["", "xx", "x-unknown", "__", "src", "中文"])
def test_an_unknown_code_has_the_rules_of_english(code):
    text = "Mr. Smith went. It rained, cf. p. 3 of it."
    assert split_sentences(text, code) == split_sentences(text, "en")
    assert split_words([text], code) == split_words([text], "unknown")
