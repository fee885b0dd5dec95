"""The virtual environment of the comparisons, with exact versions of the other programs."""

import subprocess
import sys
import venv
from importlib.metadata import distributions
from pathlib import Path

from tests.programs import ROOT

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
ENVIRONMENT = ROOT / ".venv-against"
INSTALLED = {one.name: one.version.partition("+")[0] for one in distributions()}
"""The version of each installed package, without its build, such as `+cpu`."""


def pinned_versions() -> dict[str, str]:
    """Return the required version of each program, by the name of its package."""
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def python_with_programs() -> str:
    """Return a Python that has the pinned versions: this one, or that of a new environment.

    A program that cannot be installed is reported later, as not run.
    """
    has_all = pinned_versions().items() <= INSTALLED.items()
    if has_all or Path(sys.prefix) == ENVIRONMENT:
        return sys.executable
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        print(f"installing the other programs into {ENVIRONMENT}", file=sys.stderr)
        venv.create(ENVIRONMENT, with_pip=True)
        packages = "-e", f"{ROOT}[train,interchange]"
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    install = [python, "-m", "pip", "install", "-q", "-r", REQUIREMENTS]
    if subprocess.run(install, check=False).returncode:
        print(f"could not install {REQUIREMENTS}", file=sys.stderr)
    return str(python)
