"""JoeyNMT: its model, its loss, its optimizer, and the step of its trainer.

Given: `layer_norm: pre`, tied embeddings and softmax, batches ready as its `Batch`, and no dropout inside the mlp or
on the attention weights, which its configuration cannot turn off.  Its optimizer builder makes torch's default Adam,
not fused.
"""

import math
from types import SimpleNamespace
from typing import Any

import joeynmt
import torch
from joeynmt.batch import Batch
from joeynmt.builders import build_optimizer
from joeynmt.model import Model, build_model
from joeynmt.transformer_layers import MultiHeadedAttention, PositionwiseFeedForward
from joeynmt.vocabulary import Vocabulary
from torch import Tensor, nn
from worker import Training, parameters, serve_training

UNK, PAD, BOS, EOS = range(4)  # where its vocabulary wants them


def vocabulary(size: int) -> Vocabulary:
    marks = {"unk": UNK, "pad": PAD, "bos": BOS, "eos": EOS}
    known = {f"{name}_token": f"<{name}>" for name in marks} | {f"{name}_id": i for name, i in marks.items()}
    words = [f"w{i}" for i in range(len(marks), size)]
    return Vocabulary(words, SimpleNamespace(**known, sep_token=None, sep_id=None, lang_tags=[]))


def build(shape: dict[str, Any]) -> Model:
    side = {
        "type": "transformer",
        "num_layers": shape["depth"],
        "num_heads": shape["heads"],
        "hidden_size": shape["dim"],
        "ff_size": shape["mlp"],
        "dropout": shape["dropout"],
        "embeddings": {"embedding_dim": shape["dim"], "scale": True, "dropout": shape["dropout"]},
        "layer_norm": "pre",
        "activation": "relu",
    }
    words = vocabulary(shape["vocab"])
    model = build_model({"encoder": side, "decoder": side, "tied_embeddings": True, "tied_softmax": True}, words, words)
    for part in model.modules():
        if isinstance(part, MultiHeadedAttention):
            part.dropout = nn.Identity()  # on the weights
        if isinstance(part, PositionwiseFeedForward):
            part.pwff_layer[2] = nn.Identity()  # inside the mlp
    return model


def to_batch(shape: dict[str, Any], pair: tuple[Tensor, Tensor]) -> Batch:
    names = torch.arange(shape["vocab"])
    names[[shape["pad"], shape["bos"], shape["eos"], shape["unk"]]] = torch.tensor([PAD, BOS, EOS, UNK])
    source, target = names[pair[0]], names[pair[1]]
    return Batch(
        src=source,
        src_length=(source != PAD).sum(1),
        src_prompt_mask=None,
        trg=target,
        trg_prompt_mask=None,
        indices=torch.arange(len(source)),
        device=torch.device("cpu"),
        pad_index=PAD,
        eos_index=EOS,
    )


def begin(shape: dict[str, Any], pairs: list[tuple[Tensor, Tensor]]) -> Training:
    return training(build(shape), shape, pairs, "layer_norm pre, Adam of its own builder")


def training(model: Model, shape: dict[str, Any], pairs: list[tuple[Tensor, Tensor]], given: str) -> Training:
    smoothing = shape["label_smoothing"]
    model.loss_function = ("crossentropy", smoothing)
    asked = {"optimizer": "adam", "learning_rate": shape["rate"], "adam_betas": (0.9, 0.98)}
    optimizer = build_optimizer(asked, model.parameters())
    # Its loss is a divergence from the smoothed targets: their entropy more is the cross-entropy that others report.
    entropy = -(1 - smoothing) * math.log(1 - smoothing) - smoothing * math.log(smoothing / (shape["vocab"] - 2))

    def step(batch: Batch) -> float:
        model.train()
        batch.sort_by_src_length()
        total, _, _, right = model(return_type="loss", **vars(batch))
        loss = batch.normalize(total, "tokens")
        loss.backward()
        value, _ = loss.item(), right.item()
        optimizer.step()
        optimizer.zero_grad()
        return value + entropy

    about = {"version": joeynmt.__version__, "torch": torch.__version__, "parameters": parameters(model)}
    batches = [to_batch(shape, pair) for pair in pairs]
    return Training(step, batches, {**about, "given": given})


if __name__ == "__main__":
    serve_training(begin)
