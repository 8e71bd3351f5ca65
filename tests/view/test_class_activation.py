"""A ResNet without attention is shown by what each position adds to its class."""

import torch

from regard.models.resnet import SIZES, ResNet, ResNetConfig
from regard.view.class_activation import class_activation, evidence


def test_the_mean_of_a_class_activation_map_is_the_logit_without_its_bias():
    torch.manual_seed(0)
    model = ResNet(ResNetConfig(image=64, dim=8, dims=[8, 16], depths=[1, 1], block="basic", classes=3)).eval()
    image = torch.randn(1, 3, 64, 64)
    wanted = model(image)[0] - model.classifier.bias
    for label in range(3):
        found = class_activation(model, image, label)
        assert found.shape == (8, 8)
        torch.testing.assert_close(found.mean(), wanted[label], rtol=0, atol=1e-5)


def test_evidence_is_the_share_of_what_speaks_for_a_class():
    torch.testing.assert_close(evidence(torch.tensor([[1.0, -5.0], [3.0, 0.0]])), torch.tensor([[0.25, 0.0], [0.75, 0.0]]))
    torch.testing.assert_close(evidence(-torch.ones(2, 2)), torch.full((2, 2), 0.25))


def test_the_recipe_for_own_images_can_be_shown_and_exported():
    from regard.config import recipes
    from regard.interop.weights import describe_config
    from regard.tasks import read_run

    run = read_run(recipes()["images"])
    assert run.family == "resnet"
    assert run.model.attention == SIZES["18"].attention == []  # else it could not be exported
    assert describe_config(run.family, run.model)["model_type"] == "resnet"
