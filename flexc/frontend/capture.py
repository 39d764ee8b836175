"""Tracing of mods into scalar FX graphs, whose inputs are arguments and captures.

`make_fx` traces mods on 0-d fake tensors. Captured tensors have symbolic sizes, and
captured Python numbers are symbolic numbers. So their values are not constants of the
graph, Python's promotion rules apply, and an `if` on a number is recorded as a guard.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from types import FunctionType
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch._decomp import decomposition_table
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.source import ConstantSource
from torch._inductor.fx_passes import dedupe_symint_uses
from torch._subclasses import FakeTensor, FakeTensorMode, fake_tensor
from torch.fx import GraphModule, Node
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext
from torch.fx.node import map_arg

from flexc.errors import (
    FlexcError,
    NumberRangeError,
    SourceLocation,
    UnsupportedOpError,
)
from flexc.frontend.call_watch import CallWatch
from flexc.frontend.captured import CapturedMod, CapturedMods, CaptureInput
from flexc.frontend.closures import Mod, ModSignature
from flexc.frontend.code_facts import PACKED_MASKS
from flexc.frontend.fields import known_extent
from flexc.frontend.guards import (
    Assumption,
    ExactShapeEnv,
    Guards,
    HostNumbers,
    Symbols,
    UnlocatedShapeEnv,
    add_placeholder,
    equal_guards,
    is_number,
    number_guards,
)
from flexc.frontend.locations import RecordLines, error_location, mod_location
from flexc.frontend.mistakes import (
    check_graph,
    check_sizes,
    mistake_of,
    random_numbers,
)
from flexc.frontend.scalars import RULES, is_known, op_name, reduces
from flexc.frontend.signatures import ModKind, check_arity, check_result
from flexc.frontend.trace_modes import DetachWithoutGrad, IndexByScalars, TensorWatch


def capture_mods(
    signature: ModSignature,
    score_dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> CapturedMods:
    """Trace `(score_mod, mask_mod)`, as given to `read_mods`.

    Raises:
        FlexcError: if a mod is not a function of one pair that kernels can compute.
    """
    score_mod, mask_mod = signature.mods
    check_arity("score_mod", score_mod)
    check_arity("mask_mod", mask_mod)
    args = (signature, score_dtype, device)
    found = _trace(*args, gradients=True)
    if not found.calls.asks_grad_mode:
        return found.mods
    enabled = torch.is_grad_enabled()
    if not enabled:
        found = _trace(*args, gradients=False)
    found.assume(f"torch.is_grad_enabled() is {enabled}")
    return found.mods


def _trace(
    signature: ModSignature,
    score_dtype: torch.dtype,
    device: torch.device | str,
    gradients: bool,
) -> _Tracer:
    """Trace the mods, with torch's decompositions if ops on pairs lack rules.

    Ops on captured tensors alone are torch's, and are not decomposed.
    """
    args = (signature, score_dtype, device, gradients)
    tracer = _attempt(*args)
    if not tracer.lacks_rules:
        return tracer
    if not tracer.keeps_tensors:
        return _attempt(*args, decomposes=True)
    tracer = _Tracer(*args, True, "tensors")
    tracer.run()
    return tracer


def _attempt(
    signature: ModSignature,
    score_dtype: torch.dtype,
    device: torch.device | str,
    gradients: bool,
    decomposes: bool = False,
) -> _Tracer:
    """Trace with symbols. If mods need numbers, or real tensors, trace with those."""
    args = (signature, score_dtype, device, gradients, decomposes)
    if not signature.static_numbers:
        try:
            tracer = _Tracer(*args, "symbols")
            tracer.run()
            if not (tracer.calls.wants_numbers or tracer.needs_tensors):
                return tracer
        except (NumberRangeError, _NeedsTensors):
            # The next attempts have numbers, which may fit, and tensors, with which
            # torch may compute.
            pass
        except FlexcError:
            raise
        except Exception:
            # Python code may need a real number, as a dict lookup does. Any other error
            # occurs again in the next attempt.
            pass
    tracer = _Tracer(*args, "numbers")
    try:
        tracer.run()
    except _NeedsTensors:
        tracer = _Tracer(*args, "tensors")
        tracer.run()
    return tracer


class _NeedsTensors(Exception):
    """Raised if captures alone have an op without a rule, which torch may compute."""


class _Tracer:
    """One attempt at tracing the mods of a call."""

    def __init__(
        self,
        signature: ModSignature,
        score_dtype: torch.dtype,
        device: torch.device | str,
        gradients: bool,
        decomposes: bool,
        given: Literal["symbols", "numbers", "tensors"],
    ):
        env = ExactShapeEnv if given == "symbols" else UnlocatedShapeEnv
        shape_env = env(duck_shape=False, specialize_zero_one=False)
        self.symbols = Symbols(shape_env)
        self.mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
        self.signature = signature
        self.gradients = gradients
        self.decompositions = _decompositions() if decomposes else {}
        self.symbolic = given == "symbols"
        self.keeps_tensors = given == "tensors"
        self.has_data = not any(
            isinstance(value, FakeTensor) for value in signature.captures
        )
        self.needs_tensors = False
        """True if an op without a rule, as softmax, is applied to captures alone."""
        self.keeps_ops = False
        """True if graphs have such ops, because torch cannot compute without data."""
        self.lacks_rules = False
        """True if such an op is applied to what depends on a pair."""
        self.names = signature.capture_names()
        self.found: list[torch.Tensor] = []
        self.assumptions: list[Assumption] = []
        self.fakes = [self._fake(i, v) for i, v in enumerate(signature.captures)]
        with self.mode:
            self.score = torch.empty((), dtype=score_dtype, device=device)
            self.indices = [
                torch.empty((), dtype=torch.int64, device=device) for _ in range(4)
            ]

    def _fake(self, slot: int, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value if self.keeps_tensors else self._fake_tensor(slot, value)
        return self.symbols.number(slot, value) if self.symbolic else value

    def _fake_tensor(self, slot: int, value: torch.Tensor) -> torch.Tensor:
        fake = self.mode.from_tensor(
            value.detach(),
            static_shapes=False,
            symbolic_context=StatelessSymbolicContext(
                dynamic_sizes=[DimDynamic.DYNAMIC] * value.dim()
            ),
            source=ConstantSource(f"t{slot}"),
        )
        fake._is_param = isinstance(value, torch.nn.Parameter)
        vars(fake)["_is_buffer"] = isinstance(value, torch.nn.Buffer)
        self.symbols.note_extents(slot, fake.shape, fake.stride())
        return fake

    def run(self) -> None:
        """Trace the mods, and set `mods`."""
        (score_mod, mask_mod), codes = self.signature.rebuild(self.fakes)
        values = self.signature.captures
        self.calls = CallWatch(codes)
        fakes = [] if self.keeps_tensors else self.fakes
        self.tensors = TensorWatch(fakes, values)
        score = mask = None
        custom_gradient = False
        if score_mod is not None:
            score = self._trace("score_mod", score_mod, self.signature.mods[0])
            custom_gradient = self.calls.custom_gradient
        if mask_mod is not None:
            mask = self._trace("mask_mod", mask_mod, self.signature.mods[1])
        for assumption in self.symbols.assumptions():
            self._assume(assumption)
        pinned = () if self.symbolic else number_guards(values)
        guards = self.symbols.guards(values, pinned, self.assumptions)
        if guards is None:
            guards = Guards(equal_guards(values), tuple(self.assumptions))
        unread = "a tensor" if self.found else None
        if self.keeps_tensors or self.keeps_ops:
            unread = "a result of captured tensors alone"
        self.mods = CapturedMods(
            score,
            mask,
            guards,
            tuple(self.found),
            self.calls.unread or unread,
            custom_gradient=custom_gradient,
        )
        for condition in self.tensors.conditions:
            self.assume(condition)

    def assume(self, condition: str) -> None:
        """Add a condition to the guards of the mods."""
        guards = self.mods.guards
        guards = replace(guards, conditions=(*guards.conditions, condition))
        self.mods = replace(self.mods, guards=guards, reads_state=True)

    def _trace(self, kind: ModKind, mod: Mod, original: Any) -> CapturedMod:
        args = [self.score, *self.indices] if kind == "score_mod" else self.indices
        location = mod_location(original)
        arity = len(args)

        def call(*inputs: Any) -> Any:
            # The rebuilt mod closes over the objects in self.fakes, which the tracer
            # knows as its inputs.
            with self.tensors, self.calls:
                result = mod(*inputs[:arity])
            check_result(kind, result, location)
            return result

        try:
            inputs = [] if self.keeps_tensors else self.fakes
            given = [*args, *inputs]
            graph = _make_fx(call, given, self.gradients, self.decompositions)
        except FlexcError as error:
            if error.location is None:
                where = error_location(error) or location
                raise type(error)(str(error), where) from None
            raise error.with_traceback(None) from None
        except Exception as error:
            # With symbols, the error may only mean that a real number is needed. The
            # next attempt has real numbers.
            mistake = None if self.symbolic else mistake_of(kind, error, location)
            if mistake is None:
                raise
            raise mistake from None
        if self.calls.draws_in_python:
            raise random_numbers(kind, "Python's random", location)
        # If all code of the mod was read, another thread drew the numbers.
        is_read = self.signature.cacheable and self.calls.unread is None
        if self.calls.numpy_drew and not is_read:
            raise random_numbers(kind, "numpy.random", location)
        check_graph(kind, graph, arity)
        varying = on_pairs(graph, arity)
        alone, lacking = _without_rules(graph, varying)
        self.needs_tensors |= alone and self.has_data
        can_compute = self.signature.can_grow and not self.keeps_tensors
        if self.needs_tensors and can_compute:
            raise _NeedsTensors
        check_sizes(graph)
        self.keeps_ops |= alone and not self.has_data
        self.lacks_rules |= lacking
        _fix_reduced_sizes(varying if self.keeps_ops else graph.graph.nodes)
        found = self._captured(kind, graph, arity, location)
        return replace(found, sequences=sequences_of(mod, self.fakes))

    def _captured(
        self, kind: ModKind, gm: GraphModule, arity: int, where: SourceLocation | None
    ) -> CapturedMod:
        """Lift arithmetic on numbers, and drop captures without reads."""
        placeholders = gm.graph.find_nodes(op="placeholder")
        lifted = self._lift_numbers(kind, gm, placeholders[arity:])
        gm.graph.eliminate_dead_code()
        inputs = []
        for slot, node in enumerate(placeholders[arity:]):
            if node.users:
                value = self.signature.captures[slot]
                inputs.append(CaptureInput.of(self.names[slot], slot, value))
            else:
                gm.graph.erase_node(node)
        inputs += [*lifted, *self._lift_tensors(gm)]
        gm.recompile()
        return CapturedMod(kind, gm, tuple(inputs), where)

    def _lift_numbers(
        self, kind: ModKind, gm: GraphModule, captures: Sequence[Node]
    ) -> list[CaptureInput]:
        """Turn values that depend on numbers and sizes alone into inputs."""
        leaves = {n: (f"v[{i}]", self.names[i]) for i, n in enumerate(captures)}
        numbers = HostNumbers(gm, leaves, self.symbols.spell)
        for assumption in numbers.assumptions(kind):
            self._assume(assumption)
        return [
            CaptureInput(name, None, dtype, None, number=number)
            for name, dtype, number in numbers.lift()
        ]

    def _assume(self, assumption: Assumption) -> None:
        """Note an assumption of the trace. Raise an error if this call violates it."""
        if not assumption.holds(self.signature.captures):
            raise assumption.error or NumberRangeError(
                "mods compute with integers of 64 bits and finite numbers, got "
                f"{assumption.number(self.signature.captures)}; write a smaller "
                "number, or a float, as in float(n)"
            )
        self.assumptions.append(assumption)

    def _lift_tensors(self, gm: GraphModule) -> list[CaptureInput]:
        """Turn tensors that the walk missed, or that numbers became, into inputs.

        A constant of one number remains a constant.
        """
        inputs = []
        for node in gm.graph.find_nodes(op="get_attr"):
            tensor = getattr(gm, node.target)
            if not isinstance(tensor, torch.Tensor):
                continue
            missed = self.tensors.missed(tensor)
            if missed is not None or tensor.dim() > 0:
                node.replace_all_uses_with(add_placeholder(node, {"val": tensor}))
                gm.graph.erase_node(node)
                inputs.append(self._lifted(tensor, missed))
        return inputs

    def _lifted(
        self, tensor: torch.Tensor, missed: torch.Tensor | None
    ) -> CaptureInput:
        if missed is None:
            if isinstance(tensor, FakeTensor) and tensor.fake_mode is self.mode:
                raise UnsupportedOpError(
                    "a mod must not compute with batches of positions or scores, as "
                    "torch.func.vmap does: write what one pair computes"
                )
            return CaptureInput.of("constant", None, tensor)
        held = [*self.signature.captures, *self.found]
        slot = next((i for i, t in enumerate(held) if t is missed), len(held))
        if slot == len(held):
            self.found.append(missed)
        name = self.names[slot] if slot < len(self.names) else "tensor"
        return CaptureInput.of(name, slot, tensor)


def sequences_of(mod: Any, captures: Sequence[Any]) -> tuple[int, ...]:
    """Return the places among captures of the tensors that place packed sequences.

    Return () for a mod that is no mask of packed sequences.
    """
    code = mod.__code__ if isinstance(mod, FunctionType) else None
    if code not in PACKED_MASKS:
        return ()
    cells = dict(zip(code.co_freevars, mod.__closure__ or (), strict=True))
    held = [cells[name].cell_contents for name in PACKED_MASKS[code]]
    return tuple(next(i for i, c in enumerate(captures) if c is t) for t in held)


def on_pairs(gm: GraphModule, arity: int) -> dict[Node, None]:
    """Return the nodes that depend on the score or on positions, in order."""
    nodes = list(gm.graph.nodes)
    varying = dict.fromkeys(nodes[:arity])
    for node in nodes:
        if not varying.keys().isdisjoint(node.all_input_nodes):
            varying[node] = None
    return varying


def _without_rules(gm: GraphModule, varying: Container[Node]) -> tuple[bool, bool]:
    """Return two flags, for ops on captured tensors alone and for ops on pairs.

    The first is true if some op on captured tensors alone has no pointwise rule, the
    second if some op on what depends on a pair has no rule at all.
    """
    alone = lacking = False
    for node in gm.graph.nodes:
        is_op = node.op == "call_function" and not is_number(node)
        is_pointwise = is_known(node.target) and not reduces(node.target)
        if node in varying:
            lacking |= is_op and not is_known(node.target)
        elif is_op and node.all_input_nodes and not is_pointwise:
            alone = True
    return alone, lacking


def _fix_reduced_sizes(nodes: Iterable[Any]) -> None:
    """Make the sizes that reductions run along constants, which guards ensure."""
    for node in nodes:
        if node.op != "call_function" or not reduces(node.target):
            continue
        at = RULES[op_name(node.target)].dims
        dims = node.args[at] if at is not None and len(node.args) > at else None
        dims = [dims] if isinstance(dims, int) else dims
        given = node.all_input_nodes if at is None else [node.args[0]]
        values = [n.meta.get("val") for n in given]
        for shape in (x.shape for x in values if isinstance(x, torch.Tensor)):
            for dim in dims if isinstance(dims, list) and dims else range(len(shape)):
                if shape:
                    int(shape[dim])
        # Numbers that follow from these sizes, as half of one, are constants then.
        node.args = map_arg(node.args, _or_known)


def _or_known(node: Node) -> Any:
    """Return a node, or the number that it is known to be."""
    value = node.meta.get("val")
    number = known_extent(value) if isinstance(value, torch.SymInt) else None
    return node if number is None else number


def _make_fx(
    fn: Callable[..., Any],
    args: Sequence[Any],
    gradients: bool,
    decompositions: dict[Any, Callable[..., Any]],
) -> GraphModule:
    with ExitStack() as stack:
        # `make_fx` sets global flags, and two threads could leave them set.
        stack.enter_context(compile_lock)
        # No traced tensor requires a gradient; `DetachWithoutGrad` sees `no_grad`.
        stack.enter_context(torch.set_grad_enabled(gradients))
        if gradients:
            stack.enter_context(DetachWithoutGrad())
        stack.enter_context(IndexByScalars())
        stack.enter_context(fx_traceback.preserve_node_meta())
        stack.enter_context(RecordLines())
        # Errors of ops are raised, so torch need not log them.
        stack.enter_context(patch.object(fake_tensor.log, "disabled", True))
        # It merges sums that are equal as reals but rounded differently.
        stack.enter_context(
            patch.object(dedupe_symint_uses, "dedupe_symints", lambda graph: None)
        )
        traced = make_fx(
            fn, decompositions, tracing_mode="real", _allow_non_fake_inputs=True
        )
        return traced(*args)


@cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Return torch's decompositions of the ops for which there is no rule."""
    return {op: f for op, f in decomposition_table.items() if op_name(op) not in RULES}
