"""What is read from the assembler's remarks."""

from __future__ import annotations

from flexc.codegen.gluon.ptxas import SPILL_LIMIT, problems

GOOD = """\
ptxas info    : Compiling entry function 'attention' for 'sm_90a'
ptxas info    : Function properties for attention
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 3 barriers
"""


def test_nothing_is_wrong() -> None:
    assert problems(GOOD) == []


def test_nothing_was_said() -> None:
    assert problems("") == ["ptxas printed no resource usage of the kernel"]


def test_spills() -> None:
    log = GOOD.replace("0 bytes spill stores", "260 bytes spill stores")
    assert problems(log) == ["260 bytes spill to memory, with 168 registers"]
    assert problems(log.replace("260", str(SPILL_LIMIT))) == []
    assert problems(log, most_spilled=260) == []


def test_serialised_products() -> None:
    """Each kind is named once, however many functions it is said of."""
    remark = (
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async "
        "instructions are serialized due to insufficient register resources for the "
        "wgmma pipeline in the function 'attention'\n"
    )
    (found,) = problems(GOOD + remark + remark)
    assert found.startswith("products do not overlap: C7510 Potential Performance Loss")
