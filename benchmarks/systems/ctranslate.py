"""CTranslate2, which only decodes. The argument is its compute type: float32, bfloat16
or int8."""

import os
import sys
from collections.abc import Callable

import ctranslate2

from systems.protocol import Decoding, serve
from systems.weights import exported
from t2t_jax.batch import EOS_ID


def decode(work: Decoding) -> Callable[[], list[list[int]]]:
    """Prepare a search by `translate_batch`, which takes subwords and adds the end of sentence."""
    with exported(work.weights, "ctranslate2") as (model, directory):
        translator = ctranslate2.Translator(
            str(directory), compute_type=sys.argv[1], intra_threads=os.cpu_count() or 1
        )
    (pieces,) = model.vocabulary.pieces([range(len(model.vocabulary))])
    ids = {piece: number for number, piece in enumerate(pieces)}
    sources = [[pieces[token] for token in tokens if token != EOS_ID] for tokens in work.inputs]

    def translate() -> list[list[int]]:
        results = translator.translate_batch(
            sources,
            max_batch_size=0,  # all of them together
            beam_size=work.config.decoding.beam_size,
            length_penalty=work.config.decoding.length_penalty,
            max_decoding_length=work.target_length,
        )
        return [[ids[token] for token in result.hypotheses[0]] for result in results]

    return translate


if __name__ == "__main__":
    serve(decode=decode)
