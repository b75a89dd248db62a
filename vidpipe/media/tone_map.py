"""HDR to SDR: PQ (SMPTE ST 2084) and HLG (ARIB STD-B67) in BT.2020 to BT.709.

1. Decode to display light in nits: PQ by ST 2084's EOTF; HLG by BT.2100's inverse OETF and OOTF at a 1,000-nit display
   (system gamma 1.2, on luminance).
2. Compress max(R, G, B) by BT.2390-10's EETF (section 5.4.1: Hermite knee in PQ space, no black lift) from
   `SOURCE_PEAK_NITS` to `SDR_PEAK_NITS`, all channels by one factor, which keeps hue and saturation.
3. BT.2020 to BT.709 primaries by matrix in linear light; clip to [0, 1].
4. Encode by the inverse of BT.1886's EOTF with zero black: V = L^(1/2.4).

SDR_PEAK_NITS is 203, BT.2408's HDR reference white, so that diffuse white becomes SDR white. Dolby Vision's base layer
(profiles 8.x) is PQ or HLG and is mapped as such; its dynamic metadata is not used.
Tables make it about 25 ns a pixel on one core.
"""

from __future__ import annotations

from typing import Any

import numpy as np

SOURCE_PEAK_NITS = 1000.0
SDR_PEAK_NITS = 203.0
STEPS = 8191
CHUNK_PIXELS = 1 << 15

M1, M2, C1, C2, C3 = 2610 / 16384, 2523 / 32, 3424 / 4096, 2413 / 128, 2392 / 128
LUMA_2020 = np.array([0.2627, 0.6780, 0.0593], np.float32)
TO_709 = np.array(
    [[1.660491, -0.587641, -0.072850], [-0.124550, 1.132900, -0.008349], [-0.018151, -0.100579, 1.118730]], np.float32
)
"""BT.2087, linear BT.2020 to BT.709."""


def pq_to_nits(signal: np.ndarray) -> np.ndarray:
    """ST 2084 EOTF: signal in [0, 1] to nits in [0, 10000]."""
    power = np.power(np.clip(signal, 0, 1), 1 / M2)
    return 10000 * np.power(np.maximum(power - C1, 0) / (C2 - C3 * power), 1 / M1)


def nits_to_pq(nits: np.ndarray) -> np.ndarray:
    """Inverse of `pq_to_nits`."""
    power = np.power(np.clip(nits, 0, 10000) / 10000, M1)
    return np.power((C1 + C2 * power) / (1 + C3 * power), M2)


def hlg_to_scene(signal: np.ndarray) -> np.ndarray:
    """BT.2100 HLG inverse OETF: signal to scene light, both in [0, 1]."""
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    signal = np.clip(signal, 0, 1)
    return np.where(signal <= 0.5, signal * signal / 3, (np.exp((signal - c) / a) + b) / 12)


def eetf(nits: np.ndarray, source_peak: float = SOURCE_PEAK_NITS, target_peak: float = SDR_PEAK_NITS) -> np.ndarray:
    """BT.2390's tone curve with zero black level: nits in, nits out, at most `target_peak`."""
    source_pq, target_pq = nits_to_pq(np.array([source_peak, target_peak]))
    e1 = np.clip(nits_to_pq(nits) / source_pq, 0, 1)
    peak = target_pq / source_pq
    knee = 1.5 * peak - 0.5
    t = np.clip((e1 - knee) / (1 - knee), 0, 1)
    spline = (2 * t**3 - 3 * t**2 + 1) * knee + (t**3 - 2 * t**2 + t) * (1 - knee) + (-2 * t**3 + 3 * t**2) * peak
    return pq_to_nits(np.where(e1 < knee, e1, spline) * source_pq)


def ootf_gain(luminance: np.ndarray) -> np.ndarray:
    """BT.2100 HLG OOTF at a 1,000-nit display: nits a unit of scene light, from scene luminance in [0, 1]."""
    return SOURCE_PEAK_NITS * np.power(np.maximum(luminance, 1e-6), 0.2)


class ToneMap:
    """Maps 16-bit HDR RGB to 8-bit SDR RGB.

    Works a few rows at a time, so that its intermediates stay in cache (4 times as fast as whole frames).

    Args:
        transfer: `smpte2084` or `arib-std-b67`.
        primaries: `bt2020` (also when unset, since HDR is) or `bt709`, which needs no matrix.
    """

    def __init__(self, transfer: str, primaries: str | None = None) -> None:
        levels = np.arange(65536) / 65535
        squares = (np.arange(STEPS + 1) / STEPS) ** 2  # tables by square root: fine where the eye is
        self._hlg = transfer == "arib-std-b67"
        self._light = (hlg_to_scene(levels) if self._hlg else pq_to_nits(levels)).astype(np.float32)
        self._ootf = ootf_gain(squares).astype(np.float32)
        nits = squares * 10000
        gain = np.divide(eetf(nits), nits, out=np.ones_like(nits), where=nits > 0) / SDR_PEAK_NITS
        gain[0] = gain[1]
        self._gain = gain.astype(np.float32)
        self._encode = np.round(255 * np.power(squares, 1 / 2.4)).astype(np.uint8)
        self._matrix = None if primaries == "bt709" else TO_709

    def to_sdr(self, rgb_HWC: np.ndarray) -> np.ndarray:
        """uint16 [H, W, 3] in HDR to uint8 [H, W, 3] in BT.709."""
        out = np.empty(rgb_HWC.shape, dtype=np.uint8)
        step = max(1, CHUNK_PIXELS // rgb_HWC.shape[1])
        for top in range(0, len(rgb_HWC), step):
            out[top : top + step] = self._rows(rgb_HWC[top : top + step])
        return out

    def _rows(self, rgb_HWC: np.ndarray) -> np.ndarray:
        import cv2

        light: Any = np.take(self._light, rgb_HWC)
        if self._hlg:
            light *= _spread(_looked_up(self._ootf, cv2.transform(light, LUMA_2020[None]), 1))
        red, green, blue = cv2.split(light)
        light *= _spread(_looked_up(self._gain, cv2.max(cv2.max(red, green), blue), 10000))
        if self._matrix is not None:
            light = cv2.transform(light, self._matrix)
        return _looked_up(self._encode, light, 1)


def _looked_up(table: np.ndarray, values: np.ndarray, full: float) -> np.ndarray:
    """Entries of a table over [0, full] by square root, for values clipped to it."""
    index = np.clip(values, 0, full) * np.float32(STEPS * STEPS / full)
    np.sqrt(index, out=index)
    index += np.float32(0.5)
    return np.take(table, index.astype(np.uint16))


def _spread(gain_HW: np.ndarray) -> np.ndarray:
    import cv2

    return cv2.merge([gain_HW] * 3)


def to_sdr_torch(rgb_TCHW: Any, transfer: str, primaries: str | None = None) -> Any:
    """The same map by formula, for frames on a GPU: float [T, 3, H, W] in [0, 1] to uint8, within 2 code values."""
    import torch

    if transfer == "arib-std-b67":
        a, b, c = 0.17883277, 0.28466892, 0.55991073
        scene = torch.where(rgb_TCHW <= 0.5, rgb_TCHW**2 / 3, (torch.exp((rgb_TCHW - c) / a) + b) / 12)
        luma = torch.tensor(LUMA_2020, device=scene.device).view(1, 3, 1, 1)
        luminance = (scene * luma).sum(dim=1, keepdim=True)
        nits = scene * SOURCE_PEAK_NITS * luminance.clamp_min(1e-6) ** 0.2
    else:
        power = rgb_TCHW.clamp(0, 1) ** (1 / M2)
        nits = 10000 * ((power - C1).clamp_min(0) / (C2 - C3 * power)) ** (1 / M1)
    grid = (torch.arange(STEPS + 1, dtype=torch.float64) / STEPS) ** 2 * 10000
    gain = torch.from_numpy(eetf(grid.numpy())) / grid.clamp_min(1e-12) / SDR_PEAK_NITS
    gain[0] = gain[1]
    brightest = nits.amax(dim=1, keepdim=True).clamp(0, 10000)
    index = ((brightest / 10000).sqrt() * STEPS).round().long()
    light = nits * gain.to(nits.device, nits.dtype)[index]
    if primaries != "bt709":
        light = torch.einsum("ij,tjhw->tihw", torch.tensor(TO_709, device=light.device, dtype=light.dtype), light)
    return (light.clamp(0, 1) ** (1 / 2.4) * 255).round().to(torch.uint8)
