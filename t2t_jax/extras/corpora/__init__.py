"""Download public corpora as text files, and read data sets of TensorFlow Datasets."""

from t2t_jax.plugins import Plugin

PLUGIN = Plugin(
    commands={
        "data": ("first steps", "download a public corpus, such as WMT14, as text files"),
    }
)
