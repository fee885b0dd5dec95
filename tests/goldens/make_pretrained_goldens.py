"""Write `pretrained/gpt2`: a small GPT-2, and what transformers computes with it.

    python -m tests.goldens.make_pretrained_goldens

It needs `pip install torch transformers`; the tests read the files and need neither. The model has
random weights, larger than before training, so that every part of it counts. `goldens.npz` has its
logits for some texts, as transformers computes them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

HERE = Path(__file__).parent / "pretrained" / "gpt2"
LINES = [
    "The file could not be opened.",
    "No devices were found on this network",
    "a small house, and a café",
    "devices",
]
_TEXT = [*LINES, "The devices of a network could not be found.", "open the small file"] * 3


def _randomised(model: Any) -> Any:
    """The model with every parameter drawn anew."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_scale = ".ln_" in name and name.endswith("weight")
            parameter.normal_(1.0 if is_scale else 0.0, 0.2)
    return model.eval()


def _byte_level() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"]
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    end = "<|endoftext|>"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=end, eos_token=end, unk_token=end
    )


def _write() -> None:
    tokenizer = _byte_level()
    end = tokenizer.eos_token_id
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=end,
        eos_token_id=end,
    )
    model = _randomised(GPT2LMHeadModel(config))
    given = [[end, *ids] for ids in tokenizer(LINES).input_ids]
    with torch.no_grad():
        logits = [model(torch.tensor([ids])).logits[0].numpy() for ids in given]
    model.save_pretrained(HERE)
    tokenizer.save_pretrained(HERE)
    arrays = {f"logits_{n}": array for n, array in enumerate(logits)}
    ids = {f"ids_{n}": np.array(row) for n, row in enumerate(given)}
    np.savez_compressed(HERE / "goldens.npz", **arrays, **ids)


if __name__ == "__main__":
    _write()
