"""What Python wanted of a tensor that has no value, and what to write instead.

A mod is traced on tensors without values. Where Python asks one for its value, the
exception's traceback shows the user's instruction, and the instruction's place in
the source the expression: `math.log(abs(q - k))`, `table[h]`, the test of an `if`.
"""

from __future__ import annotations

import ast
import builtins
import dis
import linecache
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from flexc.frontend.locations import user_trace

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
"""What exceptions say that torch and Python raise for the want of a value."""


MAX_QUOTED = 120
"""Characters of an expression that messages quote."""


def is_value_read(error: BaseException) -> bool:
    """Whether an exception says that a tensor's value was asked for."""
    if isinstance(error, KeyError):  # A dict lookup, and no tensor equals another.
        return bool(error.args) and isinstance(error.args[0], torch.Tensor)
    kinds = (DataDependentOutputException, GuardOnDataDependentSymNode)
    return isinstance(error, kinds) or any(sign in str(error) for sign in WANTS_VALUE)


@dataclass(frozen=True)
class Site:
    """The user's instruction that an exception came out of."""

    opname: str
    text: str
    """The source of its expression, empty where there is none or it is long."""
    frame: FrameType

    @property
    def writes(self) -> bool:
        """Whether it is an assignment to an element."""
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
        """What a name or an attribute of a module stands for, None if not known."""
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


def site_of(error: BaseException) -> Site | None:
    """The innermost instruction of user code that an exception passed through."""
    trace = user_trace(error)
    if trace is None:
        return None
    code, at = trace.tb_frame.f_code, trace.tb_lasti
    return Site(dis.opname[code.co_code[at]], _source(code, at), trace.tb_frame)


def _source(code: CodeType, at: int) -> str:
    """The source of the expression that an instruction computes."""
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


@dataclass(frozen=True)
class Read:
    """What could not be done, and what to write instead."""

    failed: str
    instead: str


def describe_read(site: Site | None, error: BaseException) -> Read:
    """Say what an expression wanted of a tensor's value."""
    if "0-d tensor" in str(error):
        return Read("they are single numbers without elements", "use them as they are")
    if site is not None and site.opname.startswith("FORMAT"):
        return Read(f"`{site.text}` gets no number to print", "leave it out")
    node = None if site is None else site.node
    if site is None or node is None or isinstance(node, ast.Constant):
        failed = "Python cannot branch on or convert a value computed from them"
        return Read(failed, _ANY)
    code = f"`{site.text}`"
    match node:
        case ast.Call():
            return Read(f"{code} gets no Python value", _of_call(site, node))
        case ast.Subscript():
            return Read(f"{code} gets no Python number", _of_subscript(site, node))
        case _ if "numpy" in str(error):
            instead = "make NumPy's arrays tensors before the call"
            return Read(f"{code} gets no value for NumPy", instead)
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
    "builtins.int": "write `({args}).to(torch.int32)`",
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
"""What to write in place of a function, by its module and name."""

METHODS = ("item", "tolist", "numpy")
"""Those of a tensor that give its value."""


def _of_call(site: Site, call: ast.Call) -> str:
    """What to write in place of a call that wants Python's numbers."""
    found = site.named(call.func)
    if found is None and isinstance(call.func, ast.Attribute):
        return _ITSELF if call.func.attr in METHODS else _ANY
    name = getattr(found, "__name__", "")
    module = (getattr(found, "__module__", None) or "torch").partition(".")[0]
    args = ", ".join(ast.unparse(a) for a in call.args)
    known = CALLS.get(f"{module}.{name}")
    if known is not None:
        return known.format(args=args)
    if module in ("math", "numpy") and callable(getattr(torch, name, None)):
        return f"write `torch.{name}({args})`"
    return _ANY


def _of_subscript(site: Site, node: ast.Subscript) -> str:
    """What to write in place of an element that Python or NumPy looks up."""
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


def _of_condition(node: ast.expr, code: str) -> Read:
    """What to write for a condition; the test of an `if` may be a part of it."""
    if _binds_tighter(node):
        instead = "& and | bind tighter than comparisons, so put each in parentheses"
        return Read(f"Python cannot decide {code}", instead)
    whole = as_tensors(node)
    if whole != _without_item(node):
        return Read(f"Python cannot decide {code}", f"write `{whole}`")
    instead = f"write torch.where({whole}, a, b), and & | ~ in place of and, or, not"
    return Read(f"Python cannot branch on {code}", instead)


def _binds_tighter(node: ast.expr) -> bool:
    """Whether it is like `a >= b & c < d`, which compares `b & c`."""
    match node:
        case ast.Compare(left=left, comparators=[*others, _]):
            operands = [o for o in (left, *others) if isinstance(o, ast.BinOp)]
            return any(isinstance(o.op, ast.BitAnd | ast.BitOr) for o in operands)
        case _:
            return False


def as_tensors(node: ast.expr) -> str:
    """The source of a condition as operators of tensors."""
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
