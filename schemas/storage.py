"""Credentials and endpoint of a dataset in an object store, the same for those who write and those who read it."""

from __future__ import annotations

import os
from collections.abc import Mapping


def complete_options(root: str, options: Mapping[str, str] | None = None) -> dict[str, str]:
    """Lance storage options of `root`: those given, completed from AWS_* variables that Lance does not read itself."""
    made = {key.lower(): str(value) for key, value in (options or {}).items()}
    if not root.startswith("s3"):
        return made
    env = os.environ
    endpoint = env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or env.get("AWS_ENDPOINT")
    region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")
    if endpoint:
        made.setdefault("aws_endpoint", endpoint)
    if region:
        made.setdefault("aws_region", region)
    if made.get("aws_endpoint", "").startswith("http://"):
        made.setdefault("allow_http", "true")
    return made
