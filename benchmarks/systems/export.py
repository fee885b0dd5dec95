"""Convert our parameters to a CTranslate2 model, and to Hugging Face's Marian.

python -m systems.export runs/base weights.npz model_dir
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from systems.weights import Weights, read_weights
from t2t_jax.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t_jax.config import Config
from t2t_jax.errors import UserError

if TYPE_CHECKING:
    from transformers import MarianMTModel


def export_ctranslate2(weights: Weights, config: Config, pieces: Sequence[str], out: str) -> None:
    """Write the directory of a CTranslate2 model.

    Args:
      weights: the parameters.
      config: the config of the model.
      pieces: the subword that each id stands for.
      out: an empty directory.
    """
    from ctranslate2.specs import TransformerSpec

    model = config.model
    pre_norm = model.norm_order == "pre"
    spec = TransformerSpec.from_config(
        (model.num_encoder_layers, model.num_decoder_layers), model.num_heads, pre_norm=pre_norm
    )
    spec.config.unk_token = pieces[UNK_ID]
    spec.config.bos_token = spec.config.decoder_start_token = pieces[BOS_ID]
    spec.config.eos_token = pieces[EOS_ID]
    spec.config.layer_norm_epsilon = weights.norm_epsilon
    spec.register_source_vocabulary(list(pieces))
    spec.register_target_vocabulary(list(pieces))

    spec.encoder.embeddings[0].weight = weights.embedding
    spec.decoder.embeddings.weight = weights.embedding
    spec.decoder.projection.weight = weights.embedding
    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        stack.position_encodings.encodings = weights.positions
        for layer, own in zip(stack.layer, weights.layers(name), strict=True):
            _set_ctranslate2_layer(layer, own)
        if pre_norm:
            _set_norm(stack.layer_norm, weights, name)
    spec.validate()
    spec.optimize()
    spec.save(out)


def _set_ctranslate2_layer(layer: Any, weights: Weights) -> None:
    query, key, value, output = _projections(weights, "self_attention")
    _set_linears(layer.self_attention.linear, [np.hstack([query, key, value]), output])
    _set_norm(layer.self_attention.layer_norm, weights, "self_attention_residual")
    if hasattr(layer, "attention"):
        query, key, value, output = _projections(weights, "cross_attention")
        _set_linears(layer.attention.linear, [query, np.hstack([key, value]), output])
        _set_norm(layer.attention.layer_norm, weights, "cross_attention_residual")
    kernels = [weights["feed_forward/kernel_1"], weights["feed_forward/kernel_2"]]
    _set_linears([layer.ffn.linear_0, layer.ffn.linear_1], kernels)
    layer.ffn.linear_0.bias = weights["feed_forward/bias_1"]
    layer.ffn.linear_1.bias = weights["feed_forward/bias_2"]
    _set_norm(layer.ffn.layer_norm, weights, "feed_forward_residual")


def _projections(weights: Weights, attention: str) -> list[np.ndarray]:
    return [weights[f"{attention}/{name}/kernel"] for name in ("query", "key", "value", "output")]


def _set_linears(linears: Sequence[Any], kernels: Sequence[np.ndarray]) -> None:
    for linear, kernel in zip(linears, kernels, strict=True):
        linear.weight = np.ascontiguousarray(kernel.T)


def _set_norm(norm: Any, weights: Weights, module: str) -> None:
    norm.gamma = weights[f"{module}/norm/scale"]
    norm.beta = weights[f"{module}/norm/bias"]


def marian(config: Config) -> "MarianMTModel":
    """An untrained Marian of Hugging Face with the sizes of our model.

    Its projections have biases, unlike ours.
    """
    from transformers import MarianConfig, MarianMTModel

    model = config.model
    if model.norm_order != "post":
        raise UserError("Marian has norm_order='post'; leave Hugging Face out, or use that")
    return MarianMTModel(
        MarianConfig(
            vocab_size=config.data.vocab_size,
            d_model=model.d_model,
            encoder_layers=model.num_encoder_layers,
            decoder_layers=model.num_decoder_layers,
            encoder_attention_heads=model.num_heads,
            decoder_attention_heads=model.num_heads,
            encoder_ffn_dim=model.d_ff,
            decoder_ffn_dim=model.d_ff,
            dropout=model.dropout_rate,
            activation_function="relu",
            scale_embedding=True,
            pad_token_id=PAD_ID,
            eos_token_id=EOS_ID,
            bos_token_id=BOS_ID,
            decoder_start_token_id=BOS_ID,
            forced_eos_token_id=None,
        )
    )


def export_marian(weights: Weights, config: Config) -> "MarianMTModel":
    """Hugging Face's Marian with our parameters."""
    import torch

    built = marian(config)
    arrays = dict(_marian_arrays(weights))
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if name in arrays:
                parameter.copy_(torch.from_numpy(arrays.pop(name)))
            else:
                assert name.endswith("_proj.bias"), name
                parameter.zero_()
    assert not arrays, sorted(arrays)
    for module in built.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = weights.norm_epsilon
    return built


_MARIAN_ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
_MARIAN_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


def _marian_arrays(weights: Weights) -> Iterator[tuple[str, np.ndarray]]:
    yield "model.shared.weight", weights.embedding
    for stack in ("encoder", "decoder"):
        yield f"model.{stack}.embed_positions.weight", weights.positions
        for number, layer in enumerate(weights.layers(stack)):
            for name, array in _marian_layer(layer):
                yield f"model.{stack}.layers.{number}.{name}", array


def _marian_layer(weights: Weights) -> Iterator[tuple[str, np.ndarray]]:
    for ours, theirs in _MARIAN_ATTENTIONS.items():
        if f"{ours}/query/kernel" in weights.arrays:
            kernels = _projections(weights, ours)
            for name, kernel in zip(_MARIAN_PROJECTIONS, kernels, strict=True):
                yield f"{theirs}.{name}.weight", kernel.T
            yield from _marian_norm(f"{theirs}_layer_norm", weights, ours)
    for number in (1, 2):
        yield f"fc{number}.weight", weights[f"feed_forward/kernel_{number}"].T
        yield f"fc{number}.bias", weights[f"feed_forward/bias_{number}"]
    yield from _marian_norm("final_layer_norm", weights, "feed_forward")


def _marian_norm(name: str, weights: Weights, sublayer: str) -> Iterator[tuple[str, np.ndarray]]:
    yield f"{name}.weight", weights[f"{sublayer}_residual/norm/scale"]
    yield f"{name}.bias", weights[f"{sublayer}_residual/norm/bias"]


def main() -> None:
    """Write a run as a CTranslate2 model."""
    from t2t_jax.workdir import read_config, read_vocabulary

    workdir, weights, out = sys.argv[1:]
    vocabulary = read_vocabulary(Path(workdir))
    (pieces,) = vocabulary.pieces([range(len(vocabulary))])
    Path(out).mkdir()
    export_ctranslate2(read_weights(weights), read_config(Path(workdir)), pieces, out)


if __name__ == "__main__":
    main()
