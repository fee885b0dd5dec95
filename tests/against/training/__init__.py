"""Settings of XLA that halve the time of a case, as in `tests/conftest.py`: most is compiling."""

import os

os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)
