"""Constituency trees as sequences (section 6.3), linearized as by Vinyals et al. (2015).

The sentence `The dog barks .` and its tree

    (TOP (S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .)))

become a source of words and a target of symbols, in which part-of-speech tags replace the words:

    The dog barks .
    (S (NP DT NN )NP (VP VBZ )VP . )S

The flat form omits the outermost bracket. It keeps the tags, which Vinyals et al. replace by XX,
because scoring ignores punctuation by its tag. A closing bracket repeats its label, so that the
decoder knows the open constituent and `build_tree` the bracket to close. A `Tree` has this flat
form, so all functions take linear time at any depth.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from t2t_jax.errors import UserError

FORMAT_VERSION = 2
"""The version of the flat form, raised whenever the same trees would get another form."""

TOP = "TOP"
"""The label of the root of every tree."""
EMPTY_ELEMENT = "-NONE-"
"""The tag of traces and other elements that are not words of the sentence."""
PUNCTUATION_TAGS = frozenset([",", ".", ":", "``", "''"])
"""The Penn Treebank's tags of punctuation other than brackets."""

_OUTERMOST = ("", TOP, "ROOT", "S1")
_ATOM = re.compile(r"[^\s()]+")
_BRACKET_OR_TEXT = re.compile(r"[()]|[^()]+")
# A tag with its word, the opening of a constituent, a closing bracket, or anything else.
_PIECE = re.compile(
    r"\(\s*+([^\s()]++)\s++([^\s()]++)\s*+\)|\(\s*+([^\s()]*+)\s*+(?=\()|\)|\(|[^\s()]+"
)
_BEGIN = re.compile(r"\s*\(\s*[^\s()]*\s*\(")
_FUNCTION_TAGS = re.compile(r"(?<=[()])([^-=]+).*")  # of a bracket, but not of the tag `-LRB-`
_BRACKETS = str.maketrans({"(": "-LRB-", ")": "-RRB-"})

# The tags that a punctuation token may have; the first is its tag if the model predicts none.
_PUNCTUATION = (
    (re.compile(r","), (",",)),
    (re.compile(r"\.|[?!]+"), (".",)),
    (re.compile(r"[:;•…]|[.…]{2,}|–{2,}|—+"), (":",)),
    (re.compile(r"-{2,}"), (":", "HYPH")),
    (re.compile(r"[-–]"), (":", "HYPH", "SYM")),
    (re.compile(r"``?|[‘“„«]"), ("``",)),
    (re.compile(r"''|[”»]"), ("''",)),
    (re.compile(r'"'), ("''", "``")),
    (re.compile(r"['’]"), ("POS", "''", "``")),
    (re.compile(r"-L[RCS]B-|[\[{]"), ("-LRB-",)),
    (re.compile(r"-R[RCS]B-|[\]}]"), ("-RRB-",)),
)
_NEVER_A_WORD = PUNCTUATION_TAGS | {"-LRB-", "-RRB-", EMPTY_ELEMENT, TOP}
_WORD = "NN"


class Tree(NamedTuple):
    """A tree with the root `TOP`, as words and symbols. Every constituent has a word."""

    words: list[str]
    """The words of the sentence. No word or symbol has white space."""
    symbols: list[str]
    """The tag of each word, with `(LABEL` and `)LABEL` around each constituent below the root."""


def format_tree(tree: Tree) -> str:
    """Format a tree as one line of brackets, such as `(TOP (S (NP (DT The) (NN dog)) ...))`."""
    remaining_words = iter(tree.words)

    def formatted(symbol: str) -> str:
        if is_tag(symbol):
            return f" ({symbol} {next(remaining_words)})"
        return ")" if symbol[0] == ")" else f" {symbol}"

    return f"({TOP}{''.join(map(formatted, tree.symbols))})"


def is_tag(symbol: str) -> bool:
    """Return whether a symbol of a tree is the tag of a word, not a bracket."""
    return symbol[0] not in "()"


def parse_trees(lines: Iterable[str], path: str | Path) -> Iterator[Tree]:
    """Parse the trees of a bracketed file, which may span lines or share a line.

    The root may have the label TOP, ROOT, S1 or none. Empty brackets are a tree without words.

    Args:
      path: the name of the file, for errors.
    """
    for line, text in _outermost_brackets(lines, path):
        try:
            yield _parse(text)
        except ValueError as error:
            raise UserError(f"{path}, tree on line {line}: {error}") from error


def begins_with_tree(lines: Iterable[str]) -> bool:
    """Return whether a text begins with two opening brackets, as a tree does."""
    # A tree may have its label on one line, and its first constituent on the next line.
    return _BEGIN.match("\n".join(islice(filter(str.strip, lines), 2))) is not None


def _outermost_brackets(lines: Iterable[str], path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield each outermost bracket of a file, which is a tree, after its first line number."""
    depth = first_line = 0
    parts: list[str] = []
    for line_number, line in enumerate(lines, start=1):
        for part in _BRACKET_OR_TEXT.findall(line):
            if depth == 0:
                if part.isspace():
                    continue
                first_line = line_number
            depth += (part == "(") - (part == ")")
            if depth < 0 or (depth == 0 and part != ")"):
                raise UserError(f"{path} line {line_number}: {part[:40]!r} is outside all trees")
            parts.append(part)
            if depth == 0:
                yield first_line, "".join(parts)
                parts = []
        parts.append("\n")
    if depth:
        raise UserError(f"{path} line {first_line}: the tree that begins here is never closed")


def _parse(text: str) -> Tree:
    """Parse the text of one tree, such as `(TOP (NP (DT The) (NN dog)))`.

    Raises:
      ValueError: the text has other contents than constituents and words with their tags.
    """
    # Parsers write `(())` when they fail.
    if text.strip("()" + string.whitespace) in _OUTERMOST:
        return Tree([], [])
    words: list[str] = []
    symbols: list[str] = []
    open_labels: list[str] = []
    for match in _PIECE.finditer(text):
        tag, word, label = match.groups()
        if word:
            symbols.append(tag)
            words.append(word)
        elif match[0] == ")":
            symbols.append(f"){open_labels.pop()}")
        elif label is None or (open_labels and label in _OUTERMOST):
            excerpt = " ".join(text[match.start() :][:40].split())
            raise ValueError(f"expected (TAG word) or (LABEL (... at {excerpt!r}")
        else:
            open_labels.append(label)
            symbols.append(f"({label}")
    has_root = symbols[0] in [f"({label}" for label in _OUTERMOST]
    return Tree(words, symbols[1:-1] if has_root else symbols)


def clean_tree(tree: Tree) -> Tree:
    """Normalize a tree to the form on which parsers are usually trained and scored.

    The function removes empty elements (`-NONE-`), constituents of only such elements, function
    tags and co-indices (`NP-SBJ-1` and `NP=2` become `NP`).
    """
    words, symbols = tree
    tags = filter(is_tag, symbols)
    sentence = [word for word, tag in zip(words, tags, strict=True) if tag != EMPTY_ELEMENT]
    non_empty = (symbol for symbol in symbols if symbol != EMPTY_ELEMENT)
    bare_symbols = [_FUNCTION_TAGS.sub(r"\1", symbol) for symbol in non_empty]
    return Tree(sentence, _without_empty(bare_symbols))


def _without_empty(symbols: Iterable[str]) -> list[str]:
    stack: list[str] = []
    for symbol in symbols:
        if symbol[0] == ")" and stack[-1][0] == "(":
            stack.pop()
        else:
            stack.append(symbol)
    return stack


def escape_brackets(text: str) -> str:
    """Replace `(` and `)` by `-LRB-` and `-RRB-`, as in the Penn Treebank."""
    return text.translate(_BRACKETS)


def build_tree(words: Sequence[str], symbols: Sequence[str]) -> tuple[Tree, int]:
    """Build a tree over exactly `words` from the symbols of a model, and repair them if needed.

    Each of these counts as one repair:

    - Ignore a bracket without a label, with a root's label, or whose label has a bracket or white
      space.
    - Replace a tag that does not suit its word. Punctuation gets its Penn Treebank tag (of several,
      the predicted one), and another word with such a tag gets `NN`. So scoring, which ignores
      punctuation by its tag, compares the same words of both trees.
    - Ignore a tag without a word.
    - Close all constituents inside the one that a closing bracket names. Ignore the bracket if no
      open constituent has its label.
    - Add a word without a tag to the innermost open constituent at the end, or, if all are closed,
      to the last one.
    - Close a bracket that is open at the end.
    - Remove a constituent without words.

    Args:
      words: the words of the sentence, not empty and without white space; brackets are escaped.
      symbols: the output of the model, any strings.

    Returns:
      The tree, and the number of repairs: 0 for a clean tree that follows the punctuation rule.
    """
    # The rule for punctuation repairs gold symbols too, so no parser can get such a sentence right.
    # If the gold tag wrongly decides whether a word is punctuation, EVALB finds different words in
    # the two trees and reports an error.
    words = [escape_brackets(word) for word in words]
    valid_symbols, open_labels, missing_tags, repairs = _valid_symbols(words, symbols)
    brackets = [f"){label}" for label in reversed(open_labels)]
    repairs += len(brackets) + len(missing_tags)
    if missing_tags and not brackets and valid_symbols and valid_symbols[-1][0] == ")":
        brackets = [valid_symbols.pop()]  # the words go inside the last constituent
    all_symbols = [*valid_symbols, *missing_tags, *brackets]
    final_symbols = _without_empty(all_symbols)
    # A removed constituent is one repair, and two symbols.
    return Tree(words, final_symbols), repairs + (len(all_symbols) - len(final_symbols)) // 2


def _valid_symbols(
    words: Sequence[str], symbols: Iterable[str]
) -> tuple[list[str], list[str], list[str], int]:
    """Replace tags that do not suit their words, and match closing brackets with open ones.

    Returns:
      The symbols, the labels of the open constituents, tags for the words that have none, and the
      number of repairs.
    """
    remaining_words = iter(words)
    valid_symbols: list[str] = []
    open_labels: list[str] = []
    num_open: Counter[str] = Counter()
    repairs = 0
    for symbol in symbols:
        label, new_symbol = symbol[1:], None
        if symbol.startswith("(") and _ATOM.fullmatch(label) and label not in _OUTERMOST:
            open_labels.append(label)
            num_open[label] += 1
            new_symbol = symbol
        elif symbol.startswith(")") and num_open[label]:
            while (inner_label := open_labels.pop()) != label:
                valid_symbols.append(f"){inner_label}")
                num_open[inner_label] -= 1
                repairs += 1
            num_open[label] -= 1
            new_symbol = symbol
        elif symbol[:1] not in ("(", ")") and (word := next(remaining_words, None)) is not None:
            new_symbol = _suitable_tag(word, symbol)
        if new_symbol is not None:
            valid_symbols.append(new_symbol)
        repairs += new_symbol != symbol
    return (
        valid_symbols,
        open_labels,
        [_suitable_tag(word, "") for word in remaining_words],
        repairs,
    )


def _suitable_tag(word: str, predicted_tag: str) -> str:
    for pattern, tags in _PUNCTUATION:
        if pattern.fullmatch(word):
            return predicted_tag if predicted_tag in tags else tags[0]
    fits = predicted_tag not in _NEVER_A_WORD and _ATOM.fullmatch(predicted_tag)
    return predicted_tag if fits else _WORD
