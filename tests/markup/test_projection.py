"""Markup at the words of a translation: sentences by hand, and what holds for any links."""

import re
from collections import Counter
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.markup.document import html_document
from t2t_jax.markup.projection import _best, element_texts, with_markup

_TAG = re.compile(r"<[^<>]*>")


def filled(html: str, translation: str, links: str) -> str:
    """One sentence of HTML with its translation; links are written as `i-j`."""
    document = html_document(html)
    assert len(document.sentences) == 1, document
    pairs = [tuple(map(int, link.split("-"))) for link in links.split()]
    return document.filled([translation], [pairs])


@pytest.mark.parametrize(
    ("html", "translation", "links", "expected"),
    [
        (  # order changes, and marks at the edge stay outside
            'Click <b>OK</b> to <a href="x">close</a>.',
            "Zum Schließen klicken Sie auf OK.",
            "2-0 3-1 0-2 0-3 0-4 1-5",
            'Zum <a href="x">Schließen</a> klicken Sie auf <b>OK</b>.',
        ),
        (  # the words of an element are not always together: the longest of the best are taken
            "He has <i>switched it off</i> today.",
            "Er schaltete es heute aus.",
            "0-0 2-1 3-2 5-3 4-4",
            "Er <i>schaltete es heute aus</i>.",
        ),
        (  # elements within one another
            "A <b>very <i>small</i> house</b> here",
            "Hier ein sehr kleines Haus",
            "4-0 0-1 1-2 2-3 3-4",
            "Hier ein <b>sehr <i>kleines</i> Haus</b>",
        ),
        ("<b>Open</b>!", "Öffnen!", "0-0", "<b>Öffnen</b>!"),
        ("<b>Open!</b>", "Öffnen!", "0-0", "<b>Öffnen!</b>"),
        ("<b>Open</b>", "Jetzt öffnen!", "0-0 0-1", "<b>Jetzt öffnen!</b>"),
        ("<b>and</b>/<i>or</i>", "und/oder", "0-0", "<b>und</b>/<i>oder</i>"),
        ("He said “<b>go</b>”.", "Er sagte: „Geh“.", "0-0 1-1 2-2", "Er sagte: „<b>Geh</b>“."),
        # Nothing is linked into the element: the nearest words have it.
        ("a <b>b</b> c", "x y", "0-0 2-1", "<b>x</b> y"),
        ("a <b>b</b> c", "", "", "<b></b>"),
        ("<b>a</b> <i>b</i>", "x", "0-0", "<b>x</b><i></i>"),
        # A vocabulary may see spaces, and so words, where none are in the text.
        ("a\u200bb <b>c</b>", "x\u200by z", "0-0 2-1 3-2", "x\u200by <b>z</b>"),
        # Markup by itself stays beside the word that it touches, with its spaces.
        ("See <img>the page", "Die Seite ansehen", "1-0 2-1 0-2", "<img>Die Seite ansehen"),
        ("one<sup/> two", "zwei eins", "1-0 0-1", "zwei eins<sup/>"),
        ("one <wbr> two", "eins zwei", "0-0 1-1", "eins <wbr> zwei"),
        ("one <!-- x -->", "eins", "0-0", "eins <!-- x -->"),
        # What is not translated stands where the model has put it, or where its words went.
        ("<code>a &amp;</code> to b", "Nun a & b", "3-0 0-1 1-2 3-3", "Nun <code>a &amp;</code> b"),
        ("<code>go on</code> to run", "Nun vor los", "3-0 1-1 3-2", "Nun <code>go on</code> los"),
        ("Hello {name}, %s &lt;", "Hallo {name}, %s <", "0-0 1-1 2-2 3-3", "Hallo {name}, %s &lt;"),
        ("Hello {name}!", "Hallo Name!", "0-0 1-1", "Hallo {name}!"),
        ("Hello {name}!", "", "", "{name}"),
        # Tags of which the other one is in another sentence, or missing.
        ("end</b> of it", "Ende davon", "0-0 1-1 2-1", "Ende</b> davon"),
        ("the <b>end of", "das Ende von", "0-0 1-1 2-2", "das <b>Ende von"),
        ("a <b>b <i>c</b> d</i> e", "a b c d e", "0-0 1-1 2-2 3-3 4-4", "a <b>b <i>c</b> d</i> e"),
    ],
)  # fmt: skip
def test_tags_go_to_the_words_that_they_were_at(html, translation, links, expected):
    assert filled(html, translation, links) == expected


_PIECES = st.sampled_from(
    [
        *(
            "<b>",
            "</b>",
            "<i x='1'>",
            "</i>",
            "<img>",
            "<br-x/>",
            "<!-- c -->",
            "word",
            "two words",
        ),
        *(" ", ".", "(", "&amp;", "end. Next", "</u>", "<u>"),
    ]
)


_WORDS = st.lists(st.sampled_from(["eins", "zwei,", "(drei)", "<", "vier."]), max_size=6)
_TRANSLATED = st.tuples(
    st.lists(_PIECES, max_size=14).map("".join),
    st.lists(_WORDS.map(" ".join), min_size=14, max_size=14),
    st.lists(st.none() | st.integers(0, 99), min_size=6, max_size=6),
)


def _written(html, texts, numbers):
    """A document with translations, and with links that any numbers make; and its translations."""
    document = html_document(html)
    texts = texts[: len(document.sentences)]
    links = [
        [
            (number % len(source.split()), word)
            for word, number in zip(range(len(text.split())), numbers, strict=False)
            if number is not None
        ]
        for source, text in zip(document.sentences, texts, strict=True)
    ]
    return document.filled(texts, links), texts


@given(_TRANSLATED)
def test_no_tag_is_lost_or_invented_and_the_text_is_the_translation(translated):
    written, texts = _written(*translated)
    assert Counter(_TAG.findall(written)) == Counter(_TAG.findall(translated[0]))
    if texts:
        shown = unescape(_TAG.sub("", written))
        assert "".join(shown.split()) == "".join("".join(texts).split())


def _is_well_formed(html):
    names = []
    for slash, name, end in re.findall(r"<(/?)([biu])\b[^<>]*?(/?)>", html):
        if slash and (not names or names.pop() != name):
            return False
        if not slash and not end:
            names.append(name)
    return not names


@given(_TRANSLATED)
def test_what_is_nested_well_stays_so(translated):
    if _is_well_formed(translated[0]):
        assert _is_well_formed(_written(*translated)[0])


@given(st.lists(st.sampled_from([1, -1]), min_size=1, max_size=9), st.data())
def test_the_best_words_are_those_of_all_ranges(scores, data):
    low = data.draw(st.integers(0, len(scores) - 1))
    high = data.draw(st.integers(low + 1, len(scores)))
    kinds = {"first": (True, False), "last": (False, True), "any": (False, False)}
    for first, last in kinds.values():
        every = [
            (sum(scores[begin:end]), end - begin)
            for begin in ([low] if first else range(low, high))
            for end in ([high] if last else range(begin + 1, high + 1))
            if begin < end
        ]
        begin, end = _best(scores, low, high, first=first, last=last)
        assert low <= begin < end <= high
        assert (sum(scores[begin:end]), end - begin) == max(every)
        assert begin == low or not first
        assert end == high or not last


@pytest.mark.parametrize(
    ("html", "translation", "links", "known", "expected"),
    [
        (  # what stands there as it is, however it is linked; of several, the one that is linked
            "Run <b>make</b> or <i>make all</i>",
            "Starten Sie make all oder make",
            "0-0 0-1 0-2 2-3 2-4 1-5",
            {},
            "Starten Sie <i>make all</i> oder <b>make</b>",
        ),
        (  # what the element's own translation is, which may hold other elements
            "The <b>large <i>file</i></b> is here",
            "Hier ist die große Datei",
            "3-0 3-1 0-2 3-3 1-4",
            {"large file": "große Datei", "file": "Datei"},
            "Hier ist die <b>große <i>Datei</i></b>",
        ),
        (  # a part of a word is none
            "A <b>file</b> here",
            "Dateien und eine Akte hier",
            "1-0 0-1 0-2 0-3 2-4",
            {"file": "Datei"},
            "<b>Dateien</b> und eine Akte hier",
        ),
        # An element of the whole sentence stays around it.
        ("<b>a</b>", "a b", "0-0", {"a": "a"}, "<b>a b</b>"),
    ],
)
def test_an_element_goes_around_its_own_text_or_its_own_translation(
    html, translation, links, known, expected
):
    [one] = html_document(html).tagged
    pairs = [tuple(map(int, link.split("-"))) for link in links.split()]
    assert with_markup(one, translation, pairs, known=known) == expected


def test_only_texts_that_do_not_stand_in_the_translation_are_translated_by_themselves():
    html = "<b>Open <i>OK</i></b>, <code>a</code> and <u>it</u><img> or <s>no"
    [one] = html_document(html).tagged
    assert [*element_texts(one, "OK öffnen, a und es")] == ["Open OK", "it"]


def test_a_sentence_without_markup_is_its_translation():
    [one] = html_document("a &lt; b").tagged
    assert with_markup(one, "x < y", []) == "x < y"


@pytest.mark.parametrize(
    ("repeated", "translation"),
    [
        *((one, "eins zwei") for one in ("<b>", "<b>x</b> ", "<img>", "</i>", "{a} ", "<b>a. ")),
        ("<code>", "eins zwei"),
        ("<b>x</b> ", "x " * 3000),
    ],
)
def test_much_markup_takes_no_longer_than_its_length_asks(repeated, translation):
    """Deep elements would end the program, and a search through all others for each is slow."""
    document = html_document("x " + repeated * 3000)
    written = document.filled([translation] * len(document.sentences))
    for tag in _TAG.findall(repeated):
        assert written.count(tag) == 3000
