"""Markdown: what is text to translate, and that everything else is still what it was."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from t2t_jax.markup.document import Document, marked_up, one_sentence
from t2t_jax.markup.files import file_document
from t2t_jax.markup.inline import Inline
from t2t_jax.markup.markdown import markdown_escaped, markdown_parts

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/results/*.md")])
PAGE = """---
title: not translated
---

# A title **in bold** #

> Quoted *text* that
> goes on\\
> after `a  break` <https://a.b> ![an image](p.png)

1. item [with a
   link](u "a title") and [another][ref]
   - nested &amp; `` a`b ``

| a | ~~b~~ |
|---|:--|
| **x** | 1 |

    code of a block

```python
print("code")
```

<p>HTML <i>in</i> a block</p>

[ref]: https://c.d
"""


def document(text: str) -> Document:
    return marked_up(markdown_parts(text), one_sentence, markdown_escaped)


def in_order(found: Document) -> str:
    """The text with each sentence in its own place, and each of its words at that of its source."""
    links = [[(n, n) for n in range(len(text.split()))] for text in found.sentences]
    return found.filled(found.sentences, links)


def rendered(text: str) -> str:
    """What a reader sees of a text, as HTML in which any white space is one space."""
    front = re.compile(r"---\n.*?\n---\n", re.DOTALL).match(text)
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    return " ".join(parser.render(text[front.end() if front else 0 :]).split())


def test_the_text_of_a_page_is_found_with_its_markup():
    assert document(PAGE).sentences == [
        "A title in bold",
        "Quoted text that goes on",
        "after a break https://a.b",
        "item with a link and another",
        "nested & a`b",
        "a",
        "b",
        "x",
        "1",
        "HTML in a block",
    ]


def test_sentences_in_the_place_of_themselves_leave_the_page_as_it_is_but_for_line_breaks():
    found = in_order(document(PAGE))
    assert rendered(found) == rendered(PAGE)
    assert found.startswith("---\ntitle: not translated\n---\n\n# A title **in bold** #\n")
    assert "> Quoted *text* that goes on\\\n> after `a  break` <https://a.b>" in found
    assert '1. item [with a link](u "a title") and [another][ref]\n   - nested' in found


def test_translations_are_put_into_their_places():
    found = document("# One *two*\n\n- three `four` [five](six)\n")
    written = found.filled(
        ["Eins zwei", "drei FOUR fünf_sechs*"], [[(0, 0), (1, 1)], [(0, 0), (1, 1), (2, 2)]]
    )
    assert written == "# Eins *zwei*\n\n- drei `four` [fünf_sechs](six)\\*\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_pages_of_this_project_are_the_same_to_a_reader(path):
    text = path.read_text(encoding="utf-8")
    assert rendered(in_order(document(text))) == rendered(text)


@settings(deadline=None, max_examples=300)
@given(
    st.text(alphabet=st.sampled_from("ab *_`[]()<>!#-+>|\\\n~&;:.1\"' \t"), max_size=80)
    | st.text(max_size=60)
)
def test_no_character_is_lost_of_what_is_not_text(text):
    between = [part for part in markdown_parts(text) if isinstance(part, str)]
    place = 0
    for part in between:
        place = text.index(part, place) + len(part)
    for part in markdown_parts(text):
        if isinstance(part, Inline):
            kept = [event.markup for event in part.events]
            assert all("\n" in one or one in text for one in kept)


@given(st.text(max_size=40))
def test_escaped_text_is_text_again(text):
    line = " ".join(text.split())
    if not line.isprintable() or not line[:1].isalpha() or "&" in line or line[-1:] in "\\":
        return
    shown = MarkdownIt("commonmark").parseInline(markdown_escaped(line))[0].children or []
    assert "".join(one.content for one in shown) == line


@pytest.mark.parametrize("odd", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_characters_that_end_a_line_elsewhere_end_none_here(odd):
    found = document(f"a{odd}b{odd}c\n\nthe *last*\n")
    assert found.sentences[-1] == "the last"
    assert found.filled([*found.sentences[:-1], "das letzte"]).endswith("das *letzte*\n")


def test_a_file_of_markdown_is_a_document():
    found = file_document(b"**One.** Two.\n", ".md", "en")
    [one] = found.documents
    assert one.sentences == ["One.", "Two."]
    assert found.filled([one.filled(["Eins.", "Zwei."])]) == b"**Eins.** Zwei.\n"
