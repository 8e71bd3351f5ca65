"""Numbers in JSON: base64 of little-endian arrays, which a page reads at once, and several times shorter than digits."""

import base64

import numpy as np
from torch import Tensor

from regard.web.routes import Json

__all__ = ["encode_bytes", "encode_matrix", "encode_weights"]

WEIGHT_SCALE = 65535  # attention weights are sent as 16-bit fractions: the error is below 1e-5


def encode_weights(weights: Tensor) -> str:
    """Weights from 0 to 1, of any shape, row by row: base64 of little-endian uint16, value / 65535."""
    array = weights.detach().float().cpu().nan_to_num(0.0).clamp(0.0, 1.0).numpy()
    return encode(np.rint(array.astype(np.float64) * WEIGHT_SCALE).astype("<u2"))


def encode_matrix(matrix: Tensor) -> Json:
    """A matrix of real numbers (rows, columns): its size, and base64 of little-endian float32.  A vector is one row."""
    table = matrix.detach().float().cpu()
    table = table.reshape(1, -1) if table.dim() < 2 else table
    if table.dim() != 2:
        raise AssertionError(f"a matrix has two dimensions; got shape {tuple(matrix.shape)}")
    rows, columns = table.shape
    return {"rows": rows, "columns": columns, "values": encode(table.numpy().astype("<f4"))}


def encode_bytes(levels: Tensor) -> str:
    """Whole numbers from 0 to 255, and booleans, of any shape, row by row: base64 of uint8."""
    return encode(levels.detach().cpu().numpy().astype(np.uint8))


def encode(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
