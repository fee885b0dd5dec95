"""Texts that are parted into sentences lose nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.markup.document import html_document
from t2t_jax.markup.html import pieces
from t2t_jax.markup.inline import characters
from t2t_jax.markup.sentences import sentence_splitter, text_document

_TEXTS = st.text(st.sampled_from("aB. !?\n\t\r ü。¿\u2028&<>/\"'"), max_size=40)
_MARKUP = st.lists(
    st.sampled_from(
        [
            *("<p>", "</p>", "<br>", "<br/>", "<b class='x'>", "</b>", "<!-- a -->", "<script>"),
            *("</script>", "<pre>", "</pre>", "&amp;", "&lt;", "&#x41;", "&nosuch;", "&", "<", ">"),
            *("One.", "Two words. Three!", " ", "\n", '<i translate="no">', "</i>", "<!doctype x>"),
            *("<?a?>", "<![CDATA[x]]>", "<unfinished", "</", "&nbsp;", "&Tab;", "&#160", "\xa0"),
            *("<![", "<!-->", "<!--", "<svg>", "</svg>", "<p ", "a=", "'", '"', "/", "=", "</p/>"),
            *("<textarea>", "</textarea >", "<p translate=NO/>", "&#99999999999;", "\u2028"),
        ]
    ),
    max_size=12,
).map("".join)


@given(_TEXTS, st.sampled_from(["en", "de", "zh", "xx"]), st.sampled_from(["sentences", "lines"]))
def test_a_text_is_its_sentences_and_what_is_between(text, language, split):
    document = text_document(text, language, by_lines=split == "lines")
    whole = document.filled(document.sentences)
    if split == "sentences":
        assert whole == text
        assert all(one == one.strip() != "" for one in document.sentences)
    assert whole.count("\n") == text.count("\n")
    assert not any("\n" in one for one in document.sentences)
    lines = document.filled([f"<{number}>" for number in range(len(document.sentences))])
    assert lines.count("\n") == text.count("\n")


def test_sentences_end_by_the_rules_of_their_language():
    english = text_document("Dr. Smith paid $3.50. He left! Why?", "en")
    assert english.sentences == ["Dr. Smith paid $3.50.", "He left!", "Why?"]
    german = text_document("Am 3. Mai kam er z.B. nicht. Warum?", "de")
    assert german.sentences == ["Am 3. Mai kam er z.B. nicht.", "Warum?"]


@given(_MARKUP)
def test_markup_that_is_filled_with_itself_says_the_same(text):
    document = html_document(text, sentence_splitter("en"))
    again = html_document(document.filled(document.sentences), sentence_splitter("en"))
    assert again.sentences == document.sentences
    assert "".join(piece for piece, _ in pieces(text)) == text
    shown = document.filled([f"[{number}]" for number in range(len(document.sentences))])
    for tag in ("<p>", "</b>", "<!--", "<br/>"):
        assert shown.count(tag) == text.count(tag)
    assert all(one == one.strip() != "" for one in document.sentences)


@pytest.mark.parametrize(
    ("text", "sentences", "filled"),
    [
        ("<b>a</b>", ["a"], "<b>&lt;a&gt;</b>"),
        ("1 &lt; 2 &amp; 3", ["1 < 2 & 3"], "&lt;1 &lt; 2 &amp; 3&gt;"),
        ("<p> Go\n on. Stop. </p>", ["Go on.", "Stop."], "<p> &lt;Go on.&gt; &lt;Stop.&gt; </p>"),
        ("<code>a</code>, <a title='b'>c</a>", ["a, c"], None),
        ("<img alt='x'>—<br> ...", [], "<img alt='x'>—<br> ..."),
        ("<p>&nbsp;</p>&Tab;&#160;&ensp;", [], "<p>&nbsp;</p>&Tab;&#160;&ensp;"),
        ("&nbsp;a&#32;", ["a"], "\xa0&lt;a&gt; "),
        ("a <![Open the file", ["a"], "&lt;a&gt; <![Open the file"),
        ("a &#" + "9" * 5000 + "; &#" + "0" * 5000 + "65;", ["a \ufffd A"], "&lt;a \ufffd A&gt;"),
        ('<p Translate="NO">a</P>b', ["b"], '<p Translate="NO">a</P>&lt;b&gt;'),
        ("<p translate=yes>a<p translate='n&#111;'>b", ["a"], None),
        ("<p translate=no translate=yes>a<br/></p>b", ["b"], None),
        ("<p title='translate=\"no\"'>a", ["a"], None),
        ("<p translate=no/>a", ["a"], None),  # the slash is a part of the value in HTML
        ("<p translate='no' />a", ["a"], None),
        ("<SCRIPT>a</p></scripts></script >b", ["b"], None),
        ("<textarea><b>a</textarea>b<style>c", ["b"], None),
        ("<pre><b>a</pre>b</b>", ["b"], None),
        ("<svg><![CDATA[</svg>a]]>b</svg>c<![CDATA[d>e]]>", ["bce]]>"], None),
        ("<!-->a<!--->b<!-- > --!>c<!--d", ["abc"], None),
        ("a < b <3 </ c> d </", ["a < b <3 d </"], None),
        ("<p ='a>b' =\"c>d", ["b' =\"c>d"], None),
        ("<a href='>'>x</a href=\">\">y", ["xy"], None),
    ],
)
def test_markup_by_hand(text, sentences, filled):
    document = html_document(text, sentence_splitter("en"))
    assert document.sentences == sentences
    if filled is not None:
        assert document.filled([f"<{one}>" for one in sentences]) == filled


_NASTY = (
    *("<a ", "<a\n", "<p/", '<a b="', "<a b='", "<a b=c ", "<a =", "<!--", "<!", "<![", "<?", "</"),
    *(
        "<",
        "<b>",
        "<pre>",
        "<pre><b></i>",
        "<script>",
        "<textarea></text",
        "&",
        "&amp;",
        "&#",
        "\n",
    ),
    *(" \n", "<br>\n", "&nbsp;", "<a>x</a>", "<svg><![CDATA[", "-->", "<p translate=no>"),
)


@pytest.mark.parametrize("repeated", _NASTY)
def test_markup_that_nothing_ends_is_looked_at_once(repeated):
    """A parser that looks at the rest of a text again for each tag takes minutes for these."""
    text = (repeated * 150_000)[:150_000]
    assert sum(len(piece) for piece, _ in pieces(text)) == len(text)
    assert characters(text)


@pytest.mark.parametrize("repeated", ["« ", "‘。‚", "'»‚[", "a", " ", "a. ", "Mr. A and (b) "])
def test_a_long_line_is_its_sentences_however_they_are_found(repeated, monkeypatch):
    """Quotation marks that nothing ends make the splitter look at a whole line again and again."""
    from t2t_jax.markup import sentences

    seen, real = [], sentences.segment
    monkeypatch.setattr(sentences, "segment", lambda *of: seen.append(len(of[1])) or real(*of))
    text = (repeated * 20_000)[:20_000]
    document = text_document(text, "en")
    assert document.filled(document.sentences) == text
    assert max(seen, default=0) <= 2000
    assert sum(seen) <= 2 * len(text)


def test_a_sentence_beyond_a_window_is_not_cut_and_those_around_it_end_as_they_do():
    long = "one, two " * 400 + "end."
    text = f"First. Second! {long} Third? {long} " + "Last one. " * 300
    expected = ["First.", "Second!", long, "Third?", long, *["Last one."] * 300]
    assert text_document(text, "en").sentences == expected
