"""A Conformer block with copied weights equals Hugging Face's; its attention without positions equals torch's."""

import pytest
import torch
from torch import Tensor, nn

from regard.layers.biases import SinusoidalPositionBias
from regard.layers.masks import length_mask
from regard.layers.positions import SinusoidalDistances
from regard.models.conformer import ConformerBlock, ConformerConfig

transformers = pytest.importorskip("transformers")
hf = pytest.importorskip("transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer")

DIM, HEADS, KERNEL = 24, 4, 5


@pytest.fixture(scope="module")
def both() -> tuple[ConformerBlock, nn.Module, nn.Module]:
    """Our block, theirs with the same random weights, and their sinusoids."""
    config = transformers.Wav2Vec2ConformerConfig(
        hidden_size=DIM, num_attention_heads=HEADS, intermediate_size=4 * DIM, conv_depthwise_kernel_size=KERNEL,
        hidden_act="swish", position_embeddings_type="relative", attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    theirs, positions = hf.Wav2Vec2ConformerEncoderLayer(config).eval(), hf.Wav2Vec2ConformerRelPositionalEmbedding(config)
    for tensor in (*theirs.parameters(), *theirs.buffers()):
        if tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.1, 0.9) if tensor.ndim == 1 else nn.init.normal_(tensor, std=0.3)
    ours = ConformerBlock(ConformerConfig(dim=DIM, heads=HEADS, kernel=KERNEL, vocab=9)).eval()
    copy(theirs, ours)
    return ours, theirs, positions


@torch.no_grad()
def copy(theirs: nn.Module, ours: ConformerBlock) -> None:
    """All weights of Hugging Face's layer."""

    def same(ours: nn.Module, theirs: nn.Module) -> None:
        for name, p in ours.named_parameters():
            p.copy_(getattr(theirs, name).view_as(p))

    for mine, their, norm in (("mlp1", "ffn1", "ffn1_layer_norm"), ("mlp2", "ffn2", "ffn2_layer_norm")):
        same(getattr(ours, mine).up, getattr(theirs, their).intermediate_dense)
        same(getattr(ours, mine).down, getattr(theirs, their).output_dense)
        same(getattr(ours, f"{mine}_residual").norm, getattr(theirs, norm))
    attn, conv = theirs.self_attn, theirs.conv_module
    parts = (attn.linear_q, attn.linear_k, attn.linear_v)
    ours.attn.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
    ours.attn.qkv.bias.copy_(torch.cat([part.bias for part in parts]))
    same(ours.attn.out, attn.linear_out)
    same(ours.attn_residual.norm, theirs.self_attn_layer_norm)
    same(ours.position_bias.distances, attn.linear_pos)
    ours.position_bias.content.copy_(attn.pos_bias_u[:, None])
    ours.position_bias.position.copy_(attn.pos_bias_v[:, None])
    for mine, their in ((ours.conv.up, conv.pointwise_conv1), (ours.conv.down, conv.pointwise_conv2)):
        same(mine, their)
    same(ours.conv.depthwise, conv.depthwise_conv)
    same(ours.conv.norm, conv.batch_norm)
    ours.conv.norm.running_mean.copy_(conv.batch_norm.running_mean)
    ours.conv.norm.running_var.copy_(conv.batch_norm.running_var)
    same(ours.conv_residual.norm, conv.layer_norm)
    same(ours.norm, theirs.final_layer_norm)


def random_frames(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 2, 7, 40])
def test_a_block_equals_hugging_face_s(both, length):
    ours, theirs, positions = both
    x = random_frames(3, length, DIM)
    got, wanted = ours(x, SinusoidalDistances(DIM, 4)(length)), theirs(x, relative_position_embeddings=positions(x))
    assert wanted.std() > 0.1
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)


@torch.no_grad()
def test_a_padded_block_equals_hugging_face_s_without_the_padding(both):
    ours, theirs, positions = both
    x, lengths = random_frames(3, 40, DIM), torch.tensor([40, 23, 1])
    mask = length_mask(lengths, 40)
    got = ours(x, SinusoidalDistances(DIM)(40), mask)
    blocked = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    padded = theirs(x, attention_mask=blocked, relative_position_embeddings=positions(x))
    for row, length in enumerate(lengths.tolist()):
        short = x[row : row + 1, :length]
        alone = theirs(short, relative_position_embeddings=positions(short))[0]
        torch.testing.assert_close(got[row, :length], alone, rtol=0, atol=1e-4)
        far = max(0, length - KERNEL // 2) if length < 40 else 40  # Hugging Face's convolution reads the padding after it
        torch.testing.assert_close(got[row, :far], padded[row, :far], rtol=0, atol=1e-4)


@torch.no_grad()
def test_sinusoids_of_distances_equal_hugging_face_s(both):
    _, _, positions = both
    table = SinusoidalDistances(DIM, 4)  # grows to 33
    for length in (3, 33, 5):
        torch.testing.assert_close(table(length), positions(torch.zeros(1, length, DIM))[0], rtol=0, atol=1e-5)


@torch.no_grad()
def test_without_positions_the_attention_equals_torch_s():
    torch.manual_seed(0)
    block = ConformerBlock(ConformerConfig(dim=DIM, heads=HEADS, kernel=KERNEL, vocab=9)).eval()
    plain = nn.MultiheadAttention(DIM, HEADS, batch_first=True).eval()
    for p in plain.parameters():
        nn.init.normal_(p, std=0.5)
    block.attn.qkv.weight.copy_(plain.in_proj_weight)
    block.attn.qkv.bias.copy_(plain.in_proj_bias)
    block.attn.out.weight.copy_(plain.out_proj.weight)
    block.attn.out.bias.copy_(plain.out_proj.bias)
    block.position_bias.distances.weight.zero_()
    assert not block.position_bias.content.any()  # both biases start at zero
    assert not block.position_bias.position.any()
    x, mask = random_frames(3, 11, DIM), length_mask(torch.tensor([11, 4, 1]), 11)
    wanted, _ = plain(x, x, x, key_padding_mask=~mask[:, 0, 0])
    torch.testing.assert_close(block.attend(x, SinusoidalDistances(DIM)(11), mask), wanted, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 2, 5])
def test_the_position_bias_is_the_formula_of_the_paper(length):
    torch.manual_seed(0)
    bias, table = SinusoidalPositionBias(DIM, HEADS).double(), SinusoidalDistances(DIM).double()
    nn.init.normal_(bias.content)
    nn.init.normal_(bias.position)
    q, k = torch.randn(2, 2, HEADS, length, DIM // HEADS, dtype=torch.float64)
    with_content, positions = bias(q, table(length))
    r = bias.distances(table(length)).unflatten(1, (HEADS, -1))  # (2T - 1, H, E)
    for b, h, i, j in torch.cartesian_prod(*(torch.arange(n) for n in (2, HEADS, length, length))).tolist():
        u, v, distance = bias.content[h, 0], bias.position[h, 0], i - j
        wanted = ((q[b, h, i] + u) @ k[b, h, j] + (q[b, h, i] + v) @ r[length - 1 - distance, h]) / (DIM // HEADS) ** 0.5
        got = with_content[b, h, i] @ k[b, h, j] / (DIM // HEADS) ** 0.5 + positions[b, h, i, j]
        torch.testing.assert_close(got, wanted)
