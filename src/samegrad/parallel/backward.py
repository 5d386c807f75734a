"""When a backward through a wrapped module begins and ends, and which gradients it makes.

It begins where the first gradient reaches an output of the module: tensors in the outputs have a hook, which runs
before anything else of the module does. It ends when autograd has ended the whole backward (not one of a checkpointed
part, which runs inside), before the caller goes on. `torch.autograd.grad` accumulates nothing: it is no backward here.

Where outputs cannot be looked into, or the loss depends on the parameters by another way (a penalty on gradients), a
backward begins with the first gradient that arrives.

Neither graphs nor parameters keep the watch, since a module that keeps an output would then be kept by it for ever. But
a backward through outputs whose watch is gone, or retired, is an error: its gradients would stay those of one rank.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence, Set
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle

from samegrad.errors import TrainingError
from samegrad.parallel.nested import leaves

__all__ = ["BackwardWatch", "Listener", "Tell"]

_NONE = -1  # what torch calls the graph task where there is none

Tell = Callable[[int], object]
"""Called with the position of a parameter that has got a gradient, or more of it."""


class Listener(Protocol):
    """Who is told of backwards.

    is_wanted: whether one that passes through no output of the module is exchanged.
    """

    is_wanted: bool

    def begin(self, is_exchanged: bool, is_fresh: bool) -> Tell:
        """A backward begins; returns whom to tell of its gradients. is_exchanged: the forward was not within `no_sync`.
        is_fresh: no gradient has arrived yet; else this may be the second call in a backward, which then is exchanged
        after all."""
        ...

    def end(self) -> None:
        """The backward has ended."""
        ...

    def broken_off(self) -> None:
        """The last backward that began has raised an exception somewhere."""
        ...


class BackwardWatch:
    """Tells `listener` of the backwards through a module with `parameters`."""

    def __init__(self, parameters: Sequence[nn.Parameter], listener: Listener) -> None:
        self._parameters, self._listener = parameters, listener
        self._hooked: dict[int, RemovableHandle] = {}
        self.is_retired = False
        self._idle = functools.partial(_passes_by, weakref.ref(self))
        self._arrivals = _Arrivals(self._idle)
        self._task = _NONE
        self._is_exchanged = False
        self._outer = _NONE  # a backward that passes through outputs, and has given no parameter a gradient yet

    def hook_parameters(self) -> None:
        """Has autograd tell of the gradients of all parameters that are trained now."""
        if len(self._hooked) == len(self._parameters):
            return
        for position, parameter in enumerate(self._parameters):
            if parameter.requires_grad and position not in self._hooked:
                hook = self._arrivals.hook(position)
                self._hooked[position] = handle = parameter.register_post_accumulate_grad_hook(hook)
                weakref.finalize(self, handle.remove)  # a model may outlive its wrapper

    def retire_if_any_of(self, parameters: Set[int]) -> None:
        """Tells of nothing any more if it watches one of `parameters` (ids): another one does."""
        if not parameters.isdisjoint(map(id, self._parameters)):
            self.is_retired = True
            for handle in self._hooked.values():
                handle.remove()

    def watch(self, outputs: Any, is_exchanged: bool) -> bool:
        """Looks for tensors in what forward returned; whether any of them can be differentiated."""
        is_nested = torch._C._current_graph_task_id() != _NONE  # a checkpointed part is computed again
        if not is_nested:
            self._outer = _NONE
            if self._task != _NONE:
                self._break_off()
        hook = functools.partial(_begins, weakref.ref(self), self._parameters, is_exchanged, is_nested)
        found = [leaf for _, leaf in leaves(outputs) if isinstance(leaf, Tensor) and leaf.requires_grad]
        for tensor in found:
            if not tensor.is_leaf:
                tensor.register_hook(hook)
        return bool(found)

    def begins(self, is_exchanged: bool, is_nested: bool) -> None:
        """Called by autograd where a gradient reaches an output."""
        task = torch._C._current_graph_task_id()
        if self._task not in (_NONE, task) and not is_nested:
            self._break_off()
        if self._task != _NONE:
            if is_exchanged and not self._is_exchanged:
                self._is_exchanged = True
                self._arrivals.tell = self._listener.begin(True, is_fresh=False)
        elif _accumulates(self._parameters):
            self._call_at_the_end_of(task)
            self._start(task, is_exchanged, is_fresh=True)
        else:  # it gives gradients to none, or within: all are used by parts that are checkpointed the re-entrant way
            self._is_exchanged = is_exchanged or (self._outer == task and self._is_exchanged)
            if self._outer != task:
                self._call_at_the_end_of(task)
            self._outer = task

    def passes_by(self, position: int) -> None:
        """Called when a parameter has got a gradient, and no backward has begun."""
        if self._outer != _NONE:
            self._start(self._outer, self._is_exchanged, is_fresh=False)
        else:
            task = torch._C._current_graph_task_id()
            self._call_at_the_end_of(task)
            self._start(task, self._listener.is_wanted, is_fresh=False)
        self._arrivals.tell(position)

    def _call_at_the_end_of(self, task: int) -> None:
        """To be called within `task`."""
        Variable._execution_engine.queue_callback(functools.partial(self.ended, task))

    def _start(self, task: int, is_exchanged: bool, is_fresh: bool) -> None:
        self._task, self._is_exchanged = task, is_exchanged
        self._arrivals.tell = self._listener.begin(is_exchanged, is_fresh)

    def ended(self, task: int) -> None:
        """Called by autograd when the backward `task` has ended."""
        if task == self._outer:
            self._outer = _NONE
        if task == self._task:
            self._task, self._arrivals.tell = _NONE, self._idle
            self._listener.end()

    def _break_off(self) -> None:
        self._task, self._arrivals.tell = _NONE, self._idle
        self._listener.broken_off()


def _accumulates(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether the backward that runs gives any of `parameters` a gradient."""
    for parameter in parameters:
        if parameter.requires_grad:
            node = torch.autograd.graph.get_gradient_edge(parameter).node
            try:
                if torch._C._will_engine_execute_node(node):
                    return True
            except RuntimeError:  # torch.autograd.grad
                return False
    return False


def _begins(
    watch: weakref.ref[BackwardWatch],
    parameters: Sequence[nn.Parameter],
    is_exchanged: bool,
    is_nested: bool,
    _: Tensor,
) -> None:
    found = watch()
    if found is not None and not found.is_retired:
        found.begins(is_exchanged, is_nested)
    elif _accumulates(parameters):
        why = (
            "is gone" if found is None else "is out of use, since parameters of its model were wrapped again after that"
        )
        raise TrainingError(
            f"backward: the outputs were computed by a wrapper that {why}, so gradients would not be exchanged. Keep "
            f"the wrapper until backward has ended, and compute outputs by the newest one"
        )


def _passes_by(watch: weakref.ref[BackwardWatch], position: int) -> None:
    if (found := watch()) is not None:
        found.passes_by(position)


class _Arrivals:
    """What the hooks of all parameters call, thousands of them in a step: so it is changed here, and asks nothing."""

    __slots__ = ("tell",)

    def __init__(self, tell: Tell) -> None:
        self.tell = tell

    def hook(self, position: int) -> Callable[[Tensor], None]:
        """To be called by autograd when the parameter at `position` has got a gradient."""

        def arrived(parameter: Tensor) -> None:
            if parameter.grad is not None or not _is_first(arrived, parameter):
                self.tell(position)

        return arrived


def _is_first(hook: Callable[[Tensor], None], parameter: Tensor) -> bool:
    """Whether no other hook has been called before, and may have taken the gradient away: else autograd made none."""
    hooks: dict[int, Callable[[Tensor], None]] = parameter._post_accumulate_grad_hooks
    return next(iter(hooks.values())) is hook
