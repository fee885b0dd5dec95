"""Export, import and publish models; see `docs/interchange.md` and `docs/publishing.md`."""

from t2t_jax.plugins import Plugin

_GROUP = "models in and out"

PLUGIN = Plugin(
    commands={
        "export": (_GROUP, "write a model for CTranslate2, transformers or JAX"),
        "import": (_GROUP, "create a run from a model in another format"),
        "publish": (_GROUP, "upload a run to the Hugging Face Hub or a bucket"),
    },
    uses=("watching",),  # model cards contain the report of the run
)
