"""A client configuration file: each line, each edge, on disk, in Java's words; and that no secret is shown."""

from __future__ import annotations

import datetime as dt
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

import brew
from brew import client_config
from brew.cli import bootstrap_option, client_config_option, connection
from brew.client_config import checked_bootstrap, load
from brew.connection import (
    ALLOWED,
    CLIENT_CONFIG,
    REFUSED,
    ConfigLine,
    Connection,
    Secret,
    check_together,
    jaas,
    java_properties,
    java_settings,
    parse,
)
from brew.errors import BrewError, Denied, Refused, UsageError
from sandbox.certificates import Authority
from sandbox.process import write_private

CANARY = "canary-7f3a"
WEAKENS = """
isolation.level enable.auto.commit enable.auto.offset.store auto.offset.reset transactional.id transaction.timeout.ms
acks enable.idempotence message.timeout.ms max.in.flight.requests.per.connection check.crcs partitioner group.id
allow.auto.create.topics plugin.library.paths ssl.engine.location ssl.providers debug sasl.jaas.config
sasl.kerberos.kinit.cmd
"""


def refusal(text: str) -> str:
    """The text of the error that settings are refused with, alone or together."""
    with pytest.raises(UsageError) as caught:
        check_together(parse(text, "f"), "f")
    return str(caught.value)


@pytest.mark.parametrize("name", WEAKENS.split())
def test_what_the_promise_rests_on_is_refused_by_name_with_its_line_and_without_its_value(name: str) -> None:
    text, begin = refusal(f"# one\nsecurity.protocol=SSL\n{name}={CANARY}\n"), f"f:3: {name}=*** is refused: "
    assert text.startswith(begin)
    assert CANARY not in text
    assert len(text) > len(begin) + 10, "it says why, or what to do"
    assert not ALLOWED.keys() & REFUSED.keys()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{CANARY}", "write name=value"),
        (f"queue.buffering.max.ms={CANARY}", "not on the list"),
        ("sasl.password=a\x00b", "control character"),
        ("security.protocol=SASL_PLAINTEXT", "in clear text"),
        ("ssl.endpoint.identification.algorithm=none", "it has to be https"),
        ("sasl.mechanism=DIGEST", "one of SCRAM-SHA-512, SCRAM-SHA-256, PLAIN, OAUTHBEARER, GSSAPI"),
        ("sasl.oauthbearer.config=x", "not on the list"),
    ],
)
def test_every_other_line_is_refused_with_what_to_do(line: str, words: str) -> None:
    text = refusal(line)
    assert words in text
    assert CANARY not in text


@given(st.text(max_size=300))
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    try:
        settings = parse(text, "f")
    except UsageError as error:
        assert "f:" in str(error)  # noqa: PT017 - either way is right
        return
    assert settings.keys() <= ALLOWED.keys()


def test_a_secret_prints_as_stars_wherever_it_goes_and_is_there_for_the_client() -> None:
    secret = Secret(CANARY)
    connection = Connection("h:1", {"client.id": "me"}, {"sasl.password": secret}, "/f")
    shown = [repr(secret), str(secret), f"{secret:>9}", "%s" % secret, repr(connection), str({"a": secret})]  # noqa: UP031
    assert not [text for text in shown if CANARY in text]
    again = pickle.loads(pickle.dumps(connection))
    assert again == connection
    assert again.settings() == {"client.id": "me", "sasl.password": CANARY}
    assert f"{secret:>5}" == "  ***"


LISTED = ", ".join(ALLOWED)
VERIFICATION = "enable.ssl.certificate.verification"
LIST = f"=*** is not on the list of settings that are let through: {LISTED}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("client.id", "f:1: this is not a setting; write name=value, and begin a comment with #"),
        ("\n\n=x", "f:3: this is not a setting; write name=value, and begin a comment with #"),
        ("a" * 60 + "=1", f"f:1: {'a' * 60}{LIST}"),
        ("a" * 61 + "=1", f"f:1: '{'a' * 60}'...{LIST}"),
        ("a\x07b=1", rf"f:1: 'a\x07b'...{LIST}"),
        ("X=1", f"f:1: X{LIST}"),
        ("sasl.oauthbearer=1", f"f:1: sasl.oauthbearer{LIST}"),
        ("client.id=\nacks=1", "f:1: client.id has no value; write one, or leave the line out"),
        ("client.id=a\x07", "f:1: client.id=*** holds a control character; take it out"),
        ("client.id=a\n#\nclient.id=b", "f:3: client.id stands in line 1, too; leave one of them"),
        ("broker.address.family=v5", "f:1: broker.address.family=*** is refused: it has to be one of any, v4, v6"),
        (
            f"{VERIFICATION}=no",
            f"f:1: {VERIFICATION}=*** is refused: it has to be true; anybody could pose as a broker",
        ),
    ],
)
def test_a_line_that_is_refused_is_told_in_one_whole_sentence(text: str, expected: str) -> None:
    assert refusal(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("client.id=a=b", {"client.id": ConfigLine(1, "a=b")}),
        ("\t client.id\t=\ta b \r\n", {"client.id": ConfigLine(1, "a b")}),
        ("!client.id=a\n  # x\nclient.id=#a", {"client.id": ConfigLine(3, "#a")}),
        ("\n  security.protocol = sasl_ssl\r\n", {"security.protocol": ConfigLine(2, "SASL_SSL")}),
        ("sasl.password=a=b#c \\ d\n! end\n", {"sasl.password": ConfigLine(1, "a=b#c \\ d")}),
        ("broker.address.family=V6", {"broker.address.family": ConfigLine(1, "v6")}),
        ("broker.address.family=${env:FAMILY}", {"broker.address.family": ConfigLine(1, "${env:FAMILY}")}),
        ("", {}),
    ],
)
def test_what_is_let_through_is_given_as_the_client_wants_it(text: str, expected: dict[str, ConfigLine]) -> None:
    """With its line; a reference to a secret is looked up later, so its value is not compared with the list."""
    assert parse(text, "f") == expected


PLAIN = "sasl.username=u\nsasl.password=p\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "client.id=a",
        "security.protocol=PLAINTEXT",
        "security.protocol=SSL\nssl.ca.location=a",
        "security.protocol=SSL\nssl.certificate.location=a\nssl.key.location=b",
        f"security.protocol=SASL_SSL\n{PLAIN}sasl.mechanism=PLAIN\nssl.ca.location=x",
        f"security.protocol=SASL_SSL\n{PLAIN}sasl.mechanisms=PLAIN\nssl.ca.location=x",
    ],
)
def test_settings_that_go_together_are_accepted(text: str) -> None:
    settings = parse(text, "f")
    check_together(settings, "f")
    assert settings == parse(text, "f"), "they are checked, not changed"


SSL, SASL, NO_EFFECT = "security.protocol=SSL", "security.protocol=SASL_SSL", "has no effect with security.protocol"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SASL, f"f: {SASL} needs sasl.username, sasl.password, sasl.mechanism, too"),
        (f"{SASL}\nsasl.username=a", f"f: {SASL} needs sasl.password, sasl.mechanism, too"),
        (f"{SASL}\n{PLAIN}", f"f: {SASL} needs sasl.mechanism, too"),
        (f"client.id=a\n{PLAIN}", f"f:3: sasl.password {NO_EFFECT}=PLAINTEXT; set SASL_SSL"),
        (f"{SSL}\nsasl.username=u", f"f:2: sasl.username {NO_EFFECT}=SSL; set SASL_SSL"),
        (
            "client.id=a\nssl.key.location=k\nssl.ca.location=c",
            f"f:3: ssl.ca.location {NO_EFFECT}=PLAINTEXT; set SSL or SASL_SSL",
        ),
        (f"{SSL}\nssl.certificate.location=c", "f:2: ssl.certificate.location needs ssl.key.location, too"),
        (f"{SSL}\nssl.key.location=k", "f:2: ssl.key.location needs ssl.certificate.location, too"),
    ],
)
def test_settings_that_do_not_go_together_are_told_in_one_whole_sentence(text: str, expected: str) -> None:
    assert refusal(text) == expected


BASE = "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=u\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    write_private(path, f"{BASE}sasl.password={CANARY}\n".encode())
    return path


def _secret(path: Path, environ: dict[str, str] | None = None) -> str:
    return load(path, environ or {}).secrets["sasl.password"].reveal()


def test_a_password_comes_from_the_environment_or_a_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is this process's own where no other is given; a line feed at a file's end is not part of it."""
    assert _secret(file) == CANARY
    file.write_text(f"{BASE}sasl.password=${{env:BREW_PW}}\n")
    monkeypatch.setenv("BREW_PW", "own")
    for environ, password in (({"BREW_PW": CANARY}, CANARY), (None, "own")):
        connection = load(file, environ)
        assert (connection.secrets["sasl.password"].reveal(), connection.variables) == (password, {"BREW_PW"})
    file.write_text(f"{BASE}sasl.password=${{file:pw}}\n")
    file.chmod(0o644)  # holds no secret itself
    for end in ("", "\n", "\r\n"):
        write_private(file.parent / "pw", f"{CANARY}{end}".encode())
        assert _secret(file) == CANARY


@pytest.mark.parametrize(
    ("password", "holder", "mode"),
    [
        *((CANARY, "client.properties", mode) for mode in (0o644, 0o604, 0o602, 0o601)),
        ("${sys:x}", "client.properties", 0o604),  # it only looks like a reference: it stands in the file
        ("${file:pw}", "pw", 0o644),
    ],
)
def test_a_password_that_everybody_may_read_is_refused(file: Path, password: str, holder: str, mode: int) -> None:
    write_private(file, f"{BASE}sasl.password={password}\n".encode())
    write_private(file.parent / "pw", CANARY.encode())
    assert _secret(file) == (CANARY if holder == "pw" else password)
    (file.parent / holder).chmod(mode)
    with pytest.raises(Refused, match=rf":4: sasl\.password=\*\*\* is refused: .*mode {mode:04o}.*chmod 600"):
        load(file)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sasl.password=${env:NOT_THERE}", "has no NOT_THERE; set it"),
        ("sasl.password=${file:not-there}", "can't be read: No such file"),
        ("sasl.password=${env:EMPTY}", "is empty"),
        ("sasl.password=${env:LINES}", r": sasl\.password: \$\{env:LINES\} holds more than one line$"),
        ("sasl.password=${env:ZERO}", r": sasl\.password: \$\{env:ZERO\} holds more than one line$"),
        ("client.id=${sys:user}", r"\$\{env:NAME\} or \$\{file:PATH\}"),
        ("ssl.ca.location=not-there.pem", r"can't be read: No such file .*; ssl\.ca\.location names a file"),
        ("ssl.ca.location=client.properties", "no certificate in PEM form"),
        ("acks=1", r"acks=\*\*\* is refused"),
    ],
)
def test_what_is_not_there_or_not_let_through_is_refused_with_its_line(file: Path, line: str, words: str) -> None:
    number = 4 if line.startswith("sasl") else 5
    file.write_text(BASE + ("" if number == 4 else "sasl.password=x\n") + line + "\n")
    with pytest.raises(UsageError, match=words) as caught:
        load(file, {"EMPTY": " ", "LINES": f"{CANARY}\nx", "ZERO": "a\0b"})
    assert f"client.properties:{number}: " in str(caught.value)
    assert CANARY not in str(caught.value)


def test_the_file_is_named_by_what_is_refused_of_it_as_a_whole_or_by_a_value_from_elsewhere(file: Path) -> None:
    file.write_text("client.id=a\nsasl.username=u\n")
    with pytest.raises(UsageError, match=rf"^{file}:2: sasl\.username has no effect"):
        load(file)
    file.write_text(f"{BASE}sasl.password=x\n{VERIFICATION}=${{env:VERIFY}}\n")
    with pytest.raises(UsageError, match=r"client\.properties:5: enable\.ssl.* it has to be true"):
        load(file, {"VERIFY": "false"})


def test_a_file_that_is_none_or_no_text_or_larger_than_its_limit_is_refused(tmp_path: Path) -> None:
    """64 KiB, and not one byte more; the text says what the file was for."""
    full = tmp_path / "full"
    full.write_bytes(b"client.id=a\n#" + b"x" * (65_536 - 13))
    assert load(full).properties == {"client.id": "a"}
    full.write_bytes(full.read_bytes() + b"x")
    (tmp_path / "latin").write_bytes(b"sasl.username=\xe4")
    unreadable = "can't be read.*; --client-config names a file that this user may read$"
    too_large = f"^{full}: more than 65536 bytes; --client-config takes a file of settings$"
    for name, words in (("gone", unreadable), (".", unreadable), ("full", too_large), ("latin", "UTF-8")):
        with pytest.raises(UsageError, match=words):
            load(tmp_path / name)


def test_what_holds_no_secret_may_come_from_elsewhere_too(file: Path) -> None:
    """Only variables that held a secret are hidden from child processes; a value gets the list's own letters."""
    file.write_text("security.protocol=${env:P}\nclient.id=${file:id}\nsasl.username=u\nsasl.password=${env:PW}\n")
    with file.open("a") as more:
        more.write("sasl.mechanism=plain\n")
    (file.parent / "id").write_bytes(b"a b\r\n")
    connection = load(file, {"P": "sasl_ssl", "PW": "pw"})
    plain = {"security.protocol": "SASL_SSL", "client.id": "a b", "sasl.username": "u", "sasl.mechanism": "PLAIN"}
    assert (connection.properties, connection.variables, connection.source) == (plain, {"PW"}, str(file))
    file.write_text("client.id=${file:gone}\n")
    with pytest.raises(UsageError) as caught:
        load(file)
    assert str(caught.value) == (
        f"{file}:1: client.id: {file.parent / 'gone'} can't be read: No such file or directory; "
        "client.id names a file that this user may read"
    )


def test_a_path_from_the_working_directory_is_kept_absolute(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths begin at the file's folder; programs that are started with it may stand elsewhere."""
    _certificates(file)
    monkeypatch.chdir(file.parent)
    connection = load(Path(file.name))
    paths = [connection.properties[f"ssl.{name}.location"] for name in ("ca", "key")]
    assert [connection.source, *paths] == [str(file), *(str(file.parent / name) for name in ("ca.pem", "me.key"))]


def test_a_certificate_holds_from_its_first_to_its_last_second(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _certificates(file)
    own = x509.load_pem_x509_certificate((file.parent / "me.pem").read_bytes())
    begins, ends, second = own.not_valid_before_utc, own.not_valid_after_utc, dt.timedelta(seconds=1)
    where = f"{file}:3: ssl.certificate.location: certificate {file.parent / 'me.pem'}"
    edges = (begins - second, "is not valid yet"), (begins, None), (ends, None), (ends + second, "has expired")
    for now, kind in edges:
        clock = SimpleNamespace(now=lambda zone, now=now: now.astimezone(zone))
        monkeypatch.setattr(client_config, "dt", SimpleNamespace(datetime=clock, UTC=dt.UTC))
        if kind is None:
            assert load(file).properties["ssl.certificate.location"] == str(file.parent / "me.pem")
            continue
        with pytest.raises(Refused) as caught:
            load(file)
        assert str(caught.value).startswith(f"{where} {kind}: it is valid from {begins:%Y-%m-%d %H:%M} to ")


def test_a_certificate_that_is_none_is_refused_and_an_authority_of_any_age_is_not(file: Path) -> None:
    """Its own broken text is noticed here, the authority's by the client library. So is a key that is not private."""
    _certificates(file)
    broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    (file.parent / "ca.pem").write_text(broken)
    load(file)
    (file.parent / "me.pem").write_text(broken)
    with pytest.raises(UsageError, match=r":3: ssl\.certificate\.location: .*me\.pem is no certificate: "):
        load(file)
    _certificates(file)
    (file.parent / "me.key").chmod(0o644)
    with pytest.raises(Refused, match=r"ssl\.key\.location=.*chmod 600"):
        load(file)


def _certificates(file: Path) -> None:
    authority = Authority.fresh()
    authority.write(file.parent)
    key, certificate = authority.issue("me", days=1)
    write_private(file.parent / "me.key", key)
    write_private(file.parent / "me.pem", certificate)
    names = {"ssl.ca.location": "ca.pem", "ssl.certificate.location": "me.pem", "ssl.key.location": "me.key"}
    file.write_text("security.protocol=SSL\n" + "".join(f"{name}={path}\n" for name, path in names.items()))


@click.command()
@click.option("--bootstrap", default="h:1")
@client_config_option
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


@pytest.mark.parametrize(
    "servers", ["kafka", "kafka:", ":9092", "[]:1", "a:1,b", "b,a:1", "a:1,", "", "a:0", "a:65536", "a:9x"]
)
def test_a_server_without_a_name_or_a_port_is_refused_by_every_way_in(servers: str) -> None:
    expected = rf"{re.escape(repr(servers))}.* is not HOST:PORT with a port of 1 to 65535; write, for example"
    for entry_point in (
        checked_bootstrap,
        lambda bootstrap: click.command()(bootstrap_option(lambda **_: None)).main(["--bootstrap", bootstrap]),
        lambda bootstrap: brew.ExactlyOnceSink(bootstrap, name="n", topic="t"),
        lambda bootstrap: brew.Pipeline(input="a", output="b", transform="enrich", bootstrap=bootstrap),
    ):
        with pytest.raises(UsageError, match=expected):
            entry_point(servers)


def test_every_form_of_a_server_is_kept() -> None:
    for servers in ("kafka:9092", "X:9092", "a:1, b:65535", "[::1]:9092", "PLAINTEXT://10.0.0.1:9092"):
        assert checked_bootstrap(servers) == servers


def test_a_refusal_of_the_brokers_ends_with_who_lacks_what(file: Path) -> None:
    text = "scan of orders: Broker: Topic authorization failed (TOPIC_AUTHORIZATION_FAILED)"
    result = CliRunner().invoke(_program, ["--client-config", str(file), "--fail", text])
    assert isinstance(result.exception, Denied)
    assert "User:u lacks Read on topic orders: `kafka-acls --add --allow-principal User:u" in str(result.exception)
    other = CliRunner().invoke(_program, ["--client-config", str(file), "--fail", "something else"])
    assert type(other.exception) is BrewError


PRINTABLE = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=40)


def _tokens(text: str) -> list[str]:
    """As Java's StreamTokenizer takes them: words, and texts in quotes with backslash escapes."""
    tokens = re.findall(r'"((?:[^"\\]|\\.)*)"|([^\s"]+)', text)
    return [word or re.sub(r"\\(.)", r"\1", quoted) for quoted, word in tokens]


@given(PRINTABLE, PRINTABLE)
def test_user_and_password_come_out_of_the_login_as_they_went_in(user: str, password: str) -> None:
    module, required, *rest = _tokens(jaas("SCRAM-SHA-512", user, password).removesuffix(";"))
    assert (module, required) == ("org.apache.kafka.common.security.scram.ScramLoginModule", "required")
    assert rest == ["username=", user, "password=", password]


def test_a_quote_does_not_end_a_password() -> None:
    assert jaas("PLAIN", "u", 'a" evil="b\\').endswith(' username="u" password="a\\" evil=\\"b\\\\";')


def _loaded(text: str) -> dict[str, str]:
    """As Java's `Properties.load` reads a line."""
    settings = {}
    for line in text.splitlines():
        name, value = re.match(r"((?:[^=\\]|\\.)*)=(.*)", line).groups()  # type: ignore[union-attr]
        plain = [re.sub(r"\\u([0-9a-f]{4})|\\(.)", _plain, one) for one in (name, value)]
        name, value = (one.encode("utf-16", "surrogatepass").decode("utf-16") for one in plain)
        settings[name] = value
    return settings


def _plain(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}.get(match[2], match[2])


@given(st.dictionaries(PRINTABLE, PRINTABLE, max_size=4))
def test_javas_file_holds_what_was_put_in(settings: dict[str, str]) -> None:
    text = java_properties(settings)
    assert text.isascii()
    assert _loaded(text) == settings


def test_certificates_go_as_pem_and_a_key_that_java_can_not_read_is_refused(tmp_path: Path) -> None:
    _certificates(tmp_path / "client.properties")
    key, certificate = ((tmp_path / name).read_text() for name in ("me.key", "me.pem"))
    properties = load(tmp_path / "client.properties").properties
    settings = java_settings(Connection("h:1", properties, {"ssl.key.password": Secret("p")}))
    assert settings == {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": certificate,
        "ssl.keystore.key": key,
        "ssl.key.password": "p",
    }
    (tmp_path / "me.key").write_text(key.replace("BEGIN PRIVATE", "BEGIN EC PRIVATE"))
    with pytest.raises(Refused, match="openssl pkcs8 -topk8"):
        java_settings(Connection("h:1", properties))
    assert java_settings(Connection("h:1")) == {}, "a plain connection says nothing to Java"


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_a_login_by_password_goes_to_java_as_an_entry(name: str) -> None:
    """Under either name of the mechanism; the client's own name goes along, what Java does not know stays."""
    expected = {"security.protocol": "SASL_SSL", name: "SCRAM-SHA-256", "sasl.username": "u", "client.id": "me"}
    properties = {**expected, "socket.keepalive.enable": "true"}
    settings = java_settings(Connection("h:1", properties, {"sasl.password": Secret("p")}))
    assert settings == {
        "client.id": "me",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": jaas("SCRAM-SHA-256", "u", "p"),
    }


def test_files_that_went_away_are_refused_by_name_and_encrypted_keys_are_taken(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    certificate.write_text("c")
    key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----")
    connection = Connection("h:1", {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)})
    settings = java_settings(connection)
    assert (settings["ssl.keystore.key"], settings["ssl.keystore.certificate.chain"]) == (key.read_text(), "c")
    assert "ssl.key.password" not in settings
    for file in (key, certificate):
        file.unlink()
        with pytest.raises(Refused, match=rf"^{file} can't be read any more: No such file"):
            java_settings(connection)


@pytest.mark.parametrize(
    ("properties", "user"),
    [
        ({}, "User:ANONYMOUS"),
        ({"sasl.username": "u", "ssl.certificate.location": "me.pem"}, "User:u"),
        ({"ssl.certificate.location": "me.pem"}, "the owner of me.pem"),
    ],
)
def test_a_connections_user_is_the_one_that_acls_name(properties: dict[str, str], user: str) -> None:
    assert Connection("h:1", properties).user == user


@pytest.mark.parametrize(
    ("text", "escaped"),
    [(" a b", "\\ a b"), ("\t\f", "\\t\\f"), ("X=:#!", "X=:#!"), ("~\x7fä🜁", "~\\u007f\\u00e4\\ud83d\\udf01")],
)
def test_values_of_javas_file_are_escaped_where_they_have_to_be(text: str, escaped: str) -> None:
    assert java_properties({"a b": text}) == f"a\\ b={escaped}\n"
