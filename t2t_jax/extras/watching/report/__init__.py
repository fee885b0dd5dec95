"""A report of one page on a run: its settings beside the paper's, its cost, curves and scores."""

from t2t_jax.extras.watching.report.build import beside_the_paper as beside_the_paper
from t2t_jax.extras.watching.report.build import build_report as build_report
