"""Backends: an object for each thing that computes a call, known by its name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Backend:
    """Computes calls on a kind of device.

    A user names backends; a backend has one target or more, which print its kernels.
    """

    name: str
    targets: tuple[str, ...] = ()
    """Names of the targets that print its kernels."""
    device: str = ""
    """The type of the device that its kernels run on, empty if it has none."""

    @property
    def is_dense(self) -> bool:
        """Return True if torch computes all pairs at once, without kernels."""
        return not self.targets

    @property
    def for_gpu(self) -> bool:
        """Return True if its kernels run on a GPU."""
        return self.device == "cuda"

    @property
    def for_cpu(self) -> bool:
        """Return True if its kernels run on a CPU."""
        return self.device == "cpu"


EAGER = Backend("eager")
TRITON = Backend("triton", ("triton", "gluon"), "cuda")
CPP = Backend("cpp", ("cpp",), "cpu")

BACKENDS = {backend.name: backend for backend in (TRITON, CPP, EAGER)}


def backend_on(device: str) -> Backend | None:
    """Return the backend whose kernels run on a type of device, if there is one."""
    return next((b for b in BACKENDS.values() if b.device == device), None)


def backend_of(target: str) -> Backend:
    """Return the backend that has a target."""
    return next(b for b in BACKENDS.values() if target in b.targets)
