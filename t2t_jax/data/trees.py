"""Constituency trees as sequences (section 6.3), linearised as by Vinyals et al. (2015).

The sentence `The dog barks .` and its tree

    (TOP (S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .)))

become a source of words and a target of symbols, one part-of-speech tag for each word in place:

    The dog barks .
    (S (NP DT NN )NP (VP VBZ )VP . )S

The outermost bracket is left out. The tags are written, where Vinyals et al. write XX for each,
because scoring leaves out punctuation by its tag. A closing bracket repeats its label: it tells
the decoder what is still open, and it tells `build_tree` which bracket was meant. Words and
symbols together are the tree, so a `Tree` has this flat form, and everything here works in linear
time and at any depth.
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
"""The tag of traces and other elements that are no words of the sentence."""
PUNCTUATION_TAGS = frozenset([",", ".", ":", "``", "''"])
"""The tags of the Penn Treebank for punctuation other than brackets."""

_OUTERMOST = ("", TOP, "ROOT", "S1")
_ATOM = re.compile(r"[^\s()]+")
_BRACKET_OR_TEXT = re.compile(r"[()]|[^()]+")
# A tag with its word, the opening of a constituent, a closing bracket, or anything else.
_PIECE = re.compile(
    r"\(\s*+([^\s()]++)\s++([^\s()]++)\s*+\)|\(\s*+([^\s()]*+)\s*+(?=\()|\)|\(|[^\s()]+"
)
_BEGIN = re.compile(r"\s*\(\s*[^\s()]*\s*\(")
_FUNCTION_TAGS = re.compile(r"(?<=[()])([^-=]+).*")  # of a bracket, and not of `-LRB-`
_BRACKETS = str.maketrans({"(": "-LRB-", ")": "-RRB-"})

# The tags that a token of punctuation may have, first the one it gets if none of them is predicted.
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
    """A tree with the root `TOP`: its words, and the symbols that hold its structure.

    Every constituent has a word. The tree of no words has no symbols either.
    """

    words: list[str]
    """The words of the sentence. No word or symbol has white space in it."""
    symbols: list[str]
    """For each constituent below the root `(LABEL`, its contents and `)LABEL`; for each word its
    tag."""


def format_tree(tree: Tree) -> str:
    """Return the tree in brackets, on one line: `(TOP (S (NP (DT The) (NN dog)) ...))`."""
    remaining = iter(tree.words)

    def written(symbol: str) -> str:
        if is_tag(symbol):
            return f" ({symbol} {next(remaining)})"
        return ")" if symbol[0] == ")" else f" {symbol}"

    return f"({TOP}{''.join(map(written, tree.symbols))})"


def is_tag(symbol: str) -> bool:
    """Return whether a symbol of a tree is the tag of a word, and no bracket."""
    return symbol[0] not in "()"


def parse_trees(lines: Iterable[str], path: str | Path) -> Iterator[Tree]:
    """Yield the trees in lines of a bracketed file, one by one, as they are written.

    Trees may span lines, and a line may hold several. The outermost bracket may be labelled TOP,
    ROOT, S1 or not at all, or be missing; the root becomes `TOP`. Brackets around nothing are the
    tree of no words: parsers write `(())` where they fail.

    Args:
      path: the name of the file, for errors.
    """
    for line, text in _outermost_brackets(lines, path):
        try:
            yield _parse(text)
        except ValueError as error:
            raise UserError(f"{path}, tree on line {line}: {error}") from error


def begins_with_tree(lines: Iterable[str]) -> bool:
    """Return whether a text begins with two opening brackets, as trees do but not sentences."""
    # A tree may have its label on a line and its first part on the next one.
    return _BEGIN.match("\n".join(islice(filter(str.strip, lines), 2))) is not None


def _outermost_brackets(lines: Iterable[str], path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield each outermost bracket: the number of its first line, and its text."""
    depth = first_line = 0
    parts: list[str] = []
    for number, line in enumerate(lines, start=1):
        for part in _BRACKET_OR_TEXT.findall(line):
            if depth == 0:
                if part.isspace():
                    continue
                first_line = number
            depth += (part == "(") - (part == ")")
            if depth < 0 or (depth == 0 and part != ")"):
                raise UserError(f"{path} line {number}: {part[:40]!r} stands outside every tree")
            parts.append(part)
            if depth == 0:
                yield first_line, "".join(parts)
                parts = []
        parts.append("\n")
    if depth:
        raise UserError(f"{path} line {first_line}: the tree that begins here is never closed")


def _parse(text: str) -> Tree:
    """Parse one outermost bracket.

    Raises:
      ValueError: a part of the text is neither a constituent nor a word with its tag.
    """
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
            place = " ".join(text[match.start() :][:40].split())
            raise ValueError(f"expected (TAG word) or (LABEL (... at {place!r}")
        else:
            open_labels.append(label)
            symbols.append(f"({label}")
    has_root = symbols[0] in [f"({label}" for label in _OUTERMOST]
    return Tree(words, symbols[1:-1] if has_root else symbols)


def clean_tree(tree: Tree) -> Tree:
    """Return the tree in the form that parsers are usually trained on and scored against.

    Empty elements (`-NONE-`) are removed, with the constituents that hold nothing else; so are
    function tags and co-indices of constituents (`NP-SBJ-1` and `NP=2` become `NP`). Words and
    their tags stay.
    """
    words, symbols = tree
    tags = filter(is_tag, symbols)
    kept = [word for word, tag in zip(words, tags, strict=True) if tag != EMPTY_ELEMENT]
    bare = [_FUNCTION_TAGS.sub(r"\1", symbol) for symbol in symbols if symbol != EMPTY_ELEMENT]
    return Tree(kept, _without_empty(bare))


def _without_empty(symbols: Iterable[str]) -> list[str]:
    """Return the flat form of a tree without constituents that hold no word."""
    kept: list[str] = []
    for symbol in symbols:
        if symbol[0] == ")" and kept[-1][0] == "(":
            kept.pop()
        else:
            kept.append(symbol)
    return kept


def escape_brackets(text: str) -> str:
    """Return text with `(` and `)` written as in the Penn Treebank: `-LRB-` and `-RRB-`."""
    return text.translate(_BRACKETS)


def build_tree(words: Sequence[str], symbols: Sequence[str]) -> tuple[Tree, int]:
    """Build a tree over exactly these words, whatever symbols a model has written.

    Each of these is one repair:

    - A bracket with no label, a label with a bracket or white space in it, or the label of a root
      is ignored.
    - A tag that does not suit its word is replaced. Punctuation gets the Penn Treebank's tag for
      it (of several, the predicted one), and another word with such a tag gets `NN`: so scoring,
      which leaves out punctuation by its tag, keeps the same words of both trees.
    - A tag with no word left for it is ignored.
    - A closing bracket closes all up to the nearest open one with its label; each that it closes on
      the way is a repair. If no open bracket has its label, it is ignored.
    - A word with no tag left is added at the end with a tag of its own: to the innermost
      constituent that is still open; if all are closed, to the one that the symbols end with.
    - A bracket still open at the end is closed.
    - A constituent that then has no words is removed.

    Where a treebank tags a word against the rule for punctuation, the gold symbols are repaired
    too, and no parser can get that sentence right: if the tag wrongly decides
    whether the word is punctuation, EVALB finds other words in the two trees and reports an error.

    Args:
      words: the sentence; brackets in it are escaped. No word is empty or has white space in it.
      symbols: the model's output, any strings.

    Returns:
      The tree, and the number of repairs: 0 for the symbols of a clean tree (if its punctuation is
      tagged as the rule above has it).
    """
    words = [escape_brackets(word) for word in words]
    fitted, rest, repairs = _fit_tags(words, symbols)
    balanced, open_labels, unbalanced = _balance(fitted)
    closing = [f"){label}" for label in reversed(open_labels)]
    repairs += unbalanced + len(closing) + len(rest)
    if rest and not closing and balanced and balanced[-1][0] == ")":
        closing = [balanced.pop()]
    complete = [*balanced, *rest, *closing]
    filled = _without_empty(complete)
    return Tree(words, filled), repairs + (len(complete) - len(filled)) // 2


def _fit_tags(words: Sequence[str], symbols: Sequence[str]) -> tuple[list[str], list[str], int]:
    """Replace tags that do not suit their words.

    Returns:
      The symbols, the tags of words that had none, and the number of repairs of the symbols.
    """
    remaining = iter(words)
    fitted: list[str] = []
    repairs = 0
    for symbol in symbols:
        kept = None
        if symbol.startswith(("(", ")")):
            if _ATOM.fullmatch(symbol, 1) and symbol[1:] not in _OUTERMOST:
                kept = symbol
        elif (word := next(remaining, None)) is not None:
            kept = _suitable_tag(word, symbol)
        if kept is not None:
            fitted.append(kept)
        repairs += kept != symbol
    return fitted, [_suitable_tag(word, "") for word in remaining], repairs


def _suitable_tag(word: str, predicted: str) -> str:
    for pattern, tags in _PUNCTUATION:
        if pattern.fullmatch(word):
            return predicted if predicted in tags else tags[0]
    fits = predicted not in _NEVER_A_WORD and _ATOM.fullmatch(predicted)
    return predicted if fits else _WORD


def _balance(symbols: Iterable[str]) -> tuple[list[str], list[str], int]:
    """Match every closing bracket with an open one, or drop it.

    Returns:
      The symbols, the labels that are still open, and the number of repairs.
    """
    balanced: list[str] = []
    open_labels: list[str] = []
    num_open: Counter[str] = Counter()
    repairs = 0
    for symbol in symbols:
        label = symbol[1:]
        if symbol[0] == "(":
            open_labels.append(label)
            num_open[label] += 1
        elif symbol[0] == ")":
            if not num_open[label]:
                repairs += 1
                continue
            while (inner := open_labels.pop()) != label:
                balanced.append(f"){inner}")
                num_open[inner] -= 1
                repairs += 1
            num_open[label] -= 1
        balanced.append(symbol)
    return balanced, open_labels, repairs
