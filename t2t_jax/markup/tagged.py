"""A sentence with inline markup: its text, and the tags around parts of it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

_DEEPEST = 100
"""The most elements within one another; the tags of deeper ones stand alone."""


@dataclass(frozen=True)
class Element:
    """A part of a sentence with its tags, and the elements within it.

    One of the two tags is empty where the other one is in another sentence, or missing. A tag that
    stands alone, such as an image, has no part of the text.
    """

    begin: int
    """The place of the part's first character in the text."""
    end: int
    """The place behind its last character."""
    opening: str
    """The tag in front of the part, as it was written."""
    closing: str
    """The tag behind the part."""
    within: tuple["Element", ...] = ()
    """The elements within this one, in order; none of them overlap."""
    kept: str | None = None
    """What stands between the tags of an element that is not translated, as it was written."""


class Tagged(NamedTuple):
    """A sentence with inline markup."""

    text: str
    """The text that a reader sees."""
    elements: tuple[Element, ...] = ()
    """The outermost elements, in order."""


class Event(NamedTuple):
    """Markup at a place in a text."""

    place: int
    """The place in the text before which the markup stands."""
    markup: str
    """The markup, as it was written."""
    opens: str | None = None
    """The name of the element that begins here; None if none does."""
    closes: str | None = None
    """The name of the element that ends here; None if none does. With neither, the markup stands
    alone."""
    kept: int | None = None
    """For markup that stands for a part of the text which is not translated: the part's end."""


def tagged(text: str, events: Iterable[Event]) -> Tagged:
    """Return a sentence with the elements that the markup in it makes.

    An element that is open when one around it ends lasts until there, without a closing tag. One
    that nothing ends lasts until the end of the sentence, and a closing tag of none that is open
    belongs to an element from the beginning of the sentence.
    """
    open_names: list[str] = []
    begun: list[Element] = []
    levels: list[list[Element]] = [[]]
    unmatched = 0

    def end_innermost(place: int, closing: str) -> None:
        open_names.pop()
        within = tuple(levels.pop())
        levels[-1].append(replace(begun.pop(), end=place, closing=closing, within=within))

    for place, markup, opens, closes, kept in events:
        if opens is not None and len(open_names) < _DEEPEST:
            open_names.append(opens)
            begun.append(Element(place, place, markup, ""))
            levels.append([])
        elif closes is None or opens is not None:
            end, whole = (place, None) if kept is None else (kept, markup)
            levels[-1].append(Element(place, end, "" if whole else markup, "", kept=whole))
        elif closes in open_names:
            while open_names[-1] != closes:
                end_innermost(place, "")
            end_innermost(place, markup)
        elif unmatched == _DEEPEST:
            levels[-1].append(Element(place, place, markup, ""))
        else:
            unmatched += 1
            begin = begun[-1].begin if begun else 0
            levels[-1] = [Element(begin, place, "", markup, tuple(levels[-1]))]
    while open_names:
        end_innermost(len(text), "")
    return Tagged(text, tuple(levels[0]))
