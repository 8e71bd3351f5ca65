"""Our Transformer and search are Marian's, as Hugging Face runs it: same logits, same greedy and beam outputs.

MarianMTModel is post-norm, has no final norm, ties its embeddings, and adds `final_logits_bias`; so ours is built with
`norm="post"`.  Two things differ and are mapped here:
- Positions: Marian puts all the sines first and then all the cosines, we interleave them as the paper does.  The two
  tables differ by a permutation of the width, proved below; Marian's table is copied into ours, because permuting the
  weights instead would have to permute every matrix.
- The bias: ours has one on the output only if untied, so the searches use three equal matrices and a bias.

Shapes: B batch, S source and T target length, D width, V vocabulary.
"""

from functools import cache
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from regard.data.text.tokenizer import BOS, EOS, PAD
from regard.decode import search
from regard.decode.fast import decoder
from regard.decode.search import Hypothesis
from regard.layers.positions import sinusoid
from regard.models.transformer import Transformer, TransformerConfig

VOCAB, DIM, DEPTH, HEADS, MLP_RATIO, MAX_LEN = 200, 64, 2, 4, 4, 96
SENTENCES, LIMIT, WIDTH = 200, 16, 5
TIE = 1e-6  # two outputs whose scores are this close may be swapped


def sentences(count: int, max_len: int, generator: torch.Generator) -> Tensor:
    """Random sentences of all lengths, each with its end, padded: (B, S)."""
    tokens = torch.randint(4, VOCAB, (count, max_len), generator=generator)
    lengths = torch.randint(1, max_len, (count,), generator=generator)
    tokens = tokens.masked_fill(torch.arange(max_len) >= lengths[:, None], PAD)
    return tokens.scatter(1, lengths[:, None], EOS)


def repeated(source: Tensor, generator: torch.Generator) -> Tensor:
    """The source with each token repeated 0, 1 or 2 times, between start and end: (B, T).  Many outputs are correct."""
    times = torch.randint(0, 3, source.shape, generator=generator)
    times = times.masked_fill(source == PAD, 0).masked_fill(source == EOS, 1)
    rows = [F.pad(row.repeat_interleave(many), (1, 0), value=BOS) for row, many in zip(source, times, strict=True)]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


@cache
def trained_marian() -> nn.Module:
    """A small Marian, trained for a few seconds to repeat tokens, with Hugging Face's code alone.

    Random weights repeat one token whatever the source; these have close scores and outputs of all lengths.
    """
    config = transformers.MarianConfig(
        vocab_size=VOCAB,
        max_position_embeddings=MAX_LEN,
        encoder_layers=DEPTH,
        decoder_layers=DEPTH,
        encoder_ffn_dim=MLP_RATIO * DIM,
        decoder_ffn_dim=MLP_RATIO * DIM,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        activation_function="relu",
        d_model=DIM,
        dropout=0.0,
        init_std=0.05,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        attn_implementation="eager",  # not the fused kernel, which we call too
    )
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(1)
    marian = transformers.MarianMTModel(config)
    optimizer = torch.optim.Adam(marian.parameters(), lr=2e-3)
    for _ in range(120):
        source = sentences(32, 13, generator)
        target = repeated(source, generator)
        loss = F.cross_entropy(marian_logits(marian, source, target[:, :-1])[target[:, 1:] != PAD],
                               target[:, 1:][target[:, 1:] != PAD])  # fmt: skip
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert marian.generation_config.bad_words_ids is None  # nothing else influences the search
    assert marian.generation_config.forced_eos_token_id is None
    return marian.eval().requires_grad_(False)


@cache
def biased_marian() -> nn.Module:
    """The same with a `final_logits_bias`."""
    marian = transformers.MarianMTModel(trained_marian().config).eval().requires_grad_(False)
    marian.load_state_dict(trained_marian().state_dict())
    marian.final_logits_bias.normal_(std=0.3, generator=torch.Generator().manual_seed(5))
    return marian


def marian_logits(marian: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    return marian(input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=target).logits


def ours_from(marian: nn.Module, tied: bool) -> Transformer:
    """Our Transformer with Marian's weights."""
    ours = Transformer(
        TransformerConfig(VOCAB, DIM, DEPTH, HEADS, MLP_RATIO, dropout=0.0, norm="post", max_len=MAX_LEN, tied=tied)
    )
    theirs = dict(marian.model.named_parameters())
    weights = dict.fromkeys(("embed_source.tokens.weight", "embed_target.tokens.weight"), theirs["shared.weight"])
    weights["output.weight"] = theirs["shared.weight"]
    if not tied:
        weights["output.bias"] = marian.final_logits_bias[0]
    sides = {"encoder": {"self_attn": "attn"}, "decoder": {"self_attn": "attn", "encoder_attn": "cross"}}
    for side, attentions in sides.items():
        for i in range(DEPTH):
            for kind in ("weight", "bias"):
                a, b = f"{side}.{i}", f"{side}.layers.{i}"
                for theirs_attn, mine in attentions.items():
                    weights[f"{a}.{mine}.qkv.{kind}"] = torch.cat([theirs[f"{b}.{theirs_attn}.{x}_proj.{kind}"] for x in "qkv"])
                    weights[f"{a}.{mine}.out.{kind}"] = theirs[f"{b}.{theirs_attn}.out_proj.{kind}"]
                    weights[f"{a}.{mine}_residual.norm.{kind}"] = theirs[f"{b}.{theirs_attn}_layer_norm.{kind}"]
                weights[f"{a}.mlp.up.{kind}"] = theirs[f"{b}.fc1.{kind}"]
                weights[f"{a}.mlp.down.{kind}"] = theirs[f"{b}.fc2.{kind}"]
                weights[f"{a}.mlp_residual.norm.{kind}"] = theirs[f"{b}.final_layer_norm.{kind}"]
    ours.load_state_dict(weights, strict=True)  # strict: no weight is forgotten
    ours.embed_source.positions.table = marian.model.encoder.embed_positions.weight.detach().clone()
    ours.embed_target.positions.table = marian.model.decoder.embed_positions.weight.detach().clone()
    return ours.eval()


class Outputs(NamedTuple):
    tokens: list[list[list[int]]]  # of each sentence, best first, without start and end
    scores: list[list[float]]
    ended: int  # best outputs with an end token


def until_end(row: list[int]) -> list[int]:
    return row[: row.index(EOS)] if EOS in row else row


@cache
def eval_sources() -> Tensor:
    return sentences(SENTENCES, 14, torch.Generator().manual_seed(11))


def marian_outputs(width: int, penalty: float) -> Outputs:
    """All sentences in one batch, through `generate`."""
    source = eval_sources()
    how = {"num_return_sequences": width, "early_stopping": True, "length_penalty": penalty} if width > 1 else {}
    out = biased_marian().generate(
        input_ids=source,
        attention_mask=(source != PAD).long(),
        num_beams=width,
        max_new_tokens=LIMIT,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **how,
    )
    rows = [row[1:] for row in out.sequences.tolist()]  # without the start token
    if width > 1:
        scores = out.sequences_scores.tolist()
    else:  # generate does not score greedy outputs: sum the steps
        steps = torch.stack([logits.log_softmax(-1) for logits in out.scores], 1)  # (B, T, V)
        chosen = steps.gather(2, out.sequences[:, 1:, None]).squeeze(2)  # (B, T)
        lengths = torch.tensor([len(until_end(row)) + (EOS in row) for row in rows])
        totals = chosen.masked_fill(torch.arange(chosen.shape[1]) >= lengths[:, None], 0.0).sum(1)
        scores = (totals / lengths**penalty).tolist()
    cut = range(0, len(rows), width)
    return Outputs(
        [[until_end(row) for row in rows[i : i + width]] for i in cut],
        [scores[i : i + width] for i in cut],
        sum(EOS in rows[i] for i in cut),
    )


def our_outputs(width: int, penalty: float, batch: int = 60) -> list[list[Hypothesis]]:
    """The same sentences through our search, in several batches, which must not matter."""
    model, found = ours_from(biased_marian(), tied=False), []
    for source in eval_sources().split(batch):
        limits = torch.full((len(source),), LIMIT)
        if width == 1:
            found += [[h] for h in search.greedy(decoder(model), source, limits, bos=BOS, eos=EOS, penalty=penalty)]
        else:
            found += search.beam(decoder(model), source, limits, bos=BOS, eos=EOS, width=width, penalty=penalty)
    return found


def plain_beam(source: Tensor, width: int, penalty: float) -> tuple[list[Hypothesis], float]:
    """Beam search for one sentence in plain Python, with Marian's uncached logits, and its smallest margin.

    The margin is the smallest score gap between neighbouring candidates of any step; where it is only rounding, two
    correct searches may differ.
    """
    alive, found, margin = [([BOS], 0.0)], [], float("inf")
    for length in range(1, LIMIT + 1):
        prefix = torch.tensor([tokens for tokens, _ in alive])
        steps = marian_logits(biased_marian(), source.expand(len(alive), -1), prefix)[:, -1].log_softmax(-1).tolist()
        grown = [
            ([*tokens, token], total + step)
            for (tokens, total), row in zip(alive, steps, strict=True)
            for token, step in enumerate(row)
        ]
        grown = sorted(grown, key=lambda pair: -pair[1])[: 2 * width + 1]
        margin = min(margin, *(a[1] - b[1] for a, b in pairwise(grown)))
        ended = [(tokens, total) for tokens, total in grown[:width] if tokens[-1] == EOS or length == LIMIT]
        found += [Hypothesis(until_end(tokens[1:]), total / length**penalty) for tokens, total in ended]
        if len(found) >= width:
            break
        alive = [(tokens, total) for tokens, total in grown[: 2 * width] if tokens[-1] != EOS][:width]
    return sorted(found, key=lambda h: -h.score)[:width], margin


def differing(mine: list[list[Hypothesis]], theirs: Outputs, penalty: float) -> list[int]:
    """The sentences with other outputs; an error unless they tie, at the end or at some step."""
    found = []
    for i, (hypotheses, tokens, scores) in enumerate(zip(mine, theirs.tokens, theirs.scores, strict=True)):
        assert len(hypotheses) == len(tokens)
        if [h.tokens for h in hypotheses] != tokens:
            found.append(i)
            tied = all(
                h.tokens == other or abs(h.score - score) < TIE
                for h, other, score in zip(hypotheses, tokens, scores, strict=True)
            )
            _, margin = plain_beam(eval_sources()[i : i + 1], WIDTH, penalty)
            assert tied or margin < TIE, f"sentence {i}: {hypotheses} here, {tokens} {scores} there"
    return found


def test_marians_positions_are_ours_with_the_sines_first():
    ours = sinusoid(MAX_LEN, DIM)
    sines_first = torch.cat((ours[:, 0::2], ours[:, 1::2]), dim=1)
    torch.testing.assert_close(trained_marian().model.encoder.embed_positions.weight, sines_first, rtol=0, atol=1e-6)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_marians_on_padded_batches(tied):
    marian = trained_marian() if tied else biased_marian()
    ours, generator = ours_from(marian, tied), torch.Generator().manual_seed(2)
    for count, max_len in ((1, 2), (7, 9), (16, 40)):
        source = sentences(count, max_len, generator)
        target = repeated(source, generator)[:, :-1]
        with torch.no_grad():
            mine, theirs = ours(source, target), marian_logits(marian, source, target)
        assert (mine - theirs).abs().max() < 1e-5


def test_the_test_sentences_are_diverse():
    """Outputs of many lengths, most ended and some cut at the limit, nearly all different; and beams find others."""
    greedy, beam = marian_outputs(1, 1.0), marian_outputs(WIDTH, 1.0)
    for outputs in (greedy, beam):
        assert len({len(n_best[0]) for n_best in outputs.tokens}) >= 8
        assert len({tuple(n_best[0]) for n_best in outputs.tokens}) > SENTENCES * 0.8
        assert SENTENCES * 0.5 < outputs.ended < SENTENCES
    assert sum(a[0] != b[0] for a, b in zip(greedy.tokens, beam.tokens, strict=True)) > SENTENCES * 0.2


def test_greedy_outputs_equal_marians():
    mine, theirs = our_outputs(1, 1.0), marian_outputs(1, 1.0)
    assert [n_best[0].tokens for n_best in mine] == [n_best[0] for n_best in theirs.tokens]
    torch.testing.assert_close([n_best[0].score for n_best in mine], [s[0] for s in theirs.scores], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("penalty", [1.0, 0.6, 0.0])
def test_beam_outputs_and_scores_equal_marians_in_the_same_order(penalty):
    mine, theirs = our_outputs(WIDTH, penalty), marian_outputs(WIDTH, penalty)
    tied = differing(mine, theirs, penalty)
    assert len(tied) <= SENTENCES // 100  # each of them a tie
    same = [i for i in range(SENTENCES) if i not in tied]
    torch.testing.assert_close(  # a sum of sixteen logarithms has its own rounding, hence rtol
        [[h.score for h in mine[i]] for i in same], [theirs.scores[i] for i in same], rtol=1e-6, atol=1e-5
    )


def test_beam_outputs_equal_those_of_a_plain_uncached_search():
    mine, compared = our_outputs(WIDTH, 0.6), 0
    for i in range(0, SENTENCES, 20):
        wanted, margin = plain_beam(eval_sources()[i : i + 1], WIDTH, 0.6)
        if margin > TIE:
            compared += 1
            assert [h.tokens for h in mine[i]] == [h.tokens for h in wanted]
            assert [h.score for h in mine[i]] == pytest.approx([h.score for h in wanted], abs=1e-5)
    assert compared >= 8


def test_the_length_penalty_matters():
    """Otherwise the three penalties would be one test."""
    best = {penalty: [n_best[0].tokens for n_best in our_outputs(WIDTH, penalty)] for penalty in (1.0, 0.6, 0.0)}
    for a, b in ((1.0, 0.6), (0.6, 0.0)):
        assert sum(x != y for x, y in zip(best[a], best[b], strict=True)) > SENTENCES * 0.02
