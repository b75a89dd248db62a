"""A small S3 server over a folder, with latency: objects whole or by range, listings, puts. No signatures are checked.

    python tests/bench/s3_server.py FOLDER [--port 0] [--median 0.05] [--p99 0.5]

Each request waits for a time drawn from a log-normal distribution of that median and 99th percentile before its first
byte. The folder's first level are buckets. It reads just the range that is asked for, unlike moto, which copies the
whole object for each and gives 6 MB/s. Puts exist so that tables can be tagged; there is no multipart upload.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

Z99 = 2.3263


class Server(ThreadingHTTPServer):
    """Serves until `shutdown`; counts requests by method."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, port: int = 0, median: float = 0.0, p99: float = 0.0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.folder, self.median = folder, median
        self.sigma = math.log(p99 / median) / Z99 if median and p99 > median else 0.0
        self.requests: Counter[str] = Counter()

    @property
    def url(self) -> str:
        """Endpoint."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def wait(self) -> None:
        """Sleep for one request's latency."""
        if self.median:
            time.sleep(random.lognormvariate(math.log(self.median), self.sigma))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may hang up; anything else is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def start(self) -> Server:
        """Serve in a thread."""
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: object) -> None:
        """Silent."""

    def _begin(self) -> Path:
        self.server.requests[self.command] += 1
        self.server.wait()
        return self.server.folder / unquote(urlsplit(self.path).path).strip("/")

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        path = self._begin()
        if not path.is_file():
            return self._answer(404)
        return self._answer(200, Content_Length=str(path.stat().st_size), **_facts(path))

    def do_GET(self) -> None:
        path = self._begin()
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if "list-type" in query or path.parent == self.server.folder:
            return self._list(path, query)
        if not path.is_file():
            return self._answer(404, b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>")
        size = path.stat().st_size
        start, stop = _range(self.headers.get("Range"), size)
        with open(path, "rb") as file:
            file.seek(start)
            body = file.read(stop - start)
        if "Range" not in self.headers:
            return self._answer(200, body, **_facts(path))
        return self._answer(206, body, Content_Range=f"bytes {start}-{stop - 1}/{size}", **_facts(path))

    def do_PUT(self) -> None:
        path = self._begin()
        body = _unchunk(self.rfile, self.headers)
        if self.headers.get("If-None-Match") == "*" and path.exists():
            return self._answer(412, b"<Error><Code>PreconditionFailed</Code><Message>exists</Message></Error>")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        return self._answer(200, ETag=_etag(path))

    def _list(self, bucket: Path, query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        delimiter = query.get("delimiter", [""])[0]
        keys, folders = [], set()
        for path in sorted(p for p in bucket.rglob("*") if p.is_file()):
            key = str(path.relative_to(bucket))
            if not key.startswith(prefix):
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.split(delimiter)[0] + delimiter)
            else:
                keys.append((key, path))
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{path.stat().st_size}</Size><ETag>{_etag(path)}</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
            for key, path in keys
        )
        common = "".join(f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in sorted(folders))
        count = len(keys) + len(folders)
        body = (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>'
            f"<Name>{bucket.name}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{count}</KeyCount>"
            f"<MaxKeys>{count + 1}</MaxKeys><IsTruncated>false</IsTruncated>{contents}{common}</ListBucketResult>"
        )
        self._answer(200, body.encode(), Content_Type="application/xml")


def _facts(path: Path) -> dict[str, str]:
    return {"ETag": _etag(path), "Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "Accept_Ranges": "bytes"}


def _etag(path: Path) -> str:
    found = path.stat()
    return '"' + hashlib.md5(f"{found.st_size}-{found.st_mtime_ns}".encode()).hexdigest() + '"'


def _range(header: str | None, size: int) -> tuple[int, int]:
    """Bytes [start, stop) of `bytes=a-b`, `bytes=a-` or `bytes=-n`."""
    if not header:
        return 0, size
    first, _, last = header.removeprefix("bytes=").partition("-")
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


def _unchunk(file, headers) -> bytes:
    """A request's body, without the chunk signatures that clients may send."""
    body = file.read(int(headers.get("Content-Length", 0)))
    if "aws-chunked" not in headers.get("Content-Encoding", ""):
        return body
    parts = []
    while body:
        line, _, body = body.partition(b"\r\n")
        size = int(line.split(b";")[0], 16)
        if not size:
            break
        parts.append(body[:size])
        body = body[size + 2 :]
    return b"".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--median", type=float, default=0.05)
    parser.add_argument("--p99", type=float, default=0.5)
    args = parser.parse_args()
    server = Server(args.folder, args.port, args.median, args.p99)
    print(server.url, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
