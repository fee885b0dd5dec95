"""Searches of the library transformers."""

import json
from pathlib import Path

import torch
from transformers import MarianMTModel
from transformers.utils import logging

from t2t_jax.batch import EOS_ID
from tests.against.part import Case
from tests.against.search.part import Found, settings_of_transformers

logging.set_verbosity_error()
logging.disable_progress_bar()
torch.set_num_threads(1)


def search(case: Case, folder: str) -> Found:
    """Search as the arguments, or the files, say."""
    model = MarianMTModel.from_pretrained(Path(folder, "marian"))
    sentences = case["sentences"]
    lengths = {len(prefix) for _, prefix in sentences}
    # Prefixes are not padded, so those of several lengths are searched one by one.
    batches = [sentences] if len(lengths) == 1 else [[one] for one in sentences]
    found = [one for batch in batches for one in _search(model, case, batch)]
    Path(folder, "transformers.json").write_text(json.dumps(found))
    return found


def _search(model: MarianMTModel, case: Case, batch: list[list[list[int]]]) -> Found:
    size, num_best = case["size"], case["num_best"]
    begin = 1 + len(batch[0][1])
    sources = [[*source, EOS_ID] for source, _ in batch]
    width = max(map(len, sources))
    start = model.generation_config.decoder_start_token_id
    prefixes = [[start, *((token - 1) % size for token in prefix)] for _, prefix in batch]
    settings = settings_of_transformers(case, begin - 1) if case["via"] == "arguments" else {}
    with torch.no_grad():
        done = model.generate(
            torch.tensor(
                [[(t - 1) % size for t in one] + [size - 1] * (width - len(one)) for one in sources]
            ),
            attention_mask=torch.tensor(
                [[1] * len(one) + [0] * (width - len(one)) for one in sources]
            ),
            decoder_input_ids=torch.tensor(prefixes),
            num_return_sequences=num_best,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
            **settings,
        )
    rows = []
    for index, row in enumerate(done.sequences[:, 1:].tolist()):
        tokens = [(token + 1) % size for token in row[: case["limit"]]]
        end = tokens.index(EOS_ID, begin - 1) + 1 if EOS_ID in tokens[begin - 1 :] else len(tokens)
        tokens = tokens[:end]
        if case["beam_size"] == 1:
            logits = [step[index].log_softmax(-1) for step in done.logits]
            log_prob = sum(logits[i][row[begin - 1 + i]].item() for i in range(end - begin + 1))
            score = log_prob
        else:
            score = done.sequences_scores[index].item()
            log_prob = score * (end - begin + 1) ** case["length_penalty"]
        rows.append((tokens, score, log_prob))
    return [rows[i : i + num_best] for i in range(0, len(rows), num_best)]
