"""When a backward through a wrapped module begins and ends, and which gradients it makes.

It begins where the first gradient reaches an output of the module: tensors in the outputs have a hook, which runs
before anything else of the module does. It ends when autograd has ended the whole backward (not one of a checkpointed
part, which runs inside), before the caller goes on. `torch.autograd.grad` accumulates nothing: it is no backward here.

Where outputs cannot be looked into, or the loss depends on the parameters by another way (a penalty on gradients), a
backward begins with the first gradient that arrives.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from samegrad.parallel.nested import leaves

__all__ = ["BackwardWatch", "Listener"]

_NONE = -1  # what torch calls the graph task where there is none


class Listener(Protocol):
    """Who is told of backwards.

    is_wanted: whether one that passes through no output of the module is exchanged.
    """

    is_wanted: bool

    def begin(self, is_exchanged: bool, is_fresh: bool) -> None:
        """A backward begins. is_exchanged: the forward was not within `no_sync`. is_fresh: no gradient has arrived yet;
        else this may be the second call in a backward, which then is exchanged after all."""
        ...

    def arrived(self, position: int) -> None:
        """The parameter at `position` got a gradient, or more of it."""
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
        self._hooked: set[int] = set()
        self._task = _NONE
        self._is_exchanged = False

    def hook_parameters(self) -> None:
        """Has autograd tell of the gradients of all parameters that are trained now."""
        if len(self._hooked) == len(self._parameters):
            return
        for position, parameter in enumerate(self._parameters):
            if parameter.requires_grad and position not in self._hooked:
                self._hooked.add(position)
                hook = functools.partial(_arrived, weakref.ref(self), position)
                handle = parameter.register_post_accumulate_grad_hook(hook)
                weakref.finalize(self, handle.remove)  # a model may outlive its wrapper

    def watch(self, outputs: Any, is_exchanged: bool) -> bool:
        """Looks for tensors in what forward returned; whether any of them can be differentiated."""
        is_nested = torch._C._current_graph_task_id() != _NONE  # a checkpointed part is computed again
        if not is_nested and self._task != _NONE:
            self._break_off()
        hook = functools.partial(_begins, weakref.ref(self), is_exchanged, is_nested)
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
                self._listener.begin(True, is_fresh=False)
        elif self._accumulates():
            self._start(task, is_exchanged, is_fresh=True)

    def arrived(self, position: int) -> None:
        """Called by autograd when a parameter has got a gradient."""
        if self._task == _NONE:
            self._start(torch._C._current_graph_task_id(), self._listener.is_wanted, is_fresh=False)
        self._listener.arrived(position)

    def _start(self, task: int, is_exchanged: bool, is_fresh: bool) -> None:
        self._task, self._is_exchanged = task, is_exchanged
        Variable._execution_engine.queue_callback(functools.partial(_ended, weakref.ref(self), task))
        self._listener.begin(is_exchanged, is_fresh)

    def ended(self, task: int) -> None:
        """Called by autograd when the backward `task` has ended."""
        if task == self._task:
            self._task = _NONE
            self._listener.end()

    def _break_off(self) -> None:
        self._task = _NONE
        self._listener.broken_off()

    def _accumulates(self) -> bool:
        """Whether the backward that runs gives any parameter a gradient."""
        for parameter in self._parameters:
            if parameter.requires_grad:
                node = torch.autograd.graph.get_gradient_edge(parameter).node
                try:
                    if torch._C._will_engine_execute_node(node):
                        return True
                except RuntimeError:  # torch.autograd.grad
                    return False
        return False


# Hooks live as long as graphs and parameters, so they must not keep a wrapper alive.
_Watch = weakref.ref[BackwardWatch]


def _begins(watch: _Watch, is_exchanged: bool, is_nested: bool, _: Tensor) -> None:
    if (found := watch()) is not None:
        found.begins(is_exchanged, is_nested)


def _arrived(watch: _Watch, position: int, _: Tensor) -> None:
    if (found := watch()) is not None:
        found.arrived(position)


def _ended(watch: _Watch, task: int) -> None:
    if (found := watch()) is not None:
        found.ended(task)
