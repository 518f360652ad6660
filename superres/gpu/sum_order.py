"""In which order a compiled kernel adds floating-point numbers, read from its text in Triton's GPU
dialect.

The compiler distributes the elements of a tile over registers, lanes and warps, by heuristics that
depend on the tile's shape. That axis's part of the layout determines the order of a sum over an
axis. The instruction, the layout of the operands and the size of the common axis determine the
order of the sums of a product.
"""

from __future__ import annotations

import re

LAYOUT = re.compile(r"^(#\w+) = (#ttg\..*)$", re.MULTILINE)
SUM = re.compile(r'"tt\.reduce"\([^)]*\) <\{axis = (\d+) : i32\}> \(\{((?:(?!\}\) '
                 r':).)*?arith\.addf.*?)\}\) : ' r"\(tensor<([^,]*), (.*?)>\) ->", re.DOTALL)
PRODUCT = re.compile(r"(?:tt\.dot|ttng\.warp_group_dot) [^,]*, [^,]*, (%cst)?.*?(?:inputPrecision "
                     r"= (\w+))? : tensor<[^>]*?x(\d+)x\w+, (#.*?)>> \* ")


def sum_orders(text: str) -> list[str]:
    """Return the orders of the sums and the products of a compiled kernel, one after another as in
    its text.

    Sums of whole numbers and maxima, which no order changes, are left out.
    """
    layouts = dict(LAYOUT.findall(text))
    found = [(one.start(), f"sum of {one[3].split('x')[int(one[1])]} "
              f"{along(one[4], int(one[1]), layouts)}")
             for one in SUM.finditer(text)]
    for one in PRODUCT.finditer(text):
        parent = re.search(r"parent = (#\w+)", one[4])
        operand = layouts.get(parent[1], "") if parent else ""
        kept = re.findall(r"(?:kWidth|versionMajor|versionMinor) = \d+|instrShape = \[.*?\]",
                          one[4] + operand)
        found.append((one.start(), f"product of {one[3]}, {one[2]}, "
                      f"{'from 0' if one[1] else 'on'}: {', '.join(kept)}"))
    return [order for _, order in sorted(found)]


def along(layout: str, axis: int, layouts: dict[str, str]) -> str:
    """Return the part of a layout that says where the elements along an axis are: in registers,
    lanes and warps."""
    layout = layouts.get(layout, layout)
    inner = re.match(r"#ttg\.slice<\{dim = (\d+), parent = (.*)\}>?$", layout)
    if inner:
        return along(inner[2], axis + (axis >= int(inner[1])), layouts)
    parts = []
    for name, values in re.findall(r"(\w+) = (\[(?:\[[^]]*\](?:, )?)*\]|\[[^]]*\])", layout):
        if values.startswith("[["):  # a linear layout: the coordinates of each bit
            own = [base.split(", ")[axis] for base in re.findall(r"\[([^][]*)\]", values)]
            parts.append(f"{name} {[int(number) for number in own if number != '0']}")
        elif name != "order" and (own := values.strip("[]").split(", ")) != [""]:
            parts.append(f"{name} {own[axis]}")
    return ", ".join(parts)
