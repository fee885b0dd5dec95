"""A trained model that parses: sentences in, constituency trees out (section 6.3)."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from t2t_jax.data.corpus import is_treebank
from t2t_jax.data.trees import Tree, build_tree, escape_brackets
from t2t_jax.decoding.arguments import texts
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError


class Parsed(NamedTuple):
    """The tree of a sentence."""

    tree: Tree
    """Well-formed, with exactly the words of the sentence."""
    repairs: int
    """What `build_tree` had to mend in the model's output."""


def parse(
    translator: Translator, sentences: Iterable[str], *, first_line: int = 1, **settings: Any
) -> list[Parsed]:
    """Parse sentences of words with spaces between them.

    Args:
      translator: a model trained on a corpus of trees.
      sentences: `(` and `)` in them count as `-LRB-` and `-RRB-`. A blank one has the empty tree.
      first_line: number of the first sentence, which errors name it by.
      settings: `seed` and fields of `DecodingConfig`, as for `Translator.translate`.

    A sentence that is too long is parsed in parts, and the trees of its parts become one.

    Raises:
      TypeError: an argument is of the wrong type.
      UserError: the model is no parser, or the translator refuses something.
    """
    corpus = translator.config.data.corpus
    if not is_treebank(corpus):
        raise UserError(
            f"the model was trained to translate (data.corpus={corpus}); parse with a model that "
            "was trained on trees:DIR"
        )
    sentences = texts(sentences, "sentences", first_line)
    words = [escape_brackets(sentence).split() for sentence in sentences]
    sources = [" ".join(sentence) for sentence in words]
    symbols = translator.translate(sources, first_line=first_line, **settings)
    return [
        Parsed(*build_tree(sentence, line.split()))
        for sentence, line in zip(words, symbols, strict=True)
    ]
