"""State of functions: closures, defaults, globals, attributes, partials."""

# ruff: noqa: E731
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false
from __future__ import annotations

import builtins
import functools
import math
import operator
import types
from typing import Any

import torch

from tests.captured_state.kinds import kind

FACTOR = 2.0
WIDTH = 3
SIGN = -1.0
NAMES = {"a": 2.0}
HELD = types.SimpleNamespace(value=2.0)


def _set_global(name: str, value: Any) -> Any:
    return lambda: globals().__setitem__(name, value)


@kind
def closure_variable() -> Any:
    factor = 2.0

    def change() -> None:
        nonlocal factor
        factor = 3.0

    return lambda s, b, h, q, k: s * factor, change


@kind
def closure_variable_of_another_type() -> Any:
    factor: Any = 2

    def change() -> None:
        nonlocal factor
        factor = 2.5

    return lambda s, b, h, q, k: s * factor, change


@kind
def closure_variable_without_a_value() -> Any:
    factor: Any

    def change() -> None:
        nonlocal factor
        factor = 3.0

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        try:
            return s * factor  # pyright: ignore
        except NameError:
            return s

    return mod, change


@kind
def closure_flag() -> Any:
    flag = True

    def change() -> None:
        nonlocal flag
        flag = False

    return lambda s, b, h, q, k: s * 2 if flag else s, change


@kind
def closure_text() -> Any:
    kind_of_bias = "linear"

    def change() -> None:
        nonlocal kind_of_bias
        kind_of_bias = "square"

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + (q - k) if kind_of_bias == "linear" else s + (q - k) ** 2

    return mod, change


@kind
def closure_none() -> Any:
    scale: Any = None

    def change() -> None:
        nonlocal scale
        scale = 0.5

    return lambda s, b, h, q, k: s if scale is None else s * scale, change


@kind
def sign_of_zero() -> Any:
    zero = 0.0

    def change() -> None:
        nonlocal zero
        zero = -0.0

    return lambda s, b, h, q, k: s * math.copysign(2.0, zero), change


@kind
def infinity() -> Any:
    cap = math.inf

    def change() -> None:
        nonlocal cap
        cap = 0.25

    return lambda s, b, h, q, k: torch.clamp(s, max=cap), change


@kind
def number_spelled_in_a_string() -> Any:
    width = 2

    def change() -> None:
        nonlocal width
        width = 3

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * {"w2": 2.0, "w3": 3.0}.get(f"w{width}", 1.0)

    return mod, change


@kind
def number_spelled_by_str() -> Any:
    width = 2

    def change() -> None:
        nonlocal width
        width = 3

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * {"2": 2.0, "3": 3.0}.get(str(width), 1.0)

    return mod, change


@kind
def number_matched_by_its_class() -> Any:
    width: Any = 2

    def change() -> None:
        nonlocal width
        width = 2.5

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        match width:
            case int():
                return s * 2
            case float():
                return s * 3
            case _:
                return s

    return mod, change


@kind
def number_as_a_key() -> Any:
    width = 2

    def change() -> None:
        nonlocal width
        width = 3

    return lambda s, b, h, q, k: s * {2: 2.0, 3: 3.0}[width], change


@kind
def number_in_a_branch() -> Any:
    width = 2

    def change() -> None:
        nonlocal width
        width = 30

    return lambda s, b, h, q, k: s * 2 if width > 10 else s, change


@kind
def global_number() -> Any:
    globals()["FACTOR"] = 2.0
    return lambda s, b, h, q, k: s * FACTOR, _set_global("FACTOR", 3.0)


@kind
def global_in_a_helper() -> Any:
    globals()["SIGN"] = -1.0

    def helper(x: Any) -> Any:
        return x * SIGN

    return lambda s, b, h, q, k: helper(s), _set_global("SIGN", 2.0)


@kind
def global_container() -> Any:
    NAMES["a"] = 2.0
    change = lambda: NAMES.__setitem__("a", 3.0)
    return lambda s, b, h, q, k: s * NAMES["a"], change


@kind
def global_object() -> Any:
    HELD.value = 2.0
    return lambda s, b, h, q, k: s * HELD.value, lambda: setattr(HELD, "value", 3.0)


@kind
def global_that_appears() -> Any:
    globals().pop("LATER", None)

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        try:
            return s * LATER  # type: ignore[name-defined]
        except NameError:
            return s

    return mod, _set_global("LATER", 3.0)


@kind
def builtin_that_is_added() -> Any:
    vars(builtins)["captured_factor"] = 2.0
    change = lambda: vars(builtins).__setitem__("captured_factor", 3.0)
    return lambda s, b, h, q, k: s * captured_factor, change  # type: ignore # noqa: F821


@kind
def global_that_shadows_a_builtin() -> Any:
    globals().pop("abs", None)
    change = _set_global("abs", lambda x: x * 2)
    return lambda s, b, h, q, k: s + abs(q - k), change


@kind
def default_argument() -> Any:
    def mod(s: Any, b: Any, h: Any, q: Any, k: Any, factor: float = 2.0) -> Any:
        return s * factor

    return mod, lambda: setattr(mod, "__defaults__", (3.0,))


@kind
def keyword_default() -> Any:
    def mod(s: Any, b: Any, h: Any, q: Any, k: Any, *, factor: float = 2.0) -> Any:
        return s * factor

    return mod, lambda: setattr(mod, "__kwdefaults__", {"factor": 3.0})


@kind
def attribute_of_the_function() -> Any:
    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * mod.factor  # type: ignore[attr-defined]

    mod.factor = 2.0  # type: ignore[attr-defined]
    return mod, lambda: setattr(mod, "factor", 3.0)


@kind
def attribute_of_a_helper() -> Any:
    def helper(x: Any) -> Any:
        return x * helper.factor  # type: ignore[attr-defined]

    helper.factor = 2.0  # type: ignore[attr-defined]
    change = lambda: setattr(helper, "factor", 3.0)
    return lambda s, b, h, q, k: helper(s), change


@kind
def attribute_that_a_function_lacks_at_first() -> Any:
    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        try:
            return s * mod.factor  # type: ignore[attr-defined]
        except AttributeError:
            return s

    return mod, lambda: setattr(mod, "factor", 3.0)


@kind
def tensor_attribute_of_a_function() -> Any:
    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * mod.bias[h]  # type: ignore[attr-defined]

    bias = torch.rand(2, requires_grad=True)
    mod.bias = bias  # type: ignore[attr-defined]
    return mod, lambda: bias.data.add_(1), [bias]


@kind
def code_of_the_function() -> Any:
    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * 2

    def other(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * 3

    return mod, lambda: setattr(mod, "__code__", other.__code__)


@kind
def name_of_the_function() -> Any:
    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * 2 if mod.__name__ == "mod" else s

    return mod, lambda: setattr(mod, "__name__", "other")


@kind
def docstring_of_a_helper() -> Any:
    def helper() -> None:
        "2.0"

    change = lambda: setattr(helper, "__doc__", "3.0")
    return lambda s, b, h, q, k: s * float(helper.__doc__ or ""), change


@kind
def annotation_of_a_helper() -> Any:
    def helper(x: Any) -> Any:
        return x

    helper.__annotations__["factor"] = 2.0
    change = lambda: helper.__annotations__.update(factor=3.0)
    return lambda s, b, h, q, k: s * helper.__annotations__["factor"], change


@kind
def helper_that_is_replaced() -> Any:
    helper: Any = lambda x: x * 2

    def change() -> None:
        nonlocal helper
        helper = lambda x: x * 3

    return lambda s, b, h, q, k: helper(s), change


@kind
def function_that_wraps_one_of_torch() -> Any:
    factor = 2.0

    @functools.wraps(torch.nn.functional.softplus)
    def helper(x: Any) -> Any:
        return x * factor

    def change() -> None:
        nonlocal factor
        factor = 3.0

    return lambda s, b, h, q, k: helper(s), change


GLOBAL_OF_A_WRAPPER = 2.0


@functools.wraps(torch.nn.functional.softplus)
def wrapped(x: Any) -> Any:
    return x * GLOBAL_OF_A_WRAPPER


@kind
def global_of_a_function_that_wraps_one_of_torch() -> Any:
    globals()["GLOBAL_OF_A_WRAPPER"] = 2.0
    change = _set_global("GLOBAL_OF_A_WRAPPER", 3.0)
    return lambda s, b, h, q, k: wrapped(s), change


@kind
def partial_over_a_list() -> Any:
    values = [2.0]
    mod = functools.partial(lambda v, s, b, h, q, k: s * v[0], values)
    return mod, lambda: values.__setitem__(0, 3.0)


@kind
def partial_of_a_partial() -> Any:
    held = types.SimpleNamespace(x=2.0)
    inner = functools.partial(lambda o, f, s, b, h, q, k: s * o.x * f, held)
    return functools.partial(inner, 0.5), lambda: setattr(held, "x", 3.0)


@kind
def reduction_over_functions() -> Any:
    parts: list[Any] = [lambda s: s * 2]

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return functools.reduce(lambda x, f: f(x), parts, s)

    return mod, lambda: parts.append(lambda s: s * 2)


@kind
def attribute_read_by_getattr() -> Any:
    held = types.SimpleNamespace(x=2.0)
    change = lambda: setattr(held, "x", 3.0)
    return lambda s, b, h, q, k: s * getattr(held, "x"), change  # noqa: B009


@kind
def attribute_read_by_attrgetter() -> Any:
    held = types.SimpleNamespace(x=2.0)
    get = operator.attrgetter("x")
    return lambda s, b, h, q, k: s * get(held), lambda: setattr(held, "x", 3.0)


@kind
def variables_read_by_vars() -> Any:
    held = types.SimpleNamespace(x=2.0)
    change = lambda: setattr(held, "x", 3.0)
    return lambda s, b, h, q, k: s * vars(held)["x"], change


@kind
def globals_read_by_name() -> Any:
    globals()["FACTOR"] = 2.0
    change = _set_global("FACTOR", 3.0)
    return lambda s, b, h, q, k: s * globals()["FACTOR"], change


@kind
def expression_that_is_evaluated() -> Any:
    globals()["FACTOR"] = 2.0
    change = _set_global("FACTOR", 3.0)
    return lambda s, b, h, q, k: s * eval("FACTOR"), change


@kind
def bound_method_of_a_list() -> Any:
    values = [2.0, 3.0]
    pop = values.__getitem__
    return lambda s, b, h, q, k: s * pop(0), lambda: values.__setitem__(0, 3.0)


@kind
def cached_function() -> Any:
    values = [2.0]

    @functools.lru_cache
    def read() -> float:
        return values[0]

    def change() -> None:
        values[0] = 3.0
        read.cache_clear()

    return lambda s, b, h, q, k: s * read(), change


@kind
def generator_function() -> Any:
    values = [2.0]

    def parts() -> Any:
        yield from values

    return lambda s, b, h, q, k: s * sum(parts()), lambda: values.append(1.0)


@kind
def comprehension() -> Any:
    values = [1.0, 2.0]
    change = lambda: values.append(3.0)
    return lambda s, b, h, q, k: s * sum([v for v in values if v > 0]), change


@kind
def walrus_and_nested_lambda() -> Any:
    factor = 2.0

    def change() -> None:
        nonlocal factor
        factor = 3.0

    return lambda s, b, h, q, k: (lambda: (y := s * factor) + y)(), change


@kind
def grad_mode() -> Any:
    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * 2 if torch.is_grad_enabled() else s

    return mod, lambda: torch.set_grad_enabled(not torch.is_grad_enabled())


@kind
def setting_of_torch() -> Any:
    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * 2 if torch.are_deterministic_algorithms_enabled() else s

    return mod, lambda: torch.use_deterministic_algorithms(True)


@kind
def setting_of_a_backend() -> Any:
    torch.backends.cudnn.benchmark = False

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * 2 if torch.backends.cudnn.benchmark else s

    return mod, lambda: setattr(torch.backends.cudnn, "benchmark", True)


def _of_a_scope(**names: Any) -> Any:
    """A mod that `exec` made, in a scope of its own."""
    scope: dict[str, Any] = {"factor": 2.0, **names}
    exec("def mod(s, b, h, q, k):\n    return s * factor", scope)
    return scope["mod"], lambda: scope.update(factor=3.0)


@kind
def global_of_a_scope_without_a_name() -> Any:
    return _of_a_scope()


@kind
def global_of_a_scope_named_as_torch() -> Any:
    return _of_a_scope(__name__="torch.nn")


@kind
def attribute_read_in_a_scope_without_a_name() -> Any:
    held = types.SimpleNamespace(factor=2.0)
    scope: dict[str, Any] = {"held": held}
    exec("def mod(s, b, h, q, k):\n    return s * held.factor", scope)
    return scope["mod"], lambda: setattr(held, "factor", 3.0)
