"""From token ids to vectors."""

import pytest
import torch

from regard.layers.embed import Embed, token_table
from regard.layers.positions import LearnedPositions, SinusoidalPositions, sinusoid


def test_a_token_is_embedded_as_its_vector_times_the_scale_plus_its_position():
    embed = Embed(token_table(9, 16), SinusoidalPositions(16), dropout=0.1, scale=4.0).eval()
    ids = torch.tensor([[3, 4, 3], [0, 8, 1]])
    wanted = embed.tokens.weight[ids] * 4 + sinusoid(3, 16)
    torch.testing.assert_close(embed(ids), wanted)


@pytest.mark.parametrize("positions", [SinusoidalPositions(8, 4), LearnedPositions(8, 12)], ids=["sinusoid", "learned"])
def test_tokens_with_a_start_offset_get_the_positions_of_the_whole_sequence(positions):
    embed = Embed(token_table(9, 8), positions, dropout=0.0)
    ids = torch.randint(9, (2, 10))
    torch.testing.assert_close(embed(ids[:, 6:], start=6), embed(ids)[:, 6:])


def test_dropout_applies_to_the_embeddings_in_training():
    embed = Embed(token_table(9, 64), SinusoidalPositions(64), dropout=0.5)
    fraction = (embed.train()(torch.randint(9, (4, 50))) == 0).float().mean()
    assert 0.45 < fraction < 0.55


def test_a_new_table_has_standard_deviation_one_over_root_width():
    torch.manual_seed(0)
    table = token_table(1000, 64).weight
    assert table.std().item() == pytest.approx(64**-0.5, rel=0.02)
    assert abs(table.mean().item()) < 0.005
