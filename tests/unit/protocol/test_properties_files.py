"""A configuration file on disk: where values may stand, who may read them, and whether certificates still hold."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from brew.cli import connection, with_client_config
from brew.client_config import load
from brew.connection import CLIENT_CONFIG
from brew.errors import BrewError, Denied, Refused, UsageError
from sandbox.certificates import Authority
from sandbox.process import write_private

CANARY = "canary-91c2"
BASE = "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=u\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    write_private(path, f"{BASE}sasl.password={CANARY}\n".encode())
    return path


def _secret(path: Path, environ: dict[str, str] | None = None) -> str:
    return load(path, environ or {}).secrets["sasl.password"].reveal()


def test_a_password_comes_from_the_file_the_environment_or_a_file_of_its_own(file: Path) -> None:
    assert _secret(file) == CANARY
    file.write_text(f"{BASE}sasl.password=${{env:BREW_PW}}\n")
    found = load(file, {"BREW_PW": CANARY})
    assert (found.secrets["sasl.password"].reveal(), found.variables) == (CANARY, {"BREW_PW"})
    write_private(file.parent / "pw", f"{CANARY}\n".encode())
    file.write_text(f"{BASE}sasl.password=${{file:pw}}\n")
    file.chmod(0o644)  # holds no secret itself
    assert _secret(file) == CANARY


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o601])
def test_a_password_that_everybody_may_read_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(Refused, match=rf":4: sasl\.password=\*\*\* is refused: .*mode {mode:04o}.*chmod 600"):
        load(file)


def test_a_password_file_and_a_key_that_everybody_may_read_are_refused(file: Path) -> None:
    (file.parent / "pw").write_text(CANARY)
    (file.parent / "pw").chmod(0o644)
    file.write_text(f"{BASE}sasl.password=${{file:pw}}\n")
    with pytest.raises(Refused, match="chmod 600"):
        load(file)
    _certificates(file, key_mode=0o644)
    with pytest.raises(Refused, match=r"ssl\.key\.location=.*chmod 600"):
        load(file)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sasl.password=${env:NOT_THERE}", "has no NOT_THERE; set it"),
        ("sasl.password=${file:not-there}", "can't be read: No such file"),
        ("sasl.password=${env:EMPTY}", "is empty"),
        ("sasl.password=${env:LINES}", "more than one line"),
        ("client.id=${sys:user}", r"\$\{env:NAME\} or \$\{file:PATH\}"),
        ("ssl.ca.location=not-there.pem", "can't be read"),
        ("ssl.ca.location=client.properties", "no certificate in PEM form"),
    ],
)
def test_what_is_not_there_is_refused_with_its_line(file: Path, line: str, words: str) -> None:
    number = 4 if line.startswith("sasl") else 5
    file.write_text(BASE + ("" if number == 4 else "sasl.password=x\n") + line + "\n")
    with pytest.raises(UsageError, match=words) as caught:
        load(file, {"EMPTY": " ", "LINES": f"{CANARY}\nx"})
    assert f"client.properties:{number}: " in str(caught.value)
    assert CANARY not in str(caught.value)


def test_a_value_from_elsewhere_is_held_against_the_list_too(file: Path) -> None:
    file.write_text(f"{BASE}sasl.password=x\nenable.ssl.certificate.verification=${{env:VERIFY}}\n")
    with pytest.raises(UsageError, match="it has to be true"):
        load(file, {"VERIFY": "false"})


def test_no_file_a_directory_and_a_film_are_refused(tmp_path: Path) -> None:
    (tmp_path / "film").write_bytes(b"\n" * 70_000)
    (tmp_path / "latin").write_bytes(b"sasl.username=\xe4")
    for name, words in (("gone", "can't be read"), (".", "can't be read"), ("film", "65536"), ("latin", "UTF-8")):
        with pytest.raises(UsageError, match=words):
            load(tmp_path / name)


def _certificates(file: Path, *, days: float = 1, key_mode: int = 0o600) -> None:
    authority = Authority.fresh()
    authority.write(file.parent)
    key, certificate = authority.issue("me", days=days)
    write_private(file.parent / "me.key", key)
    (file.parent / "me.key").chmod(key_mode)
    write_private(file.parent / "me.pem", certificate)
    names = {"ssl.ca.location": "ca.pem", "ssl.certificate.location": "me.pem", "ssl.key.location": "me.key"}
    file.write_text("security.protocol=SSL\n" + "".join(f"{name}={path}\n" for name, path in names.items()))


def test_paths_begin_at_the_files_folder_and_an_expired_certificate_is_refused_by_date(file: Path) -> None:
    _certificates(file)
    assert load(file).properties["ssl.key.location"] == str(file.parent / "me.key")
    _certificates(file, days=-2)
    with pytest.raises(Refused, match=r"client\.properties:3: ssl\.certificate\.location: .*has expired"):
        load(file)


@click.command()
@with_client_config(click.option("--bootstrap", default="h:1"))
@click.option("--topic", default="orders")
@click.option("--fail", default="")
def _program(bootstrap: str, topic: str, fail: str) -> None:
    if fail:
        raise BrewError(fail)
    click.echo(f"{connection(bootstrap)} {connection(bootstrap).settings().get('sasl.username')} {topic}")


def test_the_option_and_the_variable_make_the_connection(file: Path) -> None:
    by_option = CliRunner().invoke(_program, ["--client-config", str(file)])
    by_variable = CliRunner().invoke(_program, [], env={CLIENT_CONFIG: str(file)})
    assert by_option.output == by_variable.output == f"{_shown(file)} u orders\n"
    assert CliRunner().invoke(_program, []).output == "Connection(bootstrap='h:1', source=None) None orders\n"


def _shown(file: Path) -> str:
    return f"Connection(bootstrap='h:1', source={str(file)!r})"


def test_a_refusal_of_the_brokers_ends_with_who_lacks_what(file: Path) -> None:
    text = "scan of orders: Broker: Topic authorization failed (TOPIC_AUTHORIZATION_FAILED)"
    told = CliRunner().invoke(_program, ["--client-config", str(file), "--fail", text])
    assert isinstance(told.exception, Denied)
    assert "User:u lacks Read on topic orders: `kafka-acls --add --allow-principal User:u" in str(told.exception)
    other = CliRunner().invoke(_program, ["--client-config", str(file), "--fail", "something else"])
    assert type(other.exception) is BrewError
