"""`DistributedDataParallel`: a model for training loops of one's own, one part of each minibatch on every rank.

The loop, the optimizer, clipping and mixed precision stay with the user; what is in `.grad` after backward is the
weighted mean over the ranks, with the same bits on all of them.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Never, NoReturn

import torch
from torch import Tensor, nn

from samegrad.errors import ConfigurationError, TrainingError
from samegrad.parallel.agreement import AgreementCheck
from samegrad.parallel.backward import BackwardWatch
from samegrad.parallel.buffers import ShardBuffers
from samegrad.parallel.exchange import in_place_strategy
from samegrad.parallel.gradient_sync import GradientSync
from samegrad.parallel.nested import map_tensors
from samegrad.parallel.parameters import compare_models, replicate
from samegrad.parallel.registry import Registry
from samegrad.parallel.sync_batch_norm import SyncBatchNorm
from samegrad.parallel.uncompiled import uncompiled, uncompiled_itself
from samegrad.parallel.world import current_world
from samegrad.parallel.wrapping import (
    check_arguments,
    check_others,
    name_for,
    plain_names,
    sparse_parameters,
    with_buckets,
)
from samegrad.strategy import Strategy

__all__ = ["DistributedDataParallel"]

_DOING = "wrapping a model"
_watches: weakref.WeakSet[BackwardWatch] = weakref.WeakSet()


class DistributedDataParallel(nn.Module):
    """`module` for a training loop of one's own on every rank of a launch, or of a job of torchrun.

    As torch.nn.parallel.DistributedDataParallel: after `loss.backward()`, every rank's `.grad` is the mean over the
    ranks, with the same bits on all of them, in memory of its own. A parameter that no rank has used has none; one that
    some have used gets their sum, over the number of all ranks. Parameters and buffers become those of rank 0 here.
    Buffers (running statistics) become equal at the end of each backward: floating ones the mean over the ranks, others
    rank 0's. Forward never talks to other ranks, so that one rank alone may evaluate.

    What is to be equal on all ranks: the model, the calls of forward in training, of backward and of this class.

    module: on the device of this rank, with its parameters in their final dtypes. device_ids: None, or one device, to
        which tensors in the inputs are then moved.
    broadcast_buffers: False leaves buffers to each rank, from the start. init_sync: False leaves parameters and buffers
        as they are, which then must be equal on all ranks already. forward_sync_buffers: what newer versions of torch
        have instead of broadcast_buffers; False leaves buffers to each rank, but for the start.
    bucket_cap_mb: least size of a bucket in MiB; None leaves it to `strategy`. strategy: how gradients are added up.
    check_every: compares the models of all ranks at the end of every so many exchanged backwards; repair: then sends
        rank 0's again, instead of raising ModelsDiffer. See `check_agreement`.
    output_device, dim, find_unused_parameters, check_reduction, gradient_as_bucket_view, static_graph,
        skip_all_reduce_unused_params, batched_grad_copy: accepted, for code written for torch; what they ask for is
        always so, or not needed.
    others: the arguments of torch's wrapper that are not supported; see `check_others`.

    Raises ConfigurationError, on all ranks alike, if their models differ.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        *,
        skip_all_reduce_unused_params: bool = False,
        batched_grad_copy: bool = False,
        strategy: Strategy | str | None = None,
        check_every: int | None = None,
        repair: bool = False,
        forward_sync_buffers: bool | None = None,
        **others: Never,
    ) -> None:
        super().__init__()
        check_others(others)
        begins_with_equal_buffers = broadcast_buffers is not False or forward_sync_buffers is not None
        self._has_equal_buffers = (
            broadcast_buffers is not False if forward_sync_buffers is None else forward_sync_buffers
        )
        world = current_world()
        check_arguments(module, world.device, device_ids, process_group, DistributedDataParallel)
        strategy = with_buckets(strategy, bucket_cap_mb, in_place_strategy(world.group))
        self.module = module
        self._inputs_to = world.device if device_ids else None
        name = name_for(module)
        group = world.group.twin(f"{_DOING}, {name}")
        settings = [
            f"broadcast_buffers {begins_with_equal_buffers} {self._has_equal_buffers}",
            f"strategy {strategy.to_json()}",
            f"check_every {check_every} repair {repair}",
        ]
        compare_models(module, group, settings, _DOING)
        if init_sync:
            replicate(module, group, _DOING, with_buffers=begins_with_equal_buffers)
        for place, found in module.named_modules():
            if isinstance(found, SyncBatchNorm):
                found.call(place)
        parameters = list(module.named_parameters())
        self._registry = Registry(module)
        cut = [range(rank, rank + 1) for rank in range(group.size)]
        buffers = None
        if self._has_equal_buffers and group.size > 1 and any(True for _ in module.buffers()):
            buffers = ShardBuffers(module, group, cut, group.size, world.device)
        self._group = group
        check = None if check_every is None else AgreementCheck(check_every, repair)
        self._sync = GradientSync(
            name,
            parameters,
            group,
            strategy,
            buffers,
            lambda: module.training,
            lambda count: None if check is None else check.after(count, module, group),
        )
        self._sync.expect_sparse(sparse_parameters(module))
        plain = [parameter for _, parameter in parameters]
        for older in list(_watches):  # the gradients of a parameter are exchanged once, by its newest wrapper
            older.retire_if_any_of(set(map(id, plain)))
        self._watch = BackwardWatch(plain, self._sync)
        self._watch.hook_parameters()
        _watches.add(self._watch)

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether the backward of a forward pass made now is exchanged. Loops that accumulate may also set it."""
        return self._sync.is_wanted

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, is_wanted: bool) -> None:
        self._sync.is_wanted = is_wanted

    @property
    def non_finite(self) -> Mapping[int, str]:
        """The ranks on which the last backward made a gradient that is not finite, each with the first parameter."""
        return dict(self._sync.non_finite)

    @uncompiled_itself
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """What `module` returns, unchanged. Raises TrainingError if parameters of the module were replaced, have other
        shapes or dtypes than when it was wrapped, or belong to a newer wrapper."""
        inputs, kwargs = self._before(inputs, kwargs)
        outputs = self.module(*inputs, **kwargs)
        self._after(outputs)
        return outputs

    @uncompiled
    def _before(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if torch.is_grad_enabled():
            if self._watch.is_retired:
                raise TrainingError(
                    f"this wrapper of {type(self.module).__name__} is out of use: parameters of its model were wrapped "
                    f"again, and their gradients are exchanged by the newer wrapper only. Call that one; where two "
                    f"models share parameters, wrap one module that holds both"
                )
            self._registry.check()
            self._watch.hook_parameters()
            self._sync.spans.forward_begins()
        if self.module.training:
            self._sync.begin_buffers()
        if self._inputs_to is None:
            return inputs, kwargs
        device = self._inputs_to
        moved: tuple[tuple[Any, ...], dict[str, Any]] = map_tensors(lambda each: each.to(device), (inputs, kwargs))
        return moved

    @uncompiled
    def _after(self, outputs: Any) -> None:
        if torch.is_grad_enabled():
            self._sync.spans.forward_ends()
            can_learn = self._watch.watch(outputs, self.require_backward_grad_sync)
            self._sync.forwards += can_learn and self.module.training

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards of forward passes within are not exchanged: their gradients add up in `.grad` on each rank, until
        a backward outside of it exchanges them too. May be nested."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @contextlib.contextmanager
    def weighted(self, weight: float | Tensor) -> Iterator[None]:
        """Says what the mean loss counts whose `backward` is called within: examples, tokens, valid targets.

        `.grad` becomes sum(weight * gradient) / sum(weight), over all ranks and, where gradients are accumulated by
        `no_sync`, all backwards since the last exchanged one. A rank with weight 0 contributes nothing, not even NaN.

        Raises ConfigurationError for a weight that is negative or not finite.
        """
        number = float(weight)
        if not 0 <= number < math.inf:
            raise ConfigurationError(f"weighted: a weight must be a finite number of at least 0; got {number}")
        before, self._sync.weight = self._sync.weight, number
        norms = self._synchronised_norms()
        for norm in norms:
            norm.loss_weight = number
        try:
            yield
        finally:
            self._sync.weight = before
            for norm in norms:
                norm.loss_weight = 1.0 if before is None else before

    def _synchronised_norms(self) -> list[SyncBatchNorm]:
        return [module for module in self.module.modules() if isinstance(module, SyncBatchNorm)]

    @contextlib.contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = False,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """For loops over unequal numbers of batches: a rank that has left the loop takes part in the backwards of the
        others, with weight 0, until all have left it. Then all get parameters and buffers of a rank that was the last.

        The mean is over the ranks that have a batch. What else the loop exchanges (metrics, say) is the user's to
        arrange. enable: False does nothing. throw_on_early_termination: as soon as a rank has left the loop while
        others have batches, all raise TrainingError, which names it.

        Raises ConfigurationError for divide_by_initial_world_size, since the mean is over those who contribute; and for
        a model with a SyncBatchNorm, whose forward needs all ranks.
        """
        if enable and self._synchronised_norms():
            raise ConfigurationError(
                f"join: the model has a SyncBatchNorm ({self._synchronised_norms()[0].label}), each forward of which "
                f"needs all ranks, also those without a batch. Give all ranks the same number of batches, empty ones "
                f"with weight 0 if need be, or use BatchNorm"
            )
        if divide_by_initial_world_size:
            raise ConfigurationError(
                "join: the mean is over the ranks that still have batches; leave out divide_by_initial_world_size"
            )
        self._sync.needs_all = enable and throw_on_early_termination
        try:
            yield
            self._take_part_until_all_have_left(enable)
        finally:
            self._sync.needs_all = False
            if enable:
                self._sync.forwards = 0  # from here on all count alike again

    def _take_part_until_all_have_left(self, enable: bool) -> None:
        if enable and self._group.size > 1:
            while self._sync.take_part():
                pass
            buffers = self.module.buffers() if self._has_equal_buffers else ()
            tensors = [tensor.data for tensor in (*self.module.parameters(), *buffers)]
            self._group.broadcast(tensors, "join: the model of the last rank", self._sync.last_active)

    def register_comm_hook(self, state: object, hook: object) -> NoReturn:
        """Raises ConfigurationError, where torch's wrapper takes a function that exchanges gradients in another way."""
        raise ConfigurationError(
            "register_comm_hook: communication hooks are not supported, since the sum of the gradients has a fixed "
            "order. Leave it out; strategy= of the wrapper says how they are exchanged"
        )

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of `module`, under its names: it loads into the plain module, and into a wrapped one."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As that of `module`; also takes what torch's wrapper saves, with "module." before each name."""
        return self.module.load_state_dict(plain_names(self.module, state_dict), *args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Called where this is part of another module, whose state is loaded: the names of ours have no "module."."""
        for name, value in plain_names(self.module, state_dict, prefix).items():
            state_dict.pop(name, None)
            state_dict[f"{prefix}module.{name.removeprefix(prefix)}"] = value
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _set_static_graph(self) -> None:
        """Does nothing; code written for torch's wrapper calls it, where checkpointing needs it."""

    def __getstate__(self) -> NoReturn:
        raise ConfigurationError(
            "a wrapped model cannot be copied or pickled, since it belongs to the ranks of this job; copy or save "
            "model.module, or model.state_dict()"
        )
