"""The report on a run, made from the files of its directory."""

from collections.abc import Sequence
from pathlib import Path

from t2t_jax.config import Config
from t2t_jax.run.goodput import read_goodput
from t2t_jax.run.profile import read_profiles
from t2t_jax.run.provenance import read_provenance
from t2t_jax.run.report.cost import cost_section
from t2t_jax.run.report.curves import curves_section
from t2t_jax.run.report.goodput import goodput_sections
from t2t_jax.run.report.health import health_sections
from t2t_jax.run.report.page import RunReport
from t2t_jax.run.report.scores import last_evaluation, scored_test_set, scores_section
from t2t_jax.run.report.settings import published_settings, settings_section
from t2t_jax.run.report.software import software_section
from t2t_jax.system.records import Record
from t2t_jax.tasks import task_of
from t2t_jax.workdir import read_config, read_log, read_scores


def beside_the_paper(config: Config, scores: Sequence[Record]) -> list[str]:
    """Return the paper's results for the experiment that a run repeats, and its deviations.

    Args:
      scores: evaluations of the run, from `scores.jsonl`.

    Returns:
      Lines of text; none if no score is on a test set of the paper.
    """
    task = task_of(config.data.corpus, config.data.task)
    experiment = task.experiment(config)
    if not any(scored_test_set(score) in experiment.comparable for score in scores):
        return []
    published = published_settings(experiment, config, scores)
    settings = settings_section(task, experiment, config, published, scores)
    return [*experiment.figures, *settings.notes]


def build_report(
    workdir: Path,
    sustained_tflops: float | None = None,
    price: float | None = None,
    watts: float | None = None,
) -> RunReport:
    """Build the report on a run, which may be in training or at step 0.

    Args:
      sustained_tflops: TFLOP/s that a device of the run sustains, for an estimate of the training
        cost by the paper's method (section 6.1); None omits it.
      price: price of a device hour; None omits the costs.
      watts: power of a device; None omits the energy.

    Raises:
      UserError: `workdir` is not a run directory, or its config is damaged.
    """
    config, log = read_config(workdir), read_log(workdir)
    scores, time_spent = read_scores(workdir), read_goodput(workdir)
    task = task_of(config.data.corpus, config.data.task)
    experiment = task.experiment(config)
    published = published_settings(experiment, config, scores)
    sections = [
        settings_section(task, experiment, config, published, scores),
        cost_section(experiment, config, published, log, sustained_tflops),
        *(goodput_sections(time_spent, price, watts) if time_spent else []),
        curves_section(log),
        software_section(read_provenance(workdir)),
        *health_sections(config, log, read_profiles(workdir)),
        scores_section(task, experiment, [*last_evaluation(config, log), *scores]),
    ]
    return RunReport(f"Report on {workdir}", sections)
