"""Errors for mistakes in mods, with advice.

A mod is traced on tensors without values. If Python code reads a value, the exception's
traceback gives the instruction, and the instruction's position gives the expression in
the source: `math.log(abs(q - k))`, `table[h]`, the test of an `if`.
"""

from __future__ import annotations

import ast
import builtins
import dis
import linecache
import operator
import re
import traceback
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    free_unbacked_symbols,
)
from torch.utils import _pytree as pytree

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
from flexc.frontend.locations import error_location, node_location, user_trace
from flexc.frontend.signatures import MOD_ARGS, ModKind

WANTS_VALUE = (
    "value out of a tracing tensor",
    ".numpy() is not supported",
    "iteration over a 0-d tensor",
    "len() of a 0-d tensor",
    "FakeTensor.__format__",
    "type FakeTensor doesn't define __",
    "unsupported operand type(s) for divmod(): 'FakeTensor'",
    "its data is not allocated yet",
    "(got SymInt)",
    "'numpy.ndarray' and 'FakeTensor'",
    "This higher order operator doesn't work",
)
"""Messages of exceptions that torch and Python raise if a value is missing."""


MAX_QUOTED = 120
"""The largest number of characters of an expression that messages quote."""


def is_value_read(error: BaseException) -> bool:
    """Return True if an exception means that a tensor's value was read."""
    if isinstance(error, KeyError):  # A dict lookup: tensors are never equal.
        return bool(error.args) and isinstance(error.args[0], torch.Tensor)
    kinds = (DataDependentOutputException, GuardOnDataDependentSymNode)
    if isinstance(error, kinds) or any(sign in str(error) for sign in WANTS_VALUE):
        return True
    # torch 2.11 may fail while it words the error.
    names = [f.name for f in traceback.extract_tb(error.__traceback__)]
    return "_make_data_dependent_error" in names


@dataclass(frozen=True)
class ErrorSite:
    """The user's instruction that raised an exception."""

    opname: str
    text: str
    """The source of its expression, empty if there is none or it is too long."""
    frame: FrameType

    @property
    def writes(self) -> bool:
        """True for an assignment to an element."""
        return self.opname in ("STORE_SUBSCR", "DELETE_SUBSCR")

    @property
    def node(self) -> ast.expr | None:
        if not self.text:
            return None
        try:
            return ast.parse(f"({self.text}\n)", mode="eval").body
        except SyntaxError:  # A part of a statement.
            return None

    def named(self, node: ast.expr) -> Any:
        """Return the value of a name or a module's attribute, None if unknown."""
        match node:
            case ast.Name(id=name):
                known = self.frame.f_globals.get(name, getattr(builtins, name, None))
                return self.frame.f_locals.get(name, known)
            case ast.Attribute(value=value, attr=name):
                base = self.named(value)
                found = vars(base) if isinstance(base, ModuleType) else {}
                return found.get(name)
            case _:
                return None


def site_of(error: BaseException) -> ErrorSite | None:
    """Return the innermost user instruction that an exception passed through."""
    trace = user_trace(error)
    if trace is None:
        return None
    code, at = trace.tb_frame.f_code, trace.tb_lasti
    return ErrorSite(dis.opname[code.co_code[at]], _source(code, at), trace.tb_frame)


def _source(code: CodeType, at: int) -> str:
    """Return the source of the expression that an instruction computes."""
    first, last, start, end = next(islice(code.co_positions(), at // 2, None))
    if first is None or last is None:
        return ""
    lines = linecache.getlines(code.co_filename)[first - 1 : last]
    parts = [line.encode() for line in lines]
    if parts:
        parts[-1] = parts[-1][:end]
        parts[0] = parts[0][start:]
    text = b"".join(parts).decode().strip()
    return text if len(text) <= MAX_QUOTED else ""


def describe_read(site: ErrorSite | None, error: BaseException) -> str:
    """Describe a failed read of a tensor's value, with the code to write instead."""
    if "0-d tensor" in str(error):
        return "they are single numbers without elements: use them as they are"
    if site is not None and site.opname.startswith("FORMAT"):
        return f"`{site.text}` gets no number to print: leave it out"
    node = None if site is None else site.node
    if site is None or node is None or isinstance(node, ast.Constant):
        return f"Python cannot branch on or convert a value computed from them: {_ANY}"
    code = f"`{site.text}`"
    match node:
        case ast.Call():
            return f"{code} gets no Python value: {_of_call(site, node)}"
        case ast.Subscript():
            return f"{code} gets no Python number: {_of_subscript(site, node)}"
        case _ if "numpy" in str(error):
            instead = "make NumPy's arrays tensors before the call"
            return f"{code} gets no value for NumPy: {instead}"
        case _:
            return _of_condition(node, code)


_WHERE = "write torch.where(condition, a, b)"
_ITSELF = "use the tensor itself"
_TABLE = "compute a table before the call, capture it and index it"
_ANY = (
    "use torch.where(condition, a, b), & | ~ in place of and, or, not, and torch's "
    "functions of tensors"
)

CALLS = {
    "builtins.int": "write `({args}).to(torch.int32)`; it indexes tensors, not lists",
    "builtins.float": f"{_ITSELF}, or `({{args}}).to(torch.float32)`",
    "builtins.complex": _ITSELF,
    "builtins.bool": "use the condition itself, as in `x != 0`",
    "builtins.max": "write torch.maximum(x, y), or x.clamp(min=number)",
    "builtins.min": "write torch.minimum(x, y), or x.clamp(max=number)",
    "builtins.round": "write torch.round(x)",
    "builtins.divmod": "write x // n and x % n",
    "builtins.any": "combine conditions by |",
    "builtins.all": "combine conditions by &",
    "builtins.range": f"loop to a fixed number and use torch.where, or {_TABLE}",
    "builtins.format": "leave it out",
    "numpy.array": _ITSELF,
    "numpy.asarray": _ITSELF,
    "torch.equal": "write `x == y`",
    "torch.allclose": "write `torch.isclose({args})`",
    "torch.is_nonzero": "write `({args}) != 0`",
    "torch.tensor": "use the numbers themselves, with torch.where or torch.maximum",
    "torch.cond": _WHERE,
}
"""Advice for functions, by module and name."""

METHODS = ("item", "tolist", "numpy")
"""Methods of a tensor that return its value."""


def _of_call(site: ErrorSite, call: ast.Call) -> str:
    """Return the advice for a call that requires Python numbers."""
    found = site.named(call.func)
    if found is None and isinstance(call.func, ast.Attribute):
        return _ITSELF if call.func.attr in METHODS else _ANY
    name = getattr(found, "__name__", "")
    module = (getattr(found, "__module__", None) or "torch").partition(".")[0]
    args = ", ".join(map(_without_item, call.args))
    known = CALLS.get(f"{module}.{name}")
    if known is not None:
        return known.format(args=args)
    if module in ("math", "numpy") and callable(getattr(torch, name, None)):
        return f"write `torch.{name}({args})`"
    return _ANY


def _of_subscript(site: ErrorSite, node: ast.Subscript) -> str:
    """Return the advice for an element that Python or NumPy looks up."""
    indices = list(ast.walk(node.slice))
    if ".item()" in site.text:
        return f"write `{_without_item(node)}`"
    if any(isinstance(i, ast.Slice) for i in indices):
        return f"a length cannot depend on a position, so {_TABLE}"
    if isinstance(site.named(node.value), torch.Tensor):
        if any(isinstance(i, ast.Compare) for i in indices):
            return _WHERE
        return "indices are integers, as from // in place of / or .to(torch.int32)"
    return (
        "make the container a tensor before the call, as by torch.tensor or "
        "torch.stack, and index that"
    )


def _of_condition(node: ast.expr, code: str) -> str:
    """Return the advice for a condition. The test of an `if` may be a part of it."""
    if _binds_tighter(node):
        instead = "& and | bind tighter than comparisons, so put each in parentheses"
        return f"Python cannot decide {code}: {instead}"
    whole = as_tensors(node)
    if whole != _without_item(node):
        return f"Python cannot decide {code}: write `{whole}`"
    instead = f"write torch.where({whole}, a, b), and & | ~ in place of and, or, not"
    return f"Python cannot branch on {code}: {instead}"


def _binds_tighter(node: ast.expr) -> bool:
    """Return True for expressions like `a >= b & c < d`, which compares `b & c`."""
    match node:
        case ast.Compare(left=left, comparators=[*others, _]):
            operands = [o for o in (left, *others) if isinstance(o, ast.BinOp)]
            return any(isinstance(o.op, ast.BitAnd | ast.BitOr) for o in operands)
        case _:
            return False


def as_tensors(node: ast.expr) -> str:
    """Return the source of a condition as operators of tensors."""
    match node:
        case ast.BoolOp(op=op, values=values):
            sign = " & " if isinstance(op, ast.And) else " | "
            return sign.join(f"({as_tensors(v)})" for v in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"~({as_tensors(operand)})"
        case ast.Compare(left=left, ops=[ast.In()], comparators=[comparator]):
            elements = getattr(comparator, "elts", [])
            pairs = [ast.Compare(left, [ast.Eq()], [e]) for e in elements]
            return " | ".join(f"({_without_item(p)})" for p in pairs) or "x == element"
        case ast.Compare(left=left, ops=ops, comparators=right) if len(ops) > 1:
            operands = zip([left, *right[:-1]], ops, right, strict=True)
            pairs = [ast.Compare(a, [op], [b]) for a, op, b in operands]
            return " & ".join(f"({_without_item(p)})" for p in pairs)
        case _:
            return _without_item(node)


def _without_item(node: ast.expr) -> str:
    return ast.unparse(node).replace(".item()", "")


SIZE_OF_DATA = (
    "has a result whose size depends on data: keep all elements and use "
    "torch.where(condition, x, 0), as in `torch.where(row > 0, row, 0).sum(-1)`, or "
    "compute it before the call"
)

SIGNS: tuple[tuple[Any, str, type[FlexcError], str], ...] = (
    (
        DynamicOutputShapeException,
        "",
        UnsupportedOpError,
        "{text} " + SIZE_OF_DATA,
    ),
    (
        TypeError,
        "must be Tensor, not (int|float|bool)",
        DtypeError,
        "{text}: of a Python number take math's function, or make it a tensor, as in "
        "torch.tensor(x)",
    ),
    (
        OverflowError,
        "int too (big|large) to convert|can't convert negative int to unsigned",
        NumberRangeError,
        "{text}: integers of tensors have 64 bits; write a float, as in float(n)",
    ),
    (
        IndexError,
        "is out of bounds for dimension",
        CapturedIndexError,
        "a {kind} reads outside of a captured tensor: {text}",
    ),
    (
        (RuntimeError, IndexError),
        "too many indices|must match the size|need to be at least|"
        "dimension out of range|shapes cannot be multiplied|"
        "invalid for input of size|expanded size",
        ShapeError,
        "shapes in a {kind} do not fit: {text}",
    ),
    (
        (RuntimeError, IndexError),
        "tensors used as indices must be",
        UnsupportedOpError,
        "a {kind} cannot index by a float: indices are integers, as from // in place "
        "of / or .to(torch.int32)",
    ),
    (
        AssertionError,
        "Torch not compiled with",
        UnsupportedOpError,
        "a {kind} computes on the device of the query and cannot move to another",
    ),
)
"""Mistakes that torch's exceptions show: the exception, a pattern in its first line,
the error to raise instead, and its message.
"""


def mistake_of(
    kind: ModKind, error: Exception, location: SourceLocation | None
) -> FlexcError | None:
    """Return an error with advice, None for an exception that user code raised."""
    where, site = error_location(error) or location, site_of(error)
    text = str(error).partition("\n")[0]
    if site is not None and site.opname == "RAISE_VARARGS":
        return None
    if "(Size-like symbols: u" in str(error):
        what = f"`{site.text}`" if site and site.text else f"a tensor in this {kind}"
        return UnsupportedOpError(f"{what} {SIZE_OF_DATA}", where)
    if is_value_read(error):
        return _value_read(kind, site, error, where)
    if "torch._C.Generator" in text:
        return random_numbers(kind, "torch.Generator", where)
    for raised, pattern, refusal, message in SIGNS:
        if isinstance(error, raised) and re.search(pattern, text):
            return refusal(message.format(kind=kind, text=text), where)
    if isinstance(error, TypeError) and location is None:  # A function in C.
        names = ", ".join(MOD_ARGS[kind])
        text = text.replace("FakeTensor", "Tensor")
        return ModSignatureError(f"a {kind} is called with ({names}): {text}")
    is_torchs = type(error).__module__.startswith("torch.")
    if isinstance(error, RuntimeError) and (type(error) is RuntimeError or is_torchs):
        return UnsupportedOpError(_refusal(kind, site, text), where)
    error.add_note(f"{where}: raised while this {kind} was traced")
    return None


def _refusal(kind: ModKind, site: ErrorSite | None, text: str) -> str:
    """Return the message for an op that torch cannot trace, without its internals."""
    if not re.search(INTERNALS, text):
        return f"a {kind} cannot do this: {text}"
    what = f"compute `{site.text}`" if site and site.text else "compute this"
    return f"a {kind} cannot {what}: {ONE_SCORE}"


def _value_read(
    kind: ModKind,
    site: ErrorSite | None,
    error: Exception,
    where: SourceLocation | None,
) -> FlexcError:
    if site is not None and site.writes:
        return _write(kind, f"`{site.text} = ...`", where)
    advice = describe_read(site, error)
    return DataDependentControlFlowError(
        f"a {kind} runs on symbolic positions, so {advice}", where
    )


def random_numbers(
    kind: ModKind, what: str, where: SourceLocation | None
) -> RandomNumberError:
    """Return the error for a mod that draws random numbers by `what`."""
    return RandomNumberError(
        f"a {kind} must not draw random numbers, as {what} does: it is computed anew "
        "whenever a kernel needs it. Draw them before the call, capture the "
        "tensor and index it, as in `noise[h, q_idx]`",
        where,
    )


INTERNALS = r"[Ss]ymbolic|SymInt|\.cpp:|ASSERT"
"""A pattern of messages about torch's own code."""

TABLE = (
    "compute a table before the call, capture it and index it, as in `table[h, q_idx]`"
)
ONE_SCORE = (
    "mods compute with single numbers, by pointwise ops, indexing and short "
    f"reductions. To have such values, {TABLE}"
)


def unsupported_op(node: Node, name: str) -> UnsupportedOpError:
    """Return the error for an operation without a rule."""
    if torch.Tag.pointwise in getattr(node.target, "tags", ()):
        why = f"flexc has no rule for {node.target} ({name}): write it with other "
        why += f"pointwise ops or, if it depends on positions only, {TABLE}"
    else:
        why = f"{node.target} has no meaning for one score: {ONE_SCORE}"
    return UnsupportedOpError(why, node_location(node))


def check_graph(kind: ModKind, gm: GraphModule, arity: int) -> None:
    """Check that a mod reads no value of a tensor, writes to none and draws none.

    The first `arity` nodes are the score and positions.
    """
    nodes = list(gm.graph.nodes)
    varying, fresh = set(nodes[:arity]), set[Node]()
    for node in nodes:
        where = node_location(node)
        if node.target is torch.ops.aten._local_scalar_dense.default:
            raise DataDependentControlFlowError(
                f"a {kind} runs on symbolic positions, so Python cannot take the value "
                "out of a tensor, as item(), tolist() and `if` do: use the tensor "
                "itself, and torch.where(condition, a, b), or take a captured tensor's "
                "value before the call",
                where,
            )
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise random_numbers(kind, str(node.target), where)
        if is_in_place(node) and not _writes_own_result(node, fresh):
            if str(node.target).startswith("prims."):  # A part of a decomposition.
                raise UnsupportedOpError(f"a {kind} cannot do this: {ONE_SCORE}", where)
            raise _write(kind, str(node.target), where)
        if varying.intersection(node.all_input_nodes):
            varying.add(node)
            # A write to what depends on no pair is lost: it is made once for all pairs.
            if node.target is not operator.getitem and not _is_view(node):
                fresh.add(node)


def check_sizes(gm: GraphModule) -> None:
    """Check that the size of no tensor depends on data."""
    for node in gm.graph.nodes:
        if has_size_of_data(node.meta.get("val")):
            where = node_location(node)
            raise UnsupportedOpError(f"{node.target} {SIZE_OF_DATA}", where)


def has_size_of_data(value: Any) -> bool:
    """Return True if a value without data has tensors whose size depends on data."""
    leaves = pytree.tree_leaves(value)
    shapes = [t.shape for t in leaves if isinstance(t, torch.Tensor)]
    return any(free_unbacked_symbols(n) for shape in shapes for n in shape)


def _write(kind: ModKind, what: str, where: SourceLocation | None) -> MutationError:
    return MutationError(
        f"a {kind} must not write to what it is given or captures, to what depends on "
        f"no pair, or to parts of tensors, as {what} does: use an out-of-place "
        "operation, as in `score = score + x` for `score += x`",
        where,
    )


def is_in_place(node: Node) -> bool:
    """Return True if a node writes to its first argument."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _is_view(node: Node) -> bool:
    if node.target is operator.getitem:  # A part of what split or unbind returns.
        return isinstance(node.args[0], Node) and _is_view(node.args[0])
    schema = getattr(node.target, "_schema", None)
    aliases = schema is not None and any(r.alias_info for r in schema.returns)
    return aliases and not is_in_place(node)


def _writes_own_result(node: Node, fresh: set[Node]) -> bool:
    """Return True for an in-place op on a tensor that the mod made and has no view of.

    The rule of the op out of place imports it, as later uses are of its result.
    """
    written = node.args[0]
    assert isinstance(written, Node)
    if written not in fresh or any(map(_is_view, written.users)):
        return False
    return "_." in str(node.target)
