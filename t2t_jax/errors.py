"""The errors a user can mend."""


class UserError(ValueError):
    """Something the user gave does not work: a field, a file, a directory, a checkpoint.

    The message is one line: what was wrong, where, and the way out. The command line prints it
    without a traceback and exits with code 2; a Python caller can catch it as a `ValueError`.
    """
