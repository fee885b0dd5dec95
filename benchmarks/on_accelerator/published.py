"""The speeds of training that others publish for GPUs, to show beside the measured speeds.

Each figure is that of another program, with its own data, batch and precision, which are given with
the figure. No figure is a goal for this program.
"""

from typing import NamedTuple


class PublishedSpeed(NamedTuple):
    """A published speed of the training of a model by some program."""

    model: str
    """The model, and the program that trains it."""
    num_devices: int
    """The number of devices that it was trained on."""
    device: str
    """The kind of these devices."""
    tokens_per_second: int
    """The tokens in a second on all devices together."""
    work: str
    """The data, the batch and the precision, and which tokens are counted."""
    source: str
    """The publication with the figure."""


_NVIDIA = (
    "WMT 2014 English-German, up to 10,240 tokens a device and step, float16 (AMP), target tokens "
    "without padding, the mean of an epoch with its data loading"
)
_NVIDIA_SOURCE = (
    "[README](https://github.com/NVIDIA/DeepLearningExamples/tree/729963d/PyTorch/Translation/"
    'Transformer) of 4 April 2024, "Training performance: NVIDIA DGX A100"'
)
_GPT2 = "FineWeb, 524,288 tokens a step in rows of 1,024, bfloat16, every position"

PUBLISHED = (
    *(
        PublishedSpeed(
            "Transformer, big (NVIDIA, PyTorch)",
            num_devices,
            "A100-SXM4-40GB",
            tokens_per_second,
            _NVIDIA,
            _NVIDIA_SOURCE,
        )
        for num_devices, tokens_per_second in ((1, 82_059), (8, 551_599))
    ),
    PublishedSpeed(
        "GPT-2, 124M (llm.c)",
        8,
        "A100-SXM4-80GB",
        1_852_000,
        f"{_GPT2}; from 10 billion tokens in 90 minutes. The script's own 300 ms a step are "
        "1,748,000",
        "title of [discussion 481](https://github.com/karpathy/llm.c/discussions/481) of 28 May "
        "2024, and `scripts/run_gpt2_124M.sh`",
    ),
    PublishedSpeed(
        "GPT-2, 124M (llm.c)",
        8,
        "H100",
        3_704_000,
        f"{_GPT2}; from 10 billion tokens in 45 minutes",
        "[README](https://github.com/KellerJordan/modded-nanogpt) of modded-nanogpt, whose first "
        "record it is",
    ),
)
"""All published speeds."""
