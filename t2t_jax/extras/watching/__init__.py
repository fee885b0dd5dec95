"""What became of runs: their curves in the terminal, and a report beside the paper."""

from t2t_jax.plugins import CommandRow, Plugin

PLUGIN = Plugin(
    commands={
        "watch": CommandRow(
            "training",
            "plot training curves in the terminal",
            "t2t_jax.extras.watching.watch_command:WatchCommand",
            after="launch",
        ),
        "report": CommandRow(
            "measuring a model",
            "compare a run with the paper, and show its time and curves",
            "t2t_jax.extras.watching.report_command:ReportCommand",
            after="compare",
        ),
    },
    remarks={"the paper": "t2t_jax.extras.watching.report.build:beside_the_paper"},
)
