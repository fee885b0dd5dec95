"""The errors that a user can mend, the warnings, and the ways out that both of them name."""

import difflib
import errno
import json
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

_WAYS_OUT = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there, or have the quota raised",
    errno.EFBIG: "raise the limit on a file's size (ulimit -f)",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.EROFS: "the file system is read-only: choose another place",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "the machine has too many open files: close some programs",
    errno.ENOMEM: "the memory is used up: close other programs, or ask for less at once",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "a part of the path is not a directory",
    errno.EISDIR: "name a file, not a directory",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "a link leads back to itself: remove it",
    errno.EREMOTEIO: "the store has failed: try again, the same command goes on from there",
    errno.EIO: "the device has failed: look at it, or choose another place",
}

_LONGEST = 200  # characters of a value in a message


class UserError(ValueError):
    """An error that the user can mend, in a field, a file, a directory or a checkpoint.

    The message is one line: what was wrong, where, and the way out. The command line prints it
    without a traceback and exits with code 2; a Python caller can catch it as a `ValueError`.
    """


class DivergedError(UserError):
    """The training of a model has diverged: its loss, gradient or probabilities are not finite."""


class LostProcessError(UserError):
    """An error after which the same command may go on: another process of a run is missing.

    The command line exits with the code by which a scheduler starts the training again.
    """


@contextmanager
def needs_extra(extra: str, purpose: str) -> Iterator[None]:
    """Raise an error that names an extra if a package imported within is not installed.

    Args:
      extra: the extra, of those in `pyproject.toml`, that installs the packages imported within the
        block.
      purpose: the part of the program that needs the packages, such as "table.png".

    Raises:
      UserError: one of the packages is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise UserError(
            f"{purpose} needs {package}, which is not installed: {installing(extra)}"
        ) from error


def installing(extra: str) -> str:
    """Return the command that installs an extra for this copy of the package.

    A clone is installed where it lies. Any other copy is installed from where it came: from the
    file of a wheel, from an address, or else from an index.
    """
    clone = Path(__file__).parents[1]
    if (clone / "pyproject.toml").is_file():
        place = "." if clone == Path.cwd() else clone
        return f"pip install -e {shlex.quote(f'{place}[{extra}]')}"
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.request import url2pathname

    origin = {}
    with suppress(PackageNotFoundError):  # which pip and uv write, but for what is from an index
        origin = json.loads(distribution("t2t-jax").read_text("direct_url.json") or "{}")
    url, control = origin.get("url", ""), origin.get("vcs_info", {}).get("vcs")
    if url.startswith("file:") and not control:
        wheel = url2pathname(url.removeprefix("file://"))
        return f"pip install {shlex.quote(f'{wheel}[{extra}]')}"
    address = f" @ {control}+{url}" if control else f" @ {url}" if url else ""
    return f"pip install 't2t-jax[{extra}]{address}'"


def in_one_line(error: object) -> str:
    """Return the text of an error, or any other text, with single spaces for its line ends."""
    return " ".join(str(error).split())


def quote(value: object) -> str:
    """Return the repr of a value in one line, cut at 200 characters."""
    try:
        text = in_one_line(repr(value))
    except Exception:  # of an integer with too many digits, or of a class of the user's
        text = f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def warn(message: str) -> None:
    """Print a warning for the user on the standard error, in one line, and go on."""
    if sys.stderr is not None:  # it is None in a process that was started without one
        with suppress(OSError):  # nobody reads it any more
            print("warning:", in_one_line(message), file=sys.stderr, flush=True)


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return the way out of a misspelt name: the nearest known one, or `otherwise` without one."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else otherwise


def way_out_of(error: OSError) -> str:
    """Return the way out of an error of the system, such as a full disk, as part of a message."""
    return _WAYS_OUT.get(error.errno or 0, "check the place, its permissions and room")


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
