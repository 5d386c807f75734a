"""What a model makes of a data set, computed by all ranks: outputs in the order of the data, each exactly once."""

from __future__ import annotations

import json
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from samegrad.errors import TrainingError
from samegrad.parallel.nested import map_tensors, replace_rows, rows
from samegrad.parallel.world import World
from samegrad.trainer.evaluation import Evaluation
from samegrad.trainer.examples import as_inputs

__all__ = ["predict"]

_COMPLEX = " as pairs"  # ends the name of a tensor of complex128, which safetensors does not know
_SENT = frozenset({*safetensors.torch._TYPES.values(), torch.complex128})


def predict(evaluation: Evaluation, world: World, dataset: Any) -> Any:
    """The outputs of the model for all of `dataset`, on every rank; see `Trainer.predict`.

    Every rank computes the first unit, which shows it the structure of outputs; the ranks take turns with the others.
    """
    ranks = world.size
    columns: list[list[Any]] = []  # for each leaf with rows: the pieces, unit by unit
    first: Any = None
    examples = 0  # of the first unit
    own = b""
    with evaluation.units(dataset, "predict", as_inputs, lambda unit: (unit - 1) % ranks if unit else None) as units:
        for unit in units:
            turn = (unit.number - 1) % ranks
            if unit.number == 0 or turn == world.rank:
                output = map_tensors(_to_host, evaluation.compute(unit, lambda batch: batch)[1])
                found = _checked(rows(output, unit.examples), unit.examples)
                if unit.number == 0:
                    first, examples = output, unit.examples
                    columns = [[leaf] for leaf in found]
                else:
                    own = _to_bytes(found)
            if unit.number and (turn == ranks - 1 or unit.is_last):
                for record in world.group.gather(own, "predict")[: turn + 1]:
                    for column, leaf in zip(columns, _from_bytes(record, len(columns)), strict=True):
                        column.append(leaf)
                own = b""
    return replace_rows(first, examples, map(_joined, columns))


def _to_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)  # it may be a buffer, or the input


def _checked(found: list[Any], examples: int) -> list[Any]:
    for leaf in found:
        if isinstance(leaf, Tensor) and len(leaf) != examples:
            raise TrainingError(
                f"predict: for {examples} examples the model gave a tensor of shape {list(leaf.shape)}; each tensor in "
                f"its output must hold one row per example, or have no dimensions"
            )
        if isinstance(leaf, Tensor) and (leaf.dtype not in _SENT or leaf.layout is not torch.strided):
            raise TrainingError(
                f"predict: the model gave a tensor of {leaf.dtype}, {leaf.layout}, which ranks cannot send each other; "
                f"have it return dense tensors of {', '.join(sorted(map(str, _SENT)))}"
            )
    if not found:
        raise TrainingError("predict: there is no tensor with one row per example in the output of the model")
    return found


def _to_bytes(found: list[Any]) -> bytes:
    """The lists as one line of JSON, then the tensors as safetensors."""
    tensors: dict[str, Tensor] = {}
    for place, leaf in enumerate(found):
        if isinstance(leaf, Tensor):
            whole = leaf.resolve_conj().resolve_neg().contiguous()
            if leaf.dtype == torch.complex128:
                tensors[f"{place}{_COMPLEX}"] = torch.view_as_real(whole)
            else:
                tensors[str(place)] = whole
    lists = {str(place): leaf for place, leaf in enumerate(found) if isinstance(leaf, list)}
    try:
        text = json.dumps(lists).encode()
    except (TypeError, ValueError) as error:
        raise TrainingError(
            f"predict: a list in the output of the model, with one value per example, can hold numbers and text only: "
            f"{error}"
        ) from None
    # Tensors that share memory, as one that is given twice, are saved apart.
    return text + b"\n" + safetensors.torch.save({name: tensor.clone() for name, tensor in tensors.items()})


def _from_bytes(record: bytes, count: int) -> list[Any]:
    text, _, saved = record.partition(b"\n")
    leaves = json.loads(text)
    for name, tensor in safetensors.torch.load(saved).items():
        is_complex = name.endswith(_COMPLEX)
        leaves[name.removesuffix(_COMPLEX)] = torch.view_as_complex(tensor) if is_complex else tensor
    if len(leaves) != count:
        raise TrainingError(
            f"predict: the outputs of the model differ in structure: {count} tensors and lists with one row per "
            f"example for the first examples, {len(leaves)} for later ones"
        )
    return [leaves[str(place)] for place in range(count)]


def _joined(pieces: list[Any]) -> Any:
    if isinstance(pieces[0], Tensor):
        shapes = {tuple(piece.shape[1:]) for piece in pieces}
        if len(shapes) > 1:
            raise TrainingError(
                f"predict: the outputs of the model have rows of different shapes, {sorted(shapes)}; they cannot "
                f"be put together"
            )
        return torch.cat(pieces)
    return [value for piece in pieces for value in piece]
