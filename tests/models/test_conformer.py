"""The Conformer: configs, counts, and learning."""

import pytest
import torch
import torch.nn.functional as F

from regard.decode.ctc import JointDecoder, best_path
from regard.decode.fast import decoder
from regard.decode.search import beam, greedy
from regard.models.conformer import SIZES, Conformer, ConformerConfig, Utterances

PAD, BOS, EOS = 0, 1, 2
SMALL = {"features": 8, "vocab": 10, "dim": 32, "depth": 2, "heads": 2, "mlp_ratio": 2, "kernel": 5, "dropout": 0.0}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kernel": 8}, "kernel 8 has no middle; use an odd number such as 7"),
        ({"ctc_weight": 0.3}, "ctc_weight 0.3 needs an attention decoder; use decoder_depth=1"),
        ({"decoder_depth": 2}, "ctc_weight 1.0 trains no decoder; use a smaller one such as 0.3"),
        ({"ctc_weight": 1.5}, "ctc_weight is 1.5; use 1 or less"),
        ({"ctc_weight": -0.5}, "ctc_weight is -0.5; use 0 or more"),
        ({"dim": 30, "heads": 4}, "width 30 does not split into 4 heads"),
        ({"subsample": 3}, "subsample"),
    ],
)
def test_a_wrong_config_is_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        ConformerConfig(**keys)


def test_frames_of_other_features_are_refused():
    with pytest.raises(ValueError, match="frames have 13 features, the model reads 8"):
        Conformer(ConformerConfig(**SMALL)).encode(torch.zeros(1, 4, 13))


def test_a_model_without_a_decoder_or_without_ctc_says_so():
    with pytest.raises(ValueError, match="no attention decoder"):
        decoder(Conformer(ConformerConfig(**SMALL)))
    attention = Conformer(ConformerConfig(**SMALL, decoder_depth=1, ctc_weight=0.0))
    with pytest.raises(ValueError, match="trained without CTC"):
        attention.ctc_logits(torch.zeros(1, 3, 32))
    with pytest.raises(ValueError, match="weight 2; use 0"):
        JointDecoder(attention, 2, EOS)


@pytest.mark.parametrize(("size", "millions", "decoder"), [("s", 10.3, 320), ("m", 30.7, 640), ("l", 118.8, 640)])
def test_the_encoders_have_the_size_of_the_paper(size, millions, decoder):
    with torch.device("meta"):
        model = Conformer(SIZES[size])
    ours = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("ctc."))
    lstm = 8 * decoder**2 + 1000 * decoder  # of the paper's transducer: one layer, and an embedding
    assert ours + lstm == pytest.approx(millions * 1e6, rel=0.05)


@pytest.mark.parametrize("weight", [1.0, 0.0, 0.3], ids=["ctc", "attention", "joint"])
def test_a_small_batch_is_learnt_by_heart(weight):
    torch.manual_seed(1)
    model = Conformer(ConformerConfig(**SMALL, subsample=2, ctc_weight=weight, decoder_depth=0 if weight == 1 else 1))
    texts = [[3, 4, 5], [6, 6, 7, 3], [8]]
    frames, lengths = torch.randn(3, 40, 8), torch.tensor([40, 31, 16])
    speech, sizes = Utterances(frames, lengths), torch.tensor([len(text) for text in texts])
    target = torch.nn.utils.rnn.pad_sequence([torch.tensor([BOS, *text, EOS]) for text in texts], batch_first=True)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(100):
        memory, mask = model.encode(frames, lengths)
        loss = torch.zeros(())
        if weight:
            log_probs = model.ctc_logits(memory).log_softmax(-1).transpose(0, 1)
            labels = torch.tensor([token for text in texts for token in text])
            loss = loss + weight * F.ctc_loss(log_probs, labels, model.subsampled(lengths), sizes, blank=PAD)
        if weight < 1:
            logits = model.output(model.features(memory, mask, target[:, :-1]))
            loss = loss + (1 - weight) * F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
    with torch.no_grad():
        for _ in range(50):  # the running statistics of the norms arrive at those of the batch
            model.encode(frames, lengths)
        model.eval()
        if weight:
            log_probs = model(frames, lengths).log_softmax(-1)
            assert [h.tokens for h in best_path(log_probs, model.subsampled(lengths))] == texts
        if weight < 1:
            options = {"limits": torch.tensor([6, 6, 6]), "bos": BOS, "eos": EOS}
            assert [h.tokens for h in greedy(decoder(model), speech, **options)] == texts
        if 0 < weight < 1:
            found = beam(JointDecoder(model, weight, EOS), speech, width=3, **options)
            assert [best.tokens for best, *_ in found] == texts


def test_a_table_that_grew_in_an_evaluation_serves_training():
    """Longer validation utterances come first: the next training step must still save its activations."""
    model = Conformer(ConformerConfig(features=4, vocab=6, dim=8, depth=1, heads=2, kernel=3, subsample=1))
    with torch.inference_mode():
        model.eval()(torch.randn(1, 600, 4))
    model.train()(torch.randn(2, 20, 4)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
