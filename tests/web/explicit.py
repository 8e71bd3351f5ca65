"""What the page must show, computed without the explorer: a direct forward pass of the model inside `watch`.

Shapes: H heads, Q queries, K keys, N windows, M window side, Y X rows and columns of a grid.
"""

import copy
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.data.audio.batches import to_model_input
from regard.data.audio.io import read_audio
from regard.data.text.batches import pad
from regard.decode.ctc import Span, align
from regard.layers.tap import watch
from regard.tasks.predictors import Predictor


@torch.inference_mode()
def attention(family: str, predictor: Predictor, given: str | Path, answer: str = "") -> dict[str, Tensor]:
    """The weights (H, Q, K) of every attention module by its name, for a text or a file; of a GPT, with what it generated."""
    read = model_input(family, predictor, given, answer)
    with watch(predictor.model) as seen:
        predictor.model(*read)
    # A recurrent decoder makes a call for each token, the others one call.
    whole = {name: torch.cat(calls, -2) for name, calls in seen.items() if calls}
    if family == "swin":
        return {name: scatter_windows(weights, *swin_windows(predictor.model, name)) for name, weights in whole.items()}
    return {name: weights[0] for name, weights in whole.items()}


def model_input(family: str, predictor: Predictor, given: str | Path, answer: str = "") -> tuple[Tensor, ...]:
    """What the forward pass of a model gets, the tokens of its answer included."""
    if family in ("transformer", "bahdanau", "t5"):
        return translation_ids(predictor, given)
    if family == "gpt":
        return (torch.tensor([generated_ids(predictor, given, answer)]),)
    if family == "bert":
        return (masked_ids(predictor, given),)
    if family in ("vit", "swin"):
        return (predictor.to_input(given),)
    if family == "captioner":
        [caption] = predictor.caption([given])
        target = [predictor.tokenizer.special.bos, *_read(caption.ids, predictor.run.decode.max_length)]
        return predictor.to_input(given), torch.tensor([target])
    return to_model_input([read_audio(given, predictor.run.data.rate)], predictor.run.data)


def alignment(family: str, predictor: Predictor, given: str | Path, weights: dict[str, Tensor], answer: str = "") -> Tensor:
    """What each item of the answer attended to (rows, K), from the weights of all modules."""
    layers = list(weights.values())
    if family in ("transformer", "bahdanau", "t5", "captioner"):
        return torch.stack([each for name, each in weights.items() if name.endswith("cross")]).mean((0, 1))
    if family == "gpt":  # the row of a token is that of the one before, which predicted it
        start = len(generated_ids(predictor, given, ""))
        return torch.stack(layers).mean((0, 1))[start - 1 : start - 1 + len(predictor.tokenizer.encode([answer])[0])]
    if family == "bert":
        masked = masked_ids(predictor, given)[0] == predictor.tokenizer.special.mask
        return torch.stack(layers).mean((0, 1))[masked]
    if family == "vit":
        return layers[-1].mean(0)[:1]  # of the class token
    if family == "swin":
        return layers[-1].mean(0).mean(0, keepdim=True)  # of all positions
    return torch.stack([layers[-1].mean(0)[span.start : span.stop].mean(0) for span in ctc_spans(predictor, given)])


@torch.inference_mode()
def ctc_spans(transcriber: Predictor, sound: Path) -> list[Span]:
    """The frames of each token of a transcript."""
    frames, lengths = to_model_input([read_audio(sound, transcriber.run.data.rate)], transcriber.run.data)
    [found] = transcriber.search(frames, lengths, transcriber.run.decode.beam_size, log_probs=True)
    return align(found.log_probs, found.tokens, blank=transcriber.run.model.pad)


def translation_ids(translator: Predictor, text: str) -> tuple[Tensor, Tensor]:
    """What encoder and decoder read while the translation of a text is predicted."""
    [source], [answer] = translator.encode([text]), translator.translate([text])
    special = translator.tokenizer.special
    return pad([source], special), torch.tensor([[special.bos, *_read(answer.ids, translator.max_answer(len(source)))]])


def _read(ids: list[int], limit: int) -> list[int]:
    """What the decoder reads of an answer: all that it predicts its end from, or, of one cut at the limit, all but the last."""
    return ids[:-1] if len(ids) == limit else ids


def generated_ids(generator: Predictor, prompt: str, answer: str) -> list[int]:
    """A prompt and what was generated after it."""
    [ids], [more] = generator.tokenizer.encode([prompt]), generator.tokenizer.encode([answer])
    return [*generator.tokenizer.prompt_start, *ids, *more]


def masked_ids(predictor: Predictor, text: str) -> Tensor:
    """A text with mask tokens, between its start and its end token."""
    special = predictor.tokenizer.special
    [ids] = predictor.tokenizer.encode([text], parse_special=True)
    return torch.tensor([[special.bos, *ids, special.eos]])


def swin_windows(model: nn.Module, name: str) -> tuple[int, int, int]:
    """Side of the grid, of the window, and the cyclic shift of an attention module `stages.S.blocks.B…`."""
    config = model.config
    stage, block = (int(part) for part in name.split(".") if part.isdigit())
    side = config.image // config.patch // 2**stage
    whole = side <= config.window  # one window: no shift
    return side, min(side, config.window), 0 if whole or block % 2 == 0 else config.window // 2


def window_places(side: int, window: int, shift: int) -> list[list[int]]:
    """The places of the grid in each window, row of windows after row; a shifted window goes on at the other edge."""
    return [
        [(top + i + shift) % side * side + (left + j + shift) % side for i in range(window) for j in range(window)]
        for top in range(0, side, window)
        for left in range(0, side, window)
    ]


def scatter_windows(weights: Tensor, side: int, window: int, shift: int) -> Tensor:
    """Weights of windows (N, H, M · M, M · M), row of windows after row → (H, Y · X, Y · X), 0 between windows."""
    dense = torch.zeros(weights.shape[1], side * side, side * side)
    for number, places in enumerate(window_places(side, window, shift)):
        for row, query in enumerate(places):
            dense[:, query, places] = weights[number, :, row]
    return dense


def without_head(model: nn.Module, name: str, head: int) -> nn.Module:
    """A copy in which the output projection ignores one head; of a recurrent decoder, one whose context is zeros."""
    changed = copy.deepcopy(model)
    attention = changed.get_submodule(name)
    if not hasattr(attention, "heads"):
        attention.register_forward_hook(lambda _, given, found: (torch.zeros_like(found[0]), found[1]))
        return changed
    width = attention.inner // attention.heads
    with torch.no_grad():
        attention.out.weight[:, head * width : (head + 1) * width] = 0
    return changed


@torch.inference_mode()
def answer_logprobs(model: nn.Module, source: Tensor, target: Tensor, ids: list[int]) -> Tensor:
    """The log-probability of each token of a forced answer: source (1, S), target (1, T) with its start token."""
    found = model(source, target)[0, : len(ids)].log_softmax(-1)
    return found[torch.arange(len(ids)), torch.tensor(ids)]


def answered_ids(translator: Predictor, text: str) -> list[int]:
    """The tokens of a translation that are scored: with the end token unless it was cut."""
    [answer], special = translator.translate([text]), translator.tokenizer.special
    cut = len(answer.ids) == translator.max_answer(len(translator.encode([text])[0]))
    return answer.ids if cut else [*answer.ids, special.eos]


@torch.inference_mode()
def scored(family: str, predictor: Predictor, model: nn.Module, given: str | Path, answer: str, items: int) -> Tensor:
    """The log-probabilities that `model` gives to the predictor's answer, from logits of one pass: (items,)."""
    if family in ("transformer", "bahdanau", "t5"):
        return answer_logprobs(model, *translation_ids(predictor, given), answered_ids(predictor, given))
    if family == "captioner":
        [caption], special = predictor.caption([given]), predictor.tokenizer.special
        ids = [*caption.ids, special.eos][:items]
        return answer_logprobs(model, predictor.to_input(given), torch.tensor([[special.bos, *ids[:-1]]]), ids)
    if family == "gpt":
        ids, start = generated_ids(predictor, given, answer), len(generated_ids(predictor, given, ""))
        ids = [*ids, predictor.tokenizer.special.eos][: start + items]
        found = model(torch.tensor([ids]))[0, start - 1 : start - 1 + items].log_softmax(-1)
        return found[torch.arange(items), torch.tensor(ids[start:])]
    if family == "bert":
        ids = masked_ids(predictor, given)
        masked = ids[0] == predictor.tokenizer.special.mask
        likely = predictor.model(ids)[0, masked]  # of the unchanged model, whose words are scored
        likely[:, predictor.tokenizer.special_ids] = -torch.inf
        return model(ids)[0, masked].log_softmax(-1)[torch.arange(items), likely.argmax(-1)]
    if family in ("vit", "swin"):
        x = predictor.to_input(given)
        order = predictor.model(x)[0].argsort(descending=True)[:items]
        return model(x)[0].log_softmax(-1)[order]
    frames, lengths = to_model_input([read_audio(given, predictor.run.data.rate)], predictor.run.data)
    [found] = predictor.search(frames, lengths, predictor.run.decode.beam_size)
    rows = model(frames, lengths)[0].log_softmax(-1)
    spans = align(rows, found.tokens, blank=predictor.run.model.pad)
    return torch.stack([rows[span.start : span.stop, span.token].max() for span in spans])


def without_position_table(model: nn.Module) -> nn.Module:
    """A copy whose tables of positions, learned, fixed or of biases, are zeros."""
    changed = copy.deepcopy(model)
    names = ("positions.table", "bias.table", "bias.table.weight", "position_bias.distances.weight")
    tables = [part for name, part in (*changed.named_parameters(), *changed.named_buffers()) if name.endswith(names)]
    assert tables, "a table of positions is expected"
    with torch.no_grad():
        for table in tables:
            table.zero_()
    return changed
