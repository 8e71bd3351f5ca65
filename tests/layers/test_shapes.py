"""Named reshapes, index by index."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.layers.shapes import join_heads, split_heads


@given(batch=st.integers(1, 3), tokens=st.integers(1, 4), heads=st.integers(1, 4), width=st.integers(1, 4))
def test_a_head_is_a_slice_of_the_width_and_joining_undoes_splitting(batch, tokens, heads, width):
    x = torch.arange(batch * tokens * heads * width).view(batch, tokens, heads * width)
    split = split_heads(x, heads)
    assert split.shape == (batch, heads, tokens, width)
    for h in range(heads):
        assert torch.equal(split[:, h], x[..., h * width : (h + 1) * width])
    assert torch.equal(join_heads(split), x)
