"""CTranslate2, which only decodes. The argument is its compute type: float32, bfloat16
or int8."""

import os
import sys
import tempfile
from collections.abc import Callable

import ctranslate2

from systems.export import export_ctranslate2
from systems.protocol import Decoding, serve
from systems.weights import read_weights


def _translator(work: Decoding) -> ctranslate2.Translator:
    weights = read_weights(work.weights)
    pieces = [str(number) for number in range(len(weights.embedding))]
    with tempfile.TemporaryDirectory() as directory:
        export_ctranslate2(weights, work.config, pieces, directory)
        return ctranslate2.Translator(
            directory, compute_type=sys.argv[1], intra_threads=os.cpu_count() or 1
        )


def decode(work: Decoding) -> Callable[[], list[list[int]]]:
    """Prepare a search by `translate_batch`. It takes subwords, which are numbers here."""
    translator = _translator(work)
    sources = [[str(token) for token in sentence] for sentence in work.inputs]

    def translate() -> list[list[int]]:
        results = translator.translate_batch(
            sources,
            max_batch_size=0,  # all of them together
            beam_size=work.config.decoding.beam_size,
            length_penalty=work.config.decoding.length_penalty,
            max_decoding_length=work.target_length,
        )
        return [[int(token) for token in result.hypotheses[0]] for result in results]

    return translate


if __name__ == "__main__":
    serve(decode=decode)
