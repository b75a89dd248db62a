"""An S3 server on loopback for tests: moto, with requests carried out one after another.

moto checks `If-None-Match` and stores in two steps that two threads can interleave; real stores do it in one. So each
request's body is read first (a paused client blocks nobody), and the rest runs under a lock.

    python tests/chaos/s3_server.py      prints `endpoint URL`, serves until killed
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BUCKET = "bucket"


def _serve() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    class Quiet(MotoRequestHandler):
        def log(self, *_: Any) -> None:
            pass

    inner = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        with lock:
            return list(inner(environ, start_response))

    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    print(f"endpoint http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


@contextmanager
def s3_server() -> Iterator[Mapping[str, str]]:
    """Run a server with one empty bucket; yields the environment variables that lead to it."""
    import s3fs

    process = subprocess.Popen([sys.executable, str(Path(__file__))], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        endpoint = process.stdout.readline().split()[1]
        env = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        s3fs.S3FileSystem(key="test", secret="test", endpoint_url=endpoint, skip_instance_cache=True).mkdir(BUCKET)
        yield env
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
    _serve()
