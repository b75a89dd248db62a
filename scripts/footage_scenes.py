"""What moves in the synthetic footage: scenes whose every frame is a function of time.

Shapes: H height, W width, in pixels; frames are uint8 RGB [H, W, 3]. All randomness comes from the generator that is
passed in, so that the same seed gives the same pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

COLOURS = {
    "red": (214, 58, 48), "orange": (240, 140, 36), "yellow": (244, 212, 66), "green": (66, 160, 72),
    "teal": (40, 150, 150), "blue": (48, 98, 206), "purple": (128, 70, 180), "pink": (236, 128, 170),
    "white": (240, 240, 236), "grey": (120, 124, 130), "brown": (130, 86, 54), "black": (18, 20, 26),
}  # fmt: skip
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


@dataclass(frozen=True)
class Scene:
    """A caption, and what the picture is `t` seconds after the scene starts."""

    caption: str
    render: Callable[[float], np.ndarray]


def pick(rng: np.random.Generator, names: list[str] | tuple[str, ...]) -> str:
    """One of `names`."""
    return names[int(rng.integers(len(names)))]


def article(noun: str) -> str:
    """`noun` with a or an before it."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def two_colours(rng: np.random.Generator) -> tuple[str, str]:
    """Two different colour names."""
    first, second = rng.choice(len(COLOURS), 2, replace=False)
    return list(COLOURS)[first], list(COLOURS)[second]


def mix(share_HW: np.ndarray, first: str, second: str) -> np.ndarray:
    """Blend two colours: 0 is `first`, 1 is `second`; float32 [H, W, 3] in [0, 255]."""
    a, b = (np.array(COLOURS[name], np.float32) for name in (first, second))
    return a + share_HW[..., None].astype(np.float32) * (b - a)


# Textures: float32 [H, W, 3], larger than the frame, for a camera to move over.


def clouds(rng: np.random.Generator, height: int, width: int, first: str, second: str, roughness: float = 1.9):
    """Noise whose amplitude falls with frequency to the power of `roughness`, as in natural pictures."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None] * height, np.fft.rfftfreq(width)[None] * width)
    frequency[0, 0] = np.inf
    phases = np.exp(2j * math.pi * rng.random(frequency.shape)) * frequency**-roughness
    noise = np.fft.irfft2(phases, (height, width))
    low, high = np.percentile(noise, [2, 98])
    return mix(np.clip((noise - low) / (high - low), 0, 1), first, second)


def blocks(rng: np.random.Generator, height: int, width: int, first: str, second: str):
    """A wall of shaded rectangles, like a town from above."""
    picture = clouds(rng, height, width, first, "black", 2.2)
    for _ in range(90):
        x, y, w, h = (int(v) for v in rng.integers([0, 0, 12, 12], [width, height, 64, 64]))
        shade = float(rng.uniform(0.5, 1.15))
        colour = tuple(float(min(255, c * shade)) for c in COLOURS[second if rng.random() < 0.6 else first])
        cv2.rectangle(picture, (x, y), (x + w, y + h), colour, -1)
    return picture


def pebbles(rng: np.random.Generator, height: int, width: int, first: str, second: str):
    """Round stones of two colours, lit from above."""
    picture = clouds(rng, height, width, "black", "grey", 2.2)
    for _ in range(220):
        centre = tuple(int(v) for v in rng.integers([0, 0], [width, height]))
        radius, base = int(rng.integers(6, 24)), COLOURS[first if rng.random() < 0.5 else second]
        for step in range(4):
            shade = 0.55 + 0.17 * step
            middle = (centre[0] - step * radius // 10, centre[1] - step * radius // 8)
            colour = tuple(float(min(255, c * shade)) for c in base)
            cv2.circle(picture, middle, radius - step * radius // 5, colour, -1, cv2.LINE_AA)
    return picture


def tiles(rng: np.random.Generator, height: int, width: int, first: str, second: str):
    """A chessboard with soft light across it."""
    side = int(rng.integers(20, 44))
    y, x = np.mgrid[:height, :width]
    board = mix(((x // side + y // side) % 2).astype(np.float32), first, second)
    return board * (0.7 + 0.3 * np.sin(x / width * 5 + y / height * 3))[..., None].astype(np.float32)


def stripes(rng: np.random.Generator, height: int, width: int, first: str, second: str):
    """Soft stripes at an angle."""
    y, x = np.mgrid[:height, :width]
    angle, period = rng.uniform(0, math.pi), rng.uniform(24, 60)
    wave = np.sin((x * math.cos(angle) + y * math.sin(angle)) * 2 * math.pi / period)
    return mix(1 / (1 + np.exp(-4 * wave)), first, second)


TEXTURES = {"clouds": clouds, "blocks": blocks, "pebbles": pebbles, "tiles": tiles, "stripes": stripes}
CAMERA_MOVES = ("pans left", "pans right", "pans up", "pans down", "zooms in", "zooms out", "turns")


def camera(rng: np.random.Generator, size_hw: tuple[int, int], texture: str = "", move: str = "") -> Scene:
    """A camera that moves over a still picture."""
    height, width = size_hw
    texture, move = texture or pick(rng, list(TEXTURES)), move or pick(rng, CAMERA_MOVES)
    first, second = two_colours(rng)
    picture = TEXTURES[texture](rng, 3 * height, 3 * width, first, second).clip(0, 255).astype(np.uint8)
    speed = float(rng.uniform(0.08, 0.3))  # frame widths a second, e-folds of zoom, or radians
    dx, dy = DIRECTIONS.get(move.split()[-1], (0, 0)) if move.startswith("pans") else (0, 0)

    def render(t: float) -> np.ndarray:
        zoom = math.exp(speed * t * {"zooms in": -1, "zooms out": 1}.get(move, 0))
        angle = speed * t if move == "turns" else 0.0
        c, s = zoom * math.cos(angle), zoom * math.sin(angle)
        centre_x, centre_y = (1.5 + dx * speed * t) * width, (1.5 + dy * speed * t) * height
        matrix = np.float32(
            [
                [c, -s, centre_x - c * width / 2 + s * height / 2],
                [s, c, centre_y - s * width / 2 - c * height / 2],
            ]
        )
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        return cv2.warpAffine(picture, matrix, (width, height), flags=flags, borderMode=cv2.BORDER_REFLECT_101)

    return Scene(f"the camera {move} over {first} and {second} {texture}", render)


@dataclass(frozen=True)
class Body:
    """A shape that moves: positions are fractions of the frame, speeds fractions a second."""

    kind: str
    colour: str
    radius: float
    start_xy: tuple[float, float]
    speed_xy: tuple[float, float]
    spin: float

    def centre(self, t: float) -> tuple[float, float]:
        """Position after `t` seconds, bouncing off the frame's edges."""
        bounced = []
        for start, speed in zip(self.start_xy, self.speed_xy):
            place = (start + speed * t) % 2
            bounced.append(2 - place if place > 1 else place)
        return bounced[0], bounced[1]

    def distance(self, dx: np.ndarray, dy: np.ndarray, t: float, radius: float) -> np.ndarray:
        """Pixels from the outline at an offset from the centre; negative inside."""
        c, s = math.cos(self.spin * t), math.sin(self.spin * t)
        u, v = c * dx + s * dy, c * dy - s * dx
        if self.kind == "ball":
            return np.hypot(dx, dy) - radius
        if self.kind == "ring":
            return np.abs(np.hypot(dx, dy) - radius * 0.75) - radius * 0.25
        if self.kind == "square":
            return np.maximum(np.abs(u), np.abs(v)) - radius * 0.85
        return np.maximum(np.abs(u) * 0.866 + v * 0.5, -v) - radius * 0.5

    def paint(self, canvas_HWC: np.ndarray, t: float) -> None:
        """Draw over `canvas_HWC` (float32), anti-aliased and shaded; touches only the shape's surroundings."""
        height, width = canvas_HWC.shape[:2]
        radius = self.radius * min(height, width)
        x, y = self.centre(t)[0] * width, self.centre(t)[1] * height
        reach = radius * 1.3 + 2
        left, right = max(0, int(x - reach)), min(width, int(x + reach))
        top, bottom = max(0, int(y - reach)), min(height, int(y + reach))
        dx = np.arange(left, right, dtype=np.float32) - x
        dy = np.arange(top, bottom, dtype=np.float32)[:, None] - y
        light = np.clip(1.05 - 0.45 * (dx + dy) / (2 * radius), 0.45, 1.5)
        alpha = np.clip(0.5 - self.distance(dx, dy, t, radius), 0, 1)[..., None]
        colour = np.array(COLOURS[self.colour], np.float32)
        part = canvas_HWC[top:bottom, left:right]
        part += alpha * (np.minimum(light[..., None] * colour, 255) - part)


def shapes(rng: np.random.Generator, size_hw: tuple[int, int], count: int = 0) -> Scene:
    """One to three shaded shapes that move over a gradient or soft clouds."""
    height, width = size_hw
    first, second = two_colours(rng)
    if rng.random() < 0.5:
        y, x = np.mgrid[:height, :width]
        angle = rng.uniform(0, 2 * math.pi)
        ramp = 0.5 + 0.5 * (np.cos(angle) * (x / width - 0.5) + np.sin(angle) * (y / height - 0.5)) * 1.4
        ground, name = mix(ramp, first, second), f"{article(first)} and {second} gradient"
    else:
        ground, name = clouds(rng, height, width, first, second, 2.4), f"{first} and {second} clouds"
    bodies = []
    for _ in range(count or int(rng.integers(1, 4))):
        angle, speed = rng.uniform(0, 2 * math.pi), rng.uniform(0.1, 0.5)
        bodies.append(
            Body(
                kind=pick(rng, ("ball", "ring", "square", "triangle")),
                colour=pick(rng, [n for n in COLOURS if n not in (first, second)]),
                radius=float(rng.uniform(0.14, 0.34)),
                start_xy=(float(rng.uniform(0.15, 0.85)), float(rng.uniform(0.2, 0.8))),
                speed_xy=(speed * math.cos(angle), speed * math.sin(angle)),
                spin=float(rng.uniform(-1.5, 1.5)),
            )
        )

    def render(t: float) -> np.ndarray:
        canvas = ground.astype(np.float32).copy()
        for body in bodies:
            body.paint(canvas, t)
        return canvas.clip(0, 255).astype(np.uint8)

    subject = " and ".join(article(f"{b.colour} {b.kind}") for b in bodies)
    return Scene(f"{subject} {'moves' if len(bodies) == 1 else 'move'} over {name}", render)


def waves(rng: np.random.Generator, size_hw: tuple[int, int]) -> Scene:
    """Ripples from two or three points, as on water."""
    height, width = size_hw
    first, second = two_colours(rng)
    y, x = np.mgrid[:height, :width].astype(np.float32)
    points = [(rng.uniform(0, width), rng.uniform(0, height)) for _ in range(int(rng.integers(2, 4)))]
    distances = [np.hypot(x - px, y - py) for px, py in points]
    length, pace = rng.uniform(26, 52), rng.uniform(3, 7)

    def render(t: float) -> np.ndarray:
        total = sum(np.sin(d * (2 * math.pi / length) - pace * t) / (1 + d / width) for d in distances)
        return mix(np.clip(0.5 + 0.35 * total, 0, 1), first, second).astype(np.uint8)

    return Scene(f"{first} and {second} ripples run over water", render)


def title(size_hw: tuple[int, int], text: str, colour: str = "white", ground: str = "black") -> Scene:
    """Lines of text that roll up."""
    height, width = size_hw
    font = ImageFont.load_default(size=height // 6)
    lines = text.split("\n")
    roll = Image.new("RGB", (width, height * 3), COLOURS[ground])
    draw = ImageDraw.Draw(roll)
    for i, line in enumerate(lines):
        draw.text((width // 2, height + i * height // 4), line, COLOURS[colour], font, anchor="ma")
    picture = np.asarray(roll)

    def render(t: float) -> np.ndarray:
        top = min(int((0.45 + 0.12 * t) * height), 2 * height)
        return picture[top : top + height]

    return Scene(f"{colour} titles roll over {ground}: {text.splitlines()[0]}", render)


def generated(size_hw: tuple[int, int], fps: int, filter_name: str, options: str, caption: str) -> Scene:
    """A test source of FFmpeg's filter library, such as a zoom into the Mandelbrot set; rendered in order only."""
    import av.filter

    height, width = size_hw
    graph = av.filter.Graph()
    source = graph.add(filter_name, f"size={width}x{height}:rate={fps}" + (f":{options}" if options else ""))
    rgb, sink = graph.add("format", "pix_fmts=rgb24"), graph.add("buffersink")
    source.link_to(rgb)
    rgb.link_to(sink)
    graph.configure()
    return Scene(caption, lambda t: graph.vpull().to_ndarray())


def any_scene(rng: np.random.Generator, size_hw: tuple[int, int]) -> Scene:
    """A scene of a random kind; two in five are a moving camera, two in five moving shapes."""
    kind = rng.random()
    if kind < 0.42:
        return camera(rng, size_hw)
    return shapes(rng, size_hw) if kind < 0.88 else waves(rng, size_hw)
