"""Write `pretrained/`: small GPT-2, BERT and ViT models, and what transformers computes with them.

    python -m tests.goldens.make_pretrained_goldens

It needs `pip install torch transformers`; the tests read the files and need neither. The models
have random weights, larger than those before training, so that every part of them counts. Beside
each lie the logits for some texts or images, as transformers computes them, in `goldens.npz`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTForImageClassification,
)

HERE = Path(__file__).parent / "pretrained"
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
            is_scale = "norm" in name.lower() and name.endswith("weight")
            is_scale |= ".ln_" in name and name.endswith("weight")
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


def _word_pieces() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        _TEXT, trainers.WordPieceTrainer(vocab_size=90, special_tokens=special)
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **dict(zip(names, special, strict=True))
    )


def _gpt2() -> None:
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
    _save("gpt2", model, tokenizer, given, logits)


def _bert() -> None:
    tokenizer = _word_pieces()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=40,
    )
    model = _randomised(BertForMaskedLM(config))
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    given = [[cls, *ids, sep] for ids in tokenizer(LINES, add_special_tokens=False).input_ids]
    with torch.no_grad():
        logits = [model(torch.tensor([ids])).logits[0].numpy() for ids in given]
    _save("bert", model, tokenizer, given, logits)


def _vit() -> None:
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=12,
        patch_size=4,
        num_channels=3,
        id2label={0: "cat", 1: "dog", 2: "tree"},
        label2id={"cat": 0, "dog": 1, "tree": 2},
    )
    model = _randomised(ViTForImageClassification(config))
    images = np.random.default_rng(0).integers(0, 256, (3, 12, 12, 3)).astype(np.uint8)
    pixels = torch.tensor(images.transpose(0, 3, 1, 2) / 127.5 - 1, dtype=torch.float32)
    with torch.no_grad():
        logits = model(pixels).logits.numpy()
    model.save_pretrained(HERE / "vit")
    np.savez_compressed(HERE / "vit" / "goldens.npz", images=images, logits=logits)


def _save(
    name: str, model: Any, tokenizer: PreTrainedTokenizerFast, given: list[list[int]], logits: Any
) -> None:
    directory = HERE / name
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    arrays = {f"logits_{n}": one for n, one in enumerate(logits)}
    ids = {f"ids_{n}": np.array(one) for n, one in enumerate(given)}
    np.savez_compressed(directory / "goldens.npz", **arrays, **ids)


if __name__ == "__main__":
    _gpt2()
    _bert()
    _vit()
