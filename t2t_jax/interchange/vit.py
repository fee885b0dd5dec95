"""Export and import of ViT models of Hugging Face's transformers: `ViTForImageClassification`."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from t2t_jax.config import Config, ImageEncoderConfig, ModelConfig
from t2t_jax.data.vocabularies.labelled import LabelledVocabulary, labelled_vocabulary
from t2t_jax.errors import UserError
from t2t_jax.interchange import pretrained
from t2t_jax.interchange.carried import Carried, any_value
from t2t_jax.interchange.model_files import SIZE
from t2t_jax.interchange.places import Place, encoder_places, norm_places
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.interchange.tensors import Tensors
from t2t_jax.system.records import Each, Schema

VOCABULARIES = (LabelledVocabulary,)

_FIELDS = {
    **pretrained.encoder_fields(dropout_rate=0.0),
    "image_size": pretrained.Counterpart("image_size", SIZE),
    "patch_size": pretrained.Counterpart("patch_size", SIZE),
    "num_channels": pretrained.Counterpart("image_channels", SIZE, 3),
}
_OTHERS = Schema({"id2label": Each(dict, str)})
_EMBEDDINGS = "vit.embeddings"
_PATCHES = f"{_EMBEDDINGS}.patch_embeddings.projection"
_WITHOUT = r"(vit\.)?pooler\..*"  # only the first vector is classified
_README = """\
# An encoder of images of t2t_jax as a ViT

    import torch
    from transformers import ViTForImageClassification

    model = ViTForImageClassification.from_pretrained(".")
    pixels = torch.rand(1, {channels}, {size}, {size}) * 2 - 1     # -1 is black, and 1 is white
    print(model.config.id2label[model(pixels).logits.argmax().item()])

It needs `pip install transformers torch`.
"""


def _places(model: ModelConfig) -> Iterator[Place]:
    """Yield the places of all parameters but the patch kernel, class token and positions."""
    norms = "layernorm_before", "layernorm_after"
    layers = model.stacks[0].num_layers
    yield from encoder_places(layers, "vit.encoder.layer", "attention.attention", norms)
    yield from norm_places("encoder.norm", "vit.layernorm")
    yield Place("patch_projection.bias", f"{_PATCHES}.bias")
    yield Place("output_projection", "classifier.weight")
    yield Place("output_bias", "classifier.bias")


def read(path: Path) -> PortableModel:
    """Read a ViT model from the directory that `save_pretrained` wrote.

    Raises:
      UserError: a file is missing or damaged, or is of another kind of model.
    """
    theirs = pretrained.read_pretrained_config(path, "vit", _FIELDS, _OTHERS, {"qkv_bias": True})
    vocabulary = labelled_vocabulary(None, _labels(path, theirs["id2label"]))
    changes = {
        **pretrained.OF_ENCODERS,
        "model.architecture": "image_encoder",
        "model.norm_order": "pre",
        "data.task": "image_classification",
        "data.corpus": "npz:images.npz",
    }
    config = pretrained.our_config(path, theirs, _FIELDS, changes)
    assert isinstance(config.model, ImageEncoderConfig)
    arrays = dict(_our_arrays(pretrained.read_tensors(path), config.model))
    return PortableModel(config, vocabulary, arrays, ())


def _labels(path: Path, names: Mapping[str, str]) -> list[str]:
    """Return the label of each number, or refuse labels that do not fit on a line."""
    labels = [names.get(str(number), "") for number in range(max(1, len(names)))]
    for number, label in enumerate(labels):
        if not label.strip() or not label.isprintable():
            raise UserError(
                f"{path / 'config.json'} has {label!r:.60} in id2label as the label of {number}; "
                "give each number from 0 on a name of one line"
            )
    return labels


def _our_arrays(
    tensors: Tensors, model: ImageEncoderConfig
) -> Iterator[tuple[str, Float32[np.ndarray, "..."]]]:
    width, size, channels = model.d_model, model.patch_size, model.image_channels
    kernel = tensors.take(f"{_PATCHES}.weight", width, channels, size, size)
    yield "patch_projection.kernel", kernel.transpose(2, 3, 1, 0).reshape(-1, width).copy()
    yield "class_token", tensors.take(f"{_EMBEDDINGS}.cls_token", 1, 1, width).reshape(-1)
    positions = tensors.take(f"{_EMBEDDINGS}.position_embeddings", 1, model.num_positions, width)
    yield "source_position", positions[0]
    for place in _places(model):
        yield place.ours, place.array(tensors)
    tensors.finish(_WITHOUT)


def carried(config: Config) -> Carried:
    """Return the fields of a config that the format can hold, each with its possible values."""
    images = "patch_size", "image_size", "image_channels"
    return {
        **pretrained.carried_by_all(config.model),
        **any_value("model", *images),
        "model.architecture": ("image_encoder",),
        "model.norm_order": ("pre",),
        "model.output_bias": (True,),
        "data.task": ("image_classification",),
    }


def write(model: PortableModel, directory: Path) -> None:
    """Write a model as a ViT model of transformers."""
    network, vocabulary = model.config.model, model.vocabulary
    assert isinstance(vocabulary, LabelledVocabulary)
    assert isinstance(network, ImageEncoderConfig)
    arrays = {place.theirs: place.theirs_of(model.arrays) for place in _places(network)}
    size, channels = network.patch_size, network.image_channels
    kernel = model.arrays["patch_projection.kernel"].reshape(size, size, channels, -1)
    arrays[f"{_PATCHES}.weight"] = kernel.transpose(3, 2, 0, 1)
    arrays[f"{_EMBEDDINGS}.cls_token"] = model.arrays["class_token"][None, None]
    arrays[f"{_EMBEDDINGS}.position_embeddings"] = model.arrays["source_position"][None]
    config = {
        **pretrained.their_fields(network, _FIELDS),
        "qkv_bias": True,
        "id2label": {str(number): label for number, label in enumerate(vocabulary.labels)},
        "label2id": {label: number for number, label in enumerate(vocabulary.labels)},
    }
    readme = _README.format(size=network.image_size, channels=channels)
    pretrained.write_files(directory, "ViTForImageClassification", "vit", config, arrays, readme)
