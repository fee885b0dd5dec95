"""Searches of the library transformers."""

import json
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import MarianMTModel
from transformers.utils import logging

from tests.against.part import Case
from tests.against.search import part
from tests.decoding.plain_search import END, PADDING, Found

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
    padded = pad_sequence([torch.tensor([*source, END]) for source, _ in batch], True, PADDING)
    prefixes = torch.tensor([prefix for _, prefix in batch])
    # An export has padding as its last entry, and the others one place earlier.
    inputs, prefixes = (padded - 1) % size, (prefixes - 1) % size
    start = torch.full((len(batch), 1), model.generation_config.decoder_start_token_id)
    settings = part.settings_of_transformers(case, num_given) if case["via"] == "arguments" else {}
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
    if case["beam_size"] == 1:
        logits = done.scores if case["renormalize_logits"] else done.logits
        steps = model.compute_transition_scores(done.sequences, logits, normalize_logits=True)
    found: Found = [[] for _ in batch]
    rows = (done.sequences[:, 1 : case["limit"] + 1] + 1) % size
    for index, row in enumerate(rows.tolist()):
        tokens = row[: [*row, END].index(END, num_given) + 1]
        length = len(tokens) - num_given
        if case["beam_size"] == 1:
            log_prob = score = steps[index, :length].sum().item()
        else:
            score = done.sequences_scores[index].item()
            log_prob = score * length ** case["length_penalty"]
        if log_prob > part.EMPTY:
            found[index // num_best].append((tokens, score, log_prob))
    return found
