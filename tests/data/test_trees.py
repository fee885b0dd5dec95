"""Trees are read, printed and linearised without loss, and anything predicted becomes a tree."""

import string
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.data.lines import read_lines
from t2t_jax.data.trees import (
    Tree,
    build_tree,
    clean_tree,
    escape_brackets,
    format_tree,
    parse_trees,
)
from tests.refusals import refused

BARKS_TEXT = "(TOP (S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .)))"
BARKS_WORDS = ["The", "dog", "barks", "."]
BARKS_SYMBOLS = ["(S", "(NP", "DT", "NN", ")NP", "(VP", "VBZ", ")VP", ".", ")S"]
BARKS = Tree(BARKS_WORDS, BARKS_SYMBOLS)
NOTHING = Tree([], [])


def joined(parts, label=None):
    words, symbols = (list(chain.from_iterable(side)) for side in zip(*parts, strict=True))
    return Tree(words, symbols if label is None else [f"({label}", *symbols, f"){label}"])


atoms = st.text(string.ascii_letters + "-=.,:`'$|é", min_size=1, max_size=6)
labels = atoms.filter(lambda label: label not in ("TOP", "ROOT", "S1"))
constituents = st.recursive(
    st.builds(lambda tag, word: Tree([word], [tag]), atoms, atoms),
    lambda inner: st.builds(joined, st.lists(inner, min_size=1, max_size=4), labels),
    max_leaves=12,
)
whole_trees = st.lists(constituents, max_size=3).map(lambda parts: joined([*parts, NOTHING]))


def trees_in(path):
    return parse_trees(read_lines(path), path)


def read(directory, text):
    path = directory / "trees.mrg"
    path.write_text(text, encoding="utf-8")
    return list(trees_in(path))


def test_a_tree_is_read_and_printed(tmp_path):
    assert read(tmp_path, BARKS_TEXT) == [BARKS]
    assert format_tree(BARKS) == BARKS_TEXT


def test_trees_differ_in_label_word_or_structure(tmp_path):
    others = [
        BARKS_TEXT.replace(old, new)
        for old, new in (("NP", "NX"), ("NN", "NNP"), ("dog", "cat"), (" (. .)))", ") (. .))"))
    ]
    trees = [BARKS, *read(tmp_path, "\n".join(others))]
    assert len(trees) == 5
    assert all(one != other for one, other in combinations(trees, 2))


@pytest.mark.parametrize(
    "text",
    [
        "( (S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .)) )",
        "((S(NP(DT The)(NN dog))(VP(VBZ barks))(. .)))",
        "(ROOT\n  (S\n    (NP (DT The) (NN dog))\n    (VP (VBZ\tbarks))\n\n    (. .)))\r\n",
        "(S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .))",
        "(S1 (S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .)))",
        "\n\n(TOP\n(\nS (NP ( DT The ) (NN\ndog)) (VP (VBZ barks) ) (. .)))\n\n",
    ],
)
def test_the_outermost_bracket_and_white_space_vary(tmp_path, text):
    assert read(tmp_path, text) == [BARKS]


def test_a_line_may_hold_several_trees_and_a_tree_several_lines(tmp_path):
    text = "(TOP (UH Oh)) (NP (NN café)) ( (X (FW a)\n) ) (TOP (UH\nno))(TOP)\n"
    expected = ["(TOP (UH Oh))", "(TOP (NP (NN café)))", "(TOP (X (FW a)))", "(TOP (UH no))"]
    assert list(map(format_tree, read(tmp_path, text))) == [*expected, "(TOP)"]


@pytest.mark.parametrize(
    "failed", ["()", "( )", "(())", "( () )", "(\n)", "(TOP)", "(ROOT ())", "(S1)"]
)
def test_brackets_around_nothing_are_the_empty_tree(tmp_path, failed):
    assert read(tmp_path, f"{BARKS_TEXT}\n{failed}\n{BARKS_TEXT}") == [BARKS, NOTHING, BARKS]


def test_a_file_without_trees_has_none(tmp_path):
    assert read(tmp_path, "") == read(tmp_path, " \n\n") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{BARKS_TEXT}\n(TOP (S\n(NN a)\n", r"line 2: the tree that begins here is never closed"),
        (f"{BARKS_TEXT}\n(TOP (S (NN a))\n{BARKS_TEXT}\n", r"line 2: the tree that begins here is"),
        (f"\n{BARKS_TEXT}\n{BARKS_TEXT})\n", r"line 3: '\)' is outside all trees"),
        ("(TOP (UH a))\nword (UH a)", r"line 2: 'word ' is outside all trees"),
        ("(TOP (S (NP)\n(NN a)))", r"line 1: expected \(TAG word\) or \(LABEL.* at '\(NP\) \(NN"),
        ("(TOP (UH a))\n(S\n(DT the dog))", r"tree on line 2: expected .* at '\(DT the dog\)\)'"),
        ("(TOP (S (NN a) b))", r"expected .* at 'b\)\)'"),
        ("(S a (NN b))", r"expected .* at '\(S a \(NN b\)\)'"),
        ("(S ( (NN b)))", r"expected .* at '\( \(NN b\)\)\)'"),
        ("(S ( b))", r"expected .* at '\( b\)\)'"),
        ("(S ())", r"expected .* at '\(\)\)'"),
        ("(X (S1 (NN a)))", r"expected .* at '\(S1 \(NN a\)\)\)'"),
        # Two errors that make up for each other: what a reader that only counts would miss.
        ("(TOP (S (NN a))\n(TOP (NN b)))", r"tree on line 1: expected .* at '\(TOP \(NN b\)\)\)'"),
    ],
)
def test_what_is_no_tree_is_named_with_its_line(tmp_path, text, message):
    with refused(match=message) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/trees.mrg")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with refused("none.mrg cannot be read"):
        list(trees_in(tmp_path / "none.mrg"))


def test_a_reader_holds_one_tree_at_a_time(tmp_path):
    path = tmp_path / "trees.mrg"
    path.write_text(f"{BARKS_TEXT}\n(TOP\n")
    trees = trees_in(path)
    assert next(trees) == BARKS
    with refused("line 2"):
        next(trees)


def test_depth_is_limited_by_memory_alone(tmp_path):
    depth = 5000
    text = f"(TOP {'(S ' * depth}(NP-SBJ (NN a)){')' * (depth + 1)}"
    (tree,) = read(tmp_path, text)
    assert format_tree(tree) == text
    assert tree == read(tmp_path, text)[0]
    assert tree != read(tmp_path, text.replace("a", "b"))[0]
    words, symbols = clean_tree(tree)
    assert symbols == ["(S"] * depth + ["(NP", "NN", ")NP"] + [")S"] * depth
    assert build_tree(words, symbols) == (clean_tree(tree), 0)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        (BARKS_TEXT, BARKS_TEXT),
        (
            "(TOP (S-TPC-1 (NP-SBJ=2 (PRP It)) (VP (VBZ rains))))",
            "(TOP (S (NP (PRP It)) (VP (VBZ rains))))",
        ),
        (
            "(TOP (S (NP-SBJ-1 (-NONE- *)) (VP (VB Go) (SBAR (-NONE- 0) (S (-NONE- *T*-1))))))",
            "(TOP (S (VP (VB Go))))",
        ),
        ("(TOP (S (NP (-NONE- *))))", "(TOP)"),
        (
            "(TOP (PRN-X (-LRB- -LRB-) (NN-Y x-1=2) (-RRB- -RRB-) (-LRB- (PRP$ its))))",
            "(TOP (PRN (-LRB- -LRB-) (NN-Y x-1=2) (-RRB- -RRB-) (-LRB- (PRP$ its))))",
        ),
        ("(TOP (ADVP|PRT-DIR (RP up)))", "(TOP (ADVP|PRT (RP up)))"),
    ],
)
def test_cleaning_leaves_what_parsers_predict(tmp_path, text, cleaned):
    (tree,) = read(tmp_path, text)
    assert format_tree(clean_tree(tree)) == cleaned
    assert clean_tree(clean_tree(tree)) == clean_tree(tree)


@given(whole_trees)
def test_every_tree_survives_linearising_and_printing(tmp_path_factory, tree):
    words, symbols = tree
    assert " ".join(words).split() == words
    assert " ".join(symbols).split() == symbols
    assert read(tmp_path_factory.getbasetemp(), format_tree(tree)) == [tree]


@given(whole_trees)
def test_a_valid_sequence_needs_no_repair(tree):
    tagged = [tag if tag[0] in "()" else "XY" for tag in tree.symbols]
    words = [f"w{number}" for number in range(tagged.count("XY"))]
    assert build_tree(words, tagged) == (Tree(words, tagged), 0)


symbols_of_any_kind = st.lists(
    st.one_of(
        st.sampled_from(["(S", ")S", "(NP", ")NP", "(VP", ")VP", "NN", "DT", ",", ".", ""]),
        st.sampled_from(["(", ")", "((", "(TOP", ")TOP", "(ROOT", "-NONE-", "TOP", "(a b", "N N"]),
        st.text(max_size=4),
    ),
    max_size=30,
)
words_of_any_kind = st.lists(
    st.one_of(
        st.sampled_from(["dog", ",", ".", "?!", "--", "``", "'", "(", ")", "-LRB-", "f(x)", "..."]),
        st.text(min_size=1, max_size=4).filter(lambda word: len(word.split()) == 1).map(str.strip),
    ),
    max_size=12,
)


@given(words_of_any_kind, symbols_of_any_kind)
def test_any_symbols_become_a_tree_over_exactly_the_words(tmp_path_factory, words, symbols):
    tree, repairs = build_tree(words, symbols)
    (again,) = read(tmp_path_factory.getbasetemp(), format_tree(tree))
    assert again == tree
    found, repaired = tree
    assert found == list(map(escape_brackets, words))
    assert (repairs == 0) == (repaired == symbols)
    # A tree that was built is built again as it is.
    assert build_tree(words, repaired) == (tree, 0)


@given(words_of_any_kind, symbols_of_any_kind, symbols_of_any_kind)
def test_scoring_leaves_out_the_same_words_of_every_prediction(words, symbols, other_symbols):
    unambiguous = [word for word in words if word not in ("'", "’", "-", "–", "--")]
    kept = []
    for predicted in (symbols, other_symbols):
        tags = [s for s in build_tree(unambiguous, predicted)[0].symbols if s[0] not in "()"]
        assert len(tags) == len(unambiguous)
        assert not {"-NONE-", "TOP"} & set(tags)
        kept.append([tag not in (",", ":", "``", "''", ".") for tag in tags])
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    ("symbols", "text", "repairs"),
    [
        # A closing bracket closes up to the nearest open one of its label.
        ("(S (NP DT (X NN )NP VBZ . )S", "(S (NP (DT a) (X (NN b))) (VBZ c) (. .))", 1),
        ("(S (NP (NP DT )NP NN VBZ . )S", "(S (NP (NP (DT a)) (NN b) (VBZ c) (. .)))", 1),
        # If there is none, it is ignored.
        ("(S DT )VP NN VBZ . )S", "(S (DT a) (NN b) (VBZ c) (. .))", 1),
        ("(S (NP (X DT )NP NN )X VBZ . )S", "(S (NP (X (DT a))) (NN b) (VBZ c) (. .))", 2),
        (")S DT NN VBZ .", "(DT a) (NN b) (VBZ c) (. .)", 1),
        # Brackets still open are closed at the end.
        ("(S (NP DT NN )NP (VP VBZ .", "(S (NP (DT a) (NN b)) (VP (VBZ c) (. .)))", 2),
        # Words without a tag go to the innermost constituent still open...
        ("(S (NP DT NN )NP (VP", "(S (NP (DT a) (NN b)) (VP (NN c) (. .)))", 4),
        # ...or else to the one that the symbols end with...
        ("(S (NP DT NN )NP )S", "(S (NP (DT a) (NN b)) (NN c) (. .))", 2),
        # ...or to the root.
        ("(NP DT NN )NP VBZ", "(NP (DT a) (NN b)) (VBZ c) (. .)", 1),
        ("", "(NN a) (NN b) (NN c) (. .)", 4),
        # Tags without a word are ignored, and constituents without one removed.
        ("(S DT NN VBZ . NN (NP NN )NP )S", "(S (DT a) (NN b) (VBZ c) (. .))", 3),
        ("(S (NP )NP DT NN (X (VP VBZ . )VP )X )S (X (Y", None, 5),
        # Symbols that cannot be printed, and labels of roots, are ignored.
        ("( (S DT NN VBZ . )S )", "(S (DT a) (NN b) (VBZ c) (. .))", 2),
        ("(S1 (S DT NN VBZ . )S )S1", "(S (DT a) (NN b) (VBZ c) (. .))", 2),
        ("(TOP (S ((X DT NN VBZ . )S )TOP", "(S (DT a) (NN b) (VBZ c) (. .))", 3),
        # Tags have to suit their words.
        ("(S , NN : NN )S", "(S (NN a) (NN b) (NN c) (. .))", 3),
        ("(S -NONE- TOP -LRB- , )S", "(S (NN a) (NN b) (NN c) (. .))", 4),
    ],
)
def test_repairs_follow_the_stated_rules(symbols, text, repairs):
    text = text or "(S (DT a) (NN b) (X (VP (VBZ c) (. .))))"
    tree, count = build_tree(["a", "b", "c", "."], symbols.split())
    assert format_tree(tree) == f"(TOP {text})"
    assert count == repairs


@pytest.mark.parametrize(
    ("words", "tag"),
    [
        (", ", ","),
        (". ? ! ?! !!", "."),
        (": ; -- --- ... .. … — • - –", ":"),
        ("`` ` “ ‘ „ «", "``"),
        ("'' ” » \"", "''"),
        ("-LRB- -LCB- -LSB- [ { (", "-LRB-"),
        ("-RRB- -RCB- -RSB- ] } )", "-RRB-"),
        ("' ’", "POS"),
        ("dog 's $ % # & / U.S. a, 3.5 don't -ing", "NN"),
    ],
)
def test_words_without_a_suitable_tag_get_one(words, tag):
    for predicted in ("", "(", ":)", "-NONE-"):
        for word in words.split():
            tree, _ = build_tree([word], [predicted])
            assert tree == Tree([escape_brackets(word)], [tag])


@pytest.mark.parametrize(
    ("word", "tags"),
    [
        ("'", ["POS", "''", "``"]),
        ('"', ["``", "''"]),
        ("-", [":", "HYPH", "SYM"]),
        ("--", [":", "HYPH"]),
    ],
)
def test_ambiguous_punctuation_keeps_a_predicted_tag_that_it_can_have(word, tags):
    for tag in tags:
        assert build_tree([word], [tag]) == (Tree([word], [tag]), 0)


def test_a_sentence_of_no_words_has_the_empty_tree():
    assert build_tree([], ["(S", "NN", ")S"]) == (NOTHING, 2)
    assert format_tree(NOTHING) == "(TOP)"


@pytest.mark.parametrize(
    "text", ["(" * 100_000, "(S " * 100_000, "(S" * 100_000 + ")" * 100_000, ")" * 100_000]
)
def test_brackets_without_end_are_refused_in_one_line(tmp_path, text):
    with refused(match=r"trees\.mrg.* line 1: ") as caught:
        read(tmp_path, text)
    assert len(str(caught.value)) < 500
