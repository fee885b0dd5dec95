"""Write a Hugging Face Space, a Gradio web page that translates with a published run.

DIRECTORY/app.py             program that serves the page
DIRECTORY/requirements.txt   dependencies, except Gradio
DIRECTORY/README.md          settings of the Space
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
"""The version of Gradio that the Space requires and that we tested."""


def publish_with_space(command: PublishCommand, directory: Path) -> str:
    """Publish a run on the hub, write a Space for it, and return the address of the run.

    Args:
      directory: missing or empty directory for the files of the Space.
    """
    target, dry_run = hub.address(command.destination), command.dry_run
    if target is None:
        raise UserError(f"--space is for hf://NAME/MODEL, not for {command.destination}")
    data = read_config(opening.resolve_run(command.workdir)).data
    if data.facts.hub_task != "translation":
        raise UserError(
            f"--space is for translation models, but the model of {command.workdir} is not one"
        )
    if dry_run and directory.resolve().is_relative_to(dry_run.resolve()):
        raise UserError(
            f"--space {directory} is inside --dry-run {dry_run}; choose another directory"
        )
    with atomic_file.writing_directory(directory) as new_directory:
        address = publish(command)
        values = {
            "name": json.dumps(command.destination if dry_run else address),
            "title": json.dumps(target.repository.rpartition("/")[2]),
            "repository": json.dumps(target.repository),
            "source": json.dumps(data.source_language),
            "target": json.dumps(data.target_language),
            "gradio": _GRADIO,
            "version": __version__,
        }
        for file in _FILES:
            text = (files(__package__) / "space" / f"{file}.txt").read_text("utf-8")
            (new_directory / file).write_text(Template(text).substitute(values), encoding="utf-8")
    return address
