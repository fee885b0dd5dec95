"""Check that packages are installed, before long work that needs them later."""

from importlib.util import find_spec

from t2t_jax.errors import needs_extra

OF_SCORES = "sacrebleu", "sacremoses"
"""The packages with which translations are scored."""
OF_TRAINING = ("tensorboardX", "grain", *OF_SCORES)
"""The packages that a training imports at some time."""


def check_installed(extra: str, purpose: str, *packages: str) -> None:
    """Refuse work that needs a missing package of an extra, without importing the packages.

    Args:
      extra, purpose: as for `needs_extra`.

    Raises:
      UserError: one of the packages is not installed.
    """
    for package in packages:
        with needs_extra(extra, purpose):
            if find_spec(package) is None:
                raise ModuleNotFoundError(name=package)
