"""Flat buffers: where tensors lie in them, that no two overlap, and which ranges a choice of them takes."""

from __future__ import annotations

import torch
from torch import Tensor

from samegrad.parallel.layout import ALIGNMENT, FlatLayout, aligned

CPU = torch.device("cpu")


def mixed_tensors() -> list[Tensor]:
    """Many dtypes, sizes around the alignment, no dimensions, no elements, strides that are to be kept."""
    torch.manual_seed(0)
    plain = [
        torch.randn(size, dtype=dtype)
        for size in ((1,), (15,), (16,), (17,), (), (0, 3), (3, 5))
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.complex128)
    ]
    return [
        *plain,
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(8, 6).t(),
        torch.randint(0, 9, (7,)),
        torch.rand(70) > 0.5,
    ]


def test_every_view_starts_at_a_boundary_and_has_the_shape_and_strides_of_its_tensor() -> None:
    tensors = mixed_tensors()
    layout = FlatLayout(tensors)
    for view, tensor in zip(layout.views(layout.allocate(CPU)), tensors, strict=True):
        assert view.data_ptr() % ALIGNMENT == 0
        assert (view.dtype, view.shape, view.stride()) == (tensor.dtype, tensor.shape, tensor.stride())


def test_views_do_not_overlap_and_stay_inside() -> None:
    tensors = mixed_tensors()
    layout = FlatLayout(tensors)
    flats = layout.allocate(CPU)
    views = layout.views(flats)
    for view, tensor in zip(views, tensors, strict=True):
        view.copy_(tensor)
    for view, tensor in zip(views, tensors, strict=True):
        assert torch.equal(view, tensor)  # none has overwritten another
    for flat, (dtype, numel) in zip(flats, layout.sizes, strict=True):
        assert flat.numel() == numel
        assert numel * dtype.itemsize % ALIGNMENT == 0


def test_views_of_a_part_of_a_larger_buffer_start_at_the_part() -> None:
    layout = FlatLayout([torch.empty(3), torch.empty(5)])
    whole = torch.zeros(320)
    first, second = layout.views([whole[64:96]])
    first.fill_(1)
    second.fill_(2)
    assert whole.nonzero().flatten().tolist() == [64, 65, 66, 80, 81, 82, 83, 84]


def test_strides_with_gaps_are_closed() -> None:
    (view,) = (layout := FlatLayout([torch.empty(10, 10)[:, ::2]])).views(layout.allocate(CPU))
    assert view.shape == (10, 5)
    assert view.is_contiguous()


def test_nothing_has_an_empty_layout() -> None:
    layout = FlatLayout([])
    assert layout.sizes == []
    assert layout.views(layout.allocate(CPU)) == []


def test_the_piece_of_a_tensor_holds_exactly_its_elements() -> None:
    tensors = mixed_tensors()
    layout = FlatLayout(tensors)
    for chosen in range(len(tensors)):
        flats = [torch.zeros(numel, dtype=dtype) for dtype, numel in layout.sizes]
        flat, start, stop = layout.piece(chosen)
        assert stop - start == tensors[chosen].numel()
        flats[flat][start:stop] = 1
        for position, view in enumerate(layout.views(flats)):
            assert bool(view.all() if position == chosen else not view.any()), position


def test_aligned_copies_only_what_is_not() -> None:
    whole = torch.arange(64, dtype=torch.float32)
    assert aligned(whole) is whole
    assert aligned(at := whole[16:]) is at
    for offset in (1, 2, 8, 15):
        copy = aligned(whole[offset:])
        assert copy.data_ptr() % ALIGNMENT == 0
        assert torch.equal(copy, whole[offset:])
    assert aligned(torch.empty(0)).numel() == 0


def test_an_aligned_copy_has_the_same_strides() -> None:
    """Strides choose kernels, and those the bits."""
    image = torch.empty(3 * 4 * 5 * 2 + 1)[1:].view(2, 4, 5, 3).permute(0, 3, 1, 2)
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert aligned(image).stride() == image.stride()
    assert aligned(image).data_ptr() != image.data_ptr()


def test_places_beyond_2_to_the_31() -> None:
    """Arithmetic only: nothing is allocated."""
    huge = [torch.empty(size, device="meta") for size in ((1 << 31) + 5, 7, (1 << 32) + 1)]
    layout = FlatLayout(huge)
    starts = [layout.piece(position)[1:] for position in range(3)]
    assert starts == [(0, (1 << 31) + 5), ((1 << 31) + 16, (1 << 31) + 23), ((1 << 31) + 32, 3 * (1 << 31) + 33)]
    views = layout.views(layout.allocate(torch.device("meta")))
    assert [view.storage_offset() for view in views] == [start for start, _ in starts]
    assert layout.sizes == [(torch.float32, (1 << 31) + 32 + (1 << 32) + 16)]
