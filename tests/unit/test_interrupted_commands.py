"""Ctrl-C and SIGTERM while a command waits for a broker that does not answer: one line, 130 or 143, at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from harness.pages import ROOT

from brew.names import ExitCode

_SERVER = "127.0.0.77"
"""Other clients don't come here: one that lost its broker on 127.0.0.1 could be taken for the program under test."""
_START_S = 30.0
_END_S = 5.0
_COMMANDS = {
    "pipeline": (
        *("run --master none", "run", "run --stand-by", "run --share", "lag", "lag --watch", "explain gold-000017"),
        *("doctor", "preflight", "ui --port 0", "top", "xray", "dlq list", "dlq inspect 0/1"),
    ),
    "downstream": ("count", "call --url http://127.0.0.1:1/", "totals --store memory", "claims status"),
    "proof": (
        *("topics", "seed --count 3", "seed-customers --customers 3", "end-offsets", "group-describe", "verify"),
        "read --journal journals",
    ),
    "brew": ("run --master none", "lag", "count", "verify"),
}


@contextmanager
def waiting(words: str, place: Path) -> Iterator[subprocess.Popen[str]]:
    """A program that has connected to a server which says nothing, in a process group of its own."""
    with ExitStack() as ending:
        server = ending.enter_context(socket.create_server((_SERVER, 0)))
        server.settimeout(_START_S)
        environment = {name: value for name, value in os.environ.items() if name not in {"FOLLOW", "READER"}}
        environment |= {"BOOTSTRAP": f"{_SERVER}:{server.getsockname()[1]}", "PYTHONPATH": str(ROOT)}
        program = ending.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", *words.split()],
                cwd=place,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                text=True,
            )
        )
        ending.callback(program.kill)
        ending.enter_context(server.accept()[0])
        yield program


def ended(program: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    os.killpg(program.pid, number)
    output, _ = program.communicate(timeout=_END_S)
    return program.returncode, output


@pytest.mark.parametrize("words", [f"{program} {rest}" for program, words in _COMMANDS.items() for rest in words])
def test_an_interrupted_command_ends_in_one_line_with_128_and_the_signals_number(words: str, tmp_path: Path) -> None:
    """Nothing has been begun: there is nothing to wait for."""
    with waiting(words, tmp_path) as one, waiting(words, tmp_path) as other:
        for program, number in ((one, signal.SIGINT), (other, signal.SIGTERM)):
            assert ended(program, number) == (128 + number, f"{words.split(maxsplit=1)[0]}: stopped by {number.name}\n")


@pytest.mark.parametrize(
    "words",
    [
        *("pipeline run --master none", "brew run --master none", "pipeline show brew.orders.v1"),
        *("downstream call --url http://127.0.0.1:1/", "proof read --journal journals"),
    ],
)
def test_a_following_program_that_still_waits_for_its_broker_ends_with_0(words: str, tmp_path: Path) -> None:
    """Whoever stops a service that has not found its brokers yet has stopped it well."""
    words += " --follow"
    with waiting(words, tmp_path) as one, waiting(words, tmp_path) as other:
        for program, number in ((one, signal.SIGINT), (other, signal.SIGTERM)):
            code, output = ended(program, number)
            assert code == 0, output
            assert "Traceback" not in output


_PROGRAMS = ("brew", "pipeline", "downstream", "proof", "sandbox")


@pytest.mark.parametrize("script", [False, True])
@pytest.mark.parametrize("program", _PROGRAMS)
def test_an_interrupt_during_the_first_imports_ends_quietly_with_130(
    program: str, script: bool, tmp_path: Path
) -> None:
    """Our handlers are installed after them: Python's showed a stack trace, or crashed in an extension's import."""
    (tmp_path / "click.py").write_text("import os, time\nos.kill(os.getpid(), 2)\ntime.sleep(20)\n")
    command = ["-m", program]
    if script:
        path = tmp_path / (program if program == "brew" else f"brew-{program}")
        path.write_text(f"import sys\nfrom {program}.__main__ import main\nsys.exit(main())\n")
        command = [str(path)]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, *command, "--help"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")


def test_another_programs_interrupts_stay_its_own() -> None:
    program = "import signal, brew.__main__\nprint(signal.getsignal(2) is signal.default_int_handler)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n"


def test_an_interrupt_in_a_class_body_is_no_violation() -> None:
    """As in a late import: Python 3.11 makes a `RuntimeError` of what `__set_name__` raises, C code a `TypeError`."""
    program = (
        "import click, os\n"
        "from brew.cli import run\n"
        "class Field:\n"
        "    def __set_name__(self, *_): os.kill(os.getpid(), 2)\n"
        "@click.command()\n"
        "def starts():\n"
        "    try: type('Late', (), {'field': Field()})\n"
        "    except BaseException as error: raise TypeError('of C code') from None\n"
        "run(starts, 'pipeline')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "pipeline: stopped by SIGINT\n")


@pytest.mark.parametrize("output", ["click.echo('x' * 100)", "__import__('rich.console').console.Console().print('x')"])
def test_a_reader_that_is_gone_is_no_violation(output: str) -> None:
    """Click and rich exit with 1 for a closed pipe, as in `brew doctor | head -1`; 1 is our code for a violation."""
    program = (
        "import click\n"
        "from brew.cli import run\n"
        "@click.command()\n"
        "def shows():\n"
        f"    for _ in range(10_000): {output}\n"
        "run(shows, 'pipeline')\n"
    )
    assert _without_a_reader(program) == (ExitCode.DONE, "")


def test_a_run_whose_reader_is_gone_says_that_it_is_not_done() -> None:
    """`brew run | head -1` has drained nothing yet, and a script would go on as if it had."""
    program = (
        "import itertools\n"
        "import pipeline.__main__ as program\n"
        "from brew.cli import run\n"
        "program.work = lambda *_: [print('{}', flush=True) for _ in itertools.count()]\n"
        "run(program.cli, 'pipeline')\n"
    )
    code, output = _without_a_reader(program, "run", "--master", "none")
    assert (code, output.count("\n")) == (ExitCode.REFUSED, 1), output
    assert output.startswith("pipeline: stopped before the end, because the reader of its output is gone; run again")


_SHOWS = (
    "import click, sys\n"
    "from brew.cli import run\n"
    "@click.command()\n"
    "@click.option('--json', 'as_json', is_flag=True)\n"
    "def shows(as_json):\n"
    "    sys.stdin.read(0)\n"
    "    {output}\n"
    "run(shows, 'pipeline')\n"
)
_OUTPUTS = ("click.echo('x')", "__import__('rich.console').console.Console().print('x')", "sys.stdout.write('x\\n')")


@pytest.mark.parametrize("output", _OUTPUTS)
def test_closed_standard_streams_are_no_violation(output: str) -> None:
    """A shell's `<&- >&-`, or a service manager, may start a command without them: `sys.stdout` is None then."""
    shell = 'exec "$@" <&- >&-'
    done = subprocess.run(
        ["sh", "-c", shell, "sh", sys.executable, "-c", _SHOWS.format(output=output)],
        stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")


@pytest.mark.parametrize("output", _OUTPUTS[:2])
@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_full_disk_under_the_output_is_a_refusal_and_no_violation(output: str, arguments: tuple[str, ...]) -> None:
    """A stack trace exits with 1, our code for a violation: `brew verify > /mnt/full/proof` found none."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", _SHOWS.format(output=output), *arguments],
            stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    said = json.loads(done.stderr)["error"] if arguments else done.stderr.removeprefix("pipeline: ")
    assert done.returncode == ExitCode.REFUSED, done.stderr
    assert said.startswith("the output could not be written (No space left on device)"), done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [("Refused('no')", ExitCode.REFUSED), ("UsageError('no')", ExitCode.USAGE), ("click.UsageError('no')", 64)],
)
@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_an_error_that_nobody_can_read_keeps_its_exit_code(error: str, code: int, arguments: tuple[str, ...]) -> None:
    """`brew lag --fail-older-than 5 2>&1 | head -4` ended with 1, for a violation: the error had no reader."""
    raises = f"from brew.errors import Refused, UsageError; raise {error}"
    program = _SHOWS.format(output=f"logging.getLogger('brew').info('x'); {raises}").replace(
        "click", "logging, click", 1
    )
    assert _without_a_reader(program, *arguments, errors=True)[0] == code


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_output_in_an_old_encoding_escapes_what_it_lacks(encoding: str) -> None:
    r"""In such a locale `brew top` and `brew xray` ended in a stack trace; `\u` escapes are valid in JSON, too."""
    text = '"● 🎉"'
    done = subprocess.run(
        [sys.executable, "-c", _SHOWS.format(output=f"__import__('rich.console').console.Console().print('{text}')")],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
        env=os.environ | {"PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (ExitCode.DONE, b"")
    assert done.stdout.decode(encoding).strip() == r'"\u25cf \ud83c\udf89"'
    assert json.loads(done.stdout) == json.loads(text)


def _without_a_reader(program: str, *arguments: str, errors: bool = False) -> tuple[int, str]:
    """Return the exit code and stderr of a Python program whose stdout is a pipe that nobody reads, or also stderr."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.DEVNULL, stdout=writer, stderr=writer if errors else subprocess.PIPE,
            text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(writer)
    return done.returncode, done.stderr or ""
