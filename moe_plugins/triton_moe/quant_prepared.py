"""Quantized weights as our kernels read them: made from a checkpoint's own layout, once at load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from moe_core.quantization import Format, QuantizedTensor
from moe_core.quantization.formats import FP8, FP8_BLOCKS, FP8_ROWS
from moe_core.weights import ExpertWeights
from moe_plugins.triton_moe.fp8_weights import Fp8Weights, in_blocks
from moe_plugins.triton_moe.quant_shares import from_whole_blocks

FP8_FORMATS: Final = (FP8, FP8_ROWS, FP8_BLOCKS)


class QuantPrepared:
    """What `make` makes of weights, in memory whose addresses stay when others of the same form are loaded.

    While they are loaded again, a second copy of the layer is in memory.
    """

    def __init__(self, make: Callable[[ExpertWeights], Any]) -> None:
        self._make = make
        self._made: Any = None
        self.version = 0
        """Changes with the addresses."""
        self.requires_grad = False
        """Whether gradients are wanted of what was loaded; nothing here has any."""

    @property
    def weights(self) -> Any:
        """The weights; raises ``RuntimeError`` before any are loaded."""
        if self._made is None:
            raise RuntimeError("the experts have no weights yet: call prepare first")
        return self._made

    def copy(self, weights: ExpertWeights) -> None:
        """Make them of `weights`; a second time into the same memory, which CUDA graphs may read."""
        self.requires_grad = any(tensor.requires_grad for tensor in weights.tensors().values())
        # Inference tensors could not be written to later, outside of that mode.
        with torch.inference_mode(False), torch.no_grad():
            made = self._make(weights)
            if self._made is not None and _form(self._made) == _form(made):
                for old, new in zip(_tensors(self._made), _tensors(made), strict=True):
                    old.copy_(new)
            else:
                self._made, self.version = made, self.version + 1

    def tensors(self) -> list[torch.Tensor]:
        """What the kernels read."""
        return list(_tensors(self.weights))


def prepare_fp8(weights: ExpertWeights, dtype: torch.dtype) -> Fp8Weights:
    """Copies of e4m3 `weights` in blocks of 128 x 128 or with a scale per matrix or row, with gate above up.

    Raises ``ValueError`` for another format. Biases become `dtype`.
    """
    weights = from_whole_blocks(weights)
    fc1 = [_e4m3(part) for part in (weights.w1_EIH, weights.w3_EIH) if part is not None]
    w2 = _e4m3(weights.w2_EHI)
    biases = [part.to(dtype) for part in (weights.b1_EI, weights.b3_EI) if part is not None]
    s1, r1 = _scales(torch.stack([part.scale.float() for part in fc1], dim=1), w2.format)
    s2, r2 = _scales(w2.scale.float(), w2.format)
    return Fp8Weights(
        fc1=in_blocks(*(part.data for part in fc1)),
        s1=s1,
        w2=in_blocks(w2.data),
        s2=s2,
        b1_EG=torch.cat(biases, dim=1) if biases else None,
        b2_EH=None if weights.b2_EH is None else weights.b2_EH.to(dtype, copy=True).contiguous(),
        gated=len(fc1) == 2,
        blocks=w2.format == FP8_BLOCKS,
        r1=r1,
        r2=r2,
        x_scale=_one(weights.fc1_input_scale_E),
        h_scale=_one(weights.fc2_input_scale_E),
    )


def _scales(scale: torch.Tensor, format_: Format) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scales of blocks or matrices, and those of rows, from the scales ``[L, ..., N, K]`` of a format."""
    if format_ != FP8_ROWS:
        return scale.clone(memory_format=torch.contiguous_format), None
    return scale.new_ones(*scale.shape[:-2], 1, 1), scale.flatten(1).clone(memory_format=torch.contiguous_format)


def _one(scale_E: torch.Tensor | None) -> torch.Tensor | None:
    # Those of the experts are equal.
    return None if scale_E is None else scale_E[:1].clone()


def _e4m3(matrix: object) -> QuantizedTensor:
    needed = " or ".join(map(str, FP8_FORMATS))
    if not isinstance(matrix, QuantizedTensor):
        raise ValueError(f"found a matrix that is not quantized, needed {needed}")
    if matrix.format not in FP8_FORMATS:
        raise ValueError(f"found {matrix.format}, needed {needed}")
    return matrix


def _tensors(made: Any) -> Iterator[torch.Tensor]:
    if isinstance(made, torch.Tensor):
        yield made
    elif isinstance(made, tuple):
        for part in made:
            yield from _tensors(part)


def _form(made: Any) -> Any:
    """Everything but the values."""
    if isinstance(made, torch.Tensor):
        return made.shape, made.dtype, made.device
    return tuple(map(_form, made)) if isinstance(made, tuple) else made
