import json
import os
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec

import jax
import pytest

from t2t_jax import Config, UserError
from t2t_jax.config.cost import model_flops_per_step, num_parameters
from t2t_jax.extras.compile_only import topologies
from t2t_jax.extras.compile_only.compile import compile_ahead
from t2t_jax.extras.compile_only.topologies import GPU_TARGETS, devices_of
from t2t_jax.parallel.hardware import peaks
from t2t_jax.parallel.jax_settings import OPTIONS
from tests.programs import run_python
from tests.refusals import refused
from tests.selection import needs_cuda
from tests.tiny import tiny_sizes

_FIELDS = {
    **tiny_sizes(32, (2, 3)),
    "model.compute_dtype": "float32",
    "data.vocab_size": 128,
    "data.max_length": 30,
    "data.source_tokens_per_step": 1100,
    "data.target_tokens_per_step": 1100,
}
_TINY = Config().replace(_FIELDS)

needs_libtpu = pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extra `tpu`")


@pytest.mark.thorough
def test_one_device_takes_what_the_formulas_say():
    report = compile_ahead(_TINY, jax.devices()[:1])
    size = num_parameters(_TINY.model, 128)
    assert report.num_parameters == size
    assert report.memory.parameters == 4 * size
    assert report.memory.optimizer == 2 * 4 * size + 4  # two moments and a count
    assert report.shape == (32, 32, 32)  # 1100 tokens in rows of 32, a multiple of 8
    assert report.memory.batch == 6 * 32 * 32 * 4
    assert report.memory.temporaries > 4 * 32 * 32 * 128  # the logits at least
    moved = sum(kernel.count * kernel.num_bytes for kernel in report.kernels)
    assert moved > 2 * (report.memory.parameters + report.memory.optimizer)
    assert report.flops == model_flops_per_step(
        _TINY.model, 128, 1024, 1024, source_length=32, target_length=32
    )
    assert (report.collectives, report.fits, report.passes) == ([], None, 1)


def _vector_bytes(config, tensor):
    """Of norms and biases of a device: only the biases of width d_ff are split."""
    model = config.model
    encoder, decoder = model.num_encoder_layers, model.num_decoder_layers
    norms = (2 * encoder + 3 * decoder) * 2 * model.d_model
    biases = (encoder + decoder) * (model.d_ff // tensor + model.d_model)
    return 4 * (norms + biases)


_ON_EIGHT_DEVICES = """
import json, sys
import jax
from t2t_jax.extras.compile_only.compile import compile_ahead
from t2t_jax.config import Config

for fields in json.loads(sys.argv[1]):
    report = compile_ahead(Config().replace(fields), jax.devices())
    sent = [[each.kind, each.mesh_axes(report.mesh_shape), each.count * each.num_bytes]
            for each in report.collectives]
    print(json.dumps([report.memory.parameters, report.memory.optimizer, report.passes, sent]))
"""


@pytest.mark.thorough
def test_eight_devices_share_parameters_and_send_gradients():
    layouts = [
        {"parallel.data": 8},
        {"parallel.data": 8, "parallel.tokens_per_device": 64},  # 32 rows, in passes of 2 a device
        {"parallel.data": 2, "parallel.fsdp": 2, "parallel.tensor": 2},
    ]
    arguments = json.dumps([_FIELDS | layout for layout in layouts])
    done = _python("-c", _ON_EIGHT_DEVICES, arguments, devices=8)
    whole, in_passes, shared = (json.loads(line) for line in done.stdout.splitlines())
    size = 4 * num_parameters(_TINY.model, 128)
    embedding = 4 * 128 * 32

    for parameters, optimizer, passes, sent in (whole, in_passes):
        assert (parameters, optimizer) == (size, 2 * size + 4)
        assert {(kind, tuple(axes)) for kind, axes, _ in sent} == {("all-reduce", ("data",))}
        # A step adds up the gradients once, in a single pass those of each use of the embedding
        # perhaps apart, and three sums of losses.
        total = sum(num_bytes for _, _, num_bytes in sent)
        assert size + 3 * 4 <= total <= size + (2 * embedding if passes == 1 else 0) + 3 * 4
    assert [whole[2], in_passes[2]] == [1, 2]

    parameters, _, _, sent = shared
    matrices = size - _vector_bytes(_TINY, tensor=1)
    assert parameters == matrices // 4 + _vector_bytes(_TINY, tensor=2)
    gathered = sum(n for kind, axes, n in sent if (kind, axes) == ("all-gather", ["fsdp"]))
    assert gathered >= matrices / 2  # each part of a matrix, to compute with it
    assert {"data", "fsdp", "tensor"} == {axis for _, axes, _ in sent for axis in axes}


def _python(*arguments, devices=1):
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("TPU_")]:
            patch.delenv(name)
        settings = {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"}
        return run_python(*arguments, code=0, **settings)


def test_what_pmap_would_run_is_not_compiled():
    config = _TINY.replace({"parallel.backend": "pmap"})
    with pytest.raises(UserError, match=r"add --parallel\.backend jit"):
        compile_ahead(config, jax.devices()[:1])


@pytest.mark.parametrize(
    ("topology", "installed", "message"),
    [
        ("v5e:4x4", {}, r"needs libtpu, .*pip install -e '.*\[tpu\]'"),
        ("h200:8", {}, r"needs jax-cuda13-plugin, .*pip install -e '.*\[cuda13\]'"),
        ("h200:8", {"jax-cuda13-plugin": "0.4.1"}, r"jax-cuda13-plugin for jax .* but 0\.4\.1"),
    ],
)
def test_without_its_compiler_the_error_says_how_to_install_it(
    topology, installed, message, monkeypatch
):
    def version(package):
        if package not in installed:
            raise PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(topologies, "version", version)
    with refused(match=message):
        devices_of(topology)


@pytest.mark.parametrize(
    "topology", ["h200", "h200:", "H100:0", "a100:2x0", "b200:1x2x3", "h100:-1"]
)
def test_a_gpu_takes_a_number_of_devices(topology, monkeypatch):
    monkeypatch.setattr(topologies, "version", lambda _: jax.__version__)
    with refused(match=r"is not a valid topology \(.*try .*h200:8"):
        devices_of(topology)


@pytest.mark.parametrize(
    ("topology", "advice"),
    [("rtx4090:8", "choose the one most like yours"), ("A10G:4", "did you mean a100?")],
)
def test_an_unknown_device_is_refused_with_those_that_are_known(topology, advice):
    with pytest.raises(UserError) as refusal:
        devices_of(topology)
    message = str(refusal.value)
    assert f"{topology} names an unknown device" in message
    assert all(name in message for name in (*GPU_TARGETS, "v5e"))
    assert message.endswith(advice)


@needs_cuda
@pytest.mark.parametrize("name", GPU_TARGETS)
def test_gpus_need_not_be_there(name):
    devices = devices_of(f"{name}:2x4")
    assert {device.device_kind for device in devices} == {GPU_TARGETS[name].kind}
    assert [device.process_index for device in devices] == [0] * 4 + [1] * 4
    assert peaks(devices) is not None


@needs_cuda
def test_a_gpu_without_bfloat16_computes_in_float32(tmp_path):
    config = _TINY.replace({"model.compute_dtype": "auto"})
    report = compile_ahead(config, devices_of("t4:1"), tmp_path / "program.txt")
    assert report.fits
    text = (tmp_path / "program.txt").read_text()
    assert "bf16[" not in text
    assert "f16[" not in text


@needs_cuda
def test_a_step_for_a_gpu_has_fused_attention_and_its_text_is_written(tmp_path):
    long = {"data.max_length": 126}  # short rows have a kernel of their own
    config = _TINY.replace({"model.compute_dtype": "auto", "model.num_heads": 1} | long)
    report = compile_ahead(config, devices_of("h200:2"), tmp_path / "program.txt")
    assert "__cudnn$fmha" in (tmp_path / "program.txt").read_text()
    assert report.fits
    assert {each.mesh_axes(report.mesh_shape) for each in report.collectives} == {("data",)}
    assert all(f"--{name}=" in report.compiler_options for name in OPTIONS["gpu"])
    # The compiler leaves out little of what the formulas count, and adds nothing large.
    products = sum(kernel.count * kernel.flops for kernel in report.kernels)
    assert report.flops <= products <= 1.2 * report.flops


@needs_cuda
@pytest.mark.thorough
def test_a_gpu_gathers_layers_in_each_pass_and_none_outside_the_loop():
    """Parameters that are gathered before the loop would stay whole on each GPU during a step."""
    layout = {"parallel.data": 1, "parallel.fsdp": 2, "parallel.tokens_per_device": 300}
    config = _TINY.replace(layout | {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1})
    report = compile_ahead(config, devices_of("h100:2"))
    assert report.passes == 2
    gathers = [each for each in report.collectives if each.kind == "all-gather"]
    embedding = 4 * 128 * 32  # which XLA of JAX 0.12 gathers once
    assert [each for each in gathers if each.count != 2 and each.num_bytes != embedding] == []
    # A pass gathers each matrix for its forward computation, and perhaps again for its gradient.
    matrices = 4 * num_parameters(config.model, 128) - _vector_bytes(config, tensor=1)
    assert matrices <= sum(each.num_bytes for each in gathers) <= 2 * matrices


def test_without_a_topology_devices_are_those_of_the_machine():
    assert devices_of("") == jax.devices()


@needs_libtpu
@pytest.mark.parametrize(
    ("topology", "count", "kind"),
    [
        ("v5e:1x1", 1, "TPU v5 lite"),
        ("v5e:4x4", 16, "TPU v5 lite"),
        ("v5p:2x2x1", 4, "TPU v5"),
        ("v6e:2x2", 4, "TPU v6 lite"),
        ("v5litepod-1", 1, "TPU v5 lite"),
        ("v5litepod-16", 16, "TPU v5 lite"),
        ("v6e-8", 8, "TPU v6 lite"),
    ],
)
def test_devices_of_a_topology_need_not_be_there(topology, count, kind):
    devices = devices_of(topology)
    assert [device.device_kind for device in devices] == [kind] * count


@needs_libtpu
@pytest.mark.parametrize("topology", ["v5e", "v9:2x2", "v5e:3x3", ":", "v5litepod-12"])
def test_an_unknown_topology_is_refused_in_one_line(topology):
    with refused(match="try v5e:4x4"):
        devices_of(topology)


@needs_libtpu
def test_a_mesh_that_does_not_go_with_the_chips_is_refused():
    with pytest.raises(UserError, match=r"parallel\.fsdp=3.*does not divide the 4 devices"):
        compile_ahead(_TINY.replace({"parallel.fsdp": 3}), devices_of("v5e:2x2"))


@pytest.mark.thorough
@needs_libtpu
def test_what_the_compiler_refuses_is_reported():
    tokens = {f"data.{side}_tokens_per_step": 8_000_000 for side in ("source", "target")}
    report = compile_ahead(_TINY.replace(tokens), devices_of("v5e:1x1"))
    assert report.exceeds_memory
    assert report.fits is False
    assert report.memory.total > report.available_bytes > 15 * 2**30
    assert report.memory.parameters == 4 * report.num_parameters


@pytest.mark.thorough
@needs_libtpu
def test_long_rows_on_tpus_are_attended_to_in_a_kernel_on_each_device():
    fields = {
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "data.max_length": 1100,
        "data.source_tokens_per_step": 4500,
        "data.target_tokens_per_step": 4500,
        "parallel.tensor": 2,
        "parallel.tokens_per_device": 1104,
    }
    report = compile_ahead(_TINY.replace(fields), devices_of("v5e:2x2"))
    assert (report.shape, report.passes) == ((4, 1104, 1104), 2)
    # A row of 1,280 positions with its padding and one head, in five blocks of 256; the encoder
    # attends to itself, the decoder to itself and to the encoder.
    attention = [kernel for kernel in report.kernels if kernel.flops and "splash" in kernel.label]
    one = 2 * 1280 * 1280 * 16
    causal = 3 / 5
    expected = [products * one * share for products in (2, 3, 4) for share in (causal, 1, 1)]
    assert sorted(kernel.flops for kernel in attention) == sorted(expected)
    assert {kernel.count for kernel in attention} == {2}


@pytest.mark.thorough
@needs_libtpu
def test_train_py_reports_on_tpus_and_says_nothing_else(tmp_path):
    config = tmp_path / "tiny.py"
    config.write_text(
        "from t2t_jax import Config\n\n\n"
        f"def get_config():\n    return Config().replace({_FIELDS!r})\n"
    )
    arguments = ["--config", str(config), "--compile-only", "v5e:2x2", "--parallel.fsdp", "2"]
    done = _python("train.py", *arguments)
    assert done.stderr == ""
    for words in (
        "4 x TPU v5 lite as data=2 fsdp=2 tensor=1",
        "fits: a device has 16.00 GiB",
        "over data",
        "a step takes at least",
        "at 819 GB/s",
    ):
        assert words in done.stdout
