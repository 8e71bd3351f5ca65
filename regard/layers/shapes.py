"""Named reshapes, so that no model file holds a `view(...).transpose(...)` chain.

Shapes: B batch, T tokens, W beams, P parts or the side of a patch, D width, H heads, E = D / H width of one head; for images
C channels, Y X rows and columns of a grid, N windows of an image, M side of a window, R side of a neighbourhood, S stride.
"""

import torch.nn.functional as F
from torch import Tensor

__all__ = ["check_channels", "from_neighborhoods", "from_planes", "join_heads", "join_rows", "shift_distances", "split_heads",
           "split_rows", "stack_rows", "to_channels_last", "to_frames", "to_grid", "to_neighborhoods", "to_patches", "to_planes",
           "to_tokens", "to_windows"]  # fmt: skip


def split_heads(x: Tensor, heads: int, parts: int = 1) -> list[Tensor]:
    """Split concatenated vectors, and each into heads: (B, T, P · D) → P × (B, H, T, E)."""
    return [part.transpose(1, 2) for part in x.view(*x.shape[:2], parts, heads, -1).unbind(2)]


def join_heads(x: Tensor) -> Tensor:
    """Concatenate the heads: (B, H, T, E) → (B, T, D)."""
    return x.transpose(1, 2).flatten(-2)


def split_rows(x: Tensor, beams: int, heads: int) -> Tensor:
    """`split_heads` for one token of each beam: (B · W, D) → (B, H, W, E)."""
    width = x.shape[-1] // heads
    if beams == 1:  # a decoding step is so short that one call less counts
        return x.view(-1, heads, 1, width)
    return x.view(-1, beams, heads, width).transpose(1, 2)


def stack_rows(x: Tensor, beams: int, heads: int, parts: int) -> Tensor:
    """The same for concatenated vectors, as one tensor: (B · W, P · D) → (P, B, H, W, E)."""
    return x.view(-1, beams, parts, heads, x.shape[-1] // (parts * heads)).permute(2, 0, 3, 1, 4)


def join_rows(x: Tensor) -> Tensor:
    """`join_heads` for one token of each beam: (B, H, W, E) → (B · W, D)."""
    _, heads, beams, width = x.shape
    return (x if beams == 1 else x.transpose(1, 2)).reshape(-1, heads * width)  # one call less, as above


def shift_distances(x: Tensor) -> Tensor:
    """From one column for each distance query - key, the largest first, to one for each key: (..., T, 2T - 1) → (..., T, T).

    Row i moves i columns to the left.  Read with rows one column shorter, each row starts one column later: a view.
    """
    length = x.shape[-2]
    if length == 1:
        return x
    x = x.flatten(-2)[..., length - 1 : length - 1 + length * (2 * length - 2)]
    return x.unflatten(-1, (length, -1))[..., :length]


def to_channels_last(x: Tensor) -> Tensor:
    """A grid whose channels are last in memory, as convolutions take it: (B, Y, X, D) → (B, D, Y, X).

    torch sees the layout in the strides, also if a dimension has size 1, where `contiguous` would not set them.
    """
    return x.permute(0, 3, 1, 2)


def to_frames(x: Tensor) -> Tensor:
    """A grid of time by frequency as a sequence; a view if x is channels_last: (B, D, T, X) → (B, T, X · D)."""
    return x.permute(0, 2, 3, 1).flatten(2)


def to_patches(x: Tensor, patch: int) -> Tensor:
    """Cut an image into square patches, row by row, each a vector: (B, C, Y · P, X · P) → (B, Y · X, C · P · P)."""
    x = x.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))  # (B, C, Y, P, X, P)
    return x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def to_tokens(x: Tensor) -> Tensor:
    """A grid of vectors as a sequence: (B, D, Y, X) → (B, Y · X, D)."""
    return x.flatten(2).transpose(1, 2)


def to_grid(x: Tensor, rows: int) -> Tensor:
    """A sequence of vectors as a grid; `rows` is Y: (B, Y · X, D) → (B, D, Y, X)."""
    return x.transpose(1, 2).unflatten(2, (rows, -1))


def to_windows(x: Tensor, window: int) -> Tensor:
    """Partition a grid into windows, row by row: (B, Y, X, D) → (B · N, M · M, D)."""
    x = x.unflatten(2, (-1, window)).unflatten(1, (-1, window))  # (B, Y / M, M, X / M, M, D)
    return x.transpose(2, 3).flatten(3, 4).flatten(0, 2)


def to_neighborhoods(x: Tensor, heads: int, kernel: int, stride: int = 1) -> Tensor:
    """The neighbourhood of every S-th position, row by row, zeros outside: (B, H · E, Y · S, X · S) → (B, H, Y · X, R · R, E).

    It is R² / S² times as large as the image.
    """
    x = F.unfold(x, kernel, padding=kernel // 2, stride=stride)  # (B, H · E · R · R, Y · X)
    x = x.unflatten(1, (heads, -1, kernel**2))  # (B, H, E, R · R, Y · X)
    return x.permute(0, 1, 4, 3, 2)


def from_neighborhoods(x: Tensor, rows: int) -> Tensor:
    """One vector for each neighbourhood as a grid; `rows` is Y: (B, H, Y · X, 1, E) → (B, H · E, Y, X)."""
    return x.squeeze(3).transpose(2, 3).flatten(1, 2).unflatten(2, (rows, -1))


def to_planes(x: Tensor, stride: int) -> Tensor:
    """Every S-th row and column as its own plane, so that positions a stride apart are adjacent; channels first.

    (B, H, E, Y, X) → (S · S, E, B, H, ⌈Y / S⌉, ⌈X / S⌉), padded with zeros.
    """
    if stride > 1:
        x = F.pad(x, (0, -x.shape[4] % stride, 0, -x.shape[3] % stride))
    x = x.unflatten(4, (-1, stride)).unflatten(3, (-1, stride))  # (B, H, E, Y / S, S, X / S, S)
    return x.permute(4, 6, 2, 0, 1, 3, 5).flatten(0, 1)


def from_planes(x: Tensor, rows: int, columns: int) -> Tensor:
    """Undo `to_planes`; `rows` and `columns` are Y and X: (S · S, E, B, H, Y / S, X / S) → (B, H, E, Y, X)."""
    stride = round(len(x) ** 0.5)
    x = x.unflatten(0, (stride, stride)).permute(3, 4, 2, 5, 0, 6, 1)  # (B, H, E, Y / S, S, X / S, S)
    return x.flatten(5).flatten(3, 4)[..., :rows, :columns]


def check_channels(x: Tensor, channels: int) -> None:
    """Refuse images (B, C, Y, X) with another number of channels than the model's."""
    if x.shape[1] != channels:
        raise ValueError(f"images have {x.shape[1]} channels, the model reads {channels}; convert them, or train with "
                         f"model.channels={x.shape[1]}")  # fmt: skip
