"""Functions of the user that a run calls between its steps."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import product
from typing import TypeAlias

import jax

from t2t_jax.errors import UserError, reason_of
from t2t_jax.parallel.processes import failing_process
from t2t_jax.run.progress import EVALUATION, PhaseTimer
from t2t_jax.system.records import Record
from t2t_jax.training.objective import name_of
from t2t_jax.training.state import TrainState

Hook: TypeAlias = Callable[[int, Record, TrainState], object]
"""A function of a step, the log record of the step, and the state.

The run calls it on every process, in the same order, after each log record of training
(`"of": "train"`), evaluation (`"dev"`) and checkpoint on disk (`"checkpoint"`). The state is the
current one, which at a checkpoint may be of a later step. Its arrays are valid during the call.
"""


class Hooks:
    """The hooks of a run. The time that they take counts as evaluation.

    Attributes:
      failure: the error of a hook, which ends the run after a checkpoint. Later calls do nothing.
    """

    def __init__(self, hooks: Sequence[Hook], progress: PhaseTimer) -> None:
        """Store the hooks of a run."""
        self._hooks, self._progress = hooks, progress
        self.failure: UserError | None = None

    def __bool__(self) -> bool:
        """Return whether there are hooks to call."""
        return bool(self._hooks) and self.failure is None

    def __call__(self, records: Sequence[Record], state: TrainState) -> None:
        """Call the hooks with each record, on all processes together.

        Args:
          records: new records of the log. Processes may differ in their number.
        """
        if not self:
            return
        failure = None
        with self._progress.during(EVALUATION):
            for record, hook in product(records, self._hooks):
                try:
                    # Copies, so that changes in place do not reach the log and the run.
                    hook(record["step"], deepcopy(record), jax.tree.map(lambda x: x, state))
                except (Exception, SystemExit) as error:  # of any kind: it is the user's function
                    failure = UserError(
                        f"hook {name_of(hook)} failed at step {record['step']:,} ({record['of']}): "
                        f"{reason_of(error)}; the run has written a checkpoint, from which the "
                        "same call resumes"
                    )
                    failure.__cause__ = error
                    break
            process = failing_process(failure is None)
        if process is not None:
            message = f"a hook of process {process} failed; see its error message"
            self.failure = failure or UserError(message)
