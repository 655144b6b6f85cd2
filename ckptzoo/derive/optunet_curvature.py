r"""Gauss-Newton matrices and Hessians of OptuNet's loss, by matrix products instead of backward passes.

First the generalised Gauss-Newton matrix, in place of 10 backward passes an image.

The outputs are :math:`z = V f + b` with 10 features, the means over space of conv2's channels after ReLU. Feature j
depends on its own kernel of conv2 and on the one kernel of conv1 that its group sees: its gradient :math:`e_j` has 25 +
16 numbers, not 392. With :math:`\bar a = (f, 1)` and :math:`H_n` the Hessian of the loss with respect to the outputs,
the blocks of :math:`\sum_n J_n^\top H_n J_n` are sums over n of

.. math:: (V^\top H_n V)_{jl}\, e_j e_l^\top, \qquad (H_n V)_{kj}\, e_j \bar a^\top, \qquad H_{kl}\, \bar a \bar a^\top

between the kernels of features j and l, the kernels of j and output k, and outputs k and l; those of a kernel of conv1
are added up over its five features. That is a tenth of the arithmetic of the product of the full Jacobians.

The Hessian has :math:`\sum_n \sum_k g_{nk} \nabla^2 z_k` besides, with :math:`g_n` the gradient of the loss with
respect to the outputs. Within a region of the ReLUs and the max-pool, feature j is bilinear in its two kernels, and
:math:`z_k` in the features and :math:`V_{kj}`, so that the second derivatives are

.. math:: (V^\top g_n)_j\, \frac{1}{16} \sum_{\text{places where j is active}} \frac{\partial h}{\partial w_1},
   \qquad g_{nk}\, e_j

between both kernels of j, h being the pooled channel that a weight of the second one reads, and between :math:`V_{kj}`
and the kernels of j. None is on the diagonal: the Hessian and the Gauss-Newton matrix have one trace.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch.nn import functional

# Outputs of conv2, those of each of its groups, and the weights of a kernel of conv1 (4x4) and of conv2 (5x5).
_FEATURES, _PER_GROUP, _KERNEL1, _KERNEL2 = 10, 5, 16, 25
_LOCAL = _KERNEL1 + _KERNEL2
"""Parameters that a feature depends on."""
_CONV1, _CONV, _ALL = 32, 282, 392
"""Parameters of conv1, of both convolutions, and of the network."""
BATCH = 256
"""Images at a time: their intermediate results are a few megabytes."""


OutputFunction = Callable[[torch.Tensor], torch.Tensor]


class _Features(NamedTuple):
    """The features (B, 10) of images and their gradients (B, 10, 41), float64: the kernel of conv1, then that of conv2.

    ``share`` (2 B, 5, 16) is 1 / 16 at the places where a feature is active, 0 elsewhere; ``seen`` (B, 128, 16) are the
    derivatives of the pooled channels with respect to their kernels of conv1.
    """

    features: torch.Tensor
    gradients: torch.Tensor
    share: torch.Tensor
    seen: torch.Tensor


class OptuNetCurvature:
    """Curvature of the summed loss over batches of images, in the order conv1.weight, conv2.weight, fc.weight, fc.bias.

    ``weights`` is ``{name: shape}`` of one network, and ``output_hessian`` maps outputs (B, 10) to the Hessians (B, 10,
    10) of the examples' losses with respect to them, both float64. Features and their gradients are in the dtype of the
    weights, products in float64.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], output_hessian: OutputFunction) -> None:
        self._output_hessian = output_hessian
        self._conv1, self._conv2 = weights["conv1.weight"], weights["conv2.weight"]
        self._head, self._bias = weights["fc.weight"].double(), weights["fc.bias"].double()
        device, dtype = self._conv1.device, self._conv1.dtype
        # what a unit at each of the 4x4 places of a channel of conv2 sends back to its 8x8 inputs
        units = torch.eye(16, device=device, dtype=dtype).view(16, 1, 4, 4).expand(16, _FEATURES, 4, 4)
        back = functional.conv_transpose2d(units, self._conv2, groups=_FEATURES)
        self._back = back.view(16, _FEATURES, 64).transpose(0, 1).contiguous()
        steps = torch.arange(4, device=device)
        self._window = (28 * steps[:, None] + steps).view(-1)
        features = torch.arange(_FEATURES, device=device)[:, None]
        kernel1 = features // _PER_GROUP * _KERNEL1 + torch.arange(_KERNEL1, device=device)
        kernel2 = _CONV1 + features * _KERNEL2 + torch.arange(_KERNEL2, device=device)
        self._places = torch.cat([kernel1, kernel2], 1)
        """The places (10, 41) of the parameters of each feature among all."""

    def gauss_newton(self, images: torch.Tensor) -> torch.Tensor:
        """Return (392, 392) float64 of images (B, 1, 28, 28)."""
        found = self._feature_gradients(images)
        return self._gauss_newton(found, self._outputs(found))

    def hessian(self, images: torch.Tensor, output_gradient: OutputFunction) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (392, 392) float64 of images (B, 1, 28, 28), and the outputs (B, 10).

        ``output_gradient`` maps outputs (B, 10) to the gradients (B, 10) of the examples' losses.
        """
        found = self._feature_gradients(images)
        outputs = self._outputs(found)
        whole = self._gauss_newton(found, outputs) + self._second_derivatives(found, output_gradient(outputs))
        return whole, outputs

    def _outputs(self, found: _Features) -> torch.Tensor:
        return torch.addmm(self._bias, found.features, self._head.T)

    def _second_derivatives(self, found: _Features, slopes: torch.Tensor) -> torch.Tensor:
        """Return the part of the Hessian beside the Gauss-Newton matrix, of gradients (B, 10) of the loss."""
        count = len(slopes)
        whole = slopes.new_zeros(_ALL, _ALL)
        # (2, 5, 16 B): what every active place of every feature adds to the loss
        active = found.share.double().view(count, 2, _PER_GROUP, 16)
        active = active * (slopes @ self._head).view(count, 2, _PER_GROUP, 1)
        active = active.permute(1, 2, 0, 3).reshape(2, _PER_GROUP, -1)
        # (2, 16 B, 25 x 16): the derivatives of what the 25 weights read there
        read = found.seen.double().as_strided(
            (2, count, 4, 4, 5, 5, _KERNEL1), (64 * _KERNEL1, 128 * _KERNEL1, 128, 16, 128, 16, 1)
        )
        blocks = (active @ read.reshape(2, -1, _KERNEL2 * _KERNEL1)).view(_FEATURES, _KERNEL2, _KERNEL1)
        between = torch.einsum("nk,njp->jkp", slopes, found.gradients)
        for j in range(_FEATURES):
            own, outputs = self._places[j], _CONV + _FEATURES * torch.arange(10, device=slopes.device) + j
            whole[own[_KERNEL1:, None], own[:_KERNEL1]] = blocks[j]
            whole[outputs[:, None], own] = between[j]
        return whole + whole.T

    def _gauss_newton(self, found: _Features, outputs: torch.Tensor) -> torch.Tensor:
        features, gradients = found.features, found.gradients
        inputs = torch.cat([features, features.new_ones(len(features), 1)], 1)
        hessian = self._output_hessian(outputs)
        mixed = hessian @ self._head
        inner = self._head.T @ mixed

        conv = gradients.new_zeros(_CONV, _CONV)
        cross = gradients.new_zeros(_CONV, _FEATURES * 11)
        for j in range(_FEATURES):
            # j:, because G is symmetric: half of the blocks are the others transposed
            later = inner[:, j, j:, None] * gradients[:, j:]
            outputs = mixed[:, :, j, None] * inputs[:, None]
            products = gradients[:, j].T @ torch.cat([later.flatten(1), outputs.flatten(1)], 1)
            cross.index_add_(0, self._places[j], products[:, -_FEATURES * 11 :])
            columns = self._places[j:].reshape(-1)
            block = products[:, : len(columns)]
            conv.index_put_((self._places[j][:, None], columns), block, accumulate=True)
            # the blocks of later features and this one are those of this one and later features, transposed
            others = block[:, _LOCAL:].T
            conv.index_put_((columns[_LOCAL:, None], self._places[j]), others, accumulate=True)
        head = hessian.flatten(1).T @ (inputs[:, :, None] * inputs[:, None]).flatten(1)
        return self._assemble(conv, cross, head)

    def _assemble(self, conv: torch.Tensor, cross: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        """Assemble the whole matrix from its blocks; of each output's 11 parameters the last is the bias."""
        order = torch.arange(_FEATURES * 11, device=conv.device).view(_FEATURES, 11)
        order = torch.cat([order[:, :10].reshape(-1), order[:, 10]])
        dense = head.view(_FEATURES, _FEATURES, 11, 11).transpose(1, 2).reshape(_FEATURES * 11, _FEATURES * 11)
        whole = conv.new_empty(_ALL, _ALL)
        whole[:_CONV, :_CONV] = conv
        whole[:_CONV, _CONV:] = cross[:, order]
        whole[_CONV:, :_CONV] = whole[:_CONV, _CONV:].T
        whole[_CONV:, _CONV:] = dense[order][:, order]
        return whole

    def _feature_gradients(self, images: torch.Tensor) -> _Features:
        images, count = images.contiguous(), len(images)
        before = functional.conv2d(images, self._conv1)
        pooled, index = functional.max_pool2d(before, 3, 3, return_indices=True)
        # before pooling there are 25 columns; a kernel sees 4x4 pixels from its place on
        corner = index.div(25, rounding_mode="floor").mul_(28).add_(index.remainder(25)).view(count, 128, 1)
        seen = images.view(count, 784).gather(1, (corner + self._window).view(count, -1)).view(count, 128, 16)
        hidden = pooled.relu_().view(count, 128)
        seen.mul_((hidden > 0).to(seen.dtype)[..., None])
        windows = hidden.as_strided((count, 2, 4, 4, 5, 5), (128, 64, 8, 1, 8, 1)).reshape(2 * count, 16, 25)
        kernels = self._conv2.view(2, _PER_GROUP, _KERNEL2).expand(count, 2, _PER_GROUP, _KERNEL2)
        channels = kernels.reshape(2 * count, _PER_GROUP, _KERNEL2) @ windows.transpose(1, 2)
        features = channels.clamp_min(0).mean(-1).view(count, _FEATURES)
        # torch's ReLU has the derivative 0 at 0; 1/16 is that of the mean over 4x4 places
        share = (channels > 0).to(channels.dtype).div_(16)
        back = torch.bmm(share.view(count, _FEATURES, 16).transpose(0, 1), self._back).transpose(0, 1)
        first = back.reshape(2 * count, _PER_GROUP, 64) @ seen.view(2 * count, 64, _KERNEL1)
        gradients = torch.cat([first, share @ windows], -1)
        return _Features(features.double(), gradients.view(count, _FEATURES, _LOCAL).double(), share, seen)
