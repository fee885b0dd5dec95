"""The complete config, its JSON form, and the comparison of configs."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from t2t_jax.config import families, sections
from t2t_jax.config.checks import Section, reading_stored_config, require
from t2t_jax.config.model import ModelConfig
from t2t_jax.config.registry import with_parameter
from t2t_jax.config.tables import NAMED, OPTIMIZERS
from t2t_jax.config.tasks import task_name
from t2t_jax.config.training import TrainingConfig
from t2t_jax.errors import UserError, did_you_mean, quote
from t2t_jax.system.records import Record, parse_object
from t2t_jax.version import MOVED, REMOVED, current_name, read_name, removed_feature


@dataclass(frozen=True)
class Config(Section):
    """All settings of a run, in sections."""

    model: ModelConfig = field(default_factory=families.EncoderDecoderConfig)
    data: sections.DataConfig = field(default_factory=sections.DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    checkpoint: sections.CheckpointConfig = field(default_factory=sections.CheckpointConfig)
    evaluation: sections.EvaluationConfig = field(default_factory=sections.EvaluationConfig)
    decoding: sections.DecodingConfig = field(default_factory=sections.DecodingConfig)
    parallel: sections.ParallelConfig = field(default_factory=sections.ParallelConfig)

    def __post_init__(self) -> None:
        """Check conditions between fields of different sections."""
        super().__post_init__()
        self._check_task()
        require(
            self.model.parametrisation == "standard"
            or getattr(OPTIMIZERS.find(self.training.optimizer), "width_exponent", 0) is not None,
            f"model.parametrisation={self.model.parametrisation!r} has no rule for training."
            f"optimizer={self.training.optimizer!r}; use "
            f"{' or '.join(n for n, o in OPTIMIZERS.items() if o.width_exponent is not None)}",
        )
        longest, longest_text = self._longest_row()
        require(
            not self.model.positions.has_table or self.model.num_positions >= longest,
            f"model.max_positions={self.model.num_positions} is less than {longest_text}; raise "
            f"model.max_positions to {longest}",
        )

    def _check_task(self) -> None:
        model, family, task = self.model, self.model.architecture, self.data.task
        facts, name = self.data.facts, task_name(self.data.corpus, task)
        require(
            family in facts.architectures or name in families.FAMILIES[family].tasks,
            f"data.task={task!r} is not for model.architecture={family!r}; set model.architecture="
            f"{facts.architectures[0]!r}, or data.task to a task that the network can learn",
        )
        require(
            not self.training.source_loss
            or (facts.writes_text and model.stacks[-1].reads_source and model.stacks[-1].is_causal),
            "training.source_loss is for model.architecture='decoder_only' with causal attention, "
            "which predicts a source from left to right, and for data.task='auto'; leave it out",
        )
        require(
            facts.score[0] == "bleu" or self.evaluation.metric is None,
            f"evaluation.metric={self.evaluation.metric!r} judges translations; leave it out",
        )
        require(
            not facts.predicts_labels or model.embeddings["output"] == "output_projection",
            f"data.task={task!r} predicts labels, which share no matrix with subwords; set "
            "model.share_embeddings=False",
        )

    def _longest_row(self) -> tuple[int, str]:
        """Return the maximum number of positions in a batch row, and the fields that define it."""
        length, extra = self.data.max_length, self.decoding.max_extra_length
        if not (self.model.decodes or "source" in self.model.embeddings):  # images of one size
            return 0, "nothing"
        fields = f"data.max_length={length}"
        if not self.data.facts.writes_text:  # longer texts can be cut
            return length, fields
        limits = f"{fields} plus decoding.max_extra_length={extra}"
        if len(self.model.stacks) == 1:
            return 2 * length + extra, f"twice {limits}, as source and target are one sequence"
        return length + extra, limits

    def replace(self, changes: Mapping[str, object]) -> "Config":
        """Return a copy with changed fields.

        Args:
          changes: new values by dotted path, such as `{"model.d_ff": 1024, "training.seed": 1}`,
            also of a part's parameter, such as `training.schedule.decay_fraction`.

        Raises:
          UserError: a field does not exist, or a value is invalid.
        """
        nested, changed_sections = to_dict(self), set()
        family = changes.get("model.architecture", self.model.architecture)
        nested["model"] = families.values_in_family(nested["model"], family)
        paths = {known_path(path): value for path, value in changes.items()}
        # Parameters of parts, such as training.schedule.decay_fraction, follow the parts.
        for path in sorted(paths, key=lambda path: path.count(".")):
            section, name, *parameter = path.split(".")
            value = paths[path]
            if parameter:
                field_path = f"{section}.{name}"
                text = NAMED[field_path].text(field_path, nested[section][name])
                value = with_parameter(text, parameter[0], value)
            nested[section][name] = value
            changed_sections.add(section)
        # Other sections and names stay: a stored run may name parts that this process lacks.
        values = _read_fields({name: nested[name] for name in nested if name in changed_sections})
        sections = {name: fields for name, fields in values.items() if name in changed_sections}
        name_fields = {*NAMED, "data.corpus"}
        is_renamed = any({path, path.rpartition(".")[0]} & name_fields for path in paths)
        with nullcontext() if is_renamed else reading_stored_config():
            return dataclasses.replace(self, **_make_sections(sections))

    def value(self, path: str) -> Any:
        """Return the value of a field, property or part's parameter; None if it does not exist."""
        section, name, *parameter = path.split(".")
        value = getattr(getattr(self, section), name, None)
        return NAMED[f"{section}.{name}"].parameters(value).get(*parameter) if parameter else value

    def to_json(self) -> str:
        """Return the config as indented JSON, which `from_json` reads."""
        return json.dumps(to_dict(self), indent=2, allow_nan=False) + "\n"

    @staticmethod
    def from_json(text: str) -> "Config":
        """Read the output of `to_json`.

        Raises:
          UserError: the text is not JSON, or `from_dict` refuses it.
        """
        try:
            nested = parse_object(text, Record)
        except ValueError as error:
            raise UserError(f"config is damaged: {error}") from error
        return from_dict(nested)


def walk(config: Config) -> Iterator[tuple[str, dataclasses.Field[object], object]]:
    """Yield the dotted path, the dataclass field and the value of every config field."""
    for section in dataclasses.fields(config):
        values = getattr(config, section.name)
        for leaf in dataclasses.fields(values):
            yield f"{section.name}.{leaf.name}", leaf, getattr(values, leaf.name)


def known_fields() -> dict[str, "dataclasses.Field[object]"]:
    """Return the fields of all sections and network families by dotted path."""
    fields = {f"model.{name}": leaf for name, leaf in families.all_model_fields().items()}
    for section, kind in get_type_hints(Config).items():
        if section != "model":
            fields |= {f"{section}.{leaf.name}": leaf for leaf in dataclasses.fields(kind)}
    return fields


def known_path(old_path: str) -> str:
    """Return the current path of a field with this current or older path; refuse an unknown one."""
    path, fields = current_name(old_path), known_fields()
    if path not in fields and path.rpartition(".")[0] not in NAMED:  # a part's parameter
        raise unknown_field(path, fields)
    return path


def field_of(section: type[Section], keyword: str) -> str:
    """Return the current name of an old keyword, or refuse an unknown keyword."""
    path = known_path(section.path(keyword))
    name = path.rpartition(".")[2]
    if issubclass(section, ModelConfig) and not hasattr(section, name):
        raise families.foreign_field(name, section.architecture)
    return name if path == section.path(name) else keyword


def differences(
    old: Config, new: Config, *, only_binding: bool = False
) -> dict[str, tuple[object, object]]:
    """Compare two configs: `{dotted path: (old value, new value)}`.

    A field that only the new network family has counts if it differs from its default. Its old
    value is None.

    Args:
      only_binding: ignore fields that a resumed run may change (`config.checks.MAY_CHANGE`), and
        fields that one of the configs leaves open (`config.checks.left_open`).
    """
    changed, old_values = {}, {path: value for path, _, value in walk(old)}
    for path, leaf, after in walk(new):
        before = old_values.get(path)
        is_equal, marks = after == (before if path in old_values else leaf.default), leaf.metadata
        is_open = "left_open" in marks and marks["left_open"] in (before, after)
        if not is_equal and not (only_binding and (is_open or "may_change" in marks)):
            changed[path] = (before, after)
    return changed


def format_differences(changed: Mapping[str, tuple[object, object]]) -> str:
    """Format the result of `differences` as one line: `model.d_ff 64 -> 128, ...`."""
    return ", ".join(f"{path} {quote(old)} -> {quote(new)}" for path, (old, new) in changed.items())


def to_dict(config: Config) -> dict[str, Record]:
    """Return a config as nested dictionaries of plain JSON values."""
    nested = dataclasses.asdict(config)
    for fields in nested.values():
        fields |= {name: list(value) for name, value in fields.items() if isinstance(value, tuple)}
    return nested


def from_dict(nested: Mapping[str, object]) -> Config:
    """Make a config from nested dictionaries of plain values.

    Fields that are missing, as in older runs, have their defaults.

    Raises:
      UserError: the section model, data or training is missing, a field does not exist, or a value
        is invalid.
    """
    if not isinstance(nested, Mapping):
        raise UserError(f"config is a {type(nested).__name__}, not an object with sections")
    if missing := [section for section in ("model", "data", "training") if section not in nested]:
        raise UserError(
            f"config lacks the section {missing[0]}, which every release writes; restore a copy"
        )
    match nested["model"]:
        case {"architecture": str(name)}:  # before fields that other families lack
            families.FAMILIES.check("model.architecture", name)
    raw_values = _read_fields(nested)
    if "architecture" not in raw_values["model"]:
        raise UserError(
            "config lacks model.architecture, as runs of version 0.1.0 do, which this version "
            "cannot open; use version 0.2.0"
        )
    return Config(**_make_sections(raw_values))


def from_stored(nested: Mapping[str, object]) -> Config:
    """Make the config of a stored run; like `from_dict`, but accept unknown names of parts."""
    with reading_stored_config():
        return from_dict(nested)


def _make_sections(values: Mapping[str, Record]) -> dict[str, Any]:
    kinds = get_type_hints(Config) | {"model": families.network_config}
    return {section: kinds[section](**fields) for section, fields in values.items()}


def _read_fields(nested: Mapping[str, object], *, trains_on: bool = False) -> dict[str, Record]:
    """Return the fields of each section of a config, by their current names.

    Deleted fields are left out. Raise a `UserError` if the config uses a deleted feature.

    Args:
      trains_on: whether to refuse also deleted features that only training uses.
    """
    fields_by_path = known_fields()
    values: dict[str, Record] = {name: {} for name in get_type_hints(Config)}
    for section, fields in nested.items():
        for name, value in (fields if isinstance(fields, Mapping) else {"": None}).items():
            path = read_name(f"{section}.{name}" if name else section)
            removed = REMOVED.get(path)
            is_used = removed is not None and removed.is_used_by(value)
            if removed and is_used and (trains_on or not removed.trains_only):
                raise removed_feature(f"{path}={quote(value)}", removed.feature)
            if removed and (is_used or path not in fields_by_path):
                continue
            if path not in fields_by_path and path not in MOVED:
                raise unknown_field(path, fields_by_path)
            new_section, _, new_name = path.partition(".")
            values[new_section][new_name] = value
    for path, (field_path, part) in MOVED.items():
        section, _, name = path.partition(".")
        part_name = field_path.rpartition(".")[2]
        if name in values[section]:
            value = values[section].pop(name)
            if values[section].get(part_name) == part:
                values[section][part_name] = with_parameter(part, name, value)
    return values


def check_recipe(text: str) -> None:
    """Raise a `UserError` if the training of a run used a feature that this version lacks.

    Args:
      text: the JSON of the run's config.
    """
    _read_fields(json.loads(text), trains_on=True)


def unknown_field(path: str, names: Iterable[str]) -> UserError:
    """Return the error for an unknown field, with the most similar field."""
    if path in REMOVED:
        return removed_feature(path, REMOVED[path].feature)
    if path in MOVED:
        field_path, part = MOVED[path]
        name = path.rpartition(".")[2]
        return UserError(
            f"{path} is a parameter of {field_path}={part!r} since version 0.3; write "
            f"{field_path}='{part}({name}=...)'"
        )
    hint = did_you_mean(path, names, "see --help for all fields")
    return UserError(f"unknown config field {quote(path)}; {hint}")
