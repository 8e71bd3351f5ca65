"""A config is checked against the weights file before memory is allocated: absurd sizes are one line, at once."""

import dataclasses
import json
import resource
import time

import pytest
import torch
from safetensors.torch import save, save_file
from torch import nn

from regard.models import FAMILIES, build_without_memory, load_model, new_model, preset, saved_tensors, state_tensors
from regard.models.gpt import GPTConfig
from regard.models.transformer import TransformerConfig
from regard.run_folder import RunFolder

GPT = GPTConfig(vocab=40, dim=16, depth=2, heads=2, max_len=12)


def make_run(folder, family="gpt", config=GPT, **changes):
    folder.mkdir()
    weights = save(saved_tensors(FAMILIES[family].build(config)))
    RunFolder(folder).write_description(family, dataclasses.asdict(config) | changes, "0")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_without_memory_has_the_shapes_of_the_real_one(family):
    config = next(iter(FAMILIES[family].sizes.values()))
    if hasattr(config, "vocab"):
        config = dataclasses.replace(config, vocab=50)
    shapes, real = build_without_memory(lambda: FAMILIES[family].build(config)), FAMILIES[family].build(config)
    assert all(tensor.is_meta for tensor in shapes.parameters())
    assert {k: v.shape for k, v in state_tensors(shapes).items()} == {k: v.shape for k, v in state_tensors(real).items()}


@pytest.mark.parametrize(("family", "size"), [(family, size) for family, kind in FAMILIES.items() for size in kind.sizes])
def test_every_size_is_built_without_memory(family, size):
    config = FAMILIES[family].sizes[size]
    if hasattr(config, "vocab"):
        config = dataclasses.replace(config, vocab=50)
    model = build_without_memory(lambda: FAMILIES[family].build(config))
    assert all(tensor.is_meta for tensor in model.parameters())


def test_values_that_a_model_computes_when_built_have_shape_and_type_without_memory():
    class Computing(nn.Module):
        def __init__(self):
            super().__init__()
            steps, whole = torch.arange(0, 1, 0.25), torch.arange(4)
            parts = torch.cat([whole, whole]), torch.cat([steps, steps]), whole * 0.5, steps * 2, torch.arange(6, 1, -2)
            for n, value in enumerate((steps, whole, *parts)):
                self.register_buffer(f"value{n}", value)

    shapes, real = dict(build_without_memory(Computing).named_buffers()), dict(Computing().named_buffers())
    assert {k: (v.shape, v.dtype) for k, v in shapes.items()} == {k: (v.shape, v.dtype) for k, v in real.items()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"depth": 10**9},
            r"config\.json has depth = 1,000,000,000, but its weights file has 28 tensors; restore the config\.json",
        ),
        ({"dim": 10**30}, r"dim is 10+; use 2147483647 or less"),
        ({"dim": 2**30}, r"has dim = 1,073,741,824, but its weights file has no tensor larger than 64 on a side"),
        ({"dim": 16_000}, r"does not fit config\.json: .* the model wants \("),
        ({"vocab": 2**31 - 1}, r"has vocab = 2,147,483,647, but"),
        ({"mlp_ratio": 2**31 - 1}, r"has mlp_ratio = "),
        ({"heads": 2**31 - 1}, r"does not split into|has heads = "),
        ({"max_len": 2**31 - 1}, r"does not fit config\.json: embed\.positions\.table"),
        ({"dim": 1e30}, r"dim"),
    ],
    ids=str,
)
def test_a_config_that_its_weights_cannot_have_is_refused_before_anything_is_built(changes, message, tmp_path):
    run = make_run(tmp_path / "run", **changes)
    load_once = build_without_memory(lambda: FAMILIES["gpt"].build(GPT))  # imports what torch imports once
    del load_once
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    with pytest.raises(ValueError, match=message) as error:
        load_model(run)
    assert "\n" not in str(error.value)
    assert time.perf_counter() - start < 10  # such a model would take hours, or all memory
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB


def test_a_foreign_config_that_its_weights_cannot_have_is_refused_before_anything_is_built(tmp_path):
    from regard.interop.hf import export_model, import_model

    export_model("gpt", GPT, FAMILIES["gpt"].build(GPT), tmp_path / "theirs")
    file = tmp_path / "theirs" / "config.json"
    config = json.loads(file.read_text())
    for key, value in (("n_layer", 10**9), ("n_embd", 2**30), ("n_embd", 10**30), ("n_inner", 2**30), ("n_positions", 2**31 - 1)):
        file.write_text(json.dumps(config | {key: value}))
        start = time.perf_counter()
        with pytest.raises(ValueError, match=r"config\.json") as error:
            import_model(tmp_path / "theirs")
        assert "\n" not in str(error.value)
        assert time.perf_counter() - start < 10


def test_sinusoids_do_not_take_memory_for_a_length_that_is_never_used(tmp_path):
    config = TransformerConfig(vocab=40, dim=16, depth=1, heads=2, max_len=2**31 - 1)
    model = load_model(make_run(tmp_path / "run", "transformer", config))
    assert len(model.embed_source.positions.table) == 1024
    ids = torch.ones(1, 1100, dtype=torch.long)
    assert model(ids, ids[:, :3]).isfinite().all()


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, '{"depth": ' + "9" * 10_000 + "}", '{"a": NaN', ""])
def test_a_deep_or_damaged_config_is_one_line(content, tmp_path):
    run = make_run(tmp_path / "run")
    (run / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json is damaged \(.+\); train again") as error:
        load_model(run)
    assert "\n" not in str(error.value)


def test_an_older_run_without_the_newer_keys_still_loads(tmp_path):
    run = make_run(tmp_path / "run")
    file = run / "config.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in values.items() if key not in ("activation", "eps", "tied")}))
    assert load_model(run).config == GPT


@pytest.mark.parametrize("size", ["transformer-tiny", "gpt-tiny", "t5-tiny"])
def test_loading_takes_every_parameter_and_buffer_from_the_file_though_none_is_initialized(tmp_path, size):
    family, config = preset(size)
    model = new_model(family, config, seed=1).eval()
    save_file(saved_tensors(model), RunFolder(tmp_path).weights)
    RunFolder(tmp_path).write_description(family, dataclasses.asdict(config), "0")
    loaded = load_model(tmp_path)
    wanted = dict(model.named_buffers()) | dict(model.named_parameters())
    found = dict(loaded.named_buffers()) | dict(loaded.named_parameters())
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
