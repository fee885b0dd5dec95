"""Write `marian_nmt_goldens.json`: what Hugging Face's converter makes of a model of marian-nmt.

    python -m tests.goldens.make_marian_nmt_goldens

It needs `pip install torch transformers==4.46.3 sentencepiece sacremoses pyyaml`, as later versions
of transformers come without the converter; the tests read the JSON and need none of them. Of the
model "opus" of `tests/interchange/marian_nmt_models.py` it has

    tokens      every entry of the vocabulary, in the order of its ids, and padding as the last
    sources     the ids that the tokenizer makes of some sentences
    log_probs   the log-probability of each subword of their translations, given by the corpus
    greedy      the tokens that a greedy search finds, 50 at most
    beam        those that a beam search finds, of four hypotheses and without length penalty

The converter's model computes two things otherwise than marian-nmt, and is mended here: it has the
frequencies of the paper in its sinusoids, and the epsilon 1e-5 in its norms. It also has a logit
for padding, which is left out.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.models.marian.convert_marian_to_pytorch import OpusState

from tests.interchange.marian_nmt_models import real_pairs, write_directory

LINES = 8
NUM_TOKENS = 50


def sinusoids(length: int, width: int) -> torch.Tensor:
    """The positions that marian-nmt adds to embeddings."""
    frequency = 10_000.0 ** (-np.arange(width // 2) / (width / 2 - 1))
    angle = np.arange(length)[:, None] * frequency
    return torch.tensor(np.concatenate([np.sin(angle), np.cos(angle)], -1), dtype=torch.float32)


def converted(directory: Path) -> tuple[Any, Any]:
    """The tokenizer and the model that the converter makes, mended."""
    state = OpusState(directory)
    model = state.load_marian_model().eval()
    for stack in (model.model.encoder, model.model.decoder):
        table = torch.nn.Parameter(sinusoids(512, model.config.d_model), requires_grad=False)
        stack.embed_positions.weight = table
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-6
    return state.tokenizer, model


def golden() -> dict[str, Any]:
    """What the converted model computes."""
    with tempfile.TemporaryDirectory() as place:
        write_directory(Path(place) / "opus", "opus")
        tokenizer, model = converted(Path(place) / "opus")
        sources, targets = (side[:LINES] for side in real_pairs())
        given = tokenizer(sources, return_tensors="pt", padding=True)
        labels = tokenizer(text_target=targets, return_tensors="pt", padding=True).input_ids
        entries = sorted(tokenizer.encoder, key=tokenizer.encoder.get)
    pad = tokenizer.pad_token_id
    with torch.no_grad():
        logits = model(**given, labels=labels).logits
        logits[..., pad] = -torch.inf
        chosen = logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
        options = {"max_new_tokens": NUM_TOKENS, "max_length": None, "forced_eos_token_id": None}
        greedy = model.generate(**given, num_beams=1, do_sample=False, **options)
        beam = model.generate(**given, num_beams=4, length_penalty=0.0, **options)
    return {
        "tokens": entries,
        "sources": [_written(row, pad) for row in given.input_ids.tolist()],
        "log_probs": [row[own].tolist() for row, own in zip(chosen, labels != pad, strict=True)],
        "greedy": [_written(row[1:], pad) for row in greedy.tolist()],
        "beam": [_written(row[1:], pad) for row in beam.tolist()],
    }


def _written(tokens: list[int], pad: int) -> list[int]:
    """Tokens without padding."""
    return [token for token in tokens if token != pad]


if __name__ == "__main__":
    path = Path(__file__).with_name("marian_nmt_goldens.json")
    text = json.dumps(golden(), indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
