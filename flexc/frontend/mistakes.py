"""What an exception or a graph says of a mistake in a mod, as an error to act on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.fx import GraphModule, Node

from flexc.errors import (
    CapturedIndexError,
    DataDependentControlFlowError,
    DtypeError,
    FlexcError,
    ModSignatureError,
    MutationError,
    NumberRangeError,
    RandomNumberError,
    ShapeError,
    SourceLocation,
    UnsupportedOpError,
)
from flexc.frontend.locations import error_location, node_location
from flexc.frontend.signatures import MOD_ARGS, ModKind
from flexc.frontend.value_reads import Site, describe_read, is_value_read, site_of


@dataclass(frozen=True)
class Sign:
    """How an exception of torch shows a mistake, and what is said of it."""

    kinds: tuple[type[Exception], ...]
    text: str
    """A regular expression that its first line has."""
    refusal: type[FlexcError]
    says: str

    def shown_by(self, error: Exception, first_line: str) -> bool:
        found = re.search(self.text, first_line)
        return isinstance(error, self.kinds) and found is not None


SIGNS = (
    Sign(
        (DynamicOutputShapeException,),
        "",
        UnsupportedOpError,
        "{text} has a result whose size depends on data: use torch.where(condition, a, "
        "b), or compute it before the call",
    ),
    Sign(
        (TypeError,),
        "must be Tensor, not (int|float|bool)",
        DtypeError,
        "{text}: of a Python number take math's function, or make it a tensor, as in "
        "torch.tensor(x)",
    ),
    Sign(
        (OverflowError,),
        "int too (big|large) to convert",
        NumberRangeError,
        "{text}: integers of tensors have 64 bits; write a float, as in float(n)",
    ),
    Sign(
        (IndexError,),
        "is out of bounds for dimension",
        CapturedIndexError,
        "a {kind} reads outside of a captured tensor: {text}",
    ),
    Sign(
        (RuntimeError, IndexError),
        "too many indices|must match the size|need to be at least|"
        "dimension out of range|shapes cannot be multiplied|"
        "invalid for input of size|expanded size",
        ShapeError,
        "shapes in a {kind} do not fit: {text}",
    ),
)


def mistake_of(
    kind: ModKind, error: Exception, location: SourceLocation | None
) -> FlexcError | None:
    """Return an error that says what to do, None for an exception of the user's own."""
    where, site = error_location(error) or location, site_of(error)
    text = str(error).partition("\n")[0]
    if site is not None and site.opname == "RAISE_VARARGS":
        return None
    if is_value_read(error):
        return _value_read(kind, site, error, where)
    if "torch._C.Generator" in text:
        return random_numbers(kind, "torch.Generator", where)
    for sign in SIGNS:
        if sign.shown_by(error, text):
            return sign.refusal(sign.says.format(kind=kind, text=text), where)
    if isinstance(error, TypeError) and location is None:  # A function in C.
        names = ", ".join(MOD_ARGS[kind])
        text = text.replace("FakeTensor", "Tensor")
        return ModSignatureError(f"a {kind} is called with ({names}): {text}")
    if _is_of_torch(error):
        return UnsupportedOpError(f"a {kind} cannot do this: {text}", where)
    error.add_note(f"{where}: raised while this {kind} was traced")
    return None


def _value_read(
    kind: ModKind, site: Site | None, error: Exception, where: SourceLocation | None
) -> FlexcError:
    if site is not None and site.writes:
        return _write(kind, f"`{site.text} = ...`", where)
    read = describe_read(site, error)
    return DataDependentControlFlowError(
        f"a {kind} runs on symbolic positions, so {read.failed}: {read.instead}", where
    )


def _is_of_torch(error: Exception) -> bool:
    """Whether torch raised it, where the user's code did not."""
    own = type(error) is RuntimeError or type(error).__module__.startswith("torch.")
    return isinstance(error, RuntimeError) and own


def random_numbers(
    kind: ModKind, what: str, where: SourceLocation | None
) -> RandomNumberError:
    """The error for a mod that draws random numbers, with `what` it does so."""
    return RandomNumberError(
        f"a {kind} must not draw random numbers, as {what} does: it is computed anew "
        "whenever a kernel needs it. Draw them before the call, capture the "
        "tensor and index it, as in `noise[h, q_idx]`",
        where,
    )


def unsupported_op(node: Node, name: str) -> UnsupportedOpError:
    """The error for an operation that has no rule."""
    return UnsupportedOpError(
        f"{node.target} has no meaning for one score ({name}): mods compute with "
        "single numbers, by pointwise ops and indexing. Compute such a table before "
        "the call, capture it and index it, as in `table[h, q_idx]`",
        node_location(node),
    )


def check_graph(kind: ModKind, gm: GraphModule) -> None:
    """Check that a mod reads no value of a tensor, writes to none and draws none."""
    fresh: set[Node] = set()
    for node in gm.graph.nodes:
        where = node_location(node)
        if node.target is torch.ops.aten._local_scalar_dense.default:
            raise DataDependentControlFlowError(
                f"a {kind} runs on symbolic positions, so Python cannot take the value "
                "out of a tensor, as item(), tolist() and `if` do: use the tensor "
                "itself, and torch.where(condition, a, b)",
                where,
            )
        if _draws(node):
            raise random_numbers(kind, str(node.target), where)
        if is_in_place(node) and not _writes_own_scalar(node, fresh):
            raise _write(kind, str(node.target), where)
        if node.op == "call_function" and not _is_view(node):
            fresh.add(node)


def _write(kind: ModKind, what: str, where: SourceLocation | None) -> MutationError:
    return MutationError(
        f"a {kind} must not write to what it is given or captures, as {what} does: "
        "use an out-of-place operation, as in `score = score + x`",
        where,
    )


def _draws(node: Node) -> bool:
    tags: Any = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def is_in_place(node: Node) -> bool:
    """Whether a node writes to its first argument."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _is_view(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    aliases = schema is not None and any(r.alias_info for r in schema.returns)
    return aliases and not is_in_place(node)


def _writes_own_scalar(node: Node, fresh: set[Node]) -> bool:
    """In-place ops on scalars that a mod made itself are as good as others."""
    written = node.args[0]
    assert isinstance(written, Node)
    if written not in fresh or any(map(_is_view, written.users)):
        return False
    return written.meta["val"].dim() == 0 and "_." in str(node.target)
