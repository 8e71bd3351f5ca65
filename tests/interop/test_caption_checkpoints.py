"""A ViT with GPT-2 is imported and exported as a run that writes captions: same captions as transformers."""

import json
import shutil
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from image_checkpoints import make_photo, update_json, write_processor
from PIL import Image
from tokenizers import decoders, models, pre_tokenizers, trainers

from regard.interop.hf import export_model, export_run, import_run
from regard.models import load_model, state_tensors
from regard.models.caption_transformer import CaptionTransformer, CaptionTransformerConfig
from regard.tasks import read_run
from regard.tasks.captioning import ImageCaptioner
from regard.tasks.load import load as open_run

END = "<|endoftext|>"  # GPT-2's only special token: start, end and padding


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint as released: GPT-2's kind of tokenizer, an old preprocessor_config.json, random weights."""
    folder = tmp_path_factory.mktemp("captions") / "theirs"
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(["a dog runs", "a cat sat"], trainers.BpeTrainer(special_tokens=[END], initial_alphabet=alphabet))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=END, eos_token=END)
    tokenizer.save_pretrained(folder)
    end, vocab = tokenizer.convert_tokens_to_ids(END), len(tokenizer)
    vit = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48, "image_size": 28,
           "patch_size": 7}  # fmt: skip
    gpt = {"vocab_size": vocab, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "add_cross_attention": True}
    ids = {"decoder_start_token_id": end, "bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**vit), transformers.GPT2Config(**gpt, bos_token_id=end, eos_token_id=end), **ids
    )
    torch.manual_seed(3)
    model = transformers.VisionEncoderDecoderModel(config=config)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    model.generation_config = transformers.GenerationConfig(num_beams=3, early_stopping=True, max_length=14, **ids)
    model.eval().save_pretrained(folder)
    write_processor(folder, image_processor_type="ViTImageProcessor")
    return folder


@pytest.fixture
def theirs(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "theirs"))


def captions_of_transformers(folder: Path, photos: list[Path]) -> list[str]:
    model = transformers.VisionEncoderDecoderModel.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    pixels = processor([Image.open(photo).convert("RGB") for photo in photos], return_tensors="pt").pixel_values
    return tokenizer.batch_decode(model.generate(pixels), skip_special_tokens=True)


@pytest.fixture
def squares(tmp_path):
    """Images of the model's size, so that resizing plays no part."""
    files = [tmp_path / f"{i}.png" for i in range(4)]
    for i, file in enumerate(files):
        make_photo(28 + i, 28 + i).crop((0, 0, 28, 28)).save(file)
    return files


def test_an_imported_run_writes_the_captions_of_transformers(saved, squares, tmp_path):
    import_run(saved, tmp_path / "run")
    captioner, wanted = open_run(tmp_path / "run", device="cpu"), captions_of_transformers(saved, squares)
    assert isinstance(captioner, ImageCaptioner)
    assert [caption.text for caption in captioner.caption(squares)] == wanted
    assert len(set(wanted)) > 1
    run = read_run(tmp_path / "run" / "run.toml")
    assert (run.task, run.family, run.decode.beam_size) == ("captioning", "caption-transformer", 3)
    assert (run.data.max_len, run.data.normalize, run.data.fit, run.data.resize) == (12, False, "squash", 28)
    assert "VisionEncoderDecoderModel" in (tmp_path / "run" / "README.md").read_text()


def test_an_exported_run_writes_the_same_captions_and_is_imported_again_with_the_same_weights(saved, squares, tmp_path):
    import_run(saved, tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "back")
    assert captions_of_transformers(tmp_path / "back", squares) == captions_of_transformers(saved, squares)
    import_run(tmp_path / "back", tmp_path / "again")
    ours, again = load_model(tmp_path / "run"), load_model(tmp_path / "again")
    assert ours.config == again.config
    assert all(torch.equal(tensor, state_tensors(again)[name]) for name, tensor in state_tensors(ours).items())
    first, second = (json.dumps(vars(read_run(tmp_path / name / "run.toml").data)) for name in ("run", "again"))
    assert first == second


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"decoder_start_token_id": 5}, r"config.json has decoder_start_token_id = 5, its tokenizer has <\|endoftext\|> = 0"),
        ({"eos_token_id": 7}, r"config.json has eos_token_id = 7, its tokenizer has <\|endoftext\|> = 0 for that"),
    ],
)
def test_a_checkpoint_with_other_start_and_end_tokens_than_its_tokenizer_is_refused(theirs, keys, message, tmp_path):
    update_json(theirs / "config.json", **keys)
    with pytest.raises(ValueError, match=message) as error:
        import_run(theirs, tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_images_of_another_size_than_the_encoders_are_refused(theirs, tmp_path):
    write_processor(theirs, size=56)
    with pytest.raises(ValueError, match=r"makes images of 56 pixels, its model wants 28; they are not from the same"):
        import_run(theirs, tmp_path / "run")


def test_a_captioner_with_another_encoder_than_a_vit_is_not_exported(tmp_path):
    encoder = {"family": "resnet", "image": 32, "stem": "cifar", "dim": 8, "dims": [8], "depths": [1], "block": "basic"}
    config = CaptionTransformerConfig(vocab=20, dim=8, depth=1, heads=2, max_len=8, encoder=encoder)
    with pytest.raises(ValueError, match="has a resnet encoder; only those with a vit can be exported: train it with") as error:
        export_model("caption-transformer", config, CaptionTransformer(config), tmp_path / "out")
    assert "\n" not in str(error.value)
