"""Export and import of models in the formats of other programs; see `docs/interchange.md`."""

from t2t_jax.plugins import Plugin

_GROUP = "models in and out"

PLUGIN = Plugin(
    commands={
        "export": (_GROUP, "write a model for CTranslate2, transformers or JAX"),
        "import": (_GROUP, "make a run from a model in another format"),
        "publish": (_GROUP, "upload a run to the Hugging Face Hub or a bucket"),
    },
    uses=("watching",),  # whose report is on the card of a published run
)
