"""Batch normalisation over the values of all ranks, on CPUs and GPUs, whatever number of them each rank has."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from samegrad.errors import ConfigurationError, TrainingError
from samegrad.parallel.moments import Moments, combined_moments, summed_rows
from samegrad.parallel.world import current_world

__all__ = ["SyncBatchNorm"]

_LONGEST_LABEL = 60  # bytes; the names of operations have a limit


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation by mean and variance of the values of all ranks, otherwise as `torch.nn.BatchNorm1d` to `3d`.

    Inputs are (rows, channels, ...) with 2 dimensions or more. Ranks may have unequal numbers of rows, of other sizes,
    one value per channel, or none at all, as long as there are two in all. Outputs, gradients and running statistics
    are those of one process that has all values (the gradient of the sum of all ranks' losses); running statistics have
    the same bits on all ranks. For inputs in 16 bits, statistics are computed in float32.

    In training mode all ranks must call the module alike, and go backward through it alike: each time, they exchange
    one record of a few numbers per channel. In evaluation mode nothing is exchanged; without running statistics
    (`track_running_stats=False`) a rank then normalises by those of its own values, as PyTorch does.

    loss_weight: what this rank's loss counts in the sum of all ranks' losses, if gradients are a weighted mean over
        ranks. May be set before any backward.

    Raises TrainingError if all ranks together have fewer than two values per channel in training mode, and for a
    second derivative. Not for a `Trainer`, which computes shards one by one, and refuses it.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        _check_group(process_group)
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self.call("module")
        self.loss_weight = 1.0

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, process_group: None = None) -> nn.Module:
        """`module` with every batch normalisation in it replaced by a SyncBatchNorm, which takes over its parameters,
        buffers and mode; if `module` is one itself, the SyncBatchNorm for it.

        Parameters stay the same objects. A module that stands in several places stays one. Raises ConfigurationError
        for lazy modules, and for those with a `forward`, hooks or parts of their own, which would be lost.
        """
        _check_group(process_group)
        converted: dict[nn.Module, SyncBatchNorm] = {}
        for name, found in module.named_modules():
            if isinstance(found, _BatchNorm) and not isinstance(found, SyncBatchNorm):
                converted[found] = cls._in_place_of(found, name)
        for owner in list(module.modules()):
            for key, child in owner._modules.items():
                if child in converted:
                    owner._modules[key] = converted[child]
        return converted.get(module, module)

    @classmethod
    def _in_place_of(cls, norm: _BatchNorm, name: str) -> SyncBatchNorm:
        where = f"{name or 'the module'} ({type(norm).__name__})"
        if any(is_lazy(tensor) for tensor in itertools.chain(norm.parameters(), norm.buffers())):
            raise ConfigurationError(
                f"convert_sync_batchnorm: {where} has no shape yet. Call the model once, on one example, before"
            )
        hooks = (norm._forward_pre_hooks, norm._forward_hooks, norm._backward_pre_hooks, norm._backward_hooks)
        is_plain = type(norm).forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward)
        if not is_plain or norm._modules or any(hooks):
            raise ConfigurationError(
                f"convert_sync_batchnorm: {where} has a forward, hooks or parts of its own, which would be lost. "
                f"Replace it yourself"
            )
        new = cls(norm.num_features, norm.eps, norm.momentum, affine=False, track_running_stats=False)
        new.affine, new.track_running_stats = norm.affine, norm.track_running_stats
        new._parameters.update(norm._parameters)
        new._buffers.update(norm._buffers)
        new.call(name)
        return new.train(norm.training)

    def call(self, name: str) -> None:
        """Gives it the name that it has in messages: where it stands in the model."""
        self.label = f"{name or '.'} of {self.num_features} channels"

    def forward(self, input: Tensor) -> Tensor:
        """`input`, normalised."""
        self._check_input_dim(input)
        if not self.training:
            alone = self.running_mean is None
            return F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, alone, 0.0, self.eps
            )
        exact = torch.promote_types(input.dtype, torch.float32)
        own = Moments.of(input.detach().to(exact))
        moments = combined_moments(own, current_world().group, self.operation("forward"))
        if moments.count < 2:
            raise TrainingError(
                f"SyncBatchNorm {self.label}: in training mode expected at least 2 values per channel over all ranks; "
                f"got {moments.count}. Give the ranks more examples, or put the module into evaluation mode"
            )
        self._keep(moments)
        normalised: Tensor = _Normalise.apply(input, self.weight, self.bias, self, moments)  # type: ignore[no-untyped-call]
        return normalised

    def operation(self, what: str) -> str:
        """The name of an exchange for `what` of this module."""
        label = self.label.encode("ascii", "replace")[-_LONGEST_LABEL:].decode()
        return f"SyncBatchNorm {label}, {what}"

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise ConfigurationError(
                f"SyncBatchNorm {self.label}: expected an input (rows, {self.num_features} channels, ...); got the "
                f"shape {list(input.shape)}"
            )

    def _keep(self, moments: Moments) -> None:
        """Moves the running statistics towards `moments`."""
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        if self.running_mean is None or self.running_var is None:
            return
        momentum = self.momentum
        if momentum is None:  # the mean of all minibatches so far
            momentum = 1.0 / float(self.num_batches_tracked or 1)
        unbiased = moments.squares / (moments.count - 1)
        for running, new in ((self.running_mean, moments.mean), (self.running_var, unbiased)):
            # Two operations, which round alike on every kind of device; fused they might not.
            running.mul_(1 - momentum).add_(new.to(running) * momentum)


class _Normalise(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) * weight + bias, by statistics to which the x of all ranks have contributed.

    With n(x) the normalised x, N values per channel in all and g the gradient of the output, that of x is
    (g - sum(g) / N - n(x) * sum(g * n(x)) / N) * weight / sqrt(variance + eps), sums being those over all ranks.
    (Ioffe and Szegedy 2015, "Batch Normalization", section 3.)
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: SyncBatchNorm, moments: Moments
    ) -> Tensor:
        exact = torch.promote_types(x.dtype, torch.float32)
        variance = moments.squares / moments.count
        scale = (variance + norm.eps).rsqrt().to(x.device, exact)
        mean = moments.mean.to(x.device, exact)
        ctx.norm, ctx.count = norm, moments.count
        ctx.save_for_backward(x, weight, bias, mean, scale)
        if not x.numel():
            return torch.empty_like(x)
        factor, shift = (None if each is None else each.to(exact) for each in (weight, bias))
        return F.batch_norm(x, mean, variance.to(x.device, exact), factor, shift, False, 0.0, norm.eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, scale = ctx.saved_tensors
        norm: SyncBatchNorm = ctx.norm
        by_channel = [1, -1] + [1] * (x.dim() - 2)
        over = [dim for dim in range(x.dim()) if dim != 1]
        with torch.no_grad():
            gradient = gradients[0].to(mean.dtype)
            normalised = (x.to(mean.dtype) - mean.view(by_channel)).mul_(scale.view(by_channel))
            sums = [gradient.sum(over), (gradient * normalised).sum(over)]
            of_x = None
            if ctx.needs_input_grad[0]:
                own = [part.to("cpu", torch.float64) for part in sums]
                size = x[:, :1].numel()
                totals = summed_rows(own, size, norm.loss_weight, current_world().group, norm.operation("backward"))
                share = ctx.count * (norm.loss_weight or 1.0)
                shift, slope = ((total / share).to(mean).view(by_channel) for total in totals)
                factor = scale if weight is None else scale * weight.to(scale)
                of_x = normalised.mul_(slope).add_(shift).sub_(gradient).mul_(-factor.view(by_channel)).to(x.dtype)
            of_weight = sums[1].to(weight.dtype) if ctx.needs_input_grad[1] else None
            of_bias = sums[0].to(bias.dtype) if ctx.needs_input_grad[2] else None
        found: tuple[Tensor | None, ...] = (of_x, of_weight, of_bias)
        if torch.is_grad_enabled():  # asked for by create_graph=True
            found = tuple(None if part is None else _Once.apply(part.requires_grad_(), norm) for part in found)  # type: ignore[no-untyped-call]
        return (*found, None, None)


class _Once(torch.autograd.Function):
    """A gradient that cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, norm: SyncBatchNorm) -> Tensor:
        ctx.norm = norm
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: FunctionCtx, *_: Tensor) -> tuple[None, None]:
        norm: SyncBatchNorm = ctx.norm  # type: ignore[attr-defined]
        raise TrainingError(
            f"SyncBatchNorm {norm.label}: the gradient cannot be differentiated again. Use BatchNorm, or another "
            f"normalisation, in models whose loss contains a gradient"
        )


def _check_group(process_group: object) -> None:
    if process_group is not None:
        raise ConfigurationError(
            "SyncBatchNorm takes statistics over all ranks of the job; process_group must be None. For parts of the "
            "ranks use torch.nn.SyncBatchNorm on GPUs"
        )
