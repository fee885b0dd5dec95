"""The markup of a sentence, put at the words of its translation.

An element goes around the words that are its own text, or what the model makes of its own text,
where these stand in the translation. Elsewhere the model's attention finds the place: it links
every word of a translation to a word of the source (`decoding.alignments`), and the element goes
around the consecutive words that hold the most words linked into it, less those linked out of it.
Elements within it are placed in the same way among these words. So nesting stays legal, and no tag
is lost or invented.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from t2t_jax.markup.tagged import Element, Tagged

Links: TypeAlias = Sequence[tuple[int, int]]
"""Pairs of a source word and a target word, both counted from 0."""
Range: TypeAlias = tuple[int, int]
"""The place of the first of some words or characters, and the place behind the last."""
NOTHING_KNOWN: Mapping[str, str] = MappingProxyType({})
"""No translations of texts by themselves."""
_WORD = re.compile(r"\S+")
_UNIT = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
_MARKS_BEFORE = re.compile(r"[^\w\s]+(?=\w)")
_MARKS_AFTER = re.compile(r"(?<=\w)[^\w\s]+\Z")


class _Placed(NamedTuple):
    """An element with the words of the translation that it goes around; none if it stands alone."""

    words: Range
    number: int
    element: Element


def with_markup(
    source: Tagged,
    target: str,
    links: Links,
    escape: Callable[[str], str] = str,
    known: Mapping[str, str] = NOTHING_KNOWN,
) -> str:
    """Return a translation with the markup of its source.

    Args:
      source: the source with its markup.
      target: the translation of its text.
      links: the source word that each word of the translation comes from, as far as it is known;
        words are what white space separates. Others are linked by their order.
      escape: makes markup of text, such as `&lt;` of `<`.
      known: translations of texts by themselves, such as of those that `element_texts` returns.
    """
    sentence = _Sentence(source, target, links, escape, known)
    return sentence.part(source.elements, (0, len(sentence.words)), (0, len(target)))


def element_texts(source: Tagged, target: str) -> Iterator[str]:
    """Yield the texts of elements whose own translations say where the elements belong.

    They are those that have both of their tags and are translated, and that do not stand in the
    translation of the sentence as they are.
    """

    def each(elements: Sequence[Element]) -> Iterator[str]:
        for element in elements:
            text = _text_of(source.text, element)
            if _is_searched(source.text, element) and text and text not in target:
                yield text
            yield from each(element.within)

    return each(source.elements)


def _text_of(source: str, element: Element) -> str:
    return source[element.begin : element.end].strip()


def _is_whole(element: Element) -> bool:
    """Return whether an element that is translated has both of its tags."""
    return element.kept is None and element.opening != "" and element.closing != ""


def _is_searched(source: str, element: Element) -> bool:
    """Return whether a text may say where an element belongs: one of a part of the sentence."""
    return _is_whole(element) and _text_of(source, element) != source.strip()


class _Sentence:
    """A translation, among whose words elements are placed.

    The letters and the marks of a word count as words of their own here; those of two linked words
    are linked in order.
    """

    def __init__(
        self,
        source: Tagged,
        target: str,
        links: Links,
        escape: Callable[[str], str],
        known: Mapping[str, str],
    ) -> None:
        self._known = known
        self._source, self._target, self._escape = source.text, target, escape
        words, own_words = _units_of_words(source.text), _units_of_words(target)
        self._source_words = [unit for word in words for unit in word]
        self._source_begins, self._source_ends = (
            [unit[k] for unit in self._source_words] for k in (0, 1)
        )
        self.words = [unit for word in own_words for unit in word]
        self._ends = [end for _, end in self.words]
        firsts = [0, *accumulate(map(len, words))]
        linked = {own: other for other, own in links}
        share = len(words) / max(1, len(own_words))
        self._links: list[int] = []
        for number, own in enumerate(own_words):
            other = min(linked.get(number, int(number * share)), len(words) - 1)
            each = range(len(own)) if words else ()
            self._links += (firsts[other] + n * len(words[other]) // len(own) for n in each)

    def part(self, elements: Sequence[Element], words: Range, room: Range) -> str:
        """Return a part of the translation with the elements that belong into it.

        Args:
          words: the words of the part.
          room: its characters.
        """
        out, place = [], room[0]
        for placed in self._placed(elements, words):
            begin, end = (min(max(one, place), room[1]) for one in self._characters(placed))
            element = placed.element
            out += [self._escape(self._target[place:begin]), element.opening]
            if element.kept is None:
                out.append(self.part(element.within, placed.words, (begin, end)))
            else:
                out.append(self._spaced(element.kept, begin) if begin == end else element.kept)
            out.append(element.closing)
            place = end
        return "".join([*out, self._escape(self._target[place : room[1]])])

    def _placed(self, elements: Sequence[Element], words: Range) -> list[_Placed]:
        """Return the places of elements that stand beside one another, in their new order.

        First come those that reach to the edge of the sentence, then those with the most words that
        are linked into them, and those that stand alone last.
        """
        scores = [self._scores(element) for element in elements]

        def rank(number: int) -> tuple[bool, bool, int]:
            one = elements[number]
            inner = one.kept is not None or _is_whole(one)
            return one.begin == one.end, inner, -scores[number][slice(*words)].count(1)

        placed: list[_Placed] = []
        gaps = [words] if words[0] < words[1] else []
        for number in sorted(range(len(elements)), key=rank):
            element = elements[number]
            if element.begin == element.end or not gaps:
                own = self._alone(element, gaps, words)
            else:
                own = self._around(element, scores[number], gaps, words)
                gaps = [*_without(gaps, own)]
            placed.append(_Placed(own, number, element))
        return sorted(
            placed, key=lambda one: (one.words[0], one.words[1] > one.words[0], one.number)
        )

    def _scores(self, element: Element) -> list[int]:
        """Return 1 for each word of the translation that comes from within an element, else -1."""
        first = bisect_right(self._source_ends, element.begin)
        last = bisect_left(self._source_begins, element.end)
        shares = {
            number: (min(end, element.end) - max(begin, element.begin)) / (end - begin)
            for number, (begin, end) in enumerate(self._source_words[first:last], start=first)
        }
        least = min(0.5, max(shares.values(), default=0.5))
        return [1 if shares.get(link, 0.0) >= least else -1 for link in self._links]

    def _around(
        self, element: Element, scores: Sequence[int], gaps: Sequence[Range], words: Range
    ) -> Range:
        """Return the words for an element, in one of the gaps between others."""
        for text in self._texts(element):
            if (same := self._copied(element, text, scores, gaps)) is not None:
                return same
        if element.kept is None and not element.opening:
            at_start = gaps[0][0] == words[0]
            return _best(scores, *gaps[0], first=True) if at_start else (words[0], words[0])
        if element.kept is None and not element.closing:
            at_end = gaps[-1][1] == words[1]
            return _best(scores, *gaps[-1], last=True) if at_end else (words[1], words[1])
        best = [_best(scores, *gap) for gap in gaps]
        found = max(best, key=lambda own: (sum(scores[slice(*own)]), own[1] - own[0]))
        if sum(scores[slice(*found)]) > 0:
            return found
        middle = element.begin + element.end

        def distance(word: int) -> int:
            return abs(sum(self._source_words[self._links[word]]) - middle)

        nearest = min((n for gap in gaps for n in range(*gap)), key=distance)
        return nearest, nearest + 1

    def _texts(self, element: Element) -> list[str]:
        """Return the texts around which an element goes where they stand in the translation."""
        text = _text_of(self._source, element)
        if _is_searched(self._source, element):
            return [text, self._known.get(text, "")]
        return [] if element.kept is None else [text]

    def _copied(
        self, element: Element, text: str, scores: Sequence[int], gaps: Sequence[Range]
    ) -> Range | None:
        """Return the words of the translation in which a text for an element stands as it is.

        Of several such places, it is the first one of those that are linked into the element.
        """
        found: Range | None = None
        for low, high in gaps:
            last, begin = self.words[high - 1][1], self.words[low][0]
            while (place := self._place(element, text, begin, last)) is not None:
                first = bisect_right(self._ends, place[0], low, high)
                own = first, bisect_left(self._ends, place[1], first, high) + 1
                if sum(scores[slice(*own)]) > 0:
                    return own
                found, begin = found or own, place[1]
        return found

    def _place(self, element: Element, text: str, begin: int, end: int) -> Range | None:
        """Return where a text for an element stands in some of the translation as it is.

        There it is no part of a word or number, unless the element's text is in the source.
        """
        own = _text_of(self._source, element)
        first = self._source.find(own, element.begin)
        joined = _joins_around(self._source, first, first + len(own))
        while text and (place := self._target.find(text, begin, end)) >= 0:
            begin, last = place + 1, place + len(text)
            around = _joins_around(self._target, place, last)
            if around[0] <= joined[0] and around[1] <= joined[1]:
                return place, last
        return None

    def _alone(self, element: Element, gaps: Sequence[Range], words: Range) -> Range:
        """Return the place between words for an element that stands alone, or has no word left.

        It is in front of the translation of the word behind it, or behind that of the word in front
        of it, whichever it touches.
        """
        before = bisect_right(self._source_ends, element.begin)
        own = [n for n in range(*words) if self._links[n] == before - 1]
        place = own[-1] + 1 if own else words[0] if before == 0 else None
        if place is None or not self._follows(element):
            behind = [n for n in range(*words) if self._links[n] == before]
            if behind:
                place = behind[0]
            elif before == len(self._source_words):
                place = words[1]
        if place is None:
            place = words[0] + (words[1] - words[0]) * before // max(1, len(self._source_words))
        edges = {edge for gap in gaps for edge in range(gap[0], gap[1] + 1)} | {*words}
        nearest = min(sorted(edges), key=lambda edge: abs(edge - place))
        return nearest, nearest

    def _follows(self, element: Element) -> bool:
        """Return whether an element touches the text in front of it, and not that behind it."""
        return bool(self._source[: element.begin].rstrip()) and (
            self._source[element.begin - 1] not in " \t"
        )

    def _characters(self, placed: _Placed) -> Range:
        """Return the characters of the translation that an element goes around.

        Marks at its edges belong to it only where those of the source do.
        """
        (first, last), element = placed.words, placed.element
        if first == last:
            follows = self._follows(element) or first == len(self.words)
            if not self.words:
                return 0, 0
            place = self.words[first - 1][1] if follows and first else self.words[first][0]
            return place, place
        begin, end = self.words[first][0], self.words[last - 1][1]
        own = _text_of(self._source, element)
        if own == self._source.strip():
            return begin, end
        if element.kept is not None and (same := self._place(element, own, begin, end)):
            return same
        is_kept = element.kept is not None
        if (is_kept or own[:1].isalnum()) and (
            marks := _MARKS_BEFORE.match(self._target, begin, end)
        ):
            begin = marks.end()
        if (is_kept or own[-1:].isalnum()) and (
            marks := _MARKS_AFTER.search(self._target, begin, end)
        ):
            end = marks.start()
        return begin, end

    def _spaced(self, kept: str, place: int) -> str:
        """Return what is put between two words with the spaces that it needs."""
        before, after = self._target[:place][-1:], self._target[place:][:1]
        return f"{' ' * before.isalnum()}{kept}{' ' * after.isalnum()}"


def _joins_around(text: str, begin: int, end: int) -> tuple[bool, bool]:
    """Return whether a part of a text begins within a word or number, and whether it ends so."""

    def joins(place: int) -> bool:
        both = text[place - 1 : place], text[place : place + 1]
        return all(map(str.isdigit, both)) or all(one.lower() != one.upper() for one in both)

    return joins(begin), joins(end)


def _units_of_words(text: str) -> list[list[Range]]:
    """Return the places of the letters and of the marks of each word."""
    words = (found.span() for found in _WORD.finditer(text))
    return [[unit.span() for unit in _UNIT.finditer(text, *word)] for word in words]


def _without(gaps: Sequence[Range], taken: Range) -> Iterator[Range]:
    """Yield what is left of ranges without another one."""
    for begin, end in gaps:
        for part in ((begin, min(end, taken[0])), (max(begin, taken[1]), end)):
            if part[0] < part[1]:
                yield part


def _best(
    scores: Sequence[int], low: int, high: int, *, first: bool = False, last: bool = False
) -> Range:
    """Return those consecutive words from `low` to `high` with the greatest sum, at least one.

    Of several with the same sum, the longest are taken.

    Args:
      first: whether they begin at `low`.
      last: whether they end at `high`.
    """
    sums = [0, *accumulate(scores[low:high])]
    best, least = (-len(scores) - 1, 0, low, low), 0
    for end in range(1, high - low + 1):
        if not first and sums[end - 1] < sums[least]:
            least = end - 1
        if not last or end == high - low:
            best = max(best, (sums[end] - sums[least], end - least, low + least, low + end))
    return best[2:]
