"""Films: frames in, an mp4 file out, whole or not at all."""

import contextlib
import itertools
import os
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from bqfd_jax import extras
from bqfd_jax.files import replacing_path


class Mp4:
    """A film that is being made, as H.264, which every browser plays.

    Frames are encoded as they come.  The file appears when the `with` block is left, and not at all
    if it is left by an exception or without a frame.

    Args:
      path: the file.
      fps: frames per second.
      scale: pixels are repeated so many times in both directions.

    Raises:
      ImportError: PyAV is not installed.
    """

    def __init__(self, path: str | os.PathLike[str], *, fps: int = 15, scale: int = 1):
        self._av = extras.load("av", "gym", "a film")
        self._path = path
        self._fps, self._scale = fps, scale
        self._stream: Any = None

    def add(self, frame: np.ndarray) -> None:
        """Takes the next frame, `[H, W, 3]` or `[H, W]` uint8, of the same shape as the others."""
        image = _enlarge(frame, self._scale)
        if self._stream is None:
            self._stream = self._container.add_stream("libx264", rate=Fraction(self._fps))
            self._stream.height, self._stream.width = image.shape[:2]
            self._stream.pix_fmt = "yuv420p"
            self._stream.options = {"crf": "20", "preset": "veryfast"}
        encoded = self._stream.encode(self._av.VideoFrame.from_ndarray(image, format="rgb24"))
        self._container.mux(encoded)

    def __enter__(self) -> "Mp4":
        self._opening = self._opened()
        self._opening.__enter__()
        return self

    def __exit__(self, *exception: Any) -> bool | None:
        return self._opening.__exit__(*exception)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        with (
            replacing_path(self._path) as temporary,
            self._av.open(str(temporary), "w", format="mp4") as self._container,
        ):
            yield
            if self._stream is None:
                raise ValueError(f"there are no frames to write to {self._path}")
            self._container.mux(self._stream.encode())


def middle_frame(path: str | os.PathLike[str]) -> np.ndarray | None:
    """A frame `[H, W, 3]` uint8 of a film; None if it cannot be read, or PyAV is not installed."""
    try:
        av = extras.load("av", "gym", "a film")
        with av.open(os.fspath(path)) as film:
            middle = film.streams.video[0].frames // 2
            frame = next(itertools.islice(film.decode(video=0), middle, None), None)
            return None if frame is None else frame.to_ndarray(format="rgb24")
    except Exception:  # whatever a damaged film makes PyAV raise
        return None


def _enlarge(frame: np.ndarray, scale: int) -> np.ndarray:
    if frame.ndim == 2:
        frame = np.repeat(frame[..., None], 3, axis=-1)
    frame = frame.repeat(scale, axis=0).repeat(scale, axis=1)
    # The format wants even numbers.
    height, width = frame.shape[0] % 2, frame.shape[1] % 2
    return np.ascontiguousarray(np.pad(frame, ((0, height), (0, width), (0, 0)), mode="edge"))
