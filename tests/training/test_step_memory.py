"""What cannot fit is refused before anything is allocated, and nothing that fits ever is."""

import re
import sys
import time
import types
from pathlib import Path
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

from t2t_jax import Config, UserError
from t2t_jax.config.cost import num_parameters
from t2t_jax.config.file import load_config, load_grid
from t2t_jax.config.tables import OPTIMIZERS, OptimizerFacts
from t2t_jax.data.layout import batch_shape
from t2t_jax.extras.compile_only.compile import compile_ahead
from t2t_jax.modules.models import make_model
from t2t_jax.parallel import devices as memory_module
from t2t_jax.parallel.devices import within_memory
from t2t_jax.parallel.mesh import make_mesh
from t2t_jax.training.optimizer import from_optax
from t2t_jax.training.settling import settled
from t2t_jax.training.state import abstract_state
from t2t_jax.training.step_memory import check_memory, training_memory
from tests.refusals import refused
from tests.tiny import tiny_sizes

_GIB = 1 << 30
_TINY = {
    **tiny_sizes(32, (2, 3)),
    "data.vocab_size": 128,
    "data.max_length": 32,
    "data.source_tokens_per_step": 1024,
    "data.target_tokens_per_step": 1024,
}


@pytest.fixture
def machine(monkeypatch):
    """A machine with so many GiB."""

    def has(gib):
        monkeypatch.setattr(memory_module, "usable_host_memory", lambda: gib and int(gib * _GIB))

    has(16)
    return has


def check(changes, **more):
    config = Config().replace({**changes, **more})
    longest = config.data.max_length
    mesh = make_mesh(config.parallel, jax.devices("cpu")[:1])
    shape = batch_shape(config.data, longest, longest)
    check_memory(config, config.data.vocab_size, mesh, [shape])


REFUSED = {
    "a d_model of two million": {"model.d_model": 2_000_000},
    "a billion heads": {"model.num_heads": 10**9, "model.d_k": 64, "model.d_v": 64},
    "a billion encoder layers": {"model.num_encoder_layers": 10**9},
    "a billion decoder layers": {"model.num_decoder_layers": 10**9},
    "a d_ff of a billion": {"model.d_ff": 10**9},
    "a vocabulary of two billion": {"data.vocab_size": 2 * 10**9},
    "a billion positions": {"model.position": "learned", "model.max_positions": 10**9},
    "sentences of a billion tokens": {
        "data.max_length": 10**9,
        "data.source_tokens_per_step": 10**9,
        "data.target_tokens_per_step": 10**9,
    },
    "steps of a million tokens": {
        "data.source_tokens_per_step": 10**6,
        "data.target_tokens_per_step": 10**6,
    },
    "all as large as it may be": dict.fromkeys(_TINY, 2**31 - 8),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_machine_holds_is_refused_at_once_with_the_settings_that_help(machine, case):
    start = time.monotonic()
    with refused() as refusal:
        check(REFUSED[case])
    assert time.monotonic() - start < 5
    assert re.match(r"training needs at least [\d,.]+ GiB on each cpu device", str(refusal.value))
    assert "but there are 16.0 GiB; " in str(refusal.value)
    for setting in ("tokens_per_device", "loss_chunks", "remat", "fsdp", "tokens_per_step"):
        assert setting in str(refusal.value)


@pytest.mark.parametrize("gib", [0.25, None])
def test_what_fits_passes_and_so_does_all_where_nothing_is_known(machine, gib):
    machine(gib)
    check(_TINY)
    if gib is None:
        check(REFUSED["a d_model of two million"])


@pytest.mark.parametrize(
    ("helps", "gib"),
    [
        ({"parallel.tokens_per_device": 1024}, 2.0),
        ({"parallel.remat": "layer", "parallel.loss_chunks": 8}, 3.0),
        ({"data.source_tokens_per_step": 2048, "data.target_tokens_per_step": 2048}, 2.0),
        ({"data.vocab_size": 4000, "model.d_model": 128, "model.d_ff": 512}, 3.0),
    ],
)
def test_each_setting_that_is_named_helps(machine, helps, gib):
    machine(gib)
    with pytest.raises(UserError):
        check({})
    check(helps)


def test_devices_share_out_what_the_axes_split():
    whole = training_memory(Config(), 37_000)
    for axes in ({"parallel.fsdp": 4}, {"parallel.tensor": 4}):
        part = training_memory(Config().replace(axes), 37_000)
        assert part.state == whole.state // 4
    assert whole.state == 12 * num_parameters(Config().model, 37_000)
    assert whole.total == whole.state + whole.gradients == whole.state * 4 // 3


def _momentum(config, declared):
    """An optimiser that no release has: it keeps the sum of the gradients."""
    del config, declared
    return from_optax(optax.trace(1.0))


def test_an_optimiser_is_a_function_and_a_row_and_what_it_keeps_is_counted(monkeypatch):
    module = types.ModuleType("t2t_jax.training.momentum")
    module.momentum = _momentum
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(UserError, match=r"training\.optimizer='momentum' is not one of 'adam', "):
        Config().replace({"training.optimizer": "momentum"})
    row = OptimizerFacts(f"{module.__name__}:momentum", decays=False)
    monkeypatch.setitem(OPTIMIZERS, "momentum", row)
    config = Config().replace({**_TINY, "training.optimizer": "momentum"})
    model = make_model(config, 128, None)
    state = abstract_state(config, model, make_mesh(config.parallel, jax.devices("cpu")[:1]))
    kept = jax.tree.leaves((state.params, state.optimizer))
    assert training_memory(config, 128).state == 4 * sum(x.size for x in kept)
    with pytest.raises(UserError, match=r"has no effect with optimizer='momentum'"):
        config.replace({"training.weight_decay": 0.1})


def test_logits_are_float32_and_recomputation_keeps_what_it_says():
    half = {"model.compute_dtype": "bfloat16"}
    kept = {}
    for remat in ("none", "dots", "layer"):
        config = Config().replace({**half, "parallel.remat": remat})
        estimate = training_memory(config, 37_000, (8, 64, 64))
        assert estimate.logits == 4 * 8 * 64 * 37_000
        kept[remat] = estimate.activations
    assert kept["layer"] < kept["dots"] < kept["none"]
    # Of a position: 3 * 512 of an attention, its output, the hidden layer, two outputs and inputs.
    of_encoder = 3 * 512 + 512 + 2048 + 512 + 512
    of_decoder = of_encoder + 3 * 512 + 512
    assert kept["dots"] == 6 * 2 * 8 * 64 * (of_encoder + of_decoder)


def mesh_of(devices):
    return Mock(spec=Mesh, local_devices=devices, devices=np.array(devices))


def test_cpu_devices_of_a_process_share_its_memory(machine):
    config = Config()
    device = Mock(spec=jax.Device, platform="cpu")
    machine(2)
    check_memory(config, 37_000, mesh_of([device]))
    with pytest.raises(UserError, match=r"but there are 0\.2 GiB"):
        check_memory(config, 37_000, mesh_of([device] * 8))


def test_an_accelerator_is_asked_for_its_own_memory(machine):
    machine(1000)
    stats = Mock(return_value={"bytes_limit": _GIB // 2})
    device = Mock(spec=jax.Device, platform="gpu", memory_stats=stats)
    with pytest.raises(UserError, match=r"on each gpu device .* but there are 0\.5 GiB"):
        check_memory(Config(), 37_000, mesh_of([device]))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"parallel.remat": "dots", "parallel.loss_chunks": 4},
        pytest.param(
            {
                "parallel.remat": "layer",
                "parallel.tokens_per_device": 256,
                "parallel.loss_chunks": 4,
            },
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_the_estimate_is_less_than_the_compiled_step_takes_and_not_by_much(layout):
    config = Config().replace({**_TINY, **layout})
    report = compile_ahead(config, jax.devices()[:1])
    rows, *lengths = report.shape
    shape = rows // report.passes, *lengths
    estimate = training_memory(config, config.data.vocab_size, shape, report.passes)
    assert report.memory.total / 4 < estimate.total < report.memory.total


@pytest.mark.thorough
def test_no_preset_is_refused_on_the_hardware_that_its_docstring_names(machine, forgotten_parts):
    """80 GiB hold every one of them on a single device, but for the billion parameters."""
    machine(80)
    for path in sorted((Path(__file__).parents[2] / "configs").glob("*.py")):
        grid = "VARIANTS" in path.read_text()
        configs = load_grid(str(path)).variants if grid else {"": load_config(str(path))}
        for config in configs.values():
            longest = config.data.max_length
            shape = batch_shape(config.data, longest, longest)
            mesh = make_mesh(config.parallel, jax.devices("cpu")[:1])
            check_memory(settled(config, mesh), config.data.vocab_size, mesh, [shape])


@pytest.mark.parametrize(
    "allocate",
    [lambda: jnp.zeros(2**40), lambda: np.zeros(2**52, np.int8)],
    ids=["on a device", "on the host"],
)
def test_memory_that_did_not_suffice_is_told_in_one_line(allocate):
    with refused(match=r"^out of memory \(") as caught, within_memory():
        allocate()
    for setting in ("tokens_per_device", "loss_chunks", "remat", "fsdp"):
        assert setting in str(caught.value)


@pytest.mark.parametrize("error", [ValueError("RESOURCE_EXHAUSTED"), KeyboardInterrupt()])
def test_other_errors_are_not_taken_for_it(error):
    with pytest.raises(type(error)), within_memory():
        raise error


def test_memory_that_ends_without_a_reason_is_told_too():
    with pytest.raises(UserError, match=r"^out of memory; lower parallel"), within_memory():
        raise MemoryError


def test_an_allocation_that_fails_within_a_program_is_told_with_what_helps_decoding():
    error = jax.errors.JaxRuntimeError("INTERNAL: Error dispatching: Out of memory allocating 9.")
    with (
        pytest.raises(UserError, match=r"beam_size or decoding\.max_extra_length$"),
        within_memory(decoding=True),
    ):
        raise error
