"""Documents: texts split into sentences to translate and the text between them, which is kept."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from t2t_jax.markup.html import html_parts
from t2t_jax.markup.inline import Inline, escaped
from t2t_jax.markup.projection import NOTHING_KNOWN, Links, with_markup
from t2t_jax.markup.tagged import Event, Tagged, tagged

Part: TypeAlias = tuple[str, bool]
"""A part of a text, and whether it is a sentence to translate."""
Splitter: TypeAlias = Callable[[str], Iterable[Part]]
"""A function that splits a text into sentences and what is between them."""


class Document(NamedTuple):
    """A text in which sentences are to be replaced by their translations."""

    tagged: list[Tagged]
    """The sentences to translate with the markup within them, in the order of the text."""
    between: list[str]
    """The texts before the first sentence, between any two, and after the last; they are kept."""
    escape: Callable[[str], str] = str
    """A function that makes markup of a translation."""

    @property
    def sentences(self) -> list[str]:
        """Return the sentences to translate, without markup."""
        return [one.text for one in self.tagged]

    def filled(
        self,
        translations: Sequence[str],
        links: Sequence[Links] | None = None,
        known: Mapping[str, str] = NOTHING_KNOWN,
    ) -> str:
        """Return the text with a translation in the place of each sentence.

        Args:
          links: links of the words of each sentence and its translation, of which only those of
            sentences with markup are used; see `markup.projection.with_markup`.
          known: translations of texts within sentences by themselves.
        """
        every = [()] * len(self.tagged) if links is None else links
        written = (
            with_markup(*each, self.escape, known)
            for each in zip(self.tagged, translations, every, strict=True)
        )
        pairs = zip(written, self.between[1:], strict=True)
        return self.between[0] + "".join(one + after for one, after in pairs)


def document_of(found: Iterable[str | Tagged], escape: Callable[[str], str] = str) -> Document:
    """Return a document of its sentences and the texts between them, in order."""
    sentences: list[Tagged] = []
    between: list[list[str]] = [[]]
    for one in found:
        if isinstance(one, Tagged):
            sentences.append(one)
            between.append([])
        else:
            between[-1].append(one)
    return Document(sentences, ["".join(each) for each in between], escape)


def one_sentence(text: str) -> Iterator[Part]:
    """Yield a text as one sentence."""
    yield text, True


def html_document(text: str, split: Splitter = one_sentence) -> Document:
    """Make a document of a text with the markup of HTML.

    Tags of blocks, such as paragraphs, and of line breaks stay where they are, and end sentences.
    All other markup is of the sentence that it is in. Comments, the contents of `script`, `style`,
    `pre`, `code` and the like, attributes, elements with `translate="no"`, and placeholders such as
    `{name}` and `%s` stay as they are. Any white space within a sentence is one space.
    """

    return marked_up(html_parts(text), split)


def marked_up(
    found: Iterable[str | Inline], split: Splitter, escape: Callable[[str], str] = escaped
) -> Document:
    """Return the document of inline texts and what is between them, in order.

    Args:
      split: splits the inline texts into sentences.
      escape: makes markup of a translation.
    """

    def each() -> Iterator[str | Tagged]:
        for part in found:
            if isinstance(part, Inline):
                yield escape(part.before)
                yield from (
                    one if isinstance(one, Tagged) else escape(one)
                    for one in _sentences(part, split)
                )
                yield escape(part.after)
            else:
                yield part

    return document_of(each(), escape)


def _sentences(inline: Inline, split: Splitter) -> Iterator[str | Tagged]:
    """Yield the sentences of an inline text with their markup, and the text between them."""
    place, events = 0, deque(inline.events)
    for text, is_sentence in _unbroken(split(inline.text), inline.events):
        end = place + len(text)
        own: list[Event] = []
        while is_sentence and events:
            event = events[0]
            ends_here = event.place == end and event.closes is not None
            if not (event.place < end or ends_here or end == len(inline.text)):
                break
            events.popleft()
            kept = event.kept and event.kept - place
            own.append(event._replace(place=max(0, event.place - place), kept=kept))
        yield tagged(text, own) if is_sentence else text
        place = end


def _unbroken(found: Iterable[Part], events: Sequence[Event]) -> Iterator[Part]:
    """Yield sentences, joined where markup that is kept as it is would be broken."""
    kept = deque((event.place, event.kept) for event in events if event.kept is not None)
    place, waiting, is_text = 0, "", False
    for text, is_sentence in found:
        place, waiting, is_text = place + len(text), waiting + text, is_text or is_sentence
        while kept and kept[0][1] <= place:
            kept.popleft()
        if not kept or kept[0][0] >= place:
            yield waiting, is_text
            waiting, is_text = "", False
