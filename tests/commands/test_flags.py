import dataclasses
import inspect
import io
import json
import os
import runpy
import shlex
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import t2t_jax.run.loading
from t2t_jax.commands import model_flags, streams
from t2t_jax.commands.entry import entry_command
from t2t_jax.commands.flag_table import flags_of_plugins
from t2t_jax.commands.train import train_command
from t2t_jax.config import Config, DecodingConfig, MeshConfig, walk
from t2t_jax.errors import DivergedError, UserError
from t2t_jax.system.folders import user_folder
from t2t_jax.system.program import run
from t2t_jax.workdir import read_config
from tests.commands.untrained import SOURCES
from tests.programs import ROOT, run_python
from tests.refusals import refused

CONFIG_FILE = """
from t2t_jax.config import Config

VARIANTS = {"small": Config().replace({"model.d_model": 16, "model.num_heads": 2})}
"""


@pytest.fixture(scope="module")
def translator(workdir):
    return t2t_jax.run.loading.load(workdir, average=2)


@pytest.fixture
def one_translator(translator, monkeypatch):
    """Commands get one translator, so that nothing is compiled twice."""
    monkeypatch.setattr(t2t_jax.run.loading, "load", lambda workdir, **choice: translator)
    return translator


def train(*arguments: str) -> Config:
    return train_command([*arguments, "--workdir", "w"]).fields


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "grid.py"
    path.write_text(CONFIG_FILE)
    return f"{path}:small"


def show_help(capsys, command, *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        command([*arguments, "--help-all"])
    assert end.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def words(value: object) -> str:
    """A default as it is written on the command line."""
    return shlex.join(map(str, value if isinstance(value, tuple) else (value,)))


def test_help_of_train_lists_every_field_with_its_default_and_meaning(capsys, config_file):
    for arguments, config in (
        ([], Config()),
        (["--config", config_file], train("--config", config_file)),
    ):
        text = show_help(capsys, train_command, *arguments)
        for path, _, value in walk(config):
            after = text.split(f" --{path.replace('_', '-')} ")[1]
            helped, _, default = after.partition("(default: ")
            assert default.startswith(f"{words(value)})")
            assert len(helped.split()) > 2  # the type, and words of its docstring


def test_a_family_of_networks_and_its_task_come_by_flags_of_one_command_line():
    family, task = "--model.architecture=encoder_only", "--data.task=tagging"
    config = train("--config", "base", family, task, "--model.share-embeddings=False")
    assert (config.model.architecture, config.data.task) == ("encoder_only", "tagging")
    assert config.model.num_encoder_layers == 6
    with pytest.raises(UserError, match=r"data\.task='auto' is not for"):
        train("--config", "base", family)
    with pytest.raises(UserError, match=r"--model\.architecture.*see --help"):
        train("--config", "base", "--model.architecture")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "w", "--split"], "--split names no split; name one, such as test"),
        (["explore", "w", "--text", "a", "--output", "no/view.html"], "there is no directory no;"),
        (["heads", "w", "--plot", "no/heads.svg"], "there is no directory no;"),
    ],
)
def test_what_would_be_lost_is_refused_before_any_work(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        entry_command(arguments).run()


def test_a_value_may_look_like_a_flag_or_be_an_empty_prompt():
    assert entry_command(["translate", "w", "--prefix=--help"]).prefix == "--help"
    assert entry_command(["generate", "w", "--prompt", ""]).prompt == ("",)


@pytest.mark.parametrize("name", ["translate", "evaluate"])
def test_help_of_a_command_lists_the_decoding_settings_of_the_run(capsys, workdir, name):
    text = show_help(capsys, entry_command, name, "--workdir", str(workdir))
    decoding = dataclasses.asdict(DecodingConfig())
    for field, value in (decoding | {"beam_size": 2, "max_extra_length": 5}).items():
        after = text.split(f" --{field.replace('_', '-')} ")[1]
        assert after.partition("(default: ")[2].startswith(f"{words(value)})")


def test_a_flag_of_several_values_takes_them_all(config_file):
    arguments = ["--config", config_file, "--data.protected-tokens", "<2de>", "__URL__"]
    changed = train(*arguments, "--training.freeze", "embedding", "encoder/*")
    assert changed.data.protected_tokens == ("<2de>", "__URL__")
    assert changed.training.freeze == ("embedding", "encoder/*")
    with pytest.raises(UserError, match="'a b' has white space"):
        train("--config", config_file, "--data.protected-tokens", "a b")


def test_flags_change_the_fields_of_the_config(config_file):
    base = train("--config", config_file)
    assert base.model.d_model == 16
    changed = train(
        *("--config", config_file),
        *("--model.d-ff", "1024"),
        "--model.norm_order=pre",
        *("--model.share-embeddings", "False"),
        *("--model.d_k", "4"),
        *("--checkpoint.every-minutes", "None"),
        *("--checkpoint.every-steps", "7"),
        *("--training.adam-epsilon", "1e-8"),
        *("--parallel.data", "-1"),
    )
    expected = base.replace(
        {
            "model.d_ff": 1024,
            "model.norm_order": "pre",
            "model.share_embeddings": False,
            "model.d_k": 4,
            "checkpoint.every_minutes": None,
            "checkpoint.every_steps": 7,
            "training.adam_epsilon": 1e-8,
        }
    )
    assert changed == expected


def test_a_run_goes_on_with_its_stored_config_and_the_flags(workdir):
    stored = Config.from_json((workdir / "config.json").read_text())
    more = ["--training.num-train-steps", "9"]
    for line in (["--workdir", str(workdir), *more], [str(workdir), *more], [*more, str(workdir)]):
        command = train_command(line)
        assert command.workdir == workdir
        assert command.fields == stored.replace({"training.num_train_steps": 9})


def test_decoding_settings_are_those_of_the_run_and_the_flags(workdir):
    arguments = ["evaluate", "--workdir", str(workdir), "--length-penalty", "1", "--step", "best"]
    command = entry_command(arguments)
    assert entry_command(["evaluate", *arguments[2:]]) == command
    expected = DecodingConfig(beam_size=2, max_extra_length=5, length_penalty=1.0)
    assert command.decoding == expected
    assert command.step == "best"
    assert entry_command([*arguments[:-1], "12"]).step == 12


@pytest.mark.parametrize(
    ("arguments", "devices"),
    [
        ("--compile-only", ""),
        ("--compile-only --model.d-ff 64", ""),
        ("--compile_only v5e:4x4", "v5e:4x4"),
        ("--compile-only=v5e:4x4 --model.d-ff 64", "v5e:4x4"),
        ("--model.d-ff 64 --compile-only v5e:4x4", "v5e:4x4"),
    ],
)
def test_compile_only_needs_no_directory_and_names_devices_or_none(config_file, arguments, devices):
    command = train_command(["--config", config_file, *arguments.split()])
    assert next(map(vars, flags_of_plugins(command)))["compile_only"] == devices
    assert command.fields == train("--config", config_file).replace(
        {"model.d_ff": 64 if "d-ff" in arguments else 2048}
    )


def test_the_config_that_is_compiled_may_be_that_of_a_run(workdir):
    command = train_command(["--workdir", str(workdir), "--compile-only"])
    assert command.fields == Config.from_json((workdir / "config.json").read_text())
    with pytest.raises(UserError, match="there is no config; name a config, as in --config"):
        train_command(["--compile-only"])


def test_processes_meet_before_they_train(config_file, monkeypatch):
    called = []
    monkeypatch.setattr("t2t_jax.parallel.processes.join", lambda *at: called.append(at))
    stopped = SimpleNamespace(exit_code=143)

    def train_to_a_stop(*what, profile_steps, preemption_notices, mirror_dir):
        called.append(what)
        return stopped

    monkeypatch.setattr("t2t_jax.run.trainer.train", train_to_a_stop)
    main = runpy.run_path(str(ROOT / "train.py"))["main"]
    arguments = ["--config", config_file, "--workdir", "w"]
    assert main(arguments) == 143
    run_at = ["--coordinator", "h:1", "--num-processes", "2", "--process_id=1"]
    assert main([*arguments, *run_at]) == 143
    config = train("--config", config_file)
    expected = (config, Path("w"))
    here, there = (None, None, None, 30.0, 10.0), ("h:1", 2, 1, 30.0, 10.0)
    assert called == [here, expected, there, expected]


@pytest.mark.parametrize(("fits", "code"), [(True, 0), (None, 0), (False, 1)])
def test_compiling_only_neither_joins_nor_trains(config_file, monkeypatch, capsys, fits, code):
    monkeypatch.setattr("t2t_jax.parallel.processes.join", pytest.fail)
    monkeypatch.setattr("t2t_jax.run.trainer.train", pytest.fail)
    package = "t2t_jax.extras.compile_only"

    def compiled(*what):
        return SimpleNamespace(fits=fits, what=what)

    def told(report):
        return map(str, report.what)

    monkeypatch.setattr(f"{package}.topologies.devices_of", lambda name: [name])
    for name in ("ahead", "search"):
        monkeypatch.setattr(f"{package}.compile.compile_{name}", compiled)
    for name in ("report", "search"):
        monkeypatch.setattr(f"{package}.report.format_{name}", told)
    main = runpy.run_path(str(ROOT / "train.py"))["main"]
    flags = ["--config", config_file, "--compile-only", "v5e:4x4", "--write-program", "p.txt"]
    assert main(flags) == code
    step = f"{train('--config', config_file)}\n['v5e:4x4']"
    search = "" if fits is False else f"\n\n{step}"  # of what does not fit, nothing more is said
    assert capsys.readouterr().out == f"{step}\np.txt{search}\n"


def test_the_text_of_a_program_is_only_written_where_one_is_compiled(config_file):
    main = runpy.run_path(str(ROOT / "train.py"))["main"]
    with pytest.raises(UserError, match="--write-program needs --compile-only"):
        main(["--config", config_file, "--workdir", "w", "--write-program", "p.txt"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--model.d-fff 3", "unknown flag --model.d-fff; did you mean --model.d-ff?"),
        ("--norm_order=pre", "unknown flag --norm_order; did you mean --model.norm-order?"),
        ("--qqq 3", "unknown flag --qqq; see --help-all for all flags"),
        ("--model.norm-order prel", "'prel' for argument '--model.norm-order'. Expected one of"),
        ("--model.d-ff many", "--model.d-ff: invalid literal for int() with base 10: 'many'"),
        ("--model.d-k many", "--model.d-k: no type matching {None}|INT"),
        ("--model.d-ff", "Missing value for argument '--model.d-ff'"),
        ("--model.d-model 500", "d_model=500 is not divisible by num_heads=8; set d_k and d_v"),
        ("--model.position learned --model.max-positions 9", "raise model.max_positions to 306"),
        ("--workdir v", "--workdir is given twice; give it once, with all of its values"),
        ("--config", "Missing value for argument '--config'"),
        ("extra", "'extra' and --workdir both name the run; give one of them"),
        ("--config nowhere.py", "no config file nowhere.py"),
        ("--num-processes two", "--num-processes: no type matching {None}|INT"),
        ("--compile-only v5e:4x4 --compile_only", "--compile_only is given twice"),
        ("", "w holds no run to resume; name a config"),
    ],
)
def test_a_bad_command_line_of_train_is_refused(arguments, message):
    with refused(message):
        train_command(["--workdir", "w", *arguments.split()])


@pytest.fixture
def environment(monkeypatch):
    """A copy of the environment: what `run` sets for JAX must not reach the other tests."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(os, "_exit", sys.exit)  # as good to the caller, and not the end of pytest
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in ending}
    yield os.environ
    for number, handler in before.items():
        signal.signal(number, handler)


def test_compiled_code_is_kept_where_the_user_says_or_in_the_user_cache(environment):
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    for given in (None, "elsewhere"):
        if given:
            environment["JAX_COMPILATION_CACHE_DIR"] = given
        with pytest.raises(SystemExit):
            run(lambda arguments: 0)
        expected = given or str(user_folder("cache") / "compiled")
        assert environment["JAX_COMPILATION_CACHE_DIR"] == expected


def test_without_a_tpu_its_library_is_told_so(environment, monkeypatch):
    for there in ([], ["/dev/vfio/0"]):
        for name in ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES"):
            environment.pop(name, None)
        monkeypatch.setattr("glob.iglob", lambda pattern, there=there: iter(there))
        with pytest.raises(SystemExit):
            run(lambda arguments: 0)
        assert ("TPU_WORKER_HOSTNAMES" in environment) == (not there)


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (UserError("no such\n thing"), 2, "error: no such thing\n"),
        (DivergedError("not finite"), 76, "error: not finite\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_ends_a_program_becomes_one_line_and_an_exit_code(capsys, error, code, printed):
    def main(arguments):
        raise error

    with pytest.raises(SystemExit) as end:
        run(main)
    assert end.value.code == code
    assert capsys.readouterr() == ("", printed)


@pytest.mark.usefixtures("environment")
def test_a_mistake_of_ours_keeps_its_traceback():
    def main(arguments):
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        run(main)


@pytest.mark.parametrize(
    "arguments",
    [
        ["translate", "--workdir", "w", "--output", "out", "--input"],
        ["explore", "--text", "a", "--output", "view.html"],
        ["generate", "--prompt", "a", "--output", "out"],
        ["heads"],
        ["predict", "--output", "out"],
        ["serve", "--port", "0"],
        ["evaluate"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_command_loads_the_model_that_its_flags_say(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("w").mkdir()
    Path("lines").write_text("a\n")
    called, known = {}, inspect.signature(t2t_jax.run.loading.load).parameters

    def load(workdir, **choice):
        called.update(choice)
        raise UserError("no more is needed")

    monkeypatch.setattr(model_flags, "check_command", lambda *what: None)
    monkeypatch.setattr(t2t_jax.run.loading, "load", load)
    flags = ["--parallel.data", "1", "--parallel.tensor", "2", "--step", "7", "--average", "3"]
    command = entry_command([*arguments, "lines" if "--input" in arguments else "w", *flags])
    with pytest.raises(UserError, match="no more is needed"):
        command.run()
    assert called == {"average": 3, "step": 7, "parallel": MeshConfig(data=1, tensor=2)}
    assert called.keys() <= known.keys()


def test_a_figure_that_is_not_finite_is_null_in_json_and_named_in_the_table(
    workdir, translator, monkeypatch, capsys
):
    import jax

    from t2t_jax.decoding.translator import Translator

    broken = jax.tree.map(lambda x: x * float("nan"), translator.params)
    poisoned = Translator(translator.config, translator.vocabulary, broken, steps=[6])
    monkeypatch.setattr(poisoned, "translate", lambda lines, **settings: lines)
    monkeypatch.setattr(t2t_jax.run.loading, "load", lambda workdir, **choice: poisoned)
    entry_command(["evaluate", "--workdir", str(workdir), "--json"]).run()
    summary = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (summary["loss"], summary["nll"], summary["perplexity"]) == (None, None, None)
    assert summary["bleu"] >= 0
    entry_command(["evaluate", "--workdir", str(workdir)]).run()
    assert "nan" in capsys.readouterr().out


def test_the_table_shows_scores_with_signatures(workdir, one_translator, capsys, tmp_path):
    output = tmp_path / "hypotheses.de"
    entry_command(
        f"evaluate --workdir {workdir} --split dev --beam-size 1 --output {output}".split()
    ).run()
    table = capsys.readouterr().out
    for part in (
        "sacreBLEU",
        "tokenized_split_bleu",
        "|tok:13a|",
        "chrF",
        "|nc:6|",
        "perplexity",
        "step 3, 6",
        "beam_size=1",
    ):
        assert part in table
    expected = one_translator.translate(SOURCES, beam_size=1)
    assert output.read_text(encoding="utf-8").split("\n") == [*expected, ""]


def test_another_corpus_can_be_scored(workdir, one_translator, tmp_path, capsys):
    (tmp_path / "test.en").write_text("the dog\n")
    (tmp_path / "test.de").write_text("der Hund\n")
    arguments = f"evaluate --workdir {workdir} --beam-size 1 --json --corpus text:{tmp_path}"
    entry_command(arguments.split()).run()
    summary = json.loads(capsys.readouterr().out)
    assert (summary["corpus"], summary["num_sentences"]) == (f"text:{tmp_path}", 1)


@pytest.fixture
def stdin(monkeypatch):
    def feed(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "ascii"))

    return feed


def test_scores_are_written_in_the_format_of_moses(
    workdir, one_translator, stdin, capfdbinary, monkeypatch
):
    monkeypatch.setattr(streams, "_LINES_AT_ONCE", 2)
    stdin(b"the dog\n\na red house\n")
    entry_command(f"translate --workdir {workdir} --num-best 2".split()).run()
    lines = capfdbinary.readouterr().out.decode().splitlines()
    found = one_translator.nbest(["the dog", "", "a red house"], 2)
    expected = [
        [str(index), best.text, f"{best.log_prob:.4f}", f"{best.score:.4f}"]
        for index, hypotheses in enumerate(found)
        for best in hypotheses
    ]
    assert [line.split(" ||| ") for line in lines] == expected
    assert [line[0] for line in expected] == ["0", "0", "1", "2", "2"]
    stdin(b"the dog\n")
    entry_command(f"translate --workdir {workdir} --scores".split()).run()
    assert capfdbinary.readouterr().out.decode().splitlines() == lines[:1]


@pytest.fixture
def plain_locale(tmp_path, monkeypatch):
    """Variables of a program in the plainest locale, with caches of its own."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    return {**ascii_only, "XDG_CACHE_HOME": str(tmp_path)}


@pytest.mark.thorough
def test_scores_go_to_stdout_and_nothing_else_does(workdir, plain_locale):
    arguments = ["evaluate", "--workdir", str(workdir), "--beam-size", "1", "--json"]
    done = run_python("eval.py", *arguments, **plain_locale)
    assert (done.returncode, done.stderr) == (0, "")
    [line] = done.stdout.splitlines()
    summary = json.loads(line)
    assert (summary["checkpoints"], summary["decoding"]["beam_size"]) == ([3, 6], 1)
    assert (summary["split"], summary["num_sentences"]) == ("test", 4)
    assert summary["bleu_signature"].startswith("nrefs:1|case:mixed")
    assert summary["perplexity"] > 1


def test_a_new_run_may_have_the_config_of_another(workdir, tmp_path):
    new = ["--workdir", str(tmp_path / "new"), "--training.seed", "7"]
    found = train_command(["--config", str(workdir), *new])
    assert found.fields == read_config(workdir).replace({"training.seed": 7})
    assert found.workdir == tmp_path / "new"
    with pytest.raises(UserError, match="no config file"):
        train_command(["--config", str(tmp_path), *new])
