"""Errors that the user can fix, warnings, and hints on how to fix both."""

import difflib
import errno
import json
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

_HINTS = {
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

_MAX_QUOTED = 200  # maximum characters of a value in a message
_MAX_REASON = 300  # maximum characters of an error in a message; those of JAX are long


class UserError(ValueError):
    """An error that the user can fix in a field, a file, a directory or a checkpoint.

    The message is one line: what is wrong, where, and how to fix it. The command line prints it
    without a traceback and exits with code 2. Python callers can catch it as a `ValueError`.
    """


class DivergedError(UserError):
    """The training has diverged: the loss, gradient or probabilities are not finite."""


class LostProcessError(UserError):
    """Another process of the run is missing; the same command can resume the run.

    The command line exits with the code that makes a scheduler restart the run.
    """


@contextmanager
def needs_extra(extra: str, purpose: str) -> Iterator[None]:
    """Raise an error that names the extra if an import in the block fails.

    Args:
      extra: the extra in `pyproject.toml` that installs the packages.
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

    The command installs a clone in place, and any other copy from its origin: a wheel file, a URL
    or a package index.
    """
    clone = Path(__file__).parents[1]
    if (clone / "pyproject.toml").is_file():
        root = "." if clone == Path.cwd() else clone
        return f"pip install -e {shlex.quote(f'{root}[{extra}]')}"
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.request import url2pathname

    origin = {}
    with suppress(PackageNotFoundError):  # pip and uv write the file unless an index was used
        origin = json.loads(distribution("t2t-jax").read_text("direct_url.json") or "{}")
    url, version_control = origin.get("url", ""), origin.get("vcs_info", {}).get("vcs")
    if url.startswith("file:") and not version_control:
        wheel = url2pathname(url.removeprefix("file://"))
        return f"pip install {shlex.quote(f'{wheel}[{extra}]')}"
    address = f" @ {version_control}+{url}" if version_control else f" @ {url}" if url else ""
    return f"pip install 't2t-jax[{extra}]{address}'"


def in_one_line(error: object) -> str:
    """Return the text of an error or any object on one line, with single spaces."""
    return " ".join(str(error).split())


def reason_of(error: BaseException) -> str:
    """Return the class and the text of an error on one line; for a `UserError` only the text."""
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return in_one_line(f"{kind}{error}")[:_MAX_REASON]


@contextmanager
def user_code(title: str, advice: str) -> Iterator[None]:
    """Turn errors of the user's code in the block into a `UserError` with a title and advice."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{title} fails: {reason_of(error)}; {advice}") from error


def quote(value: object) -> str:
    """Return the repr of a value on one line, cut at 200 characters."""
    try:
        text = in_one_line(repr(value))
    except Exception:  # an integer with too many digits, or a class of the user
        text = f"a {type(value).__name__}"
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}..."


def warn(message: str) -> None:
    """Print a warning to standard error on one line."""
    if sys.stderr is not None:  # None if the process was started without standard error
        with suppress(OSError):  # the reader closed the pipe
            print("warning:", in_one_line(message), file=sys.stderr, flush=True)


def did_you_mean(name: str, candidates: Iterable[str], otherwise: str) -> str:
    """Return a hint on a misspelled name: the closest candidate, or else `otherwise`."""
    close = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else otherwise


def way_out_of(error: OSError) -> str:
    """Return a hint on how to fix a system error, such as a full disk."""
    return _HINTS.get(error.errno or 0, "check the place, its permissions and room")


OF_SCORES = "sacrebleu", "sacremoses"
"""The packages that score translations."""
OF_TRAINING = ("tensorboardX", "grain", *OF_SCORES)
"""The packages that a training run imports."""


def check_installed(extra: str, purpose: str, *packages: str) -> None:
    """Raise an error if a package of an extra is missing, without importing the packages.

    Args:
      extra: the extra in `pyproject.toml` that installs the packages.
      purpose: the part of the program that needs them.

    Raises:
      UserError: one of the packages is not installed.
    """
    for package in packages:
        with needs_extra(extra, purpose):
            if find_spec(package) is None:
                raise ModuleNotFoundError(name=package)
