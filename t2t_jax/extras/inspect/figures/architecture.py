"""Draw figure 1 of the paper with the shapes and parameter counts of a config."""

from typing import NamedTuple

import jax
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from t2t_jax.config import AttentionConfig, Config, ImageEncoderConfig, ModelConfig
from t2t_jax.config.model import Side, Stack
from t2t_jax.modules.models import make_model
from t2t_jax.modules.network import declared_parameters
from t2t_jax.modules.parameters import Parameters
from t2t_jax.system.drawing import canvas

_WIDTH, _HEIGHT, _GAP = 4.6, 0.85, 0.42
_STEP = _HEIGHT + _GAP
_COLUMNS = 0.0, 6.6
_ARROW = {"arrowstyle": "->", "color": "0.3"}
_COLORS = {
    "embedding": "#F6D5D5",
    "attention": "#FCE3C2",
    "feed_forward": "#CFE8F5",
    "norm": "#F3F3C4",
    "output": "#DCE0F2",
    "text": "#FFFFFF",
}


class _Box(NamedTuple):
    """A box of the figure; if `is_layer`, it is in the frame of the repeated layer.

    `input` labels the arrow from the box below. A residual connection skips the `skips` boxes
    below.
    """

    name: str
    content: str
    kind: str
    is_layer: bool = True
    input: str = ""
    skips: int = 0


def architecture(config: Config, vocab_size: int) -> Figure:
    """Draw the network of a config like figure 1 of the paper.

    Args:
      vocab_size: the number of entries on the target side of the vocabulary.
    """
    params = declared_parameters(make_model(config, vocab_size, None))
    stacks = config.model.stacks
    columns = [_column(config.model, vocab_size, params, stack) for stack in stacks]
    height = max(map(len, columns)) * _STEP
    figure, (axes,) = canvas(10, 0.62 * height)
    for x, boxes, stack in zip(_COLUMNS, columns, stacks, strict=False):
        _draw(axes, x, boxes, stack.num_layers)
    if len(columns) == 2:
        _join(axes, *columns)
    axes.set(xlim=(-1.2, 12.2), ylim=(-0.5, height + 0.3), aspect="equal")
    targets = " and t target" if config.model.decodes else ""
    reads_images = isinstance(config.model, ImageEncoderConfig)
    rows = "images" if reads_images else f"rows of s source{targets} tokens"
    axes.set_title(f"{_count(params):,} parameters, b {rows}")
    axes.axis("off")
    return figure


def _column(model: ModelConfig, vocab_size: int, params: Parameters, stack: Stack) -> list[_Box]:
    stack_name = "decoder" if stack.reads_target else "encoder"
    side: Side = "target" if stack.reads_target else "source"
    attention_names = ["self_attention", *(["cross_attention"] if stack.attends_to_source else [])]
    boxes = _inputs(model, vocab_size, params, stack, side)
    for sublayer in [*attention_names, "feed_forward"]:
        boxes += _sublayer(model, params[stack_name]["layers"], sublayer, stack)
    if model.norm_order == "pre":
        boxes.append(_Box("norm", _layer_count(params[stack_name]["norm"]), "norm", False))
    if stack.reads_target or len(model.stacks) == 1:
        boxes += _outputs(model, vocab_size, params, side)
    return boxes


def _inputs(
    model: ModelConfig, vocab_size: int, params: Parameters, stack: Stack, side: Side
) -> list[_Box]:
    input_name = "source and target" if stack.reads_source and stack.reads_target else side
    if isinstance(model, ImageEncoderConfig):
        sizes = f"{model.image_size}, {model.image_size}, {model.image_channels}"
        patches = f"{model.num_patches} x {model.patch_values}: "
        boxes = [
            _Box("images", f"[b, {sizes}]", "text", False),
            _Box("patches", patches + _layer_count(params["patch_projection"]), "embedding", False),
            _Box("class token", _layer_count(params["class_token"]), "embedding", False),
        ]
    else:
        matrix_name = model.embeddings[side]
        num_rows = model.entries(vocab_size)[matrix_name]
        scale_text = f" x {model.embedding_scale:.4g}" if model.embedding_scale != 1 else ""
        is_shared = list(model.embeddings.values()).count(matrix_name) == 3
        shared_text = " (shared)" if is_shared else ""
        size = f"[{num_rows:,}, {model.d_model}]"
        shape = "[b, s + t]" if input_name != side else f"[b, {side[0]}]"
        if input_name == "target":
            shape = f"shifted right: {shape}"
        boxes = [
            _Box(f"{input_name} tokens", shape, "text", False),
            _Box(f"embedding{shared_text}{scale_text}", size, "embedding", False),
        ]
    position, norm = (params.get(f"{side}_{name}") for name in ("position", "embedding_norm"))
    content = model.position.replace("_", " ") + (f": {_layer_count(position)}" if position else "")
    is_sum = model.position in ("sinusoidal", "learned")
    boxes.append(_Box("+ positions" if is_sum else "positions", content, "embedding", False))
    return [*boxes, *([_Box("norm", _layer_count(norm), "norm", False)] if norm else [])]


def _outputs(model: ModelConfig, vocab_size: int, params: Parameters, side: Side) -> list[_Box]:
    matrix_name, embeddings = model.embeddings["output"], model.embeddings
    shared_text = " (shared)" if embeddings.get(side) == matrix_name else ""
    axis = f"{side[0]}, " if side in embeddings else ""
    bias_text = f" + [{vocab_size:,}]" if "output_bias" in params else ""
    size = f"[{model.d_model}, {vocab_size:,}]{bias_text}"
    return [
        _Box(f"output projection{shared_text}", size, "output", False),
        _Box("softmax", f"[b, {axis}{vocab_size:,}]", "output", False),
    ]


def _sublayer(model: ModelConfig, layers: Parameters, name: str, stack: Stack) -> list[_Box]:
    if name == "feed_forward":
        sizes = f"{model.d_model} > {model.d_ff} > {model.d_model}, {model.feed_forward}"
        title, kind, label = "feed-forward network", "feed_forward", ""
    else:
        attention: AttentionConfig = getattr(stack, name)
        sizes = f"h = {attention.num_heads}, d_k = {attention.d_k}, d_v = {attention.d_v}"
        masked = "masked " if name == "self_attention" and stack.reads_target else ""
        title, kind = f"{masked}{name.replace('_', '-')}", "attention"
        label = "Q, K, V" if name == "self_attention" else "Q"
    content = f"{sizes}: {_layer_count(layers[name], stack.num_layers)}"
    box = _Box(title, content, kind, input=label)
    size = _layer_count(layers[f"{name}_residual"], stack.num_layers)
    length = " + ".join(["s"] * stack.reads_source + ["t"] * stack.reads_target)
    reads_images = isinstance(model, ImageEncoderConfig)
    shape = "" if reads_images else f"[b, {length}, {model.d_model}]"
    if model.norm_order == "pre":
        return [_Box("norm", size, "norm"), box, _Box("add", "", "norm", input=shape, skips=2)]
    return [box, _Box("add and norm", size, "norm", input=shape, skips=1)]


def _layer_count(params: object, layers: int = 1) -> str:
    """Format the number of parameters in one of `layers` identical layers."""
    return f"{_count(params) // layers:,}"


def _count(params: object) -> int:
    return sum(x.size for x in jax.tree.leaves(params))


def _draw(axes: Axes, x: float, boxes: list[_Box], num_layers: int) -> None:
    for index, box in enumerate(boxes):
        y = index * _STEP
        shape = FancyBboxPatch(
            (x, y), _WIDTH, _HEIGHT, "round,pad=0.04", facecolor=_COLORS[box.kind], edgecolor="0.3"
        )
        axes.add_patch(shape)
        center = x + _WIDTH / 2
        axes.text(center, y + 0.58, box.name, ha="center", va="center", fontsize=9)
        axes.text(center, y + 0.24, box.content, ha="center", va="center", fontsize=7, color="0.25")
        if index:
            axes.annotate("", (center, y), (center, y - _GAP), arrowprops=_ARROW)
            text_x, text_y = center - 0.15, y - _GAP / 2
            axes.text(text_x, text_y, box.input, ha="right", va="center", fontsize=7, color="0.25")
        if box.skips:
            right, start = x + _WIDTH + 0.25, y - box.skips * _STEP - _GAP / 2
            axes.plot([center, right, right], [start, start, y + _HEIGHT / 2], "0.3", lw=1)
            end = x + _WIDTH, y + _HEIGHT / 2
            axes.annotate("", end, (right, end[1]), arrowprops=_ARROW)
    indices = [index for index, box in enumerate(boxes) if box.is_layer]
    bottom, height = indices[0] * _STEP - 0.28, (len(indices) - 1) * _STEP + _HEIGHT + 0.4
    frame = FancyBboxPatch((x - 0.2, bottom), _WIDTH + 0.6, height, "round,pad=0.05", fill=False)
    axes.add_patch(frame)
    label_x = x - 0.45 if x == _COLUMNS[0] else x + _WIDTH + 1.2
    axes.text(label_x, bottom + height / 2, f"{num_layers} x", ha="right", va="center", fontsize=11)


def _join(axes: Axes, encoder: list[_Box], decoder: list[_Box]) -> None:
    """Draw the arrow from the encoder output to the cross-attention of the decoder."""
    (index,) = (i for i, box in enumerate(decoder) if box.name == "cross-attention")
    top = len(encoder) * _STEP - _GAP
    center, bend = _COLUMNS[0] + _WIDTH / 2, _COLUMNS[1] - 1.2
    y = index * _STEP + _HEIGHT / 2
    axes.plot([center, center, bend, bend], [top, top + 0.4, top + 0.4, y], "0.3", lw=1)
    axes.annotate("", (_COLUMNS[1], y), (bend, y), arrowprops=_ARROW)
    axes.text(bend + 0.1, y + 0.12, "K, V", fontsize=7, color="0.25")
