"""A Space of Hugging Face that translates with a published run: a page in a browser, by Gradio.

DIRECTORY/app.py             loads the run by its name, and serves the page
DIRECTORY/requirements.txt   what it needs besides Gradio
DIRECTORY/README.md          the settings of the Space, as the hub reads them
"""

import json
from importlib.resources import files
from pathlib import Path
from string import Template

from t2t_jax.errors import UserError
from t2t_jax.extras.interchange.publish_command import PublishCommand
from t2t_jax.extras.interchange.publishing.publish import publish
from t2t_jax.system import atomic_file, hub, opening
from t2t_jax.version import __version__
from t2t_jax.workdir import read_config

_FILES = "app.py", "requirements.txt", "README.md"
_GRADIO = "6.31.0"
"""The version of Gradio that the Space asks for, with which it was tried."""


def publish_with_space(command: PublishCommand, directory: Path) -> str:
    """Publish a run on the hub, and write the files of a Space that translates with it.

    Args:
      directory: where to write the files of the Space.
    """
    target, dry_run = hub.address(command.destination), command.dry_run
    if target is None:
        raise UserError(f"--space is for hf://NAME/MODEL, not for {command.destination}")
    data = read_config(opening.resolve_run(command.workdir)).data
    if data.facts.hub_task != "translation":
        raise UserError(
            f"--space is for models that translate, which that of {command.workdir} does not"
        )
    if dry_run and directory.resolve().is_relative_to(dry_run.resolve()):
        raise UserError(f"--space {directory} is in --dry-run {dry_run}; give one beside it")
    with atomic_file.writing_directory(directory) as place:
        name = publish(command)
        values = {
            "name": json.dumps(command.destination if dry_run else name),
            "title": json.dumps(target.repository.rpartition("/")[2]),
            "repository": json.dumps(target.repository),
            "source": json.dumps(data.source_language),
            "target": json.dumps(data.target_language),
            "gradio": _GRADIO,
            "version": __version__,
        }
        for file in _FILES:
            text = (files(__package__) / "space" / f"{file}.txt").read_text("utf-8")
            (place / file).write_text(Template(text).substitute(values), encoding="utf-8")
    return name
