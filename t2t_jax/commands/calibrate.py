"""The command that fits a run's confidences to the quality of its translations."""

from dataclasses import dataclass

from t2t_jax.commands.model_flags import RunFlags, load_for
from t2t_jax.commands.tables import print_line
from t2t_jax.system.fetched_path import check_own


@dataclass(frozen=True)
class CalibrateCommand(RunFlags):
    """Fit what `translate --confidence` writes to chrF on the dev split of the run's corpus.

    The fit is kept as `calibration.json` in the run directory, and used with the same checkpoints.
    """

    def run(self) -> int:
        """Translate the dev split, fit, print how good the fit is, and return the exit code."""
        from t2t_jax.run.calibration import calibrate, save_calibration
        from t2t_jax.workdir import CALIBRATION

        check_own(self.workdir)
        translator = load_for("calibrate", [self.workdir], self)
        found = calibrate(translator)
        save_calibration(found, translator, self.workdir)
        print_line(
            f"{self.workdir / CALIBRATION} is fitted to {found.num_sentences:,} sentences; "
            "of a half that was held out from a fit to the other, it tells chrF with correlation "
            f"{found.correlation:.2f} and mean absolute error {100 * found.mean_absolute_error:.1f}"
            f", where the same guess for all has {100 * found.constant_error:.1f}"
        )
        return 0
