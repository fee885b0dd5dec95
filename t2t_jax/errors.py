"""The errors a user can mend."""

import difflib
import sys
from collections.abc import Iterable


class UserError(ValueError):
    """Something the user gave does not work: a field, a file, a directory, a checkpoint.

    The message is one line: what was wrong, where, and the way out. The command line prints it
    without a traceback and exits with code 2; a Python caller can catch it as a `ValueError`.
    """


def warn(message: str) -> None:
    """Tell the user on the standard error, in one line, of something that stops nothing."""
    if sys.stderr is not None:  # it is None in a process that was started without one
        print("warning:", " ".join(message.split()), file=sys.stderr, flush=True)


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """The way out of a misspelt name: the nearest one that is known, or `otherwise` if none is."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else otherwise
