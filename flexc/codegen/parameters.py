"""Make parameters of a kernel from the arguments of its op."""

from __future__ import annotations

from xdsl.ir import Attribute

from flexc.codegen.kernel_spec import ParamSpec
from flexc.dialects.tile import ParamAttr
from flexc.dialects.tile.types import is_memory, is_tensor


def param_spec(name: str, type_: Attribute, param: ParamAttr) -> ParamSpec:
    """Return the parameter for a kernel's argument of the given type."""
    element, role, box = type_, "scalar", param.get_box()
    if is_tensor(type_) or is_memory(type_):
        role = "input" if is_tensor(type_) else "output"
        element = type_.element_type
        if box:
            box = (1,) * (type_.get_num_dims() - len(box)) + box
    return ParamSpec(
        name,
        str(element),
        role,
        param.kind.data,
        param.source.data,
        param.dim.data,
        param.unit.data,
        box,
    )
