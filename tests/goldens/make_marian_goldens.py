"""Write `marian_goldens.json`: what transformers of Hugging Face computes with exported models.

    python -m tests.goldens.make_marian_goldens [NAME ...]

It needs `pip install torch transformers sentencepiece ctranslate2`; the tests read the JSON and
need none of them. Of each model in MARIAN of `tests/interchange/models.py` it has

    sums        of each array that was exported its sum, and the sum with weights 1, 2, 3 and so on
    sources     the ids that the tokenizer makes of some sentences
    log_probs   the log-probability of each subword of their translations, given by the corpus
    greedy      the first tokens that a greedy search finds, as ids of ours
    converted   the log-probabilities that CTranslate2 gives the subwords of the translations, once
                its own converter has read what was exported
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from t2t_jax.extras.interchange.formats import write_model
from tests.extras.interchange.models import MARIAN, OPTIONS, portable, real_pairs

LINES = 8
NUM_TOKENS = 20


def sums(arrays: dict[str, np.ndarray]) -> dict[str, list[float]]:
    """Two numbers for each array, which say whether it is the same."""
    flat = {name: array.astype(np.float64).ravel() for name, array in arrays.items()}
    return {name: [x.sum(), x @ np.arange(1, x.size + 1)] for name, x in flat.items()}


def golden(name: str) -> dict[str, Any]:
    """What transformers computes with one of the models."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "out"
        write_model(portable(OPTIONS[name]), "marian", directory)
        tokenizer = AutoTokenizer.from_pretrained(directory)
        model = AutoModelForSeq2SeqLM.from_pretrained(directory).eval()
        arrays = load_file(directory / "model.safetensors")
        engine = _converted(directory, Path(place) / "converted")
    sources, targets = (side[:LINES] for side in real_pairs())
    given = tokenizer(sources, return_tensors="pt", padding=True)
    labels = tokenizer(text_target=targets, return_tensors="pt", padding=True).input_ids
    mask = labels != tokenizer.pad_token_id
    with torch.no_grad():
        logits = model(**given, labels=labels).logits.log_softmax(-1)
    found = model.generate(**given, num_beams=1, max_new_tokens=NUM_TOKENS, do_sample=False)
    chosen = logits.gather(-1, labels[..., None])[..., 0]
    pieces = [[tokenizer.tokenize(line) for line in side] for side in (sources, targets)]
    ended = [[*line, tokenizer.eos_token] for line in pieces[0]]
    scored = [one.log_probs for one in engine.score_batch(ended, pieces[1])]
    return {
        "sums": sums(arrays),
        "sources": [_ours(row.tolist(), tokenizer) for row in given.input_ids],
        "log_probs": [row[own].tolist() for row, own in zip(chosen, mask, strict=True)],
        "greedy": [_ours(row.tolist()[1:], tokenizer) for row in found],
        "converted": scored,
    }


def _converted(directory: Path, place: Path) -> Any:
    """The engine CTranslate2 with what its own converter reads."""
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(directory)).convert(str(place))
    return ctranslate2.Translator(str(place), intra_threads=1)


def _ours(tokens: list[int], tokenizer: Any) -> list[int]:
    """Tokens without the padding that follows them, as ids of ours, where padding is id 0."""
    while tokens and tokens[-1] == tokenizer.pad_token_id:
        tokens = tokens[:-1]
    first = (len(tokenizer) - tokenizer.pad_token_id) % len(tokenizer)
    return [(token + first) % len(tokenizer) for token in tokens]


if __name__ == "__main__":
    path = Path(__file__).with_name("marian_goldens.json")
    goldens = json.loads(path.read_text(encoding="utf-8"))
    goldens |= {name: golden(name) for name in sys.argv[1:] or MARIAN}
    ordered = {name: goldens[name] for name in MARIAN}
    path.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
