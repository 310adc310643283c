"""Films: frames in, an mp4 file out, whole or not at all."""

import os
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np


def write_mp4(
    path: str | os.PathLike[str], frames: Iterable[np.ndarray], *, fps: int = 15, scale: int = 1
) -> Path:
    """Writes frames as H.264, which every browser plays.

    Args:
      path: the file.
      frames: each `[H, W, 3]` or `[H, W]` uint8, all of one shape.
      fps: frames per second.
      scale: pixels are repeated so many times in both directions.

    Returns:
      The path.

    Raises:
      ImportError: PyAV is not installed.
      ValueError: there is no frame.
    """
    av = _av()
    path = Path(path)
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        with av.open(str(temporary), "w", format="mp4") as container:
            stream = None
            for frame in frames:
                image = _enlarge(frame, scale)
                if stream is None:
                    stream = container.add_stream("libx264", rate=Fraction(fps))
                    stream.height, stream.width = image.shape[:2]
                    stream.pix_fmt = "yuv420p"
                    stream.options = {"crf": "20", "preset": "veryfast"}
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            if stream is None:
                raise ValueError(f"there are no frames to write to {path}")
            container.mux(stream.encode())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _enlarge(frame: np.ndarray, scale: int) -> np.ndarray:
    if frame.ndim == 2:
        frame = np.repeat(frame[..., None], 3, axis=-1)
    frame = frame.repeat(scale, axis=0).repeat(scale, axis=1)
    # The format wants even numbers.
    height, width = frame.shape[0] % 2, frame.shape[1] % 2
    return np.ascontiguousarray(np.pad(frame, ((0, height), (0, width), (0, 0)), mode="edge"))


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        raise ImportError("films need PyAV: pip install 'bqfd-jax[atari]'") from error
    return av
