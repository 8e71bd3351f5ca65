"""The Transformer of 2017: layers, stacks, sizes, masks, training with teacher forcing.

Shapes: B batch, S source and T target length, D width, V vocabulary, Q queries, K keys.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.text.batches import PairBatch, pad
from regard.data.text.tokenizer import BOS, EOS, PAD, train_tokenizer
from regard.decode import search
from regard.decode.fast import decoder
from regard.layers.attention import Attention, attend
from regard.layers.block import EncoderBlock
from regard.layers.masks import causal_mask
from regard.layers.mlp import MLP
from regard.layers.shapes import to_patches
from regard.layers.tap import record_calls, watch
from regard.models.fitting import build_without_memory
from regard.models.gpt import GPT, GPTConfig
from regard.models.transformer import SIZES, Transformer, TransformerConfig
from regard.models.vit import SIZES as VIT_SIZES
from regard.models.vit import ViT
from regard.tasks.translation import EncoderDecoder, sequence_loss
from regard.verify.claim import Finding, at_least, at_most, between, claim, close, equals, refutes
from regard.verify.measures import Points, minimize
from regard.verify.plots import Curves, Heatmap

__all__: list[str] = []

VOCAB = 50
WORDS = ["YOUR", "CAT", "IS", "A", "LOVELY", "CAT"]
TABLE = torch.tensor([  # attention weights of YOUR CAT IS A LOVELY CAT, as the notes print them
    [0.268, 0.119, 0.134, 0.148, 0.179, 0.152], [0.124, 0.278, 0.201, 0.128, 0.154, 0.115],
    [0.147, 0.132, 0.262, 0.097, 0.218, 0.145], [0.210, 0.128, 0.206, 0.212, 0.119, 0.125],
    [0.146, 0.158, 0.152, 0.143, 0.227, 0.174], [0.195, 0.114, 0.203, 0.103, 0.157, 0.229],
])  # fmt: skip


def small(**changes: Any) -> Transformer:
    """A small Transformer with random weights, without dropout."""
    return Transformer(replace(TransformerConfig(VOCAB, 64, 2, 4), **changes)).eval()


def block_of(model: Transformer, index: int = 0) -> EncoderBlock:
    """A layer of the encoder."""
    block = model.encoder[index]
    assert isinstance(block, EncoderBlock)
    return block


def mlp_of(model: Transformer) -> MLP:
    """The feed-forward network of the first layer."""
    mlp = block_of(model).mlp
    assert isinstance(mlp, MLP)
    return mlp


def loss_of(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """The summed loss of teacher forcing."""
    loss, _ = sequence_loss(cast(EncoderDecoder, model), PairBatch(source, target), 0.0)
    return loss


def random_tokens(length: int, batch: int = 1) -> Tensor:
    """Tokens that are not special: (B, T)."""
    return torch.randint(4, VOCAB, (batch, length))


@claim(34, "001", "Every decoder layer attends to the output of the last encoder layer, not to that of the same height.")
def every_decoder_layer_reads_the_last_encoder_layer() -> Iterator[Finding]:
    model, outputs = small(depth=6, norm="post"), list[Tensor]()  # without a norm after the last layer
    for block in model.encoder:
        block.register_forward_hook(lambda *call: outputs.append(call[2]))
    with ExitStack() as stack:
        calls = [stack.enter_context(record_calls(model, f"decoder.{layer}.cross")) for layer in range(6)]
        model(random_tokens(8), random_tokens(8))
    read = [call.memory for [call] in calls if call.memory is not None]
    differences = torch.tensor([[(memory - output).abs().max().item() for output in outputs] for memory in read])
    yield equals("encoder layer that decoder layers 1 to 6 read", (differences.argmin(1) + 1).tolist(), [6] * 6)
    yield at_most("largest difference from the output of the last encoder layer", differences[:, -1].max().item(), 0)
    yield at_least("smallest difference from that of an earlier one", differences[:, :-1].min().item(), 0.1)
    names = [str(layer) for layer in range(1, 7)]
    yield Heatmap("What a decoder layer reads minus what an encoder layer gives", "encoder layer", "decoder layer", differences,
                  names, names, "largest difference")  # fmt: skip


@claim(50, "001 002", "The feed-forward network is max(0, xW₁ + b₁)W₂ + b₂, from 512 to 2048 numbers and back to 512.")
def feed_forward_is_two_linear_layers_and_a_relu() -> Iterator[Finding]:
    mlp = mlp_of(Transformer(replace(SIZES["base"], vocab=VOCAB, depth=1)))
    for bias in (mlp.up.bias, mlp.down.bias):
        nn.init.normal_(bias)  # zero before training
    w1, w2 = mlp.up.weight.T, mlp.down.weight.T
    x = torch.randn(3, len(w1))
    inside = list[Tensor]()
    mlp.down.register_forward_pre_hook(lambda module, inputs: inside.append(inputs[0]))
    found = mlp(x)
    yield equals("shapes of W₁ and W₂", [tuple(w1.shape), tuple(w2.shape)], [(512, 2048), (2048, 512)])
    yield equals("shape of what W₂ is given, for 3 tokens", [tuple(x.shape) for x in inside], [(3, 2048)])
    yield close("our network, 3 × 512", found, (x @ w1 + mlp.up.bias).clamp(min=0) @ w2 + mlp.down.bias, within=1e-4)


@claim(50, "001 004", "The feed-forward network is applied to each position separately and identically.")
def feed_forward_treats_each_position_alone() -> Iterator[Finding]:
    mlp, x = mlp_of(small()), torch.randn(1, 6, 64)
    changed = x.clone()
    changed[:, 2] += 1
    change = (mlp(changed) - mlp(x)).abs().amax((0, 2))
    yield equals("positions that change with position 3", (change.nonzero()[:, 0] + 1).tolist(), [3])
    yield close("six positions together and one by one", mlp(x)[0], torch.cat([mlp(token[None]) for token in x[0]]), within=1e-5)
    order = torch.randperm(6)
    yield close("positions in another order", mlp(x[:, order]), mlp(x)[:, order], within=1e-5)


@claim(51, "001 002", "A stack has N layers of the same design with weights of their own: clones() must not leave them equal.")
def layers_of_a_stack_have_their_own_weights() -> Iterator[Finding]:
    model = small(depth=6)
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        layers = [dict(block.named_parameters()) for block in stack]
        places = {weight.data_ptr() for layer in layers for weight in layer.values()}
        yield equals(f"{name}: tensors of 6 layers, none shared", len(places), 6 * len(layers[0]))
        matrices = [torch.cat([weight.flatten() for weight in layer.values() if weight.ndim == 2]) for layer in layers]
        correlation = torch.corrcoef(torch.stack(matrices)).fill_diagonal_(0)
        yield at_most(f"{name}: largest correlation of the initial weights of two layers", correlation.abs().max().item(), 0.05)


@claim(51, "001", "Encoder and decoder are stacks of layers x + Dropout(Sublayer(Norm(x))), with a norm after the last layer.")
def stacks_equal_those_of_torch() -> Iterator[Finding]:
    ours = small()
    for weight in ours.parameters():  # biases are zeros before training, gains ones
        nn.init.normal_(weight, float(weight.ndim == 1), 0.2)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**TORCH), 2, nn.LayerNorm(64), enable_nested_tensor=False)
    decoder_stack = nn.TransformerDecoder(nn.TransformerDecoderLayer(**TORCH), 2, nn.LayerNorm(64))
    copies = {"encoder": encoder.eval(), "decoder": decoder_stack.eval()}
    for name, stack in copies.items():
        stack.load_state_dict(as_torch(name, ours))
    source, target = random_tokens(7, batch=2), random_tokens(5, batch=2)
    memory = encoder(ours.embed_source(source))
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    yield close("memory of 7 source tokens, against nn.TransformerEncoder", ours.encode(source)[0], memory, within=1e-4)
    yield close("features of 5 target tokens, against nn.TransformerDecoder", ours.features(source, target),
                decoder_stack(ours.embed_target(target), memory, tgt_mask=causal, tgt_is_causal=True), within=1e-4)  # fmt: skip


TORCH: dict[str, Any] = {"d_model": 64, "nhead": 4, "dim_feedforward": 256, "dropout": 0.0, "batch_first": True,
                         "norm_first": True}  # fmt: skip


def as_torch(stack: str, model: Transformer) -> dict[str, Tensor]:
    """The weights of a stack, by the names that torch's own layers have for them."""
    norms = {"encoder": ("attn", "mlp"), "decoder": ("attn", "cross", "mlp")}[stack]
    names = {f"{sub}_residual.norm.": f"norm{number}." for number, sub in enumerate(norms, 1)}
    names |= {"attn.qkv.": "self_attn.in_proj_", "attn.out.": "self_attn.out_proj.", "cross.qkv.": "multihead_attn.in_proj_",
              "cross.out.": "multihead_attn.out_proj.", "mlp.up.": "linear1.", "mlp.down.": "linear2."}  # fmt: skip
    found = dict[str, Tensor]()
    for key, weight in getattr(model, stack).state_dict().items():
        layer, _, rest = key.partition(".")
        ours = next(name for name in names if rest.startswith(name))
        found[f"layers.{layer}.{names[ours]}{rest.removeprefix(ours)}"] = weight
    final = getattr(model, f"{stack}_norm").state_dict()
    return found | {f"norm.{key}": weight for key, weight in final.items()}


@claim(52, "002", "How are you, step by step: embeddings E plus positions P are X, of which attention makes Z; then Z + X, "
       "layer norm, and the feed-forward network, whose output is the input of the next block.")  # fmt: skip
def how_are_you_goes_through_a_block_step_by_step() -> Iterator[Finding]:
    tokenizer = train_tokenizer(["How are you"], "words", 100)
    ids = torch.tensor(tokenizer.encode(["How are you"]))
    model, seen = small(norm="post"), dict[str, tuple[Tensor, Tensor]]()
    first, second = block_of(model), block_of(model, 1)
    parts: dict[str, nn.Module] = {"attention": first.attn, "norm": first.attn_residual.norm, "feed forward": first.mlp,
                                   "block": first, "next": second}  # fmt: skip
    for name, part in parts.items():
        part.register_forward_hook(lambda module, inputs, output, name=name: seen.update({name: (inputs[0], output)}))
    model.encode(ids)
    angles = torch.arange(3.0)[:, None] / 10_000 ** (torch.arange(0, 64, 2) / 64)
    positions = torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
    x, z = seen["attention"]
    yield equals("tokens of How are you", ids.shape[1], 3)
    yield close("step 2, X = √d · E + P", x[0], 8 * model.embed_source.tokens.weight[ids[0]] + positions, within=1e-5)
    others = first.attn(torch.cat((x[:, :2], -x[:, 2:]), 1))
    yield at_least("step 3, change of Z of How when the vector of you changes", (others - z)[0, 0].abs().max().item(), 0.01)
    total, normed = seen["norm"]
    yield close("step 4, Z + X", total, x + z, within=1e-5)
    mean, deviation = total.mean(-1, keepdim=True), total.std(-1, keepdim=True, correction=0)
    yield close("step 4, its layer norm", normed, (total - mean) / deviation, within=1e-3)
    yield close("input of the feed-forward network, against this norm", seen["feed forward"][0], normed, within=0)
    yield close("input of the next block, against the output of the first", seen["next"][0], seen["block"][1], within=0)


@claim(53, "001", "make_model() assembles encoder and decoder of N = 6 layers, d_model = 512, d_ff = 2048 and 8 heads.")
def base_model_has_the_parameters_of_the_formula() -> Iterator[Finding]:
    d, hidden, vocab = 512, 2048, 37_000
    attention, mlp, norm = 4 * (d * d + d), 2 * d * hidden + hidden + d, 2 * d
    core = 6 * (attention + mlp + 2 * norm) + 6 * (2 * attention + mlp + 3 * norm) + 2 * norm
    model = build_without_memory(lambda: Transformer(SIZES["base"]))
    assert isinstance(model, Transformer)
    yield equals("layers of encoder and decoder", (len(model.encoder), len(model.decoder)), (6, 6))
    yield equals("heads of all layers", {part.heads for part in model.modules() if isinstance(part, Attention)}, {8})
    widths = {tuple(part.up.weight.T.shape) for part in model.modules() if isinstance(part, MLP)}
    yield equals("d_model and d_ff of all layers", widths, {(d, hidden)})
    stacks, all_untied = base_parameters(tied=False)
    _, all_tied = base_parameters(tied=True)
    yield equals("parameters of encoder and decoder", stacks, core)
    yield equals("with two embeddings and an output layer of 37,000 tokens", all_untied, core + 3 * vocab * d + vocab)
    yield equals("with one matrix for all three, as in the paper, which says 65 million", all_tied, core + vocab * d)


def base_parameters(*, tied: bool) -> tuple[int, int]:
    """How many parameters the stacks of the base model have, and the whole."""
    model = build_without_memory(lambda: Transformer(replace(SIZES["base"], tied=tied)))
    stacks = (weight.numel() for name, weight in model.named_parameters() if name.startswith(("encoder", "decoder")))
    return sum(stacks), sum(weight.numel() for weight in model.parameters())


@claim(53, "001", "It is important to initialize each matrix as Glorot did: uniform, with the variance 2 / (fan_in + fan_out).",
       condition="in that ours start so; how important it is, is not measured")  # fmt: skip
def matrices_are_initialized_by_xavier() -> Iterator[Finding]:
    model = small(dim=128, depth=1)
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and name.startswith(("encoder", "decoder")):
            bound = (6 / sum(weight.shape)) ** 0.5
            yield close(f"{name}: standard deviation over Glorot's", weight.std().item() / (bound / 3**0.5), 1.0, within=0.03)
            yield between(f"{name}: largest weight over the bound", weight.abs().max().item() / bound, 0.98, 1.001)


@claim(54, "001", "The generator is a linear layer and a log-softmax.")
def generator_is_a_linear_layer_and_a_log_softmax() -> Iterator[Finding]:
    model, source = small(), random_tokens(6)
    [found] = search.greedy(decoder(model), source, torch.tensor([5]), bos=BOS, eos=EOS, logprobs=True)
    ids = [BOS, *found.tokens, EOS][: len(found.logprobs or []) + 1]
    logits = model.features(source, torch.tensor([ids[:-1]]))[0] @ model.output.weight.T  # (T, V)
    log_probs = logits - logits.exp().sum(-1, keepdim=True).log()
    expected = log_probs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    yield close("log-probabilities of the generated tokens", torch.tensor(found.logprobs), expected, within=1e-4)


@claim(54, "002", "The vocabulary is counted from the data: 5,000 sentences with 10,000 different words make an output layer of "
       "10,000 neurons, each of which stands for a word.", condition="if special tokens are counted too")  # fmt: skip
def output_layer_has_a_neuron_for_each_word() -> Iterator[Finding]:
    sentences = [f"w{2 * n} w{2 * n + 1}" for n in range(5000)]
    words = sorted({word for sentence in sentences for word in sentence.split()})
    tokenizer = train_tokenizer(sentences, "words", 20_000)
    output = small(vocab=tokenizer.vocab, depth=1, tied=False).output
    yield equals("premise: different words of 5,000 sentences made here", len(words), 10_000)
    yield equals("neurons of the output layer", output.out_features, 10_000 + len({PAD, BOS, EOS, tokenizer.special.unk}))
    ids = [token for [token] in tokenizer.encode(words)]
    yield equals("neurons that stand for a word, each for one", len({*ids}), 10_000)
    yield equals("words read back from their neurons", tokenizer.ids_to_tokens(ids) == words, True)


@claim(55, "000 001 002 003", "The decoder is causal: its output at a position depends on that position and those before it.")
def logits_have_no_gradient_to_later_tokens() -> Iterator[Finding]:
    model, length, embedded = small(), 8, list[Tensor]()
    model.embed_target.register_forward_hook(lambda module, inputs, output: embedded.append(output))
    logits = model(random_tokens(6), random_tokens(length))[0]
    [x] = embedded
    gradients = [torch.autograd.grad(row.square().sum(), x, retain_graph=True)[0][0].norm(dim=-1) for row in logits]
    reach = torch.stack(gradients)  # (T, T): of the logits at a row, to the token of a column
    past = reach[torch.ones_like(reach).tril().bool()]
    yield equals("gradient to later tokens", reach.triu(1).max().item(), 0.0)
    yield at_least("smallest gradient to a token that may be seen", past.min().item(), 1e-6)
    names = [str(n) for n in range(1, length + 1)]
    yield Heatmap("Gradient of the logits to the target tokens", "target token", "logits at", reach.clamp(min=1e-6).log10(),
                  names, names, "gradient norm, log₁₀")  # fmt: skip


@claim(55, "000 003", "All values above the diagonal are replaced with −∞ before the softmax, which makes their weights zero.")
def masked_table_has_the_weights_of_a_softmax_over_the_past() -> Iterator[Finding]:
    words, scores = torch.eye(6), TABLE.log()  # softmax(scores) is the table
    _, weights = attend(words, scores.T, words, scale=1.0, causal=True, need_weights=True)
    assert weights is not None
    yield close("weights above the diagonal", weights.triu(1).max(), 0.0)
    yield close("sums of the rows", weights.sum(-1), torch.ones(6), within=1e-6)
    past = [row[: n + 1] / row[: n + 1].sum() for n, row in enumerate(TABLE)]  # a softmax over the past alone
    expected = torch.nn.utils.rnn.pad_sequence(past, batch_first=True)
    yield close("weights of YOUR CAT IS A LOVELY CAT, masked", weights, expected, within=1e-5)
    yield Heatmap("YOUR CAT IS A LOVELY CAT, masked", "key", "query", weights, WORDS, WORDS, "weight")


@claim(55, "001", "subsequent_mask(size) allows position i to see positions 1 to i.")
def causal_mask_is_a_lower_triangle() -> Iterator[Finding]:
    loop = [[key <= query for key in range(6)] for query in range(6)]
    yield equals("mask of 6 positions, against a loop", causal_mask(6, 6).tolist(), loop)
    yield equals("its last 2 rows, for 2 queries after 4 cached keys", causal_mask(2, 6).tolist(), loop[4:])
    model = small(depth=1)
    with watch(model) as weights:
        model(random_tokens(5), random_tokens(6))
    [seen] = weights["decoder.0.attn"]
    yield equals("weights above 0 in a decoder's self-attention, all heads", (seen > 0).all(1)[0].tolist(), loop)


@claim(55, "001 002", "Without the mask a decoder is trained on words that it will not have at inference: a data leak.")
def without_the_mask_training_leaks_the_answer() -> Iterator[Finding]:
    lines, unseen = dict[str, Points](), dict[str, float]()
    for name, causal in (("with the mask", True), ("without the mask", False)):
        model = GPT(GPTConfig(vocab=8, dim=32, depth=1, heads=2, max_len=12, dropout=0.0, attention_dropout=0.0))
        for block in model.blocks:
            block.causal &= causal

        def loss(model: GPT = model) -> Tensor:
            text = torch.randint(8, (32, 9))  # random: nothing can be learned of the next token
            return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

        lines[name], text = minimize(model.parameters(), loss, steps=100, lr=0.01), torch.randint(8, (32, 9))
        with torch.no_grad():  # as at inference: what follows is not there yet
            unseen[name] = F.cross_entropy(model(text[:, :-1])[:, -1], text[:, -1]).item()
    yield at_least("loss with the mask, nats (chance: 2.08)", lines["with the mask"][-1][1], 1.9)
    yield at_most("loss without the mask, nats", lines["without the mask"][-1][1], 1.0)
    yield at_least("loss without the mask where the next token is not there yet, nats", unseen["without the mask"], 1.9)
    yield Curves("Predicting random tokens", "training step", "loss in nats", lines)


@claim("c6", "001", "Scores that are masked are set to -1e9; softmax makes their weights 0.",
       right="they are set to −∞, which any precision has; a query with every key masked would then get NaN, and must get "
       "zeros")  # fmt: skip
def masked_keys_get_no_weight_in_any_row_and_precision() -> Iterator[Finding]:
    q, k, v = torch.randn(3, 4, 8)
    mask = torch.tensor([[True, True, False, False], [False] * 4, [True] * 4, [True] * 4])
    scores = q @ k.T / 8**0.5
    notes = scores.masked_fill(~mask, -1e9).softmax(-1)
    yield refutes("largest weight of a masked key by the code of the notes", notes[~mask].max().item(), 0.0, by=0.1)
    try:
        outcome = str(scores.half().masked_fill(~mask, -1e9).softmax(-1)[0, 2].item())
    except RuntimeError as error:
        outcome = str(error).splitlines()[0]
    yield refutes("the same in 16-bit numbers", outcome, "0.0")
    unsafe = scores.masked_fill(~mask, -math.inf).softmax(-1)
    yield equals("weights of the query with every key masked, by a softmax of −∞ alone", str(unsafe[1].tolist()),
                 "[nan, nan, nan, nan]")  # fmt: skip
    q.requires_grad_()
    mixed, weights = attend(q, k, v, mask=mask, need_weights=True)
    assert weights is not None
    yield close("our weights of masked keys", weights[~mask], torch.zeros(6))
    yield close("our output of the query with every key masked", mixed[1], torch.zeros(8))
    yield close("the same by the fused kernel", attend(q.detach(), k, v, mask=mask)[0], mixed, within=1e-5)
    [gradient] = torch.autograd.grad(mixed.sum(), q)
    yield equals("gradients are finite", bool(gradient.isfinite().all()), True)
    _, half = attend(q.half(), k.half(), v.half(), mask=mask, need_weights=True)
    assert half is not None
    yield close("our weights in 16-bit numbers", half.float(), weights, within=0.01)


@claim("c5", "001", "attention() returns the weights p_attn, after dropout.",
       right="weights to look at are those before dropout: each row sums to 1")  # fmt: skip
def weights_are_returned_before_dropout() -> Iterator[Finding]:
    q, k, v = torch.randn(3, 1, 2, 20, 16)
    dropped = F.dropout((q @ k.mT / 4).softmax(-1), 0.3).sum(-1)
    yield refutes("sums of the rows that the code of the notes returns, dropout 0.3", dropped, torch.ones(1, 2, 20), by=0.1)
    mixed, weights = attend(q, k, v, dropout=0.3, need_weights=True)
    assert weights is not None
    yield close("sums of the rows that ours returns", weights.sum(-1), torch.ones(1, 2, 20), within=1e-5)
    yield at_least("change of the output by dropout", (mixed - weights @ v).abs().max().item(), 0.1)
    model = small(attention_dropout=0.3).train()
    with watch(model) as seen:
        model(random_tokens(9), random_tokens(9))
    sums = torch.cat([calls.sum(-1).flatten() for [calls] in seen.values()])
    yield close("sums of all rows of a Transformer in training", sums, torch.ones_like(sums), within=1e-5)


@claim(56, "000 002 003", "Training happens in one time step: all target tokens are predicted in parallel.")
def one_pass_gives_the_loss_of_all_steps() -> Iterator[Finding]:
    model, source = small(), random_tokens(9, batch=3)
    target = torch.cat((torch.full((3, 1), BOS), random_tokens(12, batch=3)), 1)
    with watch(model) as parallel:
        loss = loss_of(model, source, target)
    steps, total = decoder(model), torch.zeros(())
    with torch.no_grad(), watch(model) as serial:
        state = steps.start(source)
        for token, label in pairwise(target.T):  # the true token, whatever was predicted
            logits, state = steps.step(token, state)
            total += F.cross_entropy(logits, label, reduction="sum")
    yield close("loss of 36 target tokens in one pass, against 12 steps one after the other", loss.item(), total.item(), rel=1e-4)
    calls = [len(found["decoder.0.attn"]) for found in (parallel, serial)]
    yield equals("calls of a decoder layer: in one pass, and step by step", calls, [1, 12])


@claim(56, "000 003", "<SOS> is put before the target, so the decoder's input is shifted right: the label of each position is "
       "the next token, and that of the last <EOS>.")  # fmt: skip
def decoder_input_is_the_target_shifted_right() -> Iterator[Finding]:
    words, model, read = random_tokens(3)[0].tolist(), small(), list[Tensor]()  # as ti amo molto
    model.embed_target.register_forward_hook(lambda module, inputs, output: read.append(inputs[0]))
    target = torch.tensor([[BOS, *words, EOS]])
    source = random_tokens(6)
    loss = loss_of(model, source, target)
    [inputs] = read
    yield equals("what the decoder reads", inputs[0].tolist(), [BOS, *words])
    probabilities = model(source, torch.tensor([[BOS, *words]])).softmax(-1)[0].tolist()
    by_hand = -sum(math.log(probabilities[place][label]) for place, label in enumerate([*words, EOS]))
    yield close("loss, against -log p of each next token and <EOS>", loss.item(), by_hand, rel=1e-4)


@claim(57, "000 002 003", "The prediction is compared with the true label by cross-entropy; its gradient updates the weights.")
def loss_is_the_cross_entropy_of_real_tokens() -> Iterator[Finding]:
    model, source = small(), random_tokens(7, batch=2)
    target = pad([[BOS, *row] for row in (random_tokens(3)[0].tolist(), random_tokens(8)[0].tolist())],
                 train_tokenizer(["a"], "words", 9).special)  # fmt: skip
    loss = loss_of(model, source, target)
    expected = F.cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD,
                               reduction="sum")  # fmt: skip
    yield close("loss of 4 and 9 tokens, one row padded, against torch's cross-entropy without the padding", loss.item(),
                expected.item(), rel=1e-4)  # fmt: skip
    weights = list(model.parameters())
    ours, theirs = torch.autograd.grad(loss, weights), torch.autograd.grad(expected, weights)
    flat = [torch.cat([gradient.flatten() for gradient in gradients]) for gradients in (ours, theirs)]
    yield close("gradient of all weights, against that of torch's", flat[0], flat[1], within=1e-3)
    with torch.no_grad():
        for weight, gradient in zip(weights, ours, strict=True):
            weight.sub_(1e-3 * gradient)
        after = loss_of(model, source, target)
    yield at_most("loss after one step against the gradient, over the loss before", (after / loss).item(), 0.95)


@claim(60, "000 003", "The last linear layer maps (seq, d_model) to (seq, vocab_size): the logits, before softmax.")
def logits_have_a_score_for_each_position_and_token() -> Iterator[Finding]:
    model, source, target = small(), random_tokens(6), random_tokens(4)
    features, logits = model.features(source, target), model(source, target)
    shapes = [tuple(features[0].shape), tuple(logits[0].shape)]
    yield equals("shapes before and after the linear layer, of 4 target tokens", shapes, [(4, 64), (4, VOCAB)])
    by_hand = torch.stack([model.output.weight @ x for x in features[0]])
    yield close("logits, against one product for each position", logits[0], by_hand, within=1e-4)
    yield at_least("sum of exp(logit), where a softmax would have 1", logits.exp().sum(-1).min().item(), 10)
    [found] = search.greedy(decoder(model), source, torch.tensor([3]), bos=BOS, eos=-1)
    place, tokens = torch.tensor([[BOS]]), list[int]()
    for _ in range(3):  # the largest softmax of the last position
        tokens.append(int(model(source, place)[0, -1].softmax(-1).argmax()))
        place = torch.cat((place, torch.tensor([[tokens[-1]]])), 1)
    yield equals("tokens with the largest probability, against a greedy search that reads the logits", found.tokens, tokens)


@claim(87, "000 001 002 003 004", "The figures: N encoder blocks of attention and feed forward; N decoder blocks of masked "
       "attention, cross-attention and feed forward; add & norm after each; d_model numbers for each token.")  # fmt: skip
def modules_run_in_the_order_of_the_figures() -> Iterator[Finding]:
    model, run, widths = small(depth=3, norm="post"), list[str](), set[tuple[int, ...]]()
    names = {"attn": "attention", "cross": "cross-attention", "mlp": "feed forward", "output": "linear"}

    def note(name: str) -> None:
        run.append(names.get(name, "add & norm"))

    for name, part in model.named_modules():
        last = name.rpartition(".")[2]
        if last in names or last.endswith("_residual"):
            part.register_forward_hook(lambda module, inputs, output, last=last: note(last))
        if last.endswith("_residual"):
            part.register_forward_hook(lambda module, inputs, output: widths.add((inputs[0].shape[-1], output.shape[-1])))
    model(random_tokens(5), random_tokens(6))
    encoder = ["attention", "add & norm", "feed forward", "add & norm"]
    yield equals("modules of the encoder, 3 blocks", ", ".join(run[:12]), ", ".join(encoder * 3))
    figure = ["attention", "add & norm", "cross-attention", "add & norm", "feed forward", "add & norm"]
    yield equals("modules of the decoder, 3 blocks, and after it", ", ".join(run[12:]), ", ".join([*figure * 3, "linear"]))
    yield equals("widths of what goes in and out of all 15 sub-layers", sorted(widths), [(64, 64)])
    with watch(model) as weights:
        model(random_tokens(5), random_tokens(6))
    masked = [name for name, [seen] in weights.items() if not seen.all()]
    yield equals("attention in which some weights are 0", masked, [f"decoder.{layer}.attn" for layer in range(3)])


@claim("c28", "000", "196 patches of 16 · 16 · 3 = 768 numbers are projected into a higher-dimensional space, such as 768.",
       right="768 numbers stay 768 numbers in ViT-Base; ViT-Tiny has fewer, ViT-Large more")  # fmt: skip
def vit_base_projects_768_numbers_to_768() -> Iterator[Finding]:
    models = {name: build_without_memory(partial(ViT, config)) for name, config in VIT_SIZES.items()}
    shapes = {name: dict(model.named_parameters())["embed.weight"].shape for name, model in models.items()}
    patches = to_patches(torch.randn(1, 3, 224, 224), VIT_SIZES["base"].patch)
    yield equals("patches of an image of 224 · 224 · 3, and numbers in each", tuple(patches.shape[1:]), (196, 768))
    outputs, inputs = shapes["base"]
    change = "higher" if outputs > inputs else "the same" if outputs == inputs else "lower"
    yield refutes("dimension of ViT-Base after the projection, beside that before", change, "higher")
    for name, width in (("base", 768), ("tiny", 192), ("large", 1024)):
        outputs, inputs = shapes[name]
        yield equals(f"ViT-{name.title()}: dimensions before and after the projection", (inputs, outputs), (768, width))


@claim("c28", "000 003", "Source and target sequence will have the same length thanks to padding.",
       right="source and target keep their lengths; padding makes the sources of a batch alike, and is masked")  # fmt: skip
def source_and_target_have_lengths_of_their_own() -> Iterator[Finding]:
    pairs = [("I love you very much", "Ti amo molto")]
    tokenizer = train_tokenizer([text for pair in pairs for text in pair], "words", VOCAB)
    [source], [target] = (tokenizer.encode([text]) for text in pairs[0])
    model, words = small(vocab=tokenizer.vocab), torch.tensor([[BOS, *target]])
    alone = model(pad([source], tokenizer.special), words)
    with watch(model) as weights:
        model(pad([source], tokenizer.special), words)
    [cross] = weights["decoder.0.cross"]
    yield refutes("tokens of the target less those of the source", cross.shape[-2] - cross.shape[-1], 0)
    yield equals("logits of the target: positions", alone.shape[1], len(target) + 1)
    batch = pad([source, source * 3], tokenizer.special)  # beside a longer source
    yield close("logits beside a source of 15 words, so with 10 tokens of padding, against those without",
                model(batch, words.expand(2, -1))[:1], alone, within=1e-5)  # fmt: skip
