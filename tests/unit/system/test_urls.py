from __future__ import annotations

import pytest

from buildsys.system.printable import mask_secrets, mask_text


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
        (
            "simplecache::sftp://user:SEC/RET@host/dir",
            "simplecache::sftp://user:***@host/dir",
        ),
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
    ],
)
def test_no_secret_in_a_message_is_shown(text: str) -> None:
    assert "SECRET" not in mask_text(text)


def test_other_text_stays() -> None:
    text = "export.opset: 17 → 18; key figure 3 ms; see https://onnx.ai/a/b"
    assert mask_text(text) == text
