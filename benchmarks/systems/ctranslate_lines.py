"""Translate the lines of a file with CTranslate2: the whole program, as a user would write it.

python -m systems.ctranslate_lines MODEL_DIR VOCABULARY INPUT OUTPUT COMPUTE_TYPE BEAM_SIZE \
    LENGTH_PENALTY MAX_EXTRA_LENGTH
"""

import os
import sys
from pathlib import Path

import ctranslate2
import sentencepiece


def main() -> None:
    """Read the lines, translate all of them at once, and write the translations."""
    model, vocabulary, source, target, compute_type = sys.argv[1:6]
    beam_size, length_penalty, extra = int(sys.argv[6]), float(sys.argv[7]), int(sys.argv[8])
    processor = sentencepiece.SentencePieceProcessor(model_file=vocabulary)
    lines = Path(source).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    sentences = processor.encode(lines, out_type=str, num_threads=-1)
    threads = os.cpu_count() or 1
    translator = ctranslate2.Translator(model, compute_type=compute_type, intra_threads=threads)
    results = translator.translate_batch(
        sentences,
        batch_type="tokens",
        max_batch_size=1024,
        max_input_length=0,
        beam_size=beam_size,
        length_penalty=length_penalty,
        min_decoding_length=0,
        max_decoding_length=max(map(len, sentences)) + 1 + extra,
    )
    found = processor.decode([result.hypotheses[0] for result in results])
    Path(target).write_text("".join(f"{line}\n" for line in found), encoding="utf-8")


if __name__ == "__main__":
    main()
