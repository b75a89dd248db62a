"""Deinterlacing by FFmpeg's bwdif: one frame out for each frame in, times kept, progressive frames untouched."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any


def deinterlaced(frames: Iterator[tuple[Any, int | None, bool]], stream: Any) -> Iterator[tuple[Any, int | None, bool]]:
    """Filter (frame, pts, damaged) triples. bwdif looks one frame back and one ahead, so output lags by one."""
    pending: deque[tuple[int | None, bool]] = deque()
    graph, shape = None, None
    for frame, pts, damaged in frames:
        if graph is None or shape != (frame.width, frame.height, frame.format.name):
            if graph is not None:
                yield from _flush(graph, pending)
            shape = (frame.width, frame.height, frame.format.name)
            graph = _graph(frame, stream)
        pending.append((pts, damaged))
        graph.vpush(frame)
        yield from _pull(graph, pending)
    if graph is not None:
        yield from _flush(graph, pending)


def _graph(frame: Any, stream: Any) -> Any:
    from av.filter import Graph

    graph = Graph()
    graph.threads = 1
    source = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format.name, time_base=stream.time_base
    )
    bwdif = graph.add("bwdif", "mode=send_frame:deint=interlaced")
    graph.link_nodes(source, bwdif, graph.add("buffersink")).configure()
    return graph


def _pull(graph: Any, pending: deque[tuple[int | None, bool]]) -> Iterator[tuple[Any, int | None, bool]]:
    import av

    while True:
        try:
            frame = graph.vpull()
        except (av.error.BlockingIOError, av.error.EOFError):
            return
        if not pending:
            return
        pts, damaged = pending.popleft()
        yield frame, pts, damaged


def _flush(graph: Any, pending: deque[tuple[int | None, bool]]) -> Iterator[tuple[Any, int | None, bool]]:
    graph.vpush(None)
    yield from _pull(graph, pending)
