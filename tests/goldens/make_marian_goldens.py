"""Write `marian_goldens.json`: what transformers of Hugging Face computes with exported models.

    python -m tests.goldens.make_marian_goldens

It needs `pip install torch transformers sentencepiece ctranslate2`; the tests read the JSON and
need none of them. Of each model of `tests/interchange/models.py` that is named below it has

    sums        of each array that was exported its sum, and the sum with weights 1, 2, 3 and so on
    sources     the ids that the tokenizer makes of some sentences
    log_probs   the log-probability of each subword of their translations, given by the corpus
    greedy      the first tokens that a greedy search finds, as ids of ours
    converted   the log-probabilities that CTranslate2 gives the subwords of the translations, once
                its own converter has read what was exported
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import torch
from ctranslate2.converters import TransformersConverter
from safetensors.numpy import load_file
from transformers import AutoTokenizer, MarianMTModel

from t2t_jax.interchange.formats import write_model
from tests.interchange.models import OPTIONS, portable, real_pairs

MODELS = ("paper", "deep-norm", "attention-bias", "gelu", "tied-target", "unscaled-embeddings")
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
        model = MarianMTModel.from_pretrained(directory).eval()
        arrays = load_file(directory / "model.safetensors")
        converted = Path(place) / "converted"
        TransformersConverter(str(directory)).convert(str(converted))
        engine = ctranslate2.Translator(str(converted), intra_threads=1)
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
    return {
        "sums": sums(arrays),
        "sources": [_ours(row.tolist(), tokenizer) for row in given.input_ids],
        "log_probs": [row[own].tolist() for row, own in zip(chosen, mask, strict=True)],
        "greedy": [_ours(row.tolist()[1:], tokenizer) for row in found],
        "converted": [one.log_probs for one in engine.score_batch(ended, pieces[1])],
    }


def _ours(tokens: list[int], tokenizer: Any) -> list[int]:
    """Tokens without the padding that follows them, as ids of ours: padding is 0 there."""
    while tokens and tokens[-1] == tokenizer.pad_token_id:
        tokens = tokens[:-1]
    return [(token + 1) % len(tokenizer) for token in tokens]


if __name__ == "__main__":
    goldens = {name: golden(name) for name in MODELS}
    path = Path(__file__).with_name("marian_goldens.json")
    path.write_text(json.dumps(goldens, indent=1) + "\n", encoding="utf-8")
