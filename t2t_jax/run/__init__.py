"""One run from its start to its end: training, its log, its evaluation, loading and its report."""
