"""Hugging Face Transformers with Marian, its post-norm Transformer for translation."""

import json
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from systems.protocol import Decoding, Training, serve
from systems.pytorch import training_step
from systems.weights import exported
from t2t_jax.extras.interchange.marian import model_config


def train(work: Training) -> Callable[[], float]:
    """Prepare a training step of Marian, whose projections have biases, unlike ours."""
    config = model_config(work.config, work.config.data.vocab_size)
    model = MarianMTModel(MarianConfig(**config)).train()

    def logits(inputs: Tensor, previous: Tensor) -> Tensor:
        return model(input_ids=inputs, decoder_input_ids=previous, use_cache=False).logits

    return training_step(logits, model.parameters(), work)


def decode(work: Decoding) -> Callable[[], list[list[int]]]:
    """Prepare a search by `generate`, with its cache of keys and values.

    The export numbers the vocabulary in another order, so ids are mapped by their subwords.
    """
    with exported(work.weights, "marian") as (ours, directory):
        model = MarianMTModel.from_pretrained(directory).eval()
        numbers = json.loads((directory / "vocab.json").read_text(encoding="utf-8"))
    (pieces,) = ours.vocabulary.pieces([range(len(ours.vocabulary))])
    to_marian = torch.tensor([numbers[piece] for piece in pieces])
    to_ours = to_marian.argsort()
    inputs = to_marian[torch.tensor(work.inputs)]

    @torch.inference_mode()
    def translate() -> list[list[int]]:
        tokens = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            num_beams=work.config.decoding.beam_size,
            length_penalty=work.config.decoding.length_penalty,
            max_new_tokens=work.target_length,
        )
        return to_ours[tokens[:, 1:]].tolist()  # without the begin of sentence

    return translate


if __name__ == "__main__":
    serve(train=train, decode=decode)
