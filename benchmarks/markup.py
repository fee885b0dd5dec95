"""Measure where a model's tags stand in its translations, beside translation tag by tag.

    python benchmarks/markup.py runs/help --source test.tags.en --target test.tags.de

The files have lines of HTML with inline tags, such as those of `benchmarks/help_corpus.py`; lines
without tags are left out. Each line is translated as a whole, with its tags put at the translated
words, as `t2t-jax translate --format html` does it; and tag by tag, where each text
between two tags is translated by itself, as is usual elsewhere. Printed is, for both:

    all tags         share of the lines with exactly the tags of their source
    well-formed      share of the lines whose tags nest
    same words       share of the reference's elements that the line has with the same words
    placed           the same, of those elements alone whose words are in the line's text
    BLEU             sacreBLEU of the text without tags
    lines a second   on this machine

"in the reference" is the placement alone: the tags are put into the text of the reference, by the
texts of elements and the links of its words, without their own translations.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape, unescape
from pathlib import Path

from measuring import machine

from t2t_jax.data.lines import read_lines
from t2t_jax.decoding.alignments import alignments
from t2t_jax.decoding.documents import translate_documents
from t2t_jax.decoding.translator import Translator
from t2t_jax.markup.document import html_document
from t2t_jax.markup.html import pieces
from t2t_jax.markup.projection import with_markup
from t2t_jax.markup.tagged import Element
from t2t_jax.run.loading import load
from t2t_jax.system.program import run
from t2t_jax.tasks.measures.bleu import corpus_scores

Lines = list[str]


def parts(line: str) -> list[tuple[str, bool]]:
    """Return the texts and the tags of a line, in order, and whether each is a tag."""
    return [(piece, piece.startswith("<")) for piece, _ in pieces(line)]


def text_of(line: str) -> str:
    """Return what a reader sees of a line."""
    return " ".join(unescape("".join(one for one, is_tag in parts(line) if not is_tag)).split())


def elements(line: str) -> Iterator[tuple[str, str]]:
    """Yield the tag of each element of a line, and its words."""

    def each(found: Sequence[Element], text: str) -> Iterator[tuple[str, str]]:
        for one in found:
            yield one.opening, " ".join(text[one.begin : one.end].split())
            yield from each(one.within, text)

    for sentence in html_document(line).tagged:
        yield from each(sentence.elements, sentence.text)


def tags(line: str) -> Counter[str]:
    """Return the tags of a line, with their numbers."""
    return Counter(one for one, is_tag in parts(line) if is_tag)


def nests(line: str) -> bool:
    """Return whether the tags of a line nest."""
    open_tags: list[str] = []
    for one, is_tag in parts(line):
        if is_tag and one.startswith("</"):
            if not open_tags or open_tags.pop() != one[2:-1]:
                return False
        elif is_tag:
            open_tags.append(one[1:-1].split()[0])
    return not open_tags


def as_wholes(translator: Translator, sources: Lines) -> Lines:
    """Translate whole lines, with tags at the translated words."""
    return translate_documents(translator, [*map(html_document, sources)])[0]


def tag_by_tag(translator: Translator, sources: Lines) -> Lines:
    """Translate every text between two tags by itself."""
    found = [parts(line) for line in sources]
    given = [unescape(one) for line in found for one, is_tag in line if not is_tag]
    translated = iter(translator.translate(given, before=None))

    def filled(one: str, is_tag: bool) -> str:
        if is_tag:
            return one
        space = " " if one[:1].isspace() else "", " " if one[-1:].isspace() else ""
        return f"{space[0]}{escape(next(translated), quote=False)}{space[1]}"

    return ["".join(filled(*one) for one in line) for line in found]


def in_references(translator: Translator, sources: Lines, targets: Lines) -> Lines:
    """Put the tags of the sources into the text of the references."""
    tagged = [html_document(line).tagged[0] for line in sources]
    texts = [*map(text_of, targets)]
    linked = alignments(translator, [one.text for one in tagged], texts)
    put = partial(with_markup, escape=partial(escape, quote=False))
    return [*map(put, tagged, texts, linked.links)]


def main(arguments: Sequence[str]) -> int:
    """Print the figures, and return the exit code."""
    flags = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    flags.add_argument("workdir", type=Path)
    flags.add_argument("--source", type=Path, nargs="+", required=True)
    flags.add_argument("--target", type=Path, nargs="+", required=True)
    asked = flags.parse_args(arguments)
    sources, targets = (
        [line for path in paths for line in read_lines(path)]
        for paths in (asked.source, asked.target)
    )
    pairs = [
        (source, target)
        for source, target in zip(sources, targets, strict=True)
        if tags(source) and tags(source) == tags(target) and len(html_document(source).tagged) == 1
    ]
    sources, targets = map(list, zip(*pairs, strict=True))
    translator = load(asked.workdir)
    print(f"{machine()}\n{len(pairs):,} lines with tags, which their references have as well")
    ways: dict[str, Callable[[], Lines]] = {
        "whole": lambda: as_wholes(translator, sources),
        "tag by tag": lambda: tag_by_tag(translator, sources),
        "in the reference": lambda: in_references(translator, sources, targets),
    }
    for name, way in ways.items():
        way()  # compiles
        start = time.perf_counter()
        lines = way()
        seconds = time.perf_counter() - start
        wanted = [Counter(elements(line)) for line in targets]
        each = zip(lines, wanted, strict=True)
        hit = sum((Counter(elements(line)) & own).total() for line, own in each)
        every = zip(map(text_of, lines), wanted, strict=True)
        there = sum(own[one] for text, own in every for one in own if one[1] in text)
        complete = sum(tags(a) == tags(b) for a, b in zip(lines, sources, strict=True))
        bleu = corpus_scores([*map(text_of, lines)], [*map(text_of, targets)], "de").bleu
        print(
            f"{name:16} all tags {complete / len(lines):.1%}  "
            f"well-formed {sum(map(nests, lines)) / len(lines):.1%}  "
            f"same words {hit / sum(own.total() for own in wanted):.1%}  "
            f"placed {hit / max(1, there):.1%}  BLEU {bleu:.2f}  "
            f"lines a second {len(lines) / seconds:.1f}"
        )
    return 0


if __name__ == "__main__":
    run(main)
