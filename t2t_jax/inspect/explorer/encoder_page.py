"""The page about an encoder alone: what each position of a sentence or an image attends to."""

from typing import Any

import numpy as np
from jaxtyping import UInt8

from t2t_jax.config import ModelConfig
from t2t_jax.data.images import checked_image
from t2t_jax.decoding.translator import Translator
from t2t_jax.inspect.encoder_maps import EncoderMaps


def page_data(translator: Translator, given: Any, maps: EncoderMaps) -> dict[str, Any]:
    """What the page shows, as plain values but for arrays of bytes.

    Args:
      translator: the model.
      given: the sentence or the image.
      maps: its attention weights.
    """
    units = [
        {"name": name, "label": maps.labels.get(place, "")} for place, name in enumerate(maps.units)
    ]
    model: ModelConfig = translator.config.model
    answer = maps.labels.get(0, given if isinstance(given, str) else "")
    image: dict[str, Any] | None = None
    if model.num_patches:
        pixels: UInt8[np.ndarray, "height width channels"] = checked_image(
            given, model, "image", translator.config.data.image_resize
        )
        image = {
            "size": model.image_size,
            "patch": model.patch_size,
            "channels": model.image_channels,
            "values": pixels,
        }
    return {"units": units, "answer": answer, "shape": maps.encoder.shape[:3], "image": image}
