"""Feature superposition: more features than dimensions, and a sparse autoencoder that recovers them.

The toy model is that of Elhage et al. 2022, https://arxiv.org/abs/2209.10652: x' = max(0, Wᵀ W x + b).

Shapes: N samples, F features, M neurons, U units of the autoencoder.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.linear import Linear, affine
from regard.layers.mlp import ACTIVATIONS, MLP
from regard.verify.claim import Finding, at_least, at_most, claim, close, equals, not_checkable
from regard.verify.measures import Points, minimize
from regard.verify.plots import Curves, Heatmap

__all__: list[str] = []

FEATURES, NEURONS, UNITS = 5, 2, 32
RARE = 0.05  # probability that a feature is active in a sample
LASSO = 0.2  # weight of the absolute values of the autoencoder's units
RESPONSE = 0.1  # of a unit to a feature of strength 1, from which it counts


@claim(35, "001", "Neural networks represent more features than they have neurons.",
       condition="if few features are active at once")  # fmt: skip
def five_features_share_two_neurons_as_a_pentagon() -> Iterator[Finding]:
    features, losses = learn_features(RARE)  # (M, F): a direction for each feature
    yield at_least("lengths of the 5 directions in 2 dimensions, the shortest", features.norm(dim=0).min().item(), 0.9)
    angles = torch.atan2(features[1], features[0]).rad2deg().sort().values
    gaps = torch.cat((angles, angles[:1] + 360)).diff()
    yield close("angles between neighbours, degrees (a pentagon has 72)", gaps, torch.full((FEATURES,), 72.0), within=8)
    dense, _ = learn_features(1.0)
    yield at_least("features represented, Σ |W|², each active in 5 % of the samples", features.square().sum().item(), 4.5)
    yield close("features represented, Σ |W|², all active at once", dense.square().sum().item(), NEURONS, within=0.4)
    yield Heatmap("What 2 neurons read of 5 features", "feature given", "feature read", features.T @ features, z="value read")
    yield Curves("Five features in two dimensions", "training step", "squared error", {"active in 5 %": losses}, log_y=True)


@claim(35, "001", "A neuron often stands for several unrelated features, which makes a network hard to explain; a wide ReLU "
       "layer pulls them apart.",
       condition="if a penalty keeps most units of the wide layer at zero")  # fmt: skip
def a_sparse_autoencoder_recovers_the_features() -> Iterator[Finding]:
    features, _ = learn_features(RARE)
    of_neuron = features.abs().T  # (F, M): what one feature alone does to each neuron
    yield at_least("features that move a neuron, of 5: the least of both neurons", (of_neuron > RESPONSE).sum(0).min().item(), 3)
    yield at_most("share of a neuron's response that its strongest feature has", selectivity(of_neuron).max().item(), 0.5)

    net = learn_units(features)
    with torch.no_grad():
        of_unit = net.up(features.T, net.activation)  # (F, U): what one feature alone does to each unit
    live = of_unit[:, of_unit.amax(0) > RESPONSE]
    yield at_least("the same share of a unit, mean of all units that respond", selectivity(live).mean().item(), 0.85)
    yield equals("features for which some unit responds most", len(live.argmax(0).unique()), FEATURES)
    cosines = F.normalize(features, dim=0).T @ F.normalize(net.down.weight.detach(), dim=0)  # (F, U)
    yield at_least("cosine of a feature's direction with the nearest unit's: the least", cosines.amax(1).min().item(), 0.95)
    order = live.argmax(0).argsort()
    yield Heatmap("Response of each unit to each feature alone", "unit, by its strongest feature", "feature", live[:, order],
                  z="response")  # fmt: skip


not_checkable(
    88, "001", "The paper has 113,405 citations, is highly influential, and is the basis of all large language models.",
    name="the_number_of_citations", chapter=__name__,
    why="it is a count of a citation index on the day of the lecture; the formulas and sizes of the paper are checked in the "
    "other chapters",
)  # fmt: skip


def sparse_samples(count: int, active: float) -> Tensor:
    """Features that are each active with a probability, with strengths from 0 to 1: (N, F)."""
    return torch.rand(count, FEATURES) * (torch.rand(count, FEATURES) < active)


def learn_features(active: float, steps: int = 300) -> tuple[Tensor, Points]:
    """Train the toy model to give features back through 2 neurons: → W (M, F), and the losses."""
    squeeze, bias = Linear(FEATURES, NEURONS, bias=False), nn.Parameter(torch.zeros(FEATURES))

    def loss() -> Tensor:
        x = sparse_samples(400, active)
        found = affine(squeeze(x), squeeze.weight.T, bias, ACTIVATIONS["relu"])  # (N, F)
        return (found - x).square().sum(-1).mean()

    losses = minimize([squeeze.weight, bias], loss, steps, lr=0.03)
    return squeeze.weight.detach(), losses


def learn_units(features: Tensor, steps: int = 300) -> MLP:
    """Train a Transformer's mlp to give back what the neurons say of features (M, F), with few units active."""
    net = MLP(NEURONS, UNITS, ACTIVATIONS["relu"])
    samples = sparse_samples(100 * UNITS, RARE) @ features.T  # (N, M)
    with torch.no_grad():  # each unit starts in the direction of a sample
        net.down.weight.copy_(F.normalize(samples[samples.norm(dim=-1) > RESPONSE][:UNITS]).T)
        net.up.weight.copy_(net.down.weight.T)

    def loss() -> Tensor:
        x = sparse_samples(400, RARE) @ features.T
        with torch.no_grad():  # else small units with long directions avoid the penalty
            net.down.weight.copy_(F.normalize(net.down.weight, dim=0))
        units = net.up(x, net.activation)  # (N, U)
        return (net.down(units) - x).square().sum(-1).mean() + LASSO * units.abs().sum(-1).mean()

    minimize(net.parameters(), loss, steps, lr=0.01)
    return net


def selectivity(response: Tensor) -> Tensor:
    """The share of the strongest feature in each column's response to all features: (F, U) → (U,)."""
    return response.amax(0) / response.sum(0)
