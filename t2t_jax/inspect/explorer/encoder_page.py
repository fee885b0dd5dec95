"""The page about an encoder-only model, on what a sentence's or an image's positions attend to."""

from typing import Any

import numpy as np
from jaxtyping import UInt8

from t2t_jax.config import ImageEncoderConfig
from t2t_jax.data.images import checked_image
from t2t_jax.decoding.translator import Translator
from t2t_jax.inspect.encoder_maps import EncoderMaps


def page_data(translator: Translator, given: Any, maps: EncoderMaps) -> dict[str, Any]:
    """Return the data that the page shows: plain values, and the image as an array of bytes.

    Args:
      translator: the model.
      given: the sentence or the image.
      maps: the attention weights for the sentence or the image.
    """
    units = [
        {"name": name, "label": maps.labels.get(place, "")} for place, name in enumerate(maps.units)
    ]
    model = translator.config.model
    answer = maps.labels.get(0, given if isinstance(given, str) else "")
    image: dict[str, Any] | None = None
    if isinstance(model, ImageEncoderConfig):
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
