"""Captions and speech: attention over the locations of an image and the frames of a sound.

Shapes: B batch, S places or source tokens, D width of each, T tokens, M queries, N keys, F frames, C channels, V vocabulary,
Y X rows and columns of a grid.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from regard.config import DecodeConfig, Run
from regard.data.audio.batches import SpeechBatch
from regard.data.audio.features import log_mel
from regard.data.image.shapes import Box, ShapeImage, shape_image
from regard.data.sources import locate
from regard.data.text.batches import PairBatch, pad
from regard.data.text.config import TextData
from regard.data.text.readers import read_pairs
from regard.data.text.tokenizer import Tokenizer, train_tokenizer
from regard.decode.ctc import best_path, prefix_beam
from regard.layers.attention import Attention, attend
from regard.layers.scores import Additive
from regard.layers.shapes import to_tokens
from regard.layers.tap import ablate, attention_modules, has_positions, record_calls, watch, without_positions
from regard.models import FAMILIES, build_without_memory
from regard.models.bert import BERT, BERTConfig
from regard.models.caption_transformer import CaptionTransformer, CaptionTransformerConfig
from regard.models.captioner import Captioner, CaptionerConfig
from regard.models.conformer import Conformer, ConformerConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vit import ViT, ViTConfig
from regard.tasks import read_run, task_of
from regard.tasks.captioning import Caption, ImageCaptioner
from regard.tasks.load import load
from regard.tasks.speech import ctc_loss, speech_loss
from regard.tasks.task import ScoreOptions
from regard.tasks.translation import Translator, sequence_loss
from regard.train.loop import fit
from regard.verify.claim import Finding, at_least, at_most, claim, close, equals
from regard.verify.measures import Points, depends_on, minimize
from regard.verify.plots import Curves, Heatmap
from regard.view.caption_maps import attention_inside, map_caption
from regard.view.maps import cross_attention

__all__: list[str] = []

EXACT = 1e-5  # of float32 numbers of about 1
ENCODER = {"family": "resnet", "image": 32, "dim": 8, "dims": [8, 16], "depths": [1, 1], "block": "basic"}  # a grid of 4 × 4
SIDE = 64  # pixels of the images that the shipped captioner reads
GROW = 0.5  # cells of the grid that a shape's box is grown by: a cell on its edge is about the shape too

# English words and their Hindi translations, from which all sentences "I like eating ice-cream" are made.
WHO = {"I": "मुझे", "you": "तुम्हें", "he": "उसे", "we": "हमें"}
FEELS = {"like": "पसंद है", "hate": "नापसंद है"}
DOING = {"eating": "खाना", "buying": "खरीदना", "making": "बनाना", "seeing": "देखना"}
WHAT = {"ice-cream": "आइसक्रीम", "bread": "रोटी", "rice": "चावल", "fruit": "फल", "fish": "मछली", "cheese": "पनीर"}

RATE = 8000  # samples a second
SMALL_SPEECH = ("model.dim=48", "model.depth=2", "model.kernel=7", "model.dropout=0.0", "data.join=1", "data.speed=[1.0]",
                "data.time_masks=0", "data.freq_masks=0", "train.steps=200", "train.warmup=30", "train.lr=4e-3", "train.ema=0.0",
                "train.batch_tokens=2500", "train.eval_every=10000", "train.save_every=10000", "train.device=cpu")  # fmt: skip
TONES = {4: 400.0, 5: 1000.0, 6: 2500.0}  # Hz of each spoken token


@claim(18, "001", "In captioning, e_ti = f_att(h_i, s_{t-1}) by an MLP, α_t is its softmax over all locations h_i of the image, "
       "and c_t = Σ_i α_ti h_i, another context for every word.")  # fmt: skip
def a_captioner_attends_by_the_formulas() -> Iterator[Finding]:
    model = Captioner(CaptionerConfig(encoder=ENCODER, vocab=20, dim=16, hidden=24, align=8)).eval()
    cross, states = model.decoder.cross, torch.randn(2, 3, 24)
    assert isinstance(cross.score, Additive)
    w, u, v = (layer.weight for layer in (cross.score.query, cross.score.key, cross.score.value))
    with torch.no_grad():
        places = model.encode(torch.randn(2, 3, 32, 32))  # (B, S, D)
        context, weights = cross(states, cross.keys_values(places))
        e = torch.stack([
            torch.stack([torch.stack([v[0] @ torch.tanh(w @ s + u @ h) for h in image]) for s in of_image])
            for of_image, image in zip(states, places, strict=True)
        ])  # fmt: skip
        alpha = e.exp() / e.exp().sum(-1, keepdim=True)
        yield close("α of 3 states over 16 locations, against a loop", weights, alpha, within=EXACT)
        yield close("contexts, against Σ α h", context, torch.einsum("bts,bsd->btd", alpha, places), within=EXACT)
        looks = model.features(torch.randn(2, 3, 32, 32), torch.randint(20, (2, 6))).weights
    assert looks is not None
    change = looks.diff(dim=1).norm(dim=-1) / looks[:, 1:].norm(dim=-1)
    yield at_least("smallest change of α from word to word, of its size", change.min().item(), 1e-5)


@claim(18, "001", "Each h_i corresponds to a part of the image, and all steps are differentiable.")
def a_caption_is_differentiable_back_to_the_pixels() -> Iterator[Finding]:
    config = CaptionerConfig(encoder={**ENCODER, "image": 64}, vocab=20, dim=16, hidden=24, align=8)
    model = Captioner(config).eval().double()
    image, target = torch.randn(1, 3, 64, 64, dtype=torch.double, requires_grad=True), torch.randint(20, (1, 6))
    [of_place] = torch.autograd.grad(model.encode(image)[0, 0].sum(), image)
    yield equals("pixels of the far corner that the first location sees", int((of_place[0, :, 32:, 32:] != 0).sum()), 0)
    yield at_least("pixels of its own corner that it sees, of 192", int((of_place[0, :, :8, :8] != 0).sum()), 150)

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(model(x, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())

    [gradient] = torch.autograd.grad(loss(image), image)
    direction = gradient / gradient.norm()
    with torch.no_grad():
        slope = (loss(image + 1e-4 * direction) - loss(image - 1e-4 * direction)) / 2e-4
    yield close("slope along the gradient, against a difference quotient", (gradient * direction).sum(), slope, rel=0.01)
    yield at_least("pixels that have a gradient, of 12,288", int((gradient != 0).sum()), 12_000)


@claim(18, "001 004", "Each context attends to different regions of the image: attention helps captioning models focus on the "
       "important regions.")  # fmt: skip
def a_captioner_looks_at_the_shape_it_names() -> Iterator[Finding]:
    captioner = load("shapes-attend", "cpu")
    assert isinstance(captioner, ImageCaptioner)
    made = some_shapes(16)
    captions = captioner.caption([each.image for each in made])
    yield at_least("captions of 16 new images that are exact", exact(made, captions), 15)
    named = [found for each, caption in zip(made, captions, strict=True) for found in named_shapes(captioner, each, caption)]
    inside = [attention_inside(found.grid, found.box, SIDE, GROW, found.shift) for found in named]
    chance = [attention_inside(torch.ones_like(found.grid), found.box, SIDE, GROW, found.shift) for found in named]
    yield at_least("attention inside the shape that a word names, mean", sum(inside) / max(1, len(named)), 0.6)
    yield at_most("what attention to all locations alike has inside", sum(chance) / max(1, len(named)), 0.35)
    with ablate(captioner, {"decoder.cross": None}):
        blind = captioner.caption([each.image for each in made])
    yield at_most("exact captions without the attended context", exact(made, blind), 4)


@claim(19, "001", "A map of the attention for each generated word shows where and at what a captioner looks.")
def a_map_for_each_word_shows_where_a_captioner_looks() -> Iterator[Finding]:
    captioner = load("shapes-attend", "cpu")
    assert isinstance(captioner, ImageCaptioner)
    made = some_shapes(6)  # a gallery of six captions, as in the notes
    captions = captioner.caption([each.image for each in made])
    yield at_least("captions of a gallery of six that are exact", exact(made, captions), 5)

    shown, caption = map_caption(captioner, made[0].image, caption=captions[0]), captions[0]
    maps = torch.tensor([word.weights for word in shown.words])  # (T, Y, X)
    target = torch.tensor([[captioner.tokenizer.special.bos, *caption.ids[:-1]]])
    with torch.no_grad():  # the step that reads a word predicts the next one
        weights = captioner.model.features(captioner.to_input(made[0].image), target).weights  # type: ignore[operator]
    words = caption.text.split()
    yield equals("words that have a map", [word.title for word in shown.words], words)
    yield close("maps, against α of the step that predicts each word", maps.flatten(1), weights[0, : len(words)], within=EXACT)
    named = [found for each, caption in zip(made, captions, strict=True) for found in named_shapes(captioner, each, caption)]
    own = sum(attention_inside(found.grid, found.box, SIDE, GROW, found.shift)
              > attention_inside(found.grid, found.other, SIDE, GROW, found.shift) for found in named)  # fmt: skip
    yield at_least("words for a shape whose map has more in it than in the other shape: fraction", own / max(1, len(named)), 0.9)
    yield Heatmap(f"A map for each word: {caption.text}", "location in the image, row by row", "word", maps.flatten(1), words,
                  z="weight")  # fmt: skip


@claim(20, "004", "Features of shape H × W × D are reshaped to N = H W vectors; M queries give M × D outputs, each on its own; "
       "the order of the features does not matter.")  # fmt: skip
def attention_reads_a_grid_as_a_set_of_vectors() -> Iterator[Finding]:
    grid, queries = torch.randn(1, 12, 5, 7), torch.randn(3, 12)  # (B, D, H, W), (M, D)
    z = to_tokens(grid)[0]  # (N, D)
    yield equals("vectors of a grid of 5 × 7 locations, width 12", list(z.shape), [35, 12])
    outputs, weights = attend(queries, z, z, scale=1.0, need_weights=True)
    assert weights is not None
    expected = list[Tensor]()
    for h in queries:  # the notes' alignment over rows i and columns j
        e = {(i, j): math.exp(h @ grid[0, :, i, j]) for i, j in itertools.product(range(5), range(7))}
        expected.append(sum((e[place] / sum(e.values()) * grid[0, :, place[0], place[1]] for place in e), torch.zeros(12)))
    yield close("outputs of 3 queries, against Σ_ij a_ij z_ij by a loop", outputs, torch.stack(expected), within=EXACT)
    order = torch.randperm(35)
    shuffled, _ = attend(queries, z[order], z[order], scale=1.0)
    yield close("outputs with the features in another order", shuffled, outputs, within=EXACT)
    alone = torch.cat([attend(queries[i : i + 1], z, z, scale=1.0)[0] for i in range(3)])
    yield close("outputs of each query alone", alone, outputs, within=EXACT)
    yield Heatmap("Weights of one query over the grid", "column", "row", weights[0].view(5, 7), z="weight")


@claim(61, "002", "Cross-attention finds which English words a Hindi word corresponds to, as in मुझे आइसक्रीम खाना पसंद है, "
       "I like eating ice-cream: queries come from the output, keys and values from the input.")  # fmt: skip
def cross_attention_aligns_hindi_with_english() -> Iterator[Finding]:
    english, hindi = ("I", "like", "eating", "ice-cream"), ("मुझे", "आइसक्रीम", "खाना", "पसंद", "है")
    model, grids, accuracy = learn_hindi()
    [grid] = [grid for source, grid in grids.items() if source == " ".join(english)]  # not among the sentences trained on
    yield equals("shape of the map, Hindi words × English words and the end", list(grid.shape), [len(hindi), len(english) + 1])
    yield close("sum of the weights of each Hindi word", grid.sum(-1), torch.ones(len(hindi)), within=EXACT)
    yield at_least("new sentences translated right, fraction", accuracy, 0.75)
    mean = torch.stack([*grids.values()]).mean(0)
    yield at_least("weight of ice-cream for आइसक्रीम and the like, 31 sentences (all alike: 0.43)", float(mean[1, 3]), 0.55)
    right = (mean[0, 0] + mean[1, 3] + mean[2, 2]).item() / 3
    yield at_least("the same, mean of who, what and doing (all alike: 0.24)", right, 0.4)
    with watch(model) as seen:
        model(torch.randint(4, 20, (1, 9)), torch.randint(4, 20, (1, 4)))
    yield equals("queries and keys of 4 output and 9 input tokens", list(seen["decoder.0.cross"][0].shape[-2:]), [4, 9])
    yield Heatmap("Cross-attention of the notes' sentence, not trained on", "English", "Hindi", grid, hindi,
                  (*english, "end"), "weight")  # fmt: skip


@claim(61, "002", "In translation from English to Hindi the output sequence attends to the input sequence.", slow=True,
       data=("tatoeba-en-hi",))  # fmt: skip
def a_translator_to_hindi_reads_its_source() -> Iterator[Finding]:
    pairs = {split: [*read_pairs(locate("tatoeba-en-hi", split, "en-hi"))] for split in ("train", "valid")}
    tokenizer = train_tokenizer([side for pair in pairs["train"] for side in pair], "bpe", 2000)
    model = Transformer(TransformerConfig(vocab=tokenizer.vocab, dim=96, depth=1, heads=4, mlp_ratio=2))
    valid = to_batch(pairs["valid"][:500], tokenizer)
    losses = minimize(model.parameters(), lambda: loss_of_some(model, pairs["train"], tokenizer), steps=300, lr=0.002)
    model.eval()
    with torch.no_grad():
        own, other = (sequence_loss(model, batch, 0.0)[1].item() / valid.tokens  # type: ignore[arg-type]
                      for batch in (valid, valid._replace(source=valid.source.roll(1, 0))))  # fmt: skip
    yield at_most("loss of 500 validation sentences after 300 steps, nats of a token", own, 5.0)
    yield at_least("how much larger it is with the source of another sentence", other - own, 0.3)
    yield Curves("English to Hindi, Tatoeba", "training step", "loss of a token in nats", {"training": losses})


@claim(63, "002", "Cross-attention joins modalities: image captioning, text to speech, text to image.",
       condition="for captions and speech recognition as models, for text to speech and text to image as one layer")  # fmt: skip
def cross_attention_joins_two_modalities() -> Iterator[Finding]:
    config = CaptionTransformerConfig(encoder=ENCODER, vocab=20, dim=16, depth=1, heads=2, max_len=8)
    captioner, speech = CaptionTransformer(config).eval(), Conformer(tiny_conformer(decoder_depth=1, ctc_weight=0.3)).eval()
    image, frames, words = torch.randn(1, 3, 32, 32), torch.randn(1, 40, 16), torch.randint(4, 8, (1, 5))
    models: dict[str, tuple[nn.Module, Callable[[Tensor], Tensor], Tensor, int]] = {
        "words of a caption × locations": (captioner, lambda source: captioner(source, words), image, 16),
        "words of a transcript × frames": (speech, lambda source: speech(source, None, words), frames, 20),
    }
    for name, (model, logits, source, keys) in models.items():
        with torch.no_grad(), watch(model) as seen:
            change = (logits(source.flip(1)) - logits(source)).abs().max().item()
        yield equals(f"queries and keys: {name}", list(seen["decoder.0.cross"][0].shape[-2:]), [5, keys])
        yield at_least("largest change of the output with another source", change, 1e-3)
    attention, text = Attention(16, heads=2), torch.randn(1, 7, 16, requires_grad=True)
    for name, queries in (("frames of a sound from 7 words", 100), ("patches of an image from 7 words", 64)):
        outputs = attention(torch.randn(1, queries, 16), attention.keys_values(text))
        yield equals(f"outputs: {name}", list(outputs.shape), [1, queries, 16])
        yield equals("words that the last one depends on", int(depends_on(outputs[0, -1], text).any(-1).sum()), 7)


@claim(84, "001", "Speech is largely the same story as vision, with spectrograms instead of images: chunks of it are tokens.")
def a_spectrogram_becomes_tokens() -> Iterator[Finding]:
    time = torch.arange(RATE) / RATE  # one second
    tones = torch.stack([torch.sin(2 * math.pi * hertz * time) for hertz in TONES.values()])
    frames = log_mel(tones, RATE, mels=40)  # (3, F, C)
    yield equals("frames of a second, one each 10 ms, and channels", list(frames.shape[1:]), [101, 40])
    loudest = frames[:, 10:-10].mean(1).argmax(-1).tolist()
    yield equals("loudest channel rises with the tone: 400, 1,000, 2,500 Hz", loudest == sorted(set(loudest)), True)
    one = Conformer(tiny_conformer(features=40, subsample=4)).eval()
    with torch.no_grad():
        memory, _ = one.encode(frames)
        padded, mask = one.encode(F.pad(frames, (0, 0, 0, 60), value=3.0), torch.full((3,), 101))
    yield equals("tokens of 101 frames, 4 frames each, and their width", list(memory.shape[1:]), [26, 24])
    yield equals("tokens that are not padding after 60 more frames", int(mask[0].sum()), 26)
    yield close("tokens of the padded sound, against those without padding", padded[:, :26], memory, within=1e-4)
    yield Heatmap("Spectrogram of 1,000 Hz", "frame (10 ms)", "mel channel", frames[1].T, z="log energy")


@claim(84, "001", "Blocks for speech have a third type of sub-layer, convolutions, in another order, but are transformer-like.")
def a_conformer_block_adds_convolution_to_attention() -> Iterator[Finding]:
    model = Conformer(tiny_conformer(kernel=5)).eval()
    [block] = model.encoder
    order = list[str]()
    for name, part in block.named_children():
        part.register_forward_hook(lambda *_, name=name: order.append(name))
    distances, x = model.distances(21), torch.randn(1, 21, 24, requires_grad=True)
    with watch(model) as seen:
        full = seen_frames(block(x, distances), x)
    kinds = {"mlp1": "½ mlp", "position_bias": "attention", "conv": "convolution", "mlp2": "½ mlp", "norm": "norm"}
    yield equals("sub-layers in their order", [kinds[name] for name in order if name in kinds],
                 ["½ mlp", "attention", "convolution", "½ mlp", "norm"])  # fmt: skip
    with ablate(model, {"encoder.0.attn": None}):
        local = seen_frames(block(x, distances), x)
    yield equals("frames of 21 that the middle one sees", full, list(range(21)))
    yield equals("the same without attention: the kernel of 5", local, [8, 9, 10, 11, 12])
    yield equals("attention weights, heads × frames × frames", list(seen["encoder.0.attn"][0].shape[1:]), [2, 21, 21])


@claim(84, "001", "It exists as an encoder-decoder, or as an encoder alone with CTC loss.")
def ctc_sums_over_all_paths() -> Iterator[Finding]:
    alone, both = Conformer(tiny_conformer()), Conformer(tiny_conformer(decoder_depth=1, ctc_weight=0.3))
    frames, target = torch.randn(1, 10, 16), torch.tensor([[1, 4, 5]])
    yield equals("encoder alone: logits of each token of sound", list(alone(frames).shape), [1, 5, 8])
    yield equals("encoder-decoder: logits of each next word", list(both(frames, None, target).shape), [1, 3, 8])
    yield equals("blocks of the decoder", [len(getattr(model, "decoder", ())) for model in (alone, both)], [0, 1])

    log_probs = (2 * torch.randn(1, 5, 4)).log_softmax(-1).double()  # 5 frames, a blank and 3 tokens: 1,024 paths
    totals: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(4), repeat=5):
        output = tuple(token for token, _ in itertools.groupby(path) if token)
        totals[output] = totals.get(output, 0.0) + math.exp(sum(log_probs[0, i, token] for i, token in enumerate(path)))
    output, probability = max(totals.items(), key=lambda item: item[1])
    [[found, *_]] = prefix_beam(log_probs, torch.tensor([5]), width=400, min_prob=0.0)
    yield equals("likeliest output of 1,024 paths, by the search and by listing them", found.tokens, [*output])
    yield close("its log-probability, summed over its paths", found.score or 0.0, math.log(probability), within=1e-6)
    label = torch.tensor([[1, *output, 2]])  # start, tokens, end
    yield close("CTC loss of this output", ctc_loss(log_probs, torch.tensor([5]), label, 0), -math.log(probability), within=1e-5)


@claim(84, "001", "Transformer-based models recognise speech, as encoder-decoder or with CTC.", slow=True)
def conformers_learn_to_hear_tones() -> Iterator[Finding]:
    lines = dict[str, Points]()
    for name, changes in (("CTC", {}), ("CTC and decoder", {"decoder_depth": 1, "ctc_weight": 0.3})):
        model = Conformer(tiny_conformer(dropout=0.0, **changes))
        lines[name] = minimize(model.parameters(), partial(tone_loss, model), steps=400, lr=0.005)
        model.eval()
        batch = tone_batch(64)
        with torch.no_grad():
            memory, mask = model.encode(batch.frames, batch.lengths)
            found = best_path(model.ctc_logits(memory).log_softmax(-1), mask[:, 0, 0].sum(-1))
        wanted = [[token for token in row if token in TONES] for row in batch.target.tolist()]
        right = sum(each.tokens == tokens for each, tokens in zip(found, wanted, strict=True))
        yield at_least(f"{name}: new utterances of 1 to 4 tones heard exactly, of 64", right, 48)
        if changes:
            with torch.no_grad():
                logits = model(batch.frames, batch.lengths, batch.target[:, :-1])
            real = batch.target[:, 1:] != batch.pad
            hits = (logits.argmax(-1) == batch.target[:, 1:])[real].float().mean().item()
            yield at_least(f"{name}: next tokens that the decoder predicts", hits, 0.8)
    yield Curves("Tones of 400, 1,000 and 2,500 Hz", "training step", "loss of an utterance in nats", lines)


@claim(84, "001", "Transformer-based models recognise speech from its spectrogram.", slow=True, data=("fsdd",))
def a_conformer_learns_spoken_digits() -> Iterator[Finding]:
    run = read_run("fsdd-conformer", [*SMALL_SPEECH, f"train.seed={torch.initial_seed() % 1000}"])
    with TemporaryDirectory() as folder:
        fit(run, Path(folder) / "digits", console=Console(file=StringIO()))
        transcriber = load(Path(folder) / "digits", "cpu")
        scores = {score.name: score.value for score in task_of(run).score(transcriber, "test", ScoreOptions())}
    yield at_least("spoken digits of 300 new recordings written exactly, % (guessing: 10)", scores["exact match"], 55)
    yield at_most("character error rate, %", scores["character error rate"], 25)


@claim(85, "001", "The three key ideas of Transformers are tokens, attention and positional encoding; you can tokenize anything.")
def every_transformer_has_tokens_attention_and_positions() -> Iterator[Finding]:
    nets = {name: build_without_memory(partial(family.build, next(iter(family.sizes.values()))))
            for name, family in FAMILIES.items()}  # fmt: skip
    lacking = sorted(name for name, net in nets.items() if not (attention_modules(net) and has_positions(net)))
    yield equals("model families without attention or without positions: recurrent, convolutional or neither", lacking,
                 ["bahdanau", "captioner", "elmo", "resnet", "seq2seq", "word2vec"])  # fmt: skip
    words, image, sound = torch.randint(4, 30, (1, 10)), torch.randn(1, 3, 32, 32), torch.randn(1, 40, 16)
    bert = BERT(BERTConfig(vocab=30, max_len=16, dim=24, depth=1, heads=2)).eval()
    vit = ViT(ViTConfig(image=32, patch=8, dim=24, depth=1, heads=2)).eval()
    conformer = Conformer(tiny_conformer()).eval()
    examples: dict[str, tuple[nn.Module, Callable[[], Tensor], int]] = {
        "10 words": (bert, lambda: bert.encode(words), 10),
        "4 × 4 patches of an image and a class token": (vit, lambda: vit.encode(image), 17),
        "40 frames of sound, two each": (conformer, lambda: conformer.encode(sound)[0], 20),
    }
    for name, (model, encode, tokens) in examples.items():
        [attention] = attention_modules(model)
        with torch.no_grad(), record_calls(model, attention) as calls:
            before = encode()
            with without_positions(model):
                unplaced = encode()
            with ablate(model, {attention: None}):
                alone = encode()
        assert calls[0].x is not None
        yield equals(f"tokens and their width: {name}", list(calls[0].x.shape[1:]), [tokens, 24])
        for what, after in (("positions", unplaced), ("attention", alone)):
            change = ((after - before).norm() / before.norm()).item()
            yield at_least(f"change of the output without {what}, of its size", change, 1e-3)


class NamedShape(NamedTuple):
    """A shape that a caption names, and where the captioner looks for that word."""

    grid: Tensor  # (Y, X)
    box: Box
    other: Box  # of the other shape of the image
    shift: float  # of the grid


def some_shapes(count: int) -> list[ShapeImage]:
    """Images of two shapes that the shipped captioner was not trained on."""
    return [shape_image("test", index, SIDE) for index in torch.randint(500, (count,)).tolist()]


def exact(made: Sequence[ShapeImage], captions: Sequence[Caption]) -> int:
    """How many captions are right word by word."""
    return sum(caption.text == each.caption for each, caption in zip(made, captions, strict=True))


def named_shapes(captioner: ImageCaptioner, made: ShapeImage, caption: Caption) -> list[NamedShape]:
    """The two shapes of an exact caption; none of a wrong one."""
    if caption.text != made.caption:
        return []
    attention = map_caption(captioner, made.image, caption=caption)
    grids = [torch.tensor(word.weights) for word in attention.words if word.title in made.forms]
    return [NamedShape(grid, box, other, attention.shift)
            for grid, box, other in zip(grids, made.boxes, reversed(made.boxes), strict=True)]  # fmt: skip


def to_batch(pairs: Sequence[Sequence[str]], tokenizer: Tokenizer) -> PairBatch:
    """Sentence pairs as token ids."""
    special, (source, target) = tokenizer.special, (tokenizer.encode(side) for side in zip(*pairs, strict=True))
    return PairBatch(pad(source, special), pad([[special.bos, *ids] for ids in target], special), special.pad)


def loss_of_some(model: Transformer, pairs: Sequence[Sequence[str]], tokenizer: Tokenizer) -> Tensor:
    """The loss of 48 random pairs, in nats of a token."""
    batch = to_batch([pairs[row] for row in torch.randint(len(pairs), (48,)).tolist()], tokenizer)
    return sequence_loss(model, batch, 0.0)[0] / batch.tokens  # type: ignore[arg-type]


def learn_hindi() -> tuple[Transformer, dict[str, Tensor], float]:
    """Train a translator of "I like eating ice-cream" and its like; of sentences left out, the notes' among them, → maps.

    The map of a sentence has a row for each Hindi word and a column for each English word and the end.
    """
    pairs = [(f"{who} {feels} {doing} {what}", f"{WHO[who]} {WHAT[what]} {DOING[doing]} {FEELS[feels]}")
             for who, feels, doing, what in itertools.product(WHO, FEELS, DOING, WHAT)]  # fmt: skip
    order = [0, *(1 + torch.randperm(len(pairs) - 1)).tolist()]  # the first is that of the notes
    new, known = [pairs[row] for row in order[:31]], [pairs[row] for row in order[31:]]
    tokenizer = train_tokenizer([side for pair in pairs for side in pair], "words", 200)
    model = Transformer(TransformerConfig(vocab=tokenizer.vocab, dim=32, depth=1, heads=1, mlp_ratio=2, dropout=0.0))
    minimize(model.parameters(), lambda: loss_of_some(model, known, tokenizer), steps=60, lr=0.01)
    model.eval()
    run = Run("toy", "transformer", model.config, task="translation", data=TextData(), decode=DecodeConfig(beam_size=1))
    translator = Translator(model, tokenizer, run)
    answers = translator.translate([english for english, _ in new])
    right = sum(answer.text == hindi for answer, (_, hindi) in zip(answers, new, strict=True))
    grids = dict[str, Tensor]()
    for english, hindi in new:
        source, target = tokenizer.encode([english, hindi])
        [weights] = cross_attention(translator, source, target).values()  # (1, T, S)
        tokens = weights[0, :5]  # "ice-cream" is three tokens, the other words are one
        parts = [tokens[:, :3], tokens[:, 3 : len(source)].sum(1, keepdim=True), tokens[:, len(source) :].sum(1, keepdim=True)]
        grids[english] = torch.cat(parts, 1)
    return model, grids, right / len(new)


def tiny_conformer(**changes: Any) -> ConformerConfig:
    """A Conformer of one small block."""
    sizes = {"features": 16, "vocab": 8, "dim": 24, "depth": 1, "heads": 2, "kernel": 5, "subsample": 2}
    return ConformerConfig(**{**sizes, **changes})


def seen_frames(y: Tensor, x: Tensor) -> list[int]:
    """The frames of x (1, F, D) that the middle one of y depends on."""
    return depends_on(y[0, y.shape[1] // 2], x)[0].any(-1).nonzero()[:, 0].tolist()


def tone_loss(model: Conformer) -> Tensor:
    """The loss of 16 random utterances, in nats of one."""
    batch = tone_batch(16)
    return speech_loss(model, batch, 0.0)[0] / len(batch.frames)  # type: ignore[arg-type]


def tone_batch(count: int) -> SpeechBatch:
    """Utterances of one to four tones with pauses between them, over a little noise, as frames; and their tokens."""
    sounds, targets, time = list[Tensor](), list[Tensor](), torch.arange(round(0.12 * RATE)) / RATE
    for _ in range(count):
        tokens = torch.randint(4, 7, (int(torch.randint(1, 5, ())),)).tolist()
        parts = [torch.cat((torch.sin(2 * math.pi * TONES[token] * time), torch.zeros(len(time) // 2))) for token in tokens]
        sound = torch.cat((torch.zeros(len(time) // 2), *parts))
        sounds.append(0.3 * sound + 0.002 * torch.randn(len(sound)))
        targets.append(torch.tensor([1, *tokens, 2]))
    frames = [log_mel(sound, RATE, mels=16) for sound in sounds]
    lengths = torch.tensor([len(frame) for frame in frames])
    x = pad_sequence(frames, batch_first=True)
    return SpeechBatch(x / 5 + 1, lengths, pad_sequence(targets, batch_first=True))
