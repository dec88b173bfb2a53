"""PTX that unpacks the words of :mod:`moe_plugins.triton_moe.w4_words`: two columns to a register, as the tensor cores
have them.

Hopper's integer units are half as wide as the others: their instructions are those to save.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import triton


@triton.constexpr_function
def scale_asm(kind: str, index: int, half: bool, high: bool) -> str:
    """Scale `index` of a word, twice in a register, as the tensor cores' type; `high`, for the higher codes of int4."""
    if kind != "fp4":
        take = f"prmt.b32 $0, $1, 0, {'0x3232' if index else '0x1010'};"
        if high and not half:
            take += " mov.b32 t, 0x3D803D80; mul.rn.bf16x2 $0, $0, t;"  # 1 / 16
        return f"{{ .reg .b32 t; {take} }}"
    # The code is missing 2 ** 126 or, in float16, 2 ** 14: here the exponent has it.
    factor, bias = (128, 0x0400) if half else (16, 0x7080)
    byte = f"prmt.b32 t, $1, 0, 0x4{index}4{index};"
    return f"{{ .reg .b32 t; {byte} mad.lo.u32 $0, t, {factor}, 0x{bias:04x}{bias:04x}; }}"


@triton.constexpr_function
def zero_asm(kind: str, index: int, half: bool, high: bool) -> str:
    """What :func:`unpack_asm` adds to a code of int4 or, where zeros are stored, subtracts from it but in float16's
    `high` ones."""
    if kind == "int4" and half:
        return f"mov.b32 $0, {'0xD480D480' if high else '0xE408E408'}; // $1"  # -72 and -1032
    take = f"prmt.b32 $0, $1, 0, {'0x3232' if index or kind == 'int4_zero' else '0x1010'};"
    if kind == "int4":
        take += " mov.b32 t, 0x80088008; mul.rn.bf16x2 $0, $0, t;"  # -8 * 2 ** (INT4_RESULT - INT4_SCALE)
    elif high and half:
        take += " mov.b32 t, 0x63806380; sub.rn.f16x2 $0, t, $0;"  # 960 - (1024 + zero)
    elif high:
        take += " shl.b32 $0, $0, 4;"
    return f"{{ .reg .b32 t; {take} }}"


@triton.constexpr_function
def unpack_asm(kind: str, half: bool) -> str:
    """Two neighbouring words to registers of two columns each.

    Registers $0 … are the outputs, then the two words, then eight scales and eight zeros, each twice as all come in
    pairs of neighbours.
    """
    if kind == "int8":
        return str(_unpack_int8(half))
    unpack = _unpack_fp4 if kind == "fp4" else _unpack_int4
    lines = [".reg .b32 t, u, c;"]
    for word in range(2):
        lines += unpack(word * 4, f"${8 + word}", half)
    type_ = "f16x2" if half else "bf16x2"
    if half:
        lines.append("mov.b32 c, 0x2C002C00;")  # 1 / 16
    for j in range(8):
        out, scale, zero = f"${j}", f"${10 + 2 * j}", f"${26 + 2 * j}"
        if kind == "int4" and not half:
            lines.append(f"fma.rn.{type_} {out}, {out}, {scale}, {zero};")
            continue
        if kind != "fp4":
            if half and j % 4 >= 2:
                lines.append(f"fma.rn.{type_} {out}, {out}, c, {zero};")
            else:
                lines.append(f"{'add' if kind == 'int4' else 'sub'}.rn.{type_} {out}, {out}, {zero};")
        lines.append(f"mul.rn.{type_} {out}, {out}, {scale};")
    return "{ " + " ".join(lines) + " }"


@triton.constexpr_function
def _unpack_fp4(first: int, word: str, half: bool) -> list[str]:
    # In float16 the magnitude's place is three bits higher: there the same bits are extracted and shifted once more.
    out = [f"${first + code}" for code in range(4)]
    lines = [
        f"and.b32 {out[0]}, {word}, 0x81C081C0;",
        f"shl.b32 t, {word}, 4;", f"and.b32 {out[1]}, t, 0x81C081C0;",
        f"shf.r.wrap.b32 t, {word}, {word}, 6;", f"and.b32 {out[2]}, t, 0x81C081C0;",
        f"shl.b32 t, {word}, 6;", "and.b32 t, t, 0x80C080C0;",
        f"shr.u32 u, {word}, 2;", f"lop3.b32 {out[3]}, u, 0x01000100, t, 0xEA;",
    ]  # fmt: skip
    if half:
        for register in out:
            lines += [
                f"and.b32 t, {register}, 0x80008000;",
                f"shl.b32 u, {register}, 3;",
                f"lop3.b32 {register}, u, 0x0E000E00, t, 0xEA;",
            ]
    return lines


@triton.constexpr_function
def _unpack_int4(first: int, word: str, half: bool) -> list[str]:
    lines = [f"shr.u32 t, {word}, 8;"]
    for code in range(4):
        source, mask = "t" if code % 2 else word, "0x00F000F0" if code >= 2 else "0x000F000F"
        magic = "0x64006400" if half else "0"
        lines.append(f"lop3.b32 ${first + code}, {source}, {mask}, {magic}, 0xEA;")
    return lines


@triton.constexpr_function
def _unpack_int8(half: bool) -> str:
    lines = [".reg .b32 t, u, c;", ".reg .f32 f, g;", "mov.b32 c, 0x64806480;"]
    for j in range(4):
        if half:
            lines += [
                f"prmt.b32 t, $4, $5, 0x{4 + j}{4 + j}{j}{j};",
                "lop3.b32 t, t, 0x00FF00FF, 0x64006400, 0xEA;",
                f"sub.rn.f16x2 ${j}, t, c;",
            ]
        else:  # eight bits and the place of the magic one do not fit into bfloat16
            lines += [
                f"prmt.b32 t, $4, 0x4B000000, 0x744{j};",
                f"prmt.b32 u, $5, 0x4B000000, 0x744{j};",
                "mov.b32 f, t;", "mov.b32 g, u;",
                "sub.rn.f32 f, f, 0f4B000080;", "sub.rn.f32 g, g, 0f4B000080;",
                f"cvt.rn.bf16x2.f32 ${j}, g, f;",
            ]  # fmt: skip
    return "{ " + " ".join(lines) + " }"
