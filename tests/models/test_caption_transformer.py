"""A caption Transformer: cached decoding, several captions of an image, causality, learning, every encoder.

The weights are random, large and float64 for laws, so that a broken law is far above the tolerance.
"""

import dataclasses

import pytest
import torch
from test_image_encoder import SMALL
from torch import Tensor, nn

from regard.config import build
from regard.decode.fast import decoder
from regard.decode.search import beam, greedy
from regard.decode.step import reorder
from regard.layers.tap import watch
from regard.models.caption_transformer import SIZES, CaptionTransformer, CaptionTransformerConfig
from regard.models.image_encoder import CaptionFeatures

VOCAB, BOS, EOS = 23, 1, 2
TINY = {"vocab": VOCAB, "dim": 16, "depth": 2, "heads": 2, "max_len": 16}


def tiny(kind: str = "vit", **keys) -> CaptionTransformer:
    torch.manual_seed(0)
    model = CaptionTransformer(CaptionTransformerConfig(**{**TINY, "encoder": SMALL[kind], **keys}))
    for name, p in model.named_parameters():
        if not name.startswith("encoder."):
            nn.init.normal_(p, std=0.6)
    return model.double().eval()


def images(count: int, side: int = 32) -> Tensor:
    return torch.randn(count, 3, side, side, dtype=torch.double, generator=torch.Generator().manual_seed(count))


def tokens(*shape: int) -> Tensor:
    return torch.randint(3, VOCAB, shape, generator=torch.Generator().manual_seed(1))


def same(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dim", [16, 24])  # as wide as the encoder, and not
def test_cached_steps_equal_a_full_forward_pass(dim):
    model, image, target = tiny(dim=dim), images(3), tokens(3, 8)
    fast = decoder(model)
    state, steps = fast.start(image), []
    for token in target.T:
        logits, state = fast.step(token, state)
        steps.append(logits)
    same(torch.stack(steps, 1), model(image, target))


def test_rows_reordered_midway_continue_as_if_alone():
    model, image, target, rows = tiny(), images(3), tokens(3, 6), torch.tensor([2, 0, 0, 2])
    fast = decoder(model)
    state, later = fast.start(image), []
    for token in target[:, :3].T:
        _, state = fast.step(token, state)
    state = reorder(state, rows)
    for token in target[rows, 3:].T:
        logits, state = fast.step(token, state)
        later.append(logits)
    same(torch.stack(later, 1), model(image[rows], target[rows])[:, 3:])


def test_several_captions_of_an_image_equal_separate_calls_and_encode_it_once():
    model, image, target = tiny(), images(2), tokens(6, 7)
    encoded = []
    handle = model.encoder.register_forward_hook(lambda part, inputs, output: encoded.append(len(output)))
    together = model(image, target)
    handle.remove()
    assert encoded == [2]
    for row in range(6):
        same(together[row : row + 1], model(image[row // 3 : row // 3 + 1], target[row : row + 1]))


def test_captions_that_do_not_divide_among_the_images_are_refused():
    for count, among in ((5, 2), (0, 0)):
        with pytest.raises(ValueError, match=f"{count} captions do not divide among {among} images; give as many of each"):
            tiny()(torch.zeros(among, 3, 32, 32).double(), tokens(count, 4))


@pytest.mark.parametrize("kind", SMALL)
def test_a_caption_does_not_depend_on_the_other_images_of_its_batch(kind):
    model, image, limits = tiny(kind), images(4), torch.full((4,), 9)
    together = greedy(decoder(model), image, limits, bos=BOS, eos=EOS)
    beams = beam(decoder(model), image, limits, bos=BOS, eos=EOS, width=3)
    for i in range(4):
        [alone] = greedy(decoder(model), image[i : i + 1], limits[:1], bos=BOS, eos=EOS)
        [best] = beam(decoder(model), image[i : i + 1], limits[:1], bos=BOS, eos=EOS, width=3)
        assert alone.tokens == together[i].tokens
        assert [h.tokens for h in best] == [h.tokens for h in beams[i]]


def test_future_tokens_do_not_change_the_past_and_the_image_changes_every_position():
    model, image, target = tiny(), images(2), tokens(2, 8)
    before = model(image, target)
    changed = target.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % VOCAB
    after = model(image, changed)
    same(after[:, :5], before[:, :5])
    assert (after[:, 5] - before[:, 5]).abs().max() > 1e-6
    assert (model(image.flip(0), target) - before).abs().amax(-1).min() > 1e-6


def test_watch_records_the_cross_attention_of_every_block_to_every_token_of_the_image():
    model, image, target = tiny(), images(2), tokens(4, 5)
    with watch(model) as recorded:
        model(image, target)
    cross = {name: calls for name, calls in recorded.items() if name.startswith("decoder.") and name.endswith(".cross")}
    assert list(cross) == ["decoder.0.cross", "decoder.1.cross"]
    for [weights] in cross.values():
        assert weights.shape == (4, 2, 5, model.encoder.tokens)
        same(weights.sum(-1), torch.ones(4, 2, 5).double())


@pytest.mark.parametrize("kind", SMALL)
def test_every_image_model_is_an_encoder_whose_weights_learn(kind):
    model = tiny(kind).train()
    found = model.features(images(2), tokens(4, 5))
    assert isinstance(found, CaptionFeatures)
    assert found.features.shape == (4, 5, 16)
    assert found.weights is None
    assert found.log_prob is None
    model.output(found.features).square().sum().backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not missing
    assert max(float(p.grad.abs().max()) for name, p in model.named_parameters() if name.startswith("encoder.")) > 0


def test_a_config_reads_back_equal_and_knows_its_images():
    for config in SIZES.values():
        assert CaptionTransformerConfig(**dataclasses.asdict(config)) == config
    assert (SIZES["tiny"].image, SIZES["tiny"].channels, SIZES["base"].image) == (112, 3, 224)
    for keys, message in (
        ({"dim": 10, "heads": 4}, "model: width 10 does not split into 4 heads; use a multiple of 4$"),
        ({"encoder": {"family": "vit", "dimm": 3}}, r"model: unknown key encoder\.dimm \(did you mean 'encoder\.dim'"),
    ):
        with pytest.raises(ValueError, match=message):
            build("model", CaptionTransformerConfig, keys)


@pytest.mark.parametrize("kind", ["resnet", "vit"])
def test_it_overfits_a_small_batch(kind):
    torch.manual_seed(0)
    model = CaptionTransformer(CaptionTransformerConfig(**TINY, dropout=0.0, attention_dropout=0.0, encoder=SMALL[kind]))
    image = torch.randn(4, 3, 32, 32)
    target = torch.cat((torch.full((4, 1), BOS), tokens(4, 6), torch.full((4, 1), EOS)), 1)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(150):
        loss = nn.functional.cross_entropy(model(image, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss < 0.02:
            break
    found = greedy(decoder(model.eval()), image, torch.full((4,), 9), bos=BOS, eos=EOS)
    if kind == "vit":  # batch norm normalizes by other statistics than those of the batch
        assert [hypothesis.tokens for hypothesis in found] == target[:, 1:-1].tolist()
    assert loss < 0.05
