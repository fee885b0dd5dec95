"""Texts that are parted into sentences lose nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.serving.documents import html_document, text_document

_TEXTS = st.text(st.sampled_from("aB. !?\n\t\r ü。¿\u2028&<>/\"'"), max_size=40)
_MARKUP = st.lists(
    st.sampled_from(
        [
            *("<p>", "</p>", "<br>", "<br/>", "<b class='x'>", "</b>", "<!-- a -->", "<script>"),
            *("</script>", "<pre>", "</pre>", "&amp;", "&lt;", "&#x41;", "&nosuch;", "&", "<", ">"),
            *("One.", "Two words. Three!", " ", "\n", '<i translate="no">', "</i>", "<!doctype x>"),
            *("<?a?>", "<![CDATA[x]]>", "<unfinished", "</"),
        ]
    ),
    max_size=12,
).map("".join)


@given(_TEXTS, st.sampled_from(["en", "de", "zh", "xx"]), st.sampled_from(["sentences", "lines"]))
def test_a_text_is_its_sentences_and_what_is_between(text, language, split):
    document = text_document(text, language, split)
    whole = document.filled(document.sentences)
    if split == "sentences":
        assert whole == text
        assert all(one == one.strip() != "" for one in document.sentences)
    assert whole.count("\n") == text.count("\n")
    assert not any("\n" in one for one in document.sentences)
    lines = document.filled([f"<{number}>" for number in range(len(document.sentences))])
    assert lines.count("\n") == text.count("\n")


def test_sentences_end_by_the_rules_of_their_language():
    english = text_document("Dr. Smith paid $3.50. He left! Why?", "en", "sentences")
    assert english.sentences == ["Dr. Smith paid $3.50.", "He left!", "Why?"]
    german = text_document("Am 3. Mai kam er z.B. nicht. Warum?", "de", "sentences")
    assert german.sentences == ["Am 3. Mai kam er z.B. nicht.", "Warum?"]


@given(_MARKUP)
def test_markup_that_is_filled_with_itself_says_the_same(text):
    document = html_document(text, "en")
    again = html_document(document.filled(document.sentences), "en")
    assert again.sentences == document.sentences
    shown = document.filled([f"[{number}]" for number in range(len(document.sentences))])
    assert all(shown.count(tag) == text.count(tag) for tag in ("<p>", "</b>", "<!--", "<br/>"))


@pytest.mark.parametrize(
    ("text", "sentences", "filled"),
    [
        ("<b>a</b>", ["a"], "<b>&lt;a&gt;</b>"),
        ("1 &lt; 2 &amp; 3", ["1 < 2 & 3"], "&lt;1 &lt; 2 &amp; 3&gt;"),
        ("<p> Go\n on. Stop. </p>", ["Go on.", "Stop."], "<p> &lt;Go on.&gt; &lt;Stop.&gt; </p>"),
        ("<code>a</code>, <a title='b'>c</a>", ["c"], "<code>a</code>, <a title='b'>&lt;c&gt;</a>"),
        ("<img alt='x'>—<br> ...", [], "<img alt='x'>—<br> ..."),
    ],
)
def test_markup_by_hand(text, sentences, filled):
    document = html_document(text, "en")
    assert document.sentences == sentences
    assert document.filled([f"<{one}>" for one in sentences]) == filled
