"""Export and import of models in the formats of other programs; see `docs/interchange.md`."""

from t2t_jax.plugins import CommandRow, Plugin

_GROUP = "models in and out"

PLUGIN = Plugin(
    commands={
        "export": CommandRow(
            _GROUP,
            "write a model for CTranslate2, transformers or JAX",
            "t2t_jax.extras.interchange.export_command:ExportCommand",
        ),
        "import": CommandRow(
            _GROUP,
            "make a run from a model in another format",
            "t2t_jax.extras.interchange.import_command:ImportCommand",
        ),
        "publish": CommandRow(
            _GROUP,
            "upload a run to the Hugging Face Hub or a bucket",
            "t2t_jax.extras.interchange.publish_command:PublishCommand",
        ),
    },
    uses=("watching",),  # whose report is on the card of a published run
)
