"""The exit codes of an unfinished training, which tell a scheduler to start it again."""

import signal

STOPPED = 128 + signal.SIGTERM
"""The code after SIGTERM, with a checkpoint from which the same command goes on: 143."""
HUNG = 75
"""The code after no step ended in time, as one process did not come to it; see `run.watchdog`.

The other processes end with it, too, after one of them is gone.
`sysexits.h` calls it EX_TEMPFAIL: a failure that may be gone when the program is started again.
"""
EXCLUDED_HOSTS = "hangs/hosts"
"""The file in a run directory with the host of the process that was missing, one line for each time
that a training has ended with `HUNG`."""
