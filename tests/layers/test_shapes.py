"""Named reshapes, index by index."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.layers.shapes import join_heads, join_rows, split_heads, split_rows, stack_rows


@given(batch=st.integers(1, 3), tokens=st.integers(1, 4), parts=st.integers(1, 3), heads=st.integers(1, 4),
       width=st.integers(1, 4))  # fmt: skip
def test_a_head_is_a_slice_of_the_width_and_joining_undoes_splitting(batch, tokens, parts, heads, width):
    x = torch.arange(batch * tokens * parts * heads * width).view(batch, tokens, -1)
    split = split_heads(x, heads, parts)
    assert len(split) == parts
    for part, vectors in zip(split, x.chunk(parts, -1), strict=True):
        assert part.shape == (batch, heads, tokens, width)
        for h in range(heads):
            assert torch.equal(part[:, h], vectors[..., h * width : (h + 1) * width])
        assert torch.equal(join_heads(part), vectors)


@given(batch=st.integers(1, 3), beams=st.integers(1, 3), parts=st.integers(1, 3), heads=st.integers(1, 4),
       width=st.integers(1, 4))  # fmt: skip
def test_rows_of_beams_split_and_join_like_tokens_of_a_sequence(batch, beams, parts, heads, width):
    x = torch.arange(batch * beams * parts * heads * width).view(batch * beams, -1)
    wanted = split_heads(x.view(batch, beams, -1), heads, parts)
    assert torch.equal(stack_rows(x, beams, heads, parts), torch.stack(wanted))
    for part, vectors in zip(wanted, x.chunk(parts, -1), strict=True):
        assert torch.equal(split_rows(vectors.contiguous(), beams, heads), part)
        assert torch.equal(join_rows(part), vectors)
