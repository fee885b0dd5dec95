"""Searches of the library transformers."""

import json
from pathlib import Path

import torch
from transformers import MarianMTModel
from transformers.utils import logging

from tests.against.part import Case
from tests.against.search.part import (
    EMPTY,
    END,
    PADDING,
    Found,
    Hypothesis,
    settings_of_transformers,
)

logging.set_verbosity_error()
logging.disable_progress_bar()
torch.set_grad_enabled(False)


def search(case: Case, folder: str) -> Found:
    """Search as the arguments, or the files, say."""
    model = MarianMTModel.from_pretrained(Path(folder, "marian"))
    sentences = case["sentences"]
    # Prefixes are not padded, so those of several lengths are searched for one by one.
    together = len({len(prefix) for _, prefix in sentences}) == 1
    batches = [sentences] if together else [[sentence] for sentence in sentences]
    found = [one for batch in batches for one in _search(model, case, batch)]
    Path(folder, "transformers.json").write_text(json.dumps(found))
    return found


def _search(model: MarianMTModel, case: Case, batch: list[list[list[int]]]) -> Found:
    size, num_best, num_given = case["size"], case["num_best"], len(batch[0][1])
    longest = max(len(source) for source, _ in batch) + 1
    sources = [[*source, END, *[PADDING] * longest][:longest] for source, _ in batch]
    # An export has padding as its last entry, and the others one place earlier.
    inputs, prefixes = (
        (torch.tensor(rows) - 1) % size for rows in (sources, [p for _, p in batch])
    )
    start = torch.full((len(batch), 1), model.generation_config.decoder_start_token_id)
    settings = settings_of_transformers(case, num_given) if case["via"] == "arguments" else {}
    done = model.generate(
        inputs,
        attention_mask=(inputs != size - 1).long(),
        decoder_input_ids=torch.hstack([start, prefixes.long()]),
        num_return_sequences=num_best,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        **settings,
    )
    found: list[Hypothesis] = []
    for index, row in enumerate(done.sequences[:, 1 : case["limit"] + 1]):
        generated = row[num_given:].tolist()
        generated = generated[: generated.index(0) + 1 if 0 in generated else None]
        if case["beam_size"] == 1:
            steps = zip(done.logits, generated, strict=False)
            log_prob = score = sum(step[index].log_softmax(-1)[t].item() for step, t in steps)
        else:
            score = done.sequences_scores[index].item()
            log_prob = score * len(generated) ** case["length_penalty"]
        tokens = ((row[: num_given + len(generated)] + 1) % size).tolist()
        found.append((tokens, score, log_prob))
    rows = (found[first : first + num_best] for first in range(0, len(found), num_best))
    return [[one for one in row if one[2] > EMPTY] for row in rows]
