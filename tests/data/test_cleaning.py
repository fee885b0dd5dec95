"""The rules that clean parallel text, each on pairs made by hand, and the cleaning as a whole."""

import math
import random
import re
from collections import Counter
from dataclasses import fields
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_jax.data.cleaning.clean import CleanedCounts, CleaningState, SeenKeys, clean_pairs
from t2t_jax.data.cleaning.limits import CleaningLimits
from t2t_jax.data.cleaning.pairs import Side
from t2t_jax.data.cleaning.rules import RULES, PairCleaning, dual_cross_entropy
from t2t_jax.errors import UserError

EN_DE = ("en", "de")
FIVE, SEVEN = "one two three four five", "one two three four five six seven"


def kept_by(rule, pairs, languages=EN_DE, held_out=(), scorer=None, **limits):
    """The pairs that a rule keeps by itself."""
    cleaning = PairCleaning(languages, CleaningLimits(**limits), (rule,), scorer=scorer)
    cleaning.held_out = held_out
    sources, targets = zip(*pairs, strict=True)
    kept, counts = clean_pairs(([*sources], [*targets]), cleaning, CleaningState())
    assert counts.dropped[rule].pairs == len(pairs) - len(kept[0])
    return [*zip(*kept, strict=True)]


TABLE = [
    # rule, limits, languages, pairs that are kept, pairs that are dropped
    ("empty", {}, EN_DE, [("a", "b")], [("", "b"), ("a", " \t"), ("\u3000", "b")]),
    ("length", {"min_words": 2}, EN_DE, [("a b", "c d e")], [("a", "c d"), ("a b", "c")]),
    ("length", {"max_words": 5}, EN_DE, [(FIVE, FIVE)], [(FIVE, FIVE + " x"), (SEVEN, "a")]),
    ("length", {"max_characters": 3}, EN_DE, [("abc", "ä ö")], [("abcd", "a"), ("a", "abcd")]),
    ("length", {"min_characters": 2}, EN_DE, [("ab", "cd")], [("a", "cd"), ("ab", "c")]),
    (
        "length",
        {"max_words": 2},
        ("en", "zh"),
        [("two words", "没有 空格 的 文字")],
        [(FIVE, "好")],
    ),
    ("ratio", {}, EN_DE, [("a b c", "abcde")], [("a b c d", "abcdefgh"), ("abcde", "a")]),
    ("ratio", {"max_word_ratio": 1.5}, EN_DE, [("a b c", "d e")], [("a b c", "d")]),
    (
        "ratio",
        {},
        ("en", "zh"),
        [("The weather is nice today", "今天天气好")],
        [("Yes", "今天天气好")],
    ),
    # Of 100 and 160 characters the difference is 60 and the deviation sqrt(6.8 * 130) = 29.7.
    ("deviation", {}, EN_DE, [("a", "abcdefg"), ("x" * 100, "y" * 160)], [("x" * 100, "y" * 200)]),
    ("deviation", {"max_deviation": 2.0}, EN_DE, [("x" * 9, "y" * 9)], [("x" * 100, "y" * 160)]),
    ("deviation", {"target_per_source": 2.0}, EN_DE, [("x" * 99, "y" * 200)], [("x" * 99,) * 2]),
    ("long-word", {"max_word_characters": 5}, EN_DE, [("abcde f", "g")], [("g", "f abcdef")]),
    ("script", {}, ("ru", "en"), [("Привет, Linux!", "Hi 5"), ("12", "12")], [("Hello", "Hello")]),
    (
        "script",
        {},
        ("ja", "ko"),
        [("これはペン・々ー", "이것은")],
        [("Pen", "이것은"), ("ペン", "a")],
    ),
    ("script", {}, ("hi", "en"), [("हिन्दी", "Hindi")], [("Hindi", "हिन्दी")]),
    ("script", {"target_script": "greek"}, ("en", "xx"), [("a", "αβ")], [("a", "ab")]),
    ("letters", {}, EN_DE, [("Page 12", "Seite 12")], [("1,2;3 a", "ab"), ("ab", "::: - x")]),
    ("letters", {}, ("hi", "en"), [("हिन्दी", "Hindi")], [("१२३४", "12")]),
    (
        "broken",
        {},
        EN_DE,
        [("café\t", "Ä\xa0ö 👍")],
        [("a\ufffd", "b"), ("a", "\x07"), ("\ue000", "b")],
    ),
    (
        "broken",
        {},
        EN_DE,
        [("Âge", "Ã")],
        [("für".encode().decode("latin-1"), "für"), ("â€œ", "“")],
    ),
    (
        "markup",
        {},
        EN_DE,
        [("a <b>c</b>", "<b>a</b> c"), ("1 < 2 & 3", "x")],
        [("a<br/>", "a"), ("a", "&nbsp;b")],
    ),
    ("markup", {"max_markup_difference": 1}, EN_DE, [("a<br>", "b")], [("<b>a</b>", "b")]),
    (
        "urls",
        {},
        EN_DE,
        [("see it on http://a.b", "sieh mal hier: www.a.b/c an")],
        [("see http://a.b", "sieh"), ("www.a.b", "www.a.b")],
    ),
    (
        "copies",
        {},
        EN_DE,
        [("My red house", "Mein rotes Haus"), ("Mozilla Firefox",) * 2],
        [("Go home now!", "go home NOW"), ("a b c d", "a b c e")],
    ),
    ("copies", {"min_copied_words": 1}, EN_DE, [("Yes", "Ja")], [("Firefox", "firefox")]),
    (
        "numbers",
        {},
        EN_DE,
        [
            ("1,000.50 on 11/26", "1.000,50 am 26.11."),
            ("12,345", "12345"),
            ("no", "nein"),
            ("٣ 07", "3 7"),
            ("10 000 a", "10000 a"),
        ],
        [("7", "8"), ("2 2", "2"), ("no", "1"), ("1,000", "100")],
    ),
    ("numbers", {"max_number_difference": 1}, EN_DE, [("7", "8")], [("7 8", "9 6")]),
    (
        "ending",
        {},
        EN_DE,
        [("End.", "Ende!"), ("(yes.)", "„ja.“"), ("a", "b")],
        [("End.", "En"), ("a", "b?")],
    ),
    ("same-source", {}, EN_DE, [("a", "b"), ("A", "b")], [("a", "c")]),
    ("same-target", {}, EN_DE, [("a", "b"), ("a", "B")], [("c", "b")]),
    ("duplicates", {}, EN_DE, [("a", "b"), ("b", "a"), ("a", "B")], [("a", "b")]),
    (
        "near-duplicates",
        {},
        EN_DE,
        [("Page 1", "Seite 1"), ("1", "1"), ("2", "2")],
        [("page: 22", "SEITE 22!")],
    ),
]


@pytest.mark.parametrize(("rule", "limits", "languages", "kept", "dropped"), TABLE)
def test_a_rule_drops_what_it_names_and_nothing_else(rule, limits, languages, kept, dropped):
    assert kept_by(rule, kept + dropped, languages, **limits) == kept


def test_every_rule_is_tried_and_says_what_it_drops():
    elsewhere = {"held-out", "language", "cross-entropy"}
    assert {row[0] for row in TABLE} | elsewhere == {*RULES}
    for rule in RULES.values():
        assert re.fullmatch(r"Drop a pair .*\.", rule.about)
    said = " ".join(filter(None, (one.__doc__ for one in [CleaningLimits])))
    assert "docs/cleaning.md" in said


def test_sentences_of_other_languages_are_dropped_where_they_are_long_enough():
    pytest.importorskip("lingua")
    german = "Das Wetter ist heute sehr schön."
    pairs = [("The weather is very nice today.", german), ("Yes", "Yes")]
    wrong = [(german, german), ("The weather is nice.", "Le temps est très beau aujourd'hui.")]
    assert kept_by("language", pairs + wrong, other_languages=("fr",)) == pairs
    few = {"other_languages": ("xx",), "min_detected_letters": 30}
    assert kept_by("language", [*pairs, (german, german)], **few) == [*pairs, (german, german)]
    with pytest.raises(
        UserError, match="does not know both of en and tlh; leave the rule language"
    ):
        PairCleaning(("en", "tlh"), rules=["language"])


def test_sentences_of_other_splits_are_dropped_from_training():
    held = Side(["Quit now!"]).near_keys, Side(["Beende das"]).near_keys
    kept = [("Beende das", "Quit now"), ("Quit", "Beende")]
    dropped = [("quit now", "Schluss"), ("Stop", "beende das.")]
    assert kept_by("held-out", kept + dropped, held_out=held) == kept
    assert kept_by("held-out", kept) == kept


def test_dual_cross_entropy_is_that_of_the_paper():
    """exp(-(|H_A - H_B| + (H_A + H_B) / 2)), in numbers that were computed by hand."""
    forward = np.array([1.0, 2.0, 0.0, math.inf, 3.0])
    backward = np.array([2.0, 2.0, 0.0, 1.0, math.inf])
    expected = [math.exp(-2.5), math.exp(-2.0), 1.0, 0.0, 0.0]
    np.testing.assert_allclose(dual_cross_entropy(forward, backward), expected, rtol=1e-12)


def test_pairs_of_low_scores_are_dropped_and_no_dropped_pair_is_scored():
    scores = {"a": 0.5, "b": 0.25, "c": 0.1}
    asked = []

    def scorer(sources, targets):
        asked.extend(sources)
        return np.array([scores[source] for source in sources])

    pairs = [("a", "x"), ("b", "x"), ("", "x"), ("c", "x")]
    limits = CleaningLimits(min_score=0.25)
    cleaning = PairCleaning(EN_DE, limits, ["cross-entropy", "empty"], scorer=scorer)
    assert cleaning.rules == ("empty", "cross-entropy")
    kept, counts = clean_pairs(_chunk(pairs), cleaning, CleaningState())
    assert kept == (["a", "b"], ["x", "x"])
    assert asked == ["a", "b", "c"]
    assert counts.dropped["cross-entropy"].pairs == 1


def _chunk(pairs):
    return [source for source, _ in pairs], [target for _, target in pairs]


_SIDES = st.lists(
    st.sampled_from(["Haus", "house", "12", "1,000", "<b>", "www.x.y", "\x00", "!", "ж", "Ok"]),
    max_size=5,
).map(" ".join)
_PAIRS = st.lists(st.tuples(_SIDES, _SIDES), max_size=30)


@settings(max_examples=60, deadline=None)
@given(_PAIRS, st.integers(1, 7))
def test_what_is_kept_is_in_order_and_counted_once_however_the_text_is_cut(pairs, size):
    cleaning = PairCleaning(EN_DE, rules=["standard", "ending", "same-source"])

    def cleaned(size):
        state = CleaningState()
        cuts = [_chunk(pairs[n : n + size]) for n in range(0, len(pairs), size)]
        done = [clean_pairs(cut, cleaning, state) for cut in cuts]
        kept = [pair for one, _ in done for pair in zip(*one, strict=True)]
        return kept, reduce(add, (counts for _, counts in done), CleanedCounts())

    kept, counts = cleaned(size)
    assert (kept, counts) == cleaned(30) == cleaned(size)
    rest = iter(pairs)
    assert all(pair in rest for pair in kept)  # in order: `in` takes what comes before it
    assert counts.read[0] == len(pairs)
    assert counts.kept == (
        len(kept), *(sum(len(pair[side].split()) for pair in kept) for side in (0, 1))
    )  # fmt: skip
    firsts = {name: dropped.pairs for name, dropped in counts.dropped.items()}
    assert len(pairs) - len(kept) == sum(firsts.values())
    for dropped in counts.dropped.values():
        assert dropped.pairs <= dropped.alone
        assert len(dropped.samples) <= min(5, dropped.pairs)
        assert {pair[1:] for pair in dropped.samples} <= {*pairs}
    again = PairCleaning(EN_DE, rules=["standard", "ending", "same-source"])
    assert clean_pairs(_chunk(kept), again, CleaningState())[0] == _chunk(kept)


def test_a_repeated_pair_is_kept_if_another_rule_drops_the_first():
    pairs = [("Page", "<b>Seite"), ("Page", "Seite!"), ("page", "seite")]
    cleaning = PairCleaning(EN_DE, rules=["markup", "same-source", "near-duplicates"])
    kept, counts = clean_pairs(_chunk(pairs), cleaning, CleaningState())
    assert kept == (["Page"], ["Seite!"])
    found = {name: (one.pairs, one.alone) for name, one in counts.dropped.items()}
    assert found == {"markup": (1, 1), "same-source": (0, 1), "near-duplicates": (1, 1)}


@given(st.lists(st.lists(st.integers(0, 20), max_size=12), max_size=8))
def test_keys_are_new_the_first_time(chunks):
    seen, before = SeenKeys(), set()
    for chunk in chunks:
        expected = []
        for key in chunk:
            expected.append(key not in before)
            before.add(key)
        assert seen.add_new(np.array(chunk, np.uint64)).tolist() == expected


def test_samples_are_spread_over_the_text_and_the_same_for_shards():
    pairs = [(f"{n} x", f"{n} x") for n in range(2000)]
    cleaning = PairCleaning(EN_DE, CleaningLimits(min_words=3), ["length"])
    whole = clean_pairs(_chunk(pairs), cleaning, CleaningState())[1]
    shards = [clean_pairs(_chunk(pairs[n::7]), cleaning, CleaningState())[1] for n in range(7)]
    random.Random(0).shuffle(shards)
    assert reduce(add, shards) == whole
    places = [int(source.split()[0]) for _, source, _ in whole.dropped["length"].samples]
    assert len(places) == 5
    assert max(places) > 500


def test_characters_are_counted_by_kind():
    letters = Side(["aé1 ж", "", "९ a\u0301"], "LATIN")
    assert letters.num_letters.tolist() == [3, 0, 2]
    assert Counter(letters.num_characters.tolist()) == Counter([5, 0, 4])


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"min_words": 9, "max_words": 3}, "min_words=9 and max_words=3 keep nothing; give min_w"),
        ({"min_characters": -1}, "min_characters=-1 and max_characters=1000 keep nothing"),
        ({"max_word_ratio": 0.5}, "max_word_ratio=0.5 keeps nothing; give 1 or more"),
        ({"max_deviation": math.nan}, "max_deviation=nan keeps nothing; give 0 or more"),
        ({"min_letter_share": 1.5}, "min_letter_share=1.5 is no share; give 0 to 1"),
        ({"target_per_source": 0.0}, "target_per_source=0.0 is not positive"),
        ({"min_score": 0.1, "keep_share": 0.5}, "min_score and keep_share are two limits of one"),
    ],
)
def test_limits_that_keep_nothing_or_contradict_are_refused(limits, message):
    assert limits.keys() <= {field.name for field in fields(CleaningLimits)}
    with pytest.raises(UserError, match=re.escape(message)):
        CleaningLimits(**limits)


@pytest.mark.parametrize(
    ("rules", "languages", "message"),
    [
        (["standard", "ratios"], EN_DE, "there is no rule 'ratios' of cleaning; did you mean rat"),
        ([], EN_DE, "no rule of cleaning is left; name some with --rules, such as standard"),
        (["cross-entropy"], EN_DE, "the rule cross-entropy needs two runs, --forward and --ba"),
        (["script"], ("en", "tlh"), "the script of the language tlh is not known here; name it by"),
    ],
)
def test_rules_that_cannot_be_applied_are_refused(rules, languages, message):
    with pytest.raises(UserError, match=re.escape(message)):
        PairCleaning(languages, rules=rules)
