"""Translation of documents, whose markup is put at the translated words.

The texts of elements are translated by themselves, too: where such a translation stands in that of
the sentence, the element goes around it (`markup.projection`).
"""

from collections.abc import Sequence
from typing import Any

from t2t_jax.data.terms import Glossary
from t2t_jax.decoding.alignments import alignments
from t2t_jax.decoding.glossary import translate_with_terms
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import warn
from t2t_jax.markup.document import Document
from t2t_jax.markup.projection import Links, element_texts


def translate_documents(
    translator: Translator,
    documents: Sequence[Document],
    *,
    glossary: Glossary | None = None,
    head: tuple[int, ...] | None = None,
    **settings: Any,
) -> tuple[list[str], tuple[int, ...] | None]:
    """Translate the sentences of documents, and put their markup at the translated words.

    An ensemble has no attention of its own; its words are linked by their order.

    Args:
      translator: the model.
      documents: the documents.
      glossary: terms that translations use. A term that is not used all the same is named by a
        warning.
      head: the fields of the `AlignmentHead` that links words; None is the one whose links agree
        most on these (`decoding.alignments.alignments`).
      settings: those of `Translator.translate`.

    Returns:
      The translated documents, and the head; None if no sentence has markup.

    Raises:
      UserError: as `Translator.translate` does.
    """
    every = [one for document in documents for one in document.tagged]
    sources = [one.text for one in every]
    if glossary is None:
        found = translator.translate(sources, **settings)
    else:
        used = translate_with_terms(translator, sources, glossary, **settings)
        found = used.lines
        for number, term in used.missing:
            warn(f"{term.source!r} is not translated as {term.target!r} in {sources[number]!r:.80}")
    marked = [n for n, one in enumerate(every) if one.elements]
    links: list[Links] = [[]] * len(every)
    if marked and translator.model.shows_attention:
        sides = ([of[n] for n in marked] for of in (sources, found))
        aligned = alignments(translator, *sides, head=head)
        head = aligned.head
        for number, own in zip(marked, aligned.links, strict=True):
            links[number] = own
    pieces = dict.fromkeys(text for n in marked for text in element_texts(every[n], found[n]))
    alone = settings | {"before": None, "first_line": 1}
    known = dict(zip(pieces, translator.translate([*pieces], **alone), strict=True))
    texts, each = iter(found), iter(links)
    filled = [
        document.filled([next(texts) for _ in own], [next(each) for _ in own], known)
        for document in documents
        for own in [document.tagged]
    ]
    return filled, head
