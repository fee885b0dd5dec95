"""Write `beam_goldens.json`: the hypotheses of beam searches by transformers, at short limits too.

    python tests/goldens/make_beam_goldens.py

It needs `pip install torch transformers numpy`; the tests read the JSON and need neither. The model
is a table of logits `[sentence, position, last token, next token]`, so that the goldens are about
the search only. Every sentence has its own limit. The last two sentences have one distribution at
all positions: a token with probability 0.9, and the end with 0.1. The file has the table, the
limits, and the k hypotheses of every sentence under "k alpha": tokens as digits, and the score.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

BOS, EOS, VOCAB_SIZE = 1, 2, 8
LIMITS = [1, 2, 3, 5, 8, 12, 2, 20]
BEAM_SIZES, ALPHAS = range(1, 9), (0.0, 0.6, 1.0, 2.0)


def make_table() -> np.ndarray:
    """Return logits of random distributions in which the end is rare, usual or likely."""
    shape = len(LIMITS), max(LIMITS), VOCAB_SIZE, VOCAB_SIZE
    table = (np.random.default_rng(0).normal(size=shape) * 1.5).round(2)
    table[..., EOS] += np.resize([-3.0, 0.0, 2.0], len(LIMITS))[:, None, None]
    table[-2:] -= 30  # as good as impossible, without ties
    table[-2:, ..., 3], table[-2:, ..., EOS] = np.log(0.9), np.log(0.1)
    return table.round(5)


class TableModel(PreTrainedModel, GenerationMixin):
    """A decoder-only model that looks the logits of one sentence up in a table."""

    config_class = PretrainedConfig

    def __init__(self, table: np.ndarray) -> None:
        """Take the table of a sentence, `[position, last token, next token]`."""
        super().__init__(PretrainedConfig(vocab_size=VOCAB_SIZE))
        self.table = torch.nn.Parameter(torch.tensor(table, dtype=torch.float32))

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        """Return the logits of the next token after every prefix of the input."""
        positions = torch.arange(input_ids.shape[1])
        return CausalLMOutput(logits=self.table[positions, input_ids])


def search(model: TableModel, limit: int, beam_size: int, alpha: float) -> list[list[Any]]:
    """Return the hypotheses that transformers finds, best first: tokens as digits, and scores."""
    options = GenerationConfig(
        num_beams=beam_size, num_return_sequences=beam_size, length_penalty=alpha,
        max_new_tokens=limit, eos_token_id=EOS, pad_token_id=0, do_sample=False, use_cache=False,
        return_dict_in_generate=True, output_scores=True, early_stopping=False,
    )  # fmt: skip
    found = model.generate(torch.tensor([[BOS]]), options)
    if beam_size == 1:  # a greedy search, which returns no scores of sequences
        logs = model.compute_transition_scores(found.sequences, found.scores, normalize_logits=True)
        scores = logs.sum(1)
    else:
        scores = found.sequences_scores
    hypotheses = []
    for row, score in zip(found.sequences.tolist(), scores.tolist(), strict=True):
        tokens = row[1:]
        length = tokens.index(EOS) + 1 if EOS in tokens else limit
        hypotheses.append(["".join(map(str, tokens[:length])), round(score, 7)])
    return [one for one in hypotheses if one[1] > -1e8]  # the others are empty slots


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    table = make_table()
    models = [(TableModel(part), limit) for part, limit in zip(table, LIMITS, strict=True)]
    searches = {
        f"{beam_size} {alpha}": [search(*model, beam_size, alpha) for model in models]
        for beam_size in BEAM_SIZES
        for alpha in ALPHAS
    }
    golden = {"table": table.tolist(), "limits": LIMITS, "searches": searches}
    text = json.dumps(golden, separators=(",", ":")) + "\n"
    Path(__file__).with_name("beam_goldens.json").write_text(text)
