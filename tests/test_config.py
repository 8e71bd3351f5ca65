"""TOML and key=value → one frozen run; every shipped recipe loads."""

import dataclasses

import pytest

from regard.config import nearest, recipes, to_toml
from regard.models import FAMILIES
from regard.tasks import read_run


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_loads_and_its_header_begins_with_its_command(name):
    run = read_run(name, ())
    assert run.name == name
    header = recipes()[name].read_text(encoding="utf-8").splitlines()
    assert header[0].startswith(f"# regard train {name}")
    assert header[1].startswith("# ")


@pytest.mark.parametrize("name", recipes())
def test_a_written_run_reads_back_equal(name, tmp_path):
    own = {"columns": "data.columns=en,de", "fit": "data.fit=squash", "vocab": "data.vocab=99"}
    change = next(change for key, change in own.items() if hasattr(read_run(name).data, key))
    run = read_run(name, ["train.lr=0.25", change])
    (tmp_path / "run.toml").write_text(to_toml(run), encoding="utf-8")
    assert read_run(str(tmp_path / "run.toml"), ()) == run


def test_changes_go_on_top_of_the_recipe_and_the_last_one_wins():
    changes = ["model.dim=256", "train.steps=2000", "train.steps=7", "data.columns=a b", "model=small"]
    run = read_run("multi30k", changes)
    assert (run.model.dim, run.train.steps, run.data.columns) == (256, 7, "a b")
    assert run.model.depth == FAMILIES["transformer"].sizes["small"].depth


@pytest.mark.parametrize(
    ("size", "dim", "mlp_dim", "heads", "depth"),
    [("tiny", 128, 256, 4, 4), ("small", 256, 1024, 4, 3), ("base", 512, 2048, 8, 6), ("big", 1024, 4096, 16, 6)],
)
def test_the_sizes_of_the_transformer_are_those_of_the_papers(size, dim, mlp_dim, heads, depth):
    c = FAMILIES["transformer"].sizes[size]
    assert (c.dim, c.mlp_ratio * c.dim, c.heads, c.depth) == (dim, mlp_dim, heads, depth)


def test_a_run_is_frozen():
    run = read_run("reverse", ())
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.train.steps = 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.lr=fast", r"train\.lr: .*'fast'"),
        ("model.norm=middle", r"model\.norm: .*'middle'"),
        ("model.tied=1", r"model\.tied: .*got 1"),
        ("data.max_len=1", "max_len is 1"),
        ("train.label_smoothing=1.0", "smoothing is 1.0"),
        ("untrained=pooler", r"untrained is 'pooler'; wanted a list of heads, such as \["),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_and_the_value(change, message):
    with pytest.raises(ValueError, match=message):
        read_run("reverse", [change])


def test_a_file_that_is_not_toml_is_refused(tmp_path):
    (tmp_path / "x.toml").write_text("steps = = 3", encoding="utf-8")
    with pytest.raises(ValueError, match="is not TOML"):
        read_run(str(tmp_path / "x.toml"), ())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a = " + "[" * 100_000, "is not TOML: its tables are nested too deeply"),
        ("a = " + "9" * 10_000, "is not TOML: "),
        ("[decode]\nbeam_size = 1000000000", "beam_size is 1000000000; use 1000 or less"),
        ("[model]\ndim = 1000000000000000000000000000000", r"dim is 10+; use 2147483647 or less"),
        ("[model]\ndim = 1e30", "dim"),
    ],
    ids=["deep", "digits", "beam", "width", "float width"],
)
def test_a_toml_file_with_absurd_values_is_one_line(content, message, tmp_path):
    from regard.tasks import read_run

    file = tmp_path / "run.toml"
    file.write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        read_run(file)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(("change", "message"), [
    ("model=vit", r"^model=vit is a family; choose a size of it: model=vit-tiny, model=vit-small, model=vit-base"),
    ("model=swin", r"^model=swin is a family; choose a size of it: model=swin-tiny, "),
    ("model=nope", r"^unknown model.size 'nope'; sizes of resnet are 18, .*: choose one, such as model=resnet-18, or another "
                   r"family: .*vit, swin"),
    ("model=vitt-tiny", r"^unknown model.size 'vitt-tiny' \(did you mean 'vit-tiny'\?\)"),
    ("model.family=vit", r"^unknown model.size '18'; sizes of vit are tiny, small, .*: choose one, such as model=vit-tiny"),
])  # fmt: skip
def test_an_unknown_model_is_answered_with_the_sizes_of_its_family(change, message):
    with pytest.raises(ValueError, match=message):
        read_run("images", [change])


def test_only_a_close_key_is_suggested():
    known = ("source", "train", "valid", "crop", "flip")
    assert nearest("strict", known) == ""
    assert nearest("trian", known) == " (did you mean 'train'?)"
    assert nearest("vald", known) == " (did you mean 'valid'?)"
