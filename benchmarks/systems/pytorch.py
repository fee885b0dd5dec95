"""PyTorch: `torch.nn.Transformer`, as it is or through `torch.compile` (`--compile`).

It runs on an NVIDIA GPU if there is one, and else on the CPU.

The first argument is its precision: float32, or bfloat16 by `torch.autocast`, which computes matrix
products in bfloat16 and the loss in float32.

It has less work than in its default form: no padding masks, as the batches have no padding, and no
dropout on attention weights and hidden activations, as t2t_jax has none there. It has more work
than t2t_jax: one more layer norm at the end of each stack, and biases in attention.
"""

import math
import sys
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from systems.protocol import Training, serve
from t2t_jax.batch import BOS_ID
from t2t_jax.config import Config

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""The device of the model: an NVIDIA GPU if there is one, or else the CPU."""


class Transformer(nn.Module):
    """`torch.nn.Transformer` between tied embeddings."""

    def __init__(self, config: Config, length: int) -> None:
        """Create the model for sentences of at most `length` tokens."""
        super().__init__()
        model = config.model
        self.scale = math.sqrt(model.d_model)
        self.embedding = nn.Embedding(config.data.vocab_size, model.d_model)
        nn.init.normal_(self.embedding.weight, std=1 / self.scale)
        self.dropout = nn.Dropout(model.dropout_rate)
        self.transformer = nn.Transformer(
            model.d_model,
            model.num_heads,
            model.num_encoder_layers,
            model.num_decoder_layers,
            model.d_ff,
            model.dropout_rate,
            batch_first=True,
        )
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0
        self.register_buffer("positions", _sinusoids(length, model.d_model))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, inputs: Tensor, previous: Tensor) -> Tensor:
        """Compute the logits of each target token."""
        x = self.transformer(
            self._embed(inputs), self._embed(previous), tgt_mask=self.mask, tgt_is_causal=True
        )
        return functional.linear(x, self.embedding.weight)

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.embedding(tokens) * self.scale + self.positions)


def _sinusoids(length: int, d_model: int) -> Tensor:
    frequency = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10_000) / d_model))
    angle = torch.arange(length)[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], -1).reshape(length, d_model)


def training_step(
    logits: Callable[[Tensor, Tensor], Tensor],
    parameters: Iterable[nn.Parameter],
    work: Training,
    compiled: bool = False,
    autocast: bool = False,
) -> Callable[[], float]:
    """Prepare a training step on the batch of `work`.

    Args:
      logits: a function of the sources and the tokens before each target token to its logits.
      parameters: the parameters of the model.
      work: the batch and the recipe.
      compiled: whether to use `torch.compile` and the fused Adam.
      autocast: whether `torch.autocast` computes the forward pass and the loss in bfloat16.
    """
    training = work.config.training
    inputs, targets = (torch.tensor(side, device=DEVICE) for side in (work.inputs, work.targets))
    previous = functional.pad(targets[:, :-1], (1, 0), value=BOS_ID)
    adam = torch.optim.Adam(
        parameters,
        lr=1e-4,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
        fused=compiled,
    )

    def loss_of(inputs: Tensor, previous: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
            return functional.cross_entropy(
                logits(inputs, previous).flatten(0, 1),
                targets.flatten(),
                label_smoothing=training.label_smoothing,
            )

    if compiled:
        loss_of = torch.compile(loss_of)

    def take() -> float:
        for _ in range(work.steps):
            adam.zero_grad()
            loss = loss_of(inputs, previous, targets)
            loss.backward()
            adam.step()
        return loss.item()

    return take


def train(work: Training) -> Callable[[], float]:
    """Prepare a training step of `torch.nn.Transformer`."""
    precision, *flags = sys.argv[1:]
    model = Transformer(work.config, len(work.targets[0])).to(DEVICE)
    return training_step(
        model,
        model.parameters(),
        work,
        compiled="--compile" in flags,
        autocast=precision == "bfloat16",
    )


if __name__ == "__main__":
    serve(train=train)
