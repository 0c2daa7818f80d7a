"""Where the values of options come from: command line, environment, brew.toml, default; in this order."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest
from harness.commands import PROGRAMS, all_commands, command_of, script
from harness.pages import ROOT

from brew import config_file
from brew.__main__ import cli
from brew.cli import exit_code_of
from brew.config_file import variables
from brew.errors import UsageError

FILE = """
[common]
bootstrap = "k1:9092"
client-config = "client.properties"
input = "orders"

[run]
lanes = 3
follow = true
allow = ["group-members"]

[preflight]
lanes = 4

[sandbox.up]
brokers = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a brew.toml, without the variables of whoever runs the tests."""
    for _, command in all_commands("brew", cli):
        for option in command.params:
            for name in variables(option):
                monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv(config_file.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "brew.toml").write_text(FILE)
    (tmp_path / "client.properties").write_text("client.id=x\n")
    return tmp_path


def _values(program: click.Group, *words: str) -> dict[str, object]:
    """What the options of a call would be."""
    ctx = click.Context(program, info_name="brew")
    command: click.Command = program
    rest = list(words)
    while isinstance(command, click.Group):
        name = rest.pop(0)
        command = command_of(command, name)
        ctx = click.Context(command, parent=ctx, info_name=name) if isinstance(command, click.Group) else ctx
    return command.make_context(name, rest, parent=ctx).params


def test_the_command_line_goes_before_the_environment_that_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [_values(cli, "run", "--config", "/dev/null")["input"]]
    inputs.append(_values(cli, "run")["input"])
    monkeypatch.setenv("INPUT_TOPIC", "of-environment")
    inputs.append(_values(cli, "run")["input"])
    inputs.append(_values(cli, "run", "--input", "typed")["input"])
    assert inputs == ["brew.orders.v1", "orders", "of-environment", "typed"]


def test_a_setting_that_commands_share_reaches_each_by_its_own_name() -> None:
    """`--topic` of seed is the input; the group of the ledger is no pipeline's."""
    (Path("brew.toml")).write_text('[common]\ninput = "orders"\ngroup = "g"\n')
    assert _values(cli, "seed", "--count", "1")["topic"] == "orders"
    groups = [_values(cli, name)["group"] for name in ("run", "lag", "verify", "ledger")]
    assert groups == ["g", "g", "g", "brew-ledger"]


@pytest.mark.parametrize("name", ["run", "preflight", "submit", "verify", "explain", "ui", "top"])
def test_a_runs_outputs_and_function_reach_whoever_looks_at_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` called it corrupt, and `explain` lost, what came of a function that only the run knew."""
    monkeypatch.setenv("ALSO_OUTPUT", "of-environment")
    monkeypatch.setenv("TRANSFORM", "clicks:f")
    Path("brew.toml").write_text('[common]\nalso-output = ["late"]\n')
    words = [] if name != "explain" else ["key"]
    values = _values(cli, name, *words)
    assert (values["also_output"], values.get("transform", "clicks:f")) == (("of-environment",), "clicks:f")
    monkeypatch.delenv("ALSO_OUTPUT")
    assert tuple(_values(cli, name, *words)["also_output"]) == ("late",)


def test_a_run_is_checked_and_submitted_with_its_own_table_and_a_groups_command_has_one_within_it() -> None:
    values = [_values(cli, name) for name in ("run", "preflight", "submit")]
    assert [one["lanes"] for one in values] == [3, 4, 3]
    assert [one["follow"] for one in values] == [True, True, True]
    assert values[0]["allow"] == ("group-members",)
    assert _values(PROGRAMS["sandbox"], "up")["brokers"] == _values(cli, "sandbox", "up")["brokers"] == 3


def test_a_path_begins_at_the_files_own_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert _values(PROGRAMS["pipeline"], "run")["lanes"] == 2
    monkeypatch.setenv("BREW_CONFIG", "../brew.toml")
    assert _values(PROGRAMS["pipeline"], "run")["lanes"] == 3
    (folder / "brew.toml").write_text(FILE.replace("lanes = 3", 'py-files = ["a.py", "/b.py"]'))
    assert _values(PROGRAMS["pipeline"], "run")["py_files"] == ("../a.py", "/b.py")
    (folder / "brew.toml").write_text("[report]\nout = 'page.html'\n")
    assert _values(cli, "report", "../brew.toml")["out"] == Path("../page.html")
    (folder / "brew.toml").write_text(FILE)
    (folder / "client.properties").unlink()
    with pytest.raises(UsageError, match=r"\.\./client\.properties"):
        _values(PROGRAMS["pipeline"], "run")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[run]\nfolow = true", "brew.toml: [run] has no option 'folow'; did you mean 'follow'?"),
        ("[common]\nimput = 'x'", "brew.toml: [common] has no setting 'imput'; did you mean 'input'?"),
        ("[rum]\nlanes = 1", "brew.toml: there is no command 'rum'; did you mean 'run'?"),
        ("lanes = 1", "brew.toml: there is no command 'lanes'"),
        ("run = 1", "brew.toml: run is a value, not a table"),
        ("[run]\nlanes = 'x'", "brew.toml: [run] lanes = 'x': 'x' is not a valid integer"),
        ("[run]\nlanes = inf", "brew.toml: [run] lanes = inf: 'inf' is not a valid integer"),
        ("[run]\nlanes = 2.7", "brew.toml: [run] lanes = 2.7: '2.7' is not a valid integer"),
        ("[run]\nlanes = true", "brew.toml: [run] lanes = True; write text in quotes, or a number"),
        (
            "[run]\npatience = 2026-01-01",
            "patience = datetime.date(2026, 1, 1); write text in quotes, or",
        ),
        ("[run]\nallow = [['x']]", "brew.toml: [run] allow = [['x']]; write text in quotes, or a number"),
        ("[run]\nclient-config = 5", "5 can't be read: No such file or directory"),
        ("[run]\nlanes = [1]", "brew.toml: [run] lanes = [1]; write one value"),
        ("[run]\nallow = 'x'", "brew.toml: [run] allow = 'x'; write a list of values"),
        ("[run]\nfollow = 'yes'", "brew.toml: [run] follow = 'yes'; write true or false"),
        ("[run]\ncrash-prob = 1.0", "--crash-prob works on the command line only"),
        ("[run", "brew.toml is not TOML"),
    ],
)
def test_what_cannot_be_is_refused_with_file_and_key(text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("brew.toml").write_text(text)
    assert exit_code_of(cli, "brew", ["run"]) == 64
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1
    assert exit_code_of(cli, "brew", ["run", "--help"]) == 0, "whoever mends the file needs the options' names"


def test_an_option_in_the_table_of_a_group_of_commands_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """It was ignored, and `sandbox up` started one broker."""
    Path("brew.toml").write_text("[sandbox]\nbrokers = 3\n")
    assert exit_code_of(cli, "brew", ["sandbox", "status"]) == 64
    assert "[sandbox] has no option 'brokers'; name the command, as in [sandbox.status]" in capsys.readouterr().err
    assert exit_code_of(cli, "brew", ["lag", "--help"]) == 0


def test_a_file_that_is_named_has_to_be_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(cli, "brew", ["run", "--config", "nowhere.toml"]) == 64
    assert "is 'nowhere.toml': there is no such file" in capsys.readouterr().err
    Path("brew.toml").unlink()
    assert _values(cli, "run")["lanes"] == 2


def test_config_show_tells_value_and_place(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("READER", "connector")
    assert exit_code_of(cli, "brew", ["config", "show", "--json"]) == 0
    options = {one["option"]: one for one in json.loads(capsys.readouterr().out)["options"]}
    wanted = {
        "--lanes": (3, "brew.toml, [run]"),
        "--input": ("orders", "brew.toml, [common]"),
        "--reader": ("connector", "environment, READER"),
        "--output": ("brew.orders.enriched", "default"),
    }
    assert {name: (options[name]["value"], options[name]["source"]) for name in wanted} == wanted
    monkeypatch.setenv("DATABASE_URL", "postgresql://brew:sesame@db/brew")
    assert exit_code_of(cli, "brew", ["config", "show", "ledger"]) == 0
    output = capsys.readouterr().out
    assert "sesame" not in output
    assert "postgresql://brew:***@db/brew" in output


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("postgresql://u:pa:ss@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:pa/ss@h:5432/db", "postgresql://u:***@h:5432/db"),
        ("redis://:x@h/0", "redis://:***@h/0"),
        ("host=h user=u password=pass dbname=d", "host=h user=u password=*** dbname=d"),
        (r"password = 'a \' b' host=h", "password = *** host=h"),
        ("postgresql://h/db?password=pass&sslmode=require", "postgresql://h/db?password=***&sslmode=require"),
        ("https://h/hook?token=x", "https://h/hook?***"),
        (("spark.ssl.keyPassword=x", "spark.a=b"), ["spark.ssl.keyPassword=***", "spark.a=b"]),
        (["spark.ssl.keyPassword=x"], ["spark.ssl.keyPassword=***"]),
        ("spark.hadoop.fs.s3a.secret.key=x=y", "spark.hadoop.fs.s3a.secret.key=***"),
        ("spark.kubernetes.authenticate.oauthToken=x", "spark.kubernetes.authenticate.oauthToken=***"),
        ("spark.executor.memory=2g", "spark.executor.memory=2g"),
        ("postgresql://u@h/db", "postgresql://u@h/db"),
        ("k1:9092,k2:9092", "k1:9092,k2:9092"),
    ],
)
def test_config_show_masks_a_secret_wherever_it_is(value: object, shown: object) -> None:
    assert config_file._shown(value) == shown


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        # The tables of all commands are checked, also of those that were not asked for.
        ("[sandbox.up]\nbrokrs = 3\n", [], "[sandbox.up] has no option 'brokrs'; did you mean 'brokers'?"),
        ("[sandbox.stores.up]\nprt = 3\n", [], "[sandbox.stores.up] has no option 'prt'; did you mean 'port'?"),
        *((FILE, ["nothing"], "nothing"), (FILE, ["sandbox"], "sandbox")),
    ],
)
def test_show_refuses_by_name(text: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("brew.toml").write_text(text)
    assert exit_code_of(cli, "brew", ["config", "show", *words]) == 64
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "variable", "words"),
    [
        ("[run]\npatience = 0\n", None, ["run"]),
        ("[run]\nlanes = 65\n", None, ["run"]),
        ("[run]\nmax-rejected = 1.5\n", None, ["submit"]),
        ("[preflight]\nlease = 0.5\n", None, ["preflight"]),
        ("[run]\nconf = ['executor.memory=2g']\n", None, ["run"]),
        ("[run]\nfollow = true\npolling-ttl = 0.5\n", None, ["run"]),
        ("[run]\ntiers = 'profiles'\ntransform = 'clicks:f'\n", None, ["run"]),
        ("[common]\ninput = 'a b'\n", None, ["lag"]),
        ("[common]\nclient-config = 'nowhere'\n", None, ["run"]),
        ("[common]\nbootstrap = ''\n", None, ["dlq", "list"]),
        ("", ("MASTER", "mars"), ["run"]),
        ("", ("READER", "hand"), ["run"]),
        ("", ("PROBE_PORT", "70000"), ["run"]),
        ("", ("GROUP_ID", "x" * 201), ["run"]),
    ],
)
def test_config_show_refuses_a_value_that_the_command_refuses(
    text: str,
    variable: tuple[str, str] | None,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`config show` listed `--patience 0` as a run's value, and the run refused it."""
    Path("brew.toml").write_text(text)
    if variable:
        monkeypatch.setenv(*variable)
    assert exit_code_of(cli, "brew", words) == 64
    refused = capsys.readouterr()
    assert exit_code_of(cli, "brew", ["config", "show", *words]) == 64
    assert capsys.readouterr() == refused


def test_config_show_reads_the_table_of_a_command_in_a_group_within_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    """The command took it, and `config show` of any command refused the file."""
    Path("brew.toml").write_text("[sandbox.stores.up]\nport = 5432\n")
    assert exit_code_of(cli, "brew", ["config", "show", "sandbox", "stores", "up"]) == 0
    assert re.search(r"--port +5432 +brew.toml, \[sandbox.stores.up\]", capsys.readouterr().out)


def test_config_show_names_group_and_dead_letters_as_the_run_does(capsys: pytest.CaptureFixture[str]) -> None:
    """With a transformation they are named after the output; the orders' names were shown."""
    Path("brew.toml").write_text("[run]\ntransform = 'clicks:f'\noutput = 'out'\ndead-letter = 'bad'\n")
    assert exit_code_of(cli, "brew", ["config", "show", "--json"]) == 0
    options = {one["option"]: one for one in json.loads(capsys.readouterr().out)["options"]}
    assert options["--group"] == {"option": "--group", "value": "brew-out", "source": "named after --output"}
    assert options["--dead-letter"] == {"option": "--dead-letter", "value": "bad", "source": "brew.toml, [run]"}


def test_config_show_shows_every_command_and_numbers_of_the_environment_as_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_PORT", "3001")
    for path, command in all_commands("brew", cli):
        if not isinstance(command, click.Group):
            assert exit_code_of(cli, "brew", ["config", "show", *path.split()[1:], "--json"]) == 0, path
            options = {one["option"]: one for one in json.loads(capsys.readouterr().out)["options"]}
            assert options.get("--probe-port", {"value": 3001})["value"] == 3001
            assert exit_code_of(cli, "brew", ["config", "show", *path.split()[1:]]) == 0, path
            assert capsys.readouterr().out.count("\n  --") == len(options)


def test_the_file_on_the_page_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/guide/settings.md").read_text()
    blocks = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 1
    Path("brew.toml").write_text(blocks[0])
    assert exit_code_of(cli, "brew", ["config", "show", "dlq", "replay"]) == 0
    assert "[dlq.replay]" in capsys.readouterr().out
    assert [key for key in config_file._COMMON_KEYS if f"`{key}`" not in page] == []


# Options that make passes by a variable that the programs do not read, and why not.
_ONLY_MAKE = {
    "CLIENT_CONFIG": "the programs read BREW_CLIENT_CONFIG",
    "CRASH_PROB": "a crash is asked for where it is typed",
    "CRASH_POINT": "the same",
    "CRASH_MODE": "the same",
    "SECURE": "a word too common to be read from the environment",
    "WIPE": "it destroys, so it is asked for where it is typed",
    "SEED": "a word too common",
    "UPDATES": "the same",
    "TOMBSTONES": "the same",
    "RECOMPUTE": "the same",
    "PROVE_OUT": "a campaign's folder",
    "RACES_OUT": "the same",
    "KILLS": "of make's own targets",
}
_OWN_GROUPS = {"ledger", "receive", "totals", "call"}


def test_programs_read_the_variables_that_make_passes() -> None:
    """The same name means the same with and without make; a group of one's own is no GROUP_ID."""
    reference = script("reference")
    lost = []
    for recipe in reference.recipes((ROOT / "Makefile").read_text()):
        for words in recipe.commands():
            program, name = words.split()
            if program not in reference.PROGRAMS:
                continue
            command = command_of(reference.PROGRAMS[program], name)
            options = {one.opts[0]: one for one in command.params if isinstance(one, click.Option)}
            for option, variable in recipe.passed().items():
                own = option == "--group" and name in _OWN_GROUPS
                if variable not in _ONLY_MAKE and not own and option in options:
                    lost += [(words, option, variable)] if variable not in variables(options[option]) else []
    assert lost == []
