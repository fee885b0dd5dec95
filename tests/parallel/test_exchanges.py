"""What the devices of a mesh send each other in every program, as compiled for eight devices."""

import dataclasses
import json
import re
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

import t2t_jax
from t2t_jax.batch import EOS_ID
from t2t_jax.config import MeshConfig
from t2t_jax.decoding import scoring
from t2t_jax.decoding.programs import Arrivals, Search, SearchInputs, Sizes, begin_work, proceed
from t2t_jax.decoding.search.strategies import BeamSearch
from t2t_jax.extras.compile_only.collectives import collectives
from t2t_jax.extras.compile_only.compile import results_of
from t2t_jax.extras.compile_only.hlo import parse_program
from t2t_jax.extras.encoders import tasks
from t2t_jax.modules.models import make_model, make_scoring_model
from t2t_jax.parallel.axes import partition_spec
from t2t_jax.parallel.mesh import batch_layout, make_mesh
from t2t_jax.training.state import abstract_state
from t2t_jax.training.step import abstract_batch, compile_train_step, eval_step
from tests.parallel.test_meshes import make_config, named_leaves, on_eight_devices

ROWS, LENGTH, WIDTH, VOCAB_SIZE = 16, 8, 24, 48
BYTES_OF_SUMS = 3 * 4
"""Those of `LossSums`, which the devices always add up."""


def sent(compiled, mesh):
    """Bytes of the arrays that devices exchange, by the operation and the axes they cross."""
    found = Counter()
    for each in collectives(parse_program(compiled.as_text())):
        found[each.kind, *each.mesh_axes(mesh.shape)] += each.num_bytes * each.count
    return found


class Model:
    """A model on a mesh, whose arrays have shapes only."""

    def __init__(self, **parallel):
        changes = {f"parallel__{name}": value for name, value in parallel.items()}
        self.config = make_config(WIDTH, **changes)
        self.mesh = make_mesh(self.config.parallel)
        self.network = make_model(self.config, VOCAB_SIZE, self.mesh)
        self.scoring: object = make_scoring_model(self.config.model, VOCAB_SIZE, self.mesh)
        self.state = abstract_state(self.config, self.network, self.mesh)
        self.params = self.state.params

    def batch(self, passes=1):
        limit = None if passes == 1 else LENGTH
        layout = batch_layout(self.mesh, ROWS, LENGTH, limit)
        assert layout.passes == passes
        return abstract_batch(layout, self.network.example(), LENGTH, LENGTH)

    def ints(self, *shape):
        place = NamedSharding(self.mesh, partition_spec(["batch"]))
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=place)

    def sent(self, program, *arguments):
        return sent(program.lower(*arguments).compile(), self.mesh)

    def split_bytes(self):
        """Those of the parameters that are split over `fsdp`, which a program gathers once."""
        leaves = jax.tree.leaves(self.params)
        return sum(4 * x.size for x in leaves if not x.sharding.is_fully_replicated)


def evaluations():
    """Programs of evaluation gather what is split, and add up nothing but sums of the loss."""
    model = Model(fsdp=8)
    ids, whole = model.ints(ROWS, LENGTH), {("all-gather", "fsdp"): model.split_bytes()}
    own = model.scoring, model.params
    found = model.sent(eval_step, model.scoring, 0.1, model.params, model.batch())
    assert found == {**whole, ("all-reduce", "fsdp"): BYTES_OF_SUMS}
    assert model.sent(scoring._log_probs, *own, ids, ids) == whole
    assert model.sent(tasks._most_probable, *own, model.batch()) == whole


def searches():
    """A search gathers what is split once, before its steps, which add up no activations."""
    model = Model(fsdp=8)
    search = Search(model.scoring, BeamSearch(EOS_ID, 4, 0.6, 1), model.mesh, 1)
    sizes = Sizes(ROWS, ROWS, LENGTH, LENGTH, 2 * LENGTH)
    prepare = jax.jit(partial(model.scoring.prepare, quantize="none"))
    params = results_of(prepare.lower(model.params))
    rows, scalar = model.ints(ROWS), partial(jax.ShapeDtypeStruct, ())
    inputs = SearchInputs(params, scalar(jnp.uint32))
    work = results_of(begin_work.lower(search, sizes, inputs))
    arrivals = Arrivals(rows, model.ints(ROWS, LENGTH), rows, rows)
    program = proceed.lower(search, inputs, work, arrivals, scalar(jnp.int32)).compile()
    found = sent(program, model.mesh)
    assert found["all-reduce", "fsdp"] <= 8  # whether a row is under way, and how many are
    steps, before = (program.as_text() or "").split("\nENTRY")
    matrices = {
        f"f32[{','.join(map(str, x.shape))}]" for x in jax.tree.leaves(params) if x.ndim > 1
    }
    gathered = {
        text: {one for one in matrices if re.search(rf"= {re.escape(one)}\S* all-gather\(", text)}
        for text in (before, steps)
    }
    assert gathered[before]
    assert not gathered[steps]


def passes():
    """Several passes send over `data` what one does, on every kind of mesh."""
    for sizes in ({"data": 2}, {"data": 4, "fsdp": 2}, {"data": 2, "fsdp": 2, "tensor": 2}):
        model = Model(**sizes)
        step = compile_train_step(model.config, model.network, model.mesh)
        most = 4 * sum(x.size for x in jax.tree.leaves(model.params)) + BYTES_OF_SUMS
        rows = sizes["data"] * sizes.get("fsdp", 1)
        found = model.sent(step, model.state, model.batch(ROWS // rows))
        over_data = sum(number for (_, *axes), number in found.items() if "data" in axes)
        assert over_data <= most, (sizes, found)


def loaded():
    """A model translates and scores alike on every mesh that it is loaded onto."""
    run = Path(__file__).parents[1] / "goldens/runs/0.2.0"
    lines = [one["line"] for one in json.loads((run / "expected.json").read_text())["tokens"]]
    whole = t2t_jax.load(run / "run", parallel=MeshConfig(data=1))
    parts = t2t_jax.load(run / "run", parallel=MeshConfig(fsdp=4, tensor=2))
    assert (whole.mesh.size, parts.mesh.shape) == (1, {"data": 1, "fsdp": 4, "tensor": 2})
    for name, array in named_leaves(parts.params).items():
        part = array.addressable_shards[0].data
        assert part.size * (8 if name.endswith("embedding") else 1) <= array.size, name
    translations = whole.translate(lines)
    assert parts.translate(lines) == translations
    for axes in ({"data": 2}, {"fsdp": 2}, {"tensor": 2}, {"fsdp": 2, "tensor": 2}):
        mesh = MeshConfig(**{"data": 1, **axes})
        translator = t2t_jax.load([run / "run"] * 2, parallel=mesh)
        assert translator.mesh.shape == dataclasses.asdict(mesh)
        assert translator.translate(lines) == translations, mesh
    for one, other in zip(
        t2t_jax.score(whole, lines, translations),
        t2t_jax.score(parts, lines, translations),
        strict=True,
    ):
        np.testing.assert_allclose(other.token_log_probs, one.token_log_probs, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("program", [loaded, evaluations, searches, passes])
def test_eight_devices_send_each_other_what_they_need_and_no_more(program):
    on_eight_devices(program.__name__, file=__file__)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
