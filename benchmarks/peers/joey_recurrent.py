"""JoeyNMT's side of recurrent_training.py: its recurrent encoder and decoder, and the step of joey.py.

Its output layer has the width of the state.  Given instead, in both models: a projection to the width of the embeddings
and an output layer with a bias, tied to them, as in regard; its own has 1.6 to 1.75 times the work.  No dropout but on the
embeddings and between layers.

bahdanau: its attention with input feeding, of the hidden width of regard's, 128 instead of that of the state.
seq2seq: its decoder cannot do without attention, and its encoder of one direction fails, as it reads the last state of the
other.  Given: an attention that does no work, no layer that combines state and context, and the encoder without the fault.
"""

from functools import partial
from typing import Any

from joey import training, vocabulary
from joeynmt.attention import BahdanauAttention
from joeynmt.decoders import RecurrentDecoder
from joeynmt.encoders import RecurrentEncoder
from joeynmt.model import Model, build_model
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from worker import Training, serve_training

GIVEN = "tied output layer after a projection, dropout on the embeddings and between layers only, Adam of its own builder"
MORE = {"bahdanau": "attention of width 128", "seq2seq": "no attention, an encoder that can have one direction"}
RNN = {"bahdanau": "gru", "seq2seq": "lstm"}


class NoAttention(nn.Module):
    """A context of width zero, and no weights."""

    def forward(self, query: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return query[:, :, :0], query[:, :, :0]  # (B, 1, 0)


def encode_forward(encoder: RecurrentEncoder, src_embed: Tensor, src_length: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    """Embeddings (B, S, D) of one direction → outputs (B, S, H) and last state of the last layer (B, H)."""
    packed = pack_padded_sequence(encoder.emb_dropout(src_embed), src_length.cpu(), batch_first=True)
    packed, (hidden, _) = encoder.rnn(packed)
    return pad_packed_sequence(packed, batch_first=True, total_length=src_embed.size(1))[0], hidden[-1]


def build(shape: dict[str, Any]) -> Model:
    attends = shape["family"] == "bahdanau"
    side = {
        "type": "recurrent",
        "rnn_type": RNN[shape["family"]],
        "num_layers": shape.get("depth", 1),
        "hidden_size": shape["hidden"],
        "dropout": shape["dropout"],
        "embeddings": {"embedding_dim": shape["dim"], "scale": True, "dropout": shape["dropout"]},
    }
    encoder = {**side, "bidirectional": attends}
    decoder = {**side, "input_feeding": attends, "init_hidden": "bridge" if attends else "last"}
    words = vocabulary(shape["vocab"])
    model = build_model({"encoder": encoder, "decoder": decoder, "tied_embeddings": True}, words, words)
    tie_output(model, shape)
    if attends:
        model.decoder.attention = BahdanauAttention(shape["align"], 2 * shape["hidden"], shape["hidden"])
    else:
        model.encoder.forward = partial(encode_forward, model.encoder)
        remove_attention(model.decoder)
    return model


def tie_output(model: Model, shape: dict[str, Any]) -> None:
    output = nn.Linear(shape["dim"], shape["vocab"])
    nn.init.zeros_(output.bias)
    output.weight = model.src_embed.lut.weight
    model.decoder.output_layer = nn.Sequential(nn.Linear(shape["hidden"], shape["dim"]), output)


def remove_attention(decoder: RecurrentDecoder) -> None:
    decoder.attention = NoAttention()
    decoder.att_vector_layer = nn.Identity()
    decoder.activation = nn.Identity()


def begin(shape: dict[str, Any], pairs: list[tuple[Tensor, Tensor]]) -> Training:
    return training(build(shape), shape, pairs, f"{GIVEN}, {MORE[shape['family']]}")


if __name__ == "__main__":
    serve_training(begin)
