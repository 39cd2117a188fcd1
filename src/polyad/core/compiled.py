"""How the library compiles its kernels: Numba, cached, without the interpreter lock.

No kernel starts threads: each works on a block that ``polyad.core.threads.run_blocks`` hands it.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from numba import njit, types
from numba.core import cgutils, event
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import (
    AnnotateTypes,
    IRLegalization,
    NativeLowering,
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.typing.context import Context
from numba.core.typing.templates import infer_global
from numba.core.untyped_passes import (
    FixupArgs,
    GenericRewrites,
    IRProcessing,
    ReconstructSSA,
    RewriteSemanticConstants,
    TranslateByteCode,
)

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Function = TypeVar("Function", bound="Callable[..., Any]")

_IN_ORDER: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"contract", "nsz"},
}
_REGROUPED: dict[str, Any] = {**_IN_ORDER, "fastmath": {"contract", "nsz", "reassoc"}}

# Compiling for longer is told, above the level that programs which set up no logging show.
_UNTOLD_SECONDS = 2.0
logger = logging.getLogger("polyad")
_KEPT = (
    'polyad is compiling, once: what it compiles is kept. "python -m polyad warm-up" '
    "compiles all of it beforehand."
)
_NOT_KEPT = (
    "polyad is compiling, in every process anew: neither its folder nor that of the user's caches "
    "can be written to. Set the environment variable NUMBA_CACHE_DIR to a folder that can."
)

_events: Any = event  # which has no types
_timer = _events.TimingListener()
_events.register("numba:compile", _timer)


class _Watch(_events.Listener):
    """Looks for no garbage while Numba compiles, which makes much that stays, and ends failures.

    It also tells those who wait what they wait for.
    """

    pauses, depth, told, keeps = False, 0, False, True
    began, seconds = 0.0, 0.0

    def on_start(self, started: Any) -> None:
        """Stop looking, where anybody looked; tell who has waited for some time."""
        if gc.isenabled():
            gc.disable()
            self.pauses = True
        if self.depth == 0:
            self.began = time.perf_counter()
        self.depth += 1
        waited = self.seconds + time.perf_counter() - self.began
        is_own = started.data["dispatcher"].py_func.__module__.startswith("polyad.")
        if not self.told and is_own and waited > _UNTOLD_SECONDS:
            self.told = True
            logger.warning(_KEPT if self.keeps else _NOT_KEPT)

    def on_end(self, ended: Any) -> None:
        """Go on after the outermost function; nobody waits for what could not be compiled."""
        self.depth -= 1
        if self.depth == 0:
            self.seconds += time.perf_counter() - self.began
        if self.pauses and self.depth == 0:
            gc.enable()
            self.pauses = False
        if ended._exc_details is not None:
            for index in list(_turns):
                _end_turn(index)


_watch = _Watch()
_events.register("numba:compile", _watch)


def compile_seconds() -> float:
    """Return how long this process has been compiling so far."""
    return float(_timer.duration) if _timer.done else 0.0


def kernel(function: Function) -> Function:
    """Compile a function that runs without the interpreter lock, and keep its type.

    Multiplications may be fused with additions and sums regrouped, the same way in each call;
    infinities and NaN keep their meaning.
    """
    compiled: Any = njit(**_REGROUPED, pipeline_class=_Compiler)(function)
    try:
        compiled.enable_caching()
    except RuntimeError:  # no folder can be written to
        _watch.keeps = False
    if isinstance(compiled._cache, FunctionCache):  # not where the environment turns it off
        compiled._cache._cache_file = _SharedCacheFile(**vars(compiled._cache._cache_file))
    return cast("Function", compiled)


def part(function: Function) -> Function:
    """Let kernels call a function, which goes into each of them; in Python it stays as it is.

    It is compiled as they are, but only with them and for no one else, which saves much of the
    time that a first fit compiles: :func:`kernel` is for what Python calls. It borrows its arrays:
    it neither makes nor returns any, so that nothing has to be compiled that counts who holds them.
    """
    return _registered(function, {**_REGROUPED, "_nrt": False})


def ordered_part(function: Function) -> Function:
    """As :func:`part`, but the order of all sums is kept: for compensated arithmetic."""
    return _registered(function, {**_IN_ORDER, "_nrt": False})


def owning_part(function: Function) -> Function:
    """As :func:`part`, for functions that make arrays or return them."""
    return _registered(function, {**_REGROUPED, "_nrt": True})


def separate_part(function: Function) -> Function:
    """As :func:`part`, for functions none of whose arrays shares memory with one that they write.

    That need not be checked then before each loop on vector registers, which takes as long as a
    short loop itself, and is given up where there are many arrays.
    """
    return _registered(function, {**_REGROUPED, "_nrt": False}, _SeparatePartCompiler)


def _registered(
    function: Function, options: dict[str, Any], compiler: type[Compiler] | None = None
) -> Function:
    """Tell Numba what to call for a function, compiled once for each type, whoever calls it.

    What Numba's own ``register_jitable`` makes is compiled again for callers with other options.
    """
    compiled: Any = njit(**options, pipeline_class=compiler or _PartCompiler)(function)
    _parts.append(compiled)
    infer_global(function, types.Dispatcher(compiled))
    return function


_parts: list[Any] = []  # which Numba does not hold itself


class _Signatures(Context):
    """What Numba knows of types, with a memory for the types that functions take and return.

    Numba tries all versions of an operator on each use of it, of which hardly any are for numbers.
    """

    __slots__ = ("_context", "_known")

    def __init__(self, context: Any) -> None:
        self.__dict__ = vars(context)  # what one of the two learns, the other one knows
        self._context: Any = context
        self._known: dict[Any, Any] = {}

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        """Return the signature of a call."""
        resolve = self._context.resolve_function_type
        is_plain = type(func) is types.Function or (
            callable(func) and not isinstance(func, types.Type)
        )
        if kws or not is_plain:
            return resolve(func, args, kws)
        found = self._known.get((func, args))
        if found is None:
            found = self._known[func, args] = resolve(func, args, kws)
        return found


@functools.cache
def _signatures(context: Any, _options: str) -> _Signatures:
    return _Signatures(context)


class _Lower(Lower):
    """Lowering without what only a debugger wants to know."""

    def alloca_lltype(self, name: str, lltype: Any, datamodel: Any = None) -> Any:
        """Return where a variable is kept."""
        return cgutils.alloca_once(self.builder, lltype, name=name, zfill=False)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    _name = "polyad_lowering"
    lowering_class = _Lower


_PASSES = (
    TranslateByteCode,
    FixupArgs,
    IRProcessing,
    RewriteSemanticConstants,
    GenericRewrites,
    ReconstructSSA,
    NopythonTypeInference,
    PreLowerStripPhis,
    IRLegalization,
    AnnotateTypes,
    _Lowering,
    NoPythonBackend,
)


class _QuickCompiler(Compiler):
    """Makes of a function what Numba does, without what looks for things that kernels do not use.

    Those are closures, ``with``, ``literal_unroll``, ``is None``, inlined overloads and
    expressions of whole arrays.
    """

    def __init__(self, typingctx: Any, *arguments: Any) -> None:
        super().__init__(typingctx, *arguments)
        flags = self.state.flags  # which what is called inherits
        self.state.typingctx = _signatures(typingctx, f"{flags.fastmath} {flags.nrt}")

    def define_pipelines(self) -> Any:
        """Return the passes."""
        manager: Any = PassManager("polyad")
        for pass_class in _PASSES:
            manager.add_pass(pass_class, pass_class.__name__)
        manager.finalize()
        return [manager]


class _PartCompiler(_QuickCompiler):
    """Compiles a part as far as the kernels need it that it goes into."""

    def compile_extra(self, func: Any) -> Any:
        """Compile a function."""
        state = self.state
        state.flags.no_compile = True
        # Nothing but kernels can call it, so wrappers for others would be compiled in vain.
        state.flags.no_cpython_wrapper = state.flags.no_cfunc_wrapper = True
        state.library = _PartLibrary(state.targetctx.codegen(), func.__qualname__)
        result = super().compile_extra(func)
        if not state.flags.nrt:
            self._check_borrows(func.__qualname__, result.signature.return_type)
        # Numba finds the code by what Python would call, of which each part needs its own.
        never_called: Any = [].copy
        state.targetctx.insert_user_function(never_called, result.fndesc, [result.library])
        return result._replace(entry_point=never_called)

    def _check_borrows(self, name: str, returned: Any) -> None:
        """Refuse a part that is handed arrays to hold, or hands them on, and counts nothing."""
        state = self.state
        made = [returned]
        for block in state.func_ir.blocks.values():
            for call in block.find_exprs(op="call"):
                if not isinstance(state.typemap[call.func.name], types.NamedTupleClass):
                    made.append(state.calltypes[call].return_type)
        models = state.targetctx.data_model_manager
        if any(models[result].contains_nrt_meminfo() for result in made):
            msg = f"{name} makes arrays or returns them: let it be an owning_part"
            raise TypeError(msg)


class _SeparatePartCompiler(_PartCompiler):
    """Compiles a part and tells LLVM that its arrays do not share memory."""

    def compile_extra(self, func: Any) -> Any:
        """Compile a function."""
        self.state.flags.noalias = True
        return super().compile_extra(func)


class _PartLibrary(JITCodeLibrary):
    """A part: optimised and made code of the processor within the kernels that call it."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


class _Compiler(_QuickCompiler):
    """Compiles a kernel into a library that keeps its own copies of what it calls."""

    def compile_extra(self, func: Any) -> Any:
        """Compile a function."""
        library = _Library(self.state.targetctx.codegen(), func.__qualname__)
        library.enable_object_caching()
        self.state.library = library
        self.state.flags.no_cfunc_wrapper = True  # Python calls it, C does not
        return super().compile_extra(func)


class _Library(JITCodeLibrary):
    """A kernel and what it calls, as one piece.

    Kernels that are called are optimised once for themselves and once more within each caller,
    which groups their sums in other ways. The processor's code of both has the same name, and
    which of them is run depends on what a process has loaded before: a kernel that was compiled a
    moment ago and the same one from the cache would give other digits.
    """

    def _optimize_final_module(self) -> None:
        super()._optimize_final_module()
        # Callers get what Numba gives them: functions of which all copies may become one.
        self._shared_module = self._final_module.clone()
        _link(self._shared_module, "external", "linkonce_odr")
        _link(self._final_module, "linkonce_odr", "internal")


def _link(module: Any, before: str, after: str) -> None:
    """Change who else may use the functions that a module defines."""
    for function in module.functions:
        if not function.is_declaration and function.linkage.name == before:
            function.linkage = after


class _SharedCacheFile(IndexDataCacheFile):
    """Where Numba keeps the versions of a kernel, for processes that compile at the same time.

    Numba numbers the versions without a lock: two processes may give theirs the same number, or
    one may read under a number what the other is about to replace, and then run the wrong code.
    A process that needs what another one compiles at the moment waits for it.
    """

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def save(self, key: Any, data: Any) -> None:
        """Add a version."""
        with _locked(self._cache_path):
            super().save(key, data)
        _end_turn(self._index_path)

    def load(self, key: Any) -> Any:
        """Return a version, or None if this process is to compile it and to save it."""
        with _locked(self._cache_path):
            found = super().load(key)
        if found is None:
            _take_turn(self._index_path)
            with _locked(self._cache_path):
                found = super().load(key)
            if found is not None:
                _end_turn(self._index_path)
        return found

    def _load_index(self) -> Any:
        """Return the names of the versions, none if they are of a polyad with other types."""
        try:
            return super()._load_index()
        except (AttributeError, ImportError):
            return {}


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Let one process at a time use the kernels in a folder, where the system has such locks."""
    try:
        handle = os.open(os.path.join(folder, ".polyad.lock"), os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:  # nothing is there yet, or nothing can be written
        yield
        return
    try:
        if sys.platform != "win32":
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


# The locks of the kernels that this process compiles, and how long it waits for another one.
_turns: dict[str, int] = {}
_PATIENCE = 180.0


def _take_turn(index: str) -> None:
    """Wait until no other process compiles a kernel, but not for ever."""
    if sys.platform == "win32" or index in _turns:
        return
    try:
        os.makedirs(os.path.dirname(index), exist_ok=True)
        handle = os.open(f"{index}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:  # nothing can be written
        return
    latest = time.monotonic() + _PATIENCE
    while time.monotonic() < latest:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(0.05)
        else:
            _turns[index] = handle
            return
    os.close(handle)


def _end_turn(index: str) -> None:
    """Let others compile a kernel, if this process did."""
    handle = _turns.pop(index, None)
    if handle is not None:
        os.close(handle)


#: How a function of a number is compiled that every caller gets a copy of, with sums in their
#: order: a loop over it can then be vectorised. For the ``jit_options`` of ``overload``.
INLINED: Any = {**_IN_ORDER, "forceinline": True, "pipeline_class": _PartCompiler}
