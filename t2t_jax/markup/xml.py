"""The text of XML in which some elements are paragraphs, as OpenDocument and EPUB have it."""

import re
from collections.abc import Collection, Iterator

from t2t_jax.markup.inline import Inline, InlineText

PIECE = re.compile(
    r"<(?:!--.*?(?:-->|\Z)|!\[CDATA\[.*?(?:\]\]>|\Z)|\?.*?(?:\?>|\Z)|[^<>]*>)?|[^<]+", re.DOTALL
)
"""A tag, a comment and the like, or a text between two of these. A comment that nothing ends
reaches to the end of the text, so that each character is read once."""
_NAME = re.compile(r"</?([^\s/<>!?]+)")


def name_of(piece: str) -> str | None:
    """Return the name of a tag; None for what is no tag."""
    found = _NAME.match(piece)
    return found and found[1]


def xml_parts(
    text: str, paragraphs: Collection[str], inline: Collection[str] = ()
) -> Iterator[str | Inline]:
    """Yield the parts of a text in XML: inline text to translate, and what is between.

    Args:
      text: the text; its entities are not expanded.
      paragraphs: the names of the elements whose text is to be translated.
      inline: the names of the elements within them that are of the text that they stand in; any
        other one ends it, and what is in it is translated only in paragraphs of its own.
    """
    found, open_names = InlineText(), [""]
    for match in PIECE.finditer(text):
        piece = match[0]
        name = name_of(piece)
        is_within = open_names[-1] in paragraphs
        if is_within and name in inline:
            found.add_tag(piece, name)
        elif is_within and piece[0] != "<":
            found.add_text(piece)
        elif is_within and name is None:
            found.add_tag(piece, None)
        else:
            yield from found.ended()
            found = InlineText()
            yield piece
            if name is not None and name not in inline and not piece.endswith("/>"):
                if piece[1] != "/":
                    open_names.append(name)
                elif name == open_names[-1]:
                    open_names.pop()
    yield from found.ended()
