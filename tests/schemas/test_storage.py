"""Storage options come from what is given and from the environment."""

from __future__ import annotations

from schemas.storage import complete_options


def test_options_come_from_the_environment_once(monkeypatch):
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    assert complete_options("/data", {}) == {}
    assert complete_options("s3://b/x", {}) == {}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    made = complete_options("s3://b/x", {"AWS_ACCESS_KEY_ID": "k"})
    assert made == {
        "aws_access_key_id": "k",
        "aws_endpoint": "http://127.0.0.1:1",
        "aws_region": "eu-west-1",
        "allow_http": "true",
    }
    given = complete_options("s3://b/x", {"aws_endpoint": "https://mine"})
    assert given["aws_endpoint"] == "https://mine"
    assert "allow_http" not in given
