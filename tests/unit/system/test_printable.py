"""Text from outside made safe to print, without secrets, and the nearest names."""

import io

import pytest

from buildsys.system.printable import (
    mask_secrets,
    mask_text,
    nearest,
    printable,
    printable_line,
    tolerate_other_encodings,
)

MARK = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    "unsafe",
    ["\x1b", "\x00", "\r", "\x7f", "\x9b", "\u202e", "\u2066", "\u2028", "\ud800", "\uffff"],
)
def test_characters_that_control_a_terminal_are_replaced(unsafe: str) -> None:
    assert printable(f"a{unsafe}b") == f"a{MARK}b"


def test_text_of_any_language_stays() -> None:
    text = "größe\t重み\n‌می‌خواهم 👩\u200d💻 → 1\u00a0\N{MULTIPLICATION SIGN}\u00a02"
    assert printable(text) == text
    assert printable_line("a\nb") == "a b"


def test_a_stream_in_another_encoding_prints_a_question_mark() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="latin-1")
    tolerate_other_encodings(stream)
    stream.write("größe 2 → 3 \ud800")
    stream.flush()
    assert raw.getvalue().decode("latin-1") == "größe 2 ? 3 ?"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/dir", "s3://bucket/dir"),
        ("s3://bucket/dir@v1", "s3://bucket/dir@v1"),
        ("sftp://host:22/dir", "sftp://host:22/dir"),
        ("sftp://user@host/dir", "sftp://user@host/dir"),
        ("sftp://user:SECRET@host/dir", "sftp://user:***@host/dir"),
        ("sftp://user:SEC/RET@host/dir", "sftp://user:***@host/dir"),
        ("sftp://user:S:EC@RE?T#@host/dir", "sftp://user:***@host/dir"),
        ("https://SECRET@host/dir", "https://***@host/dir"),
        ("https://host/dir?token=SECRET", "https://host/dir?token=***"),
        ("abfs://box@account/d?sas_token=SECRET&x=1", "abfs://***@account/d?sas_token=***&x=***"),
        ("https://host/d?sv=1&sig=SECRET%3D=", "https://host/d?sv=***&sig=***"),
        ("https://host/d#access_token=SECRET", "https://host/d#access_token=***"),
        ("simplecache::sftp://user:SEC/RET@host/dir", "simplecache::sftp://user:***@host/dir"),
        (
            "filecache::https://u:SECRET@a/b?sig=SECRET::s3://KEY:SECRET@bucket",
            "filecache::https://u:***@bucket",
        ),
        ("sftp://user:SEC::RET@host/dir", "sftp://user:***@host/dir"),
        ("/mnt/cache@work", "/mnt/cache@work"),
    ],
)  # fmt: skip
def test_no_secret_of_a_url_is_shown(url: str, shown: str) -> None:
    assert mask_secrets(url) == shown


@pytest.mark.parametrize(
    "text",
    [
        "S3FileSystem(key='SECRET', secret='SECRET')",
        '{"aws_secret_access_key": "SECRET", "token": "SECRET"}',
        "cannot open https://u:SECRET@host/a?sig=SECRET, token=SECRET",
        "ssh password: SECRET refused",
        "[Errno 2] 'simplecache::ftp://u:SEC/RET-SECRET@host/x'",
        "Authorization: Bearer SECRET",
        "{'Authorization': 'Basic SECRET==', b'cookie': b'a=SECRET; b=SECRET'}",
        '[(b"authorization", b"Bearer SECRET"), ("token", "SECRET")]',
        'Proxy-Authorization:\n Digest username="u", response="SECRET"',
        "Set-Cookie: sid=SECRET; Path=/; sig=SECRET",
        "curl -u user:SECRET --token SECRET --api-key 'SECRET' https://SECRET@host",
        "bearer SECRET12, pwd=SECRET passcode: SECRET auth=('user', 'SECRET')",
        '{"auth": {"user": "u", "pass": ["SECRET"]}, "password": {"value": "SECRET"}}',
        '{\\"token\\": \\"SECRET\\"} <password>SECRET</password> password=\'a\\\'SECRET\'',
        "machine host login u password SECRET12, and the token is SECRET-12",
        "ghp_SECRETSECRET hf_SECRETSECRET glpat-SECRETSECRET xoxb-1-SECRETSECRET",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.SECRET",
        "-----BEGIN RSA PRIVATE KEY-----\nSECRET\nSECRET\n-----END RSA PRIVATE KEY-----",
        "s3://SECRET123456:x@bucket https%3A%2F%2Fu%3ASECRET%40host",
    ],
)
def test_no_secret_in_a_message_is_shown(text: str) -> None:
    assert "SECRET" not in mask_text(text)


def test_other_text_stays() -> None:
    for text in (
        "export.opset: 17 → 18; key figure 3 ms; see https://onnx.ai/a/b",
        "basic authentication required; the password is wrong; the token has expired",
        "no object actions/ab/0123456789abcdef of the key 3 in /srv/tokens/a1b2c3d4",
    ):
        assert mask_text(text) == text


NAMES = [
    "build:resnet50",
    "build:resnet18",
    "export:resnet50",
    "engine:resnet50:rtx-fp16",
    "build:vgg11",
]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("build:resnet5", "build:resnet50"),
        ("exprt:resnet50", "export:resnet50"),
        ("resnet18", "build:resnet18"),
        ("rtx", "engine:resnet50:rtx-fp16"),
    ],
)
def test_the_nearest_name_comes_first(name: str, first: str) -> None:
    assert nearest(name, NAMES)[0] == first


def test_nothing_is_offered_for_something_else() -> None:
    assert nearest("quantum", NAMES) == []
    assert nearest("", NAMES) == []


def test_names_that_differ_only_in_case_are_offered() -> None:
    assert nearest("CUDA", ["cpu", "cuda"], count=1) == ["cuda"]
