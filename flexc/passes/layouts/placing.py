"""Writes the conversions that ops need between layouts."""

from __future__ import annotations

from xdsl.ir import Block, Operation, Region, SSAValue, Use
from xdsl.rewriter import InsertPoint, Rewriter

from flexc.dialects import tile
from flexc.dialects.tile import LayoutAttr, TileType, schedule
from flexc.passes.layouts.demands import demand, is_made_anew, is_tile


class Placer:
    """Gives every op of a role its operands in the layouts that it wants."""

    def __init__(self, region: Region, layouts: dict[SSAValue, LayoutAttr]):
        self.region = region
        self.layouts = layouts
        self.made: dict[tuple[SSAValue, LayoutAttr, Block | None], SSAValue] = {}

    def run(self) -> None:
        for op in list(self.region.walk()):
            for i, value in enumerate(op.operands):
                wanted = demand(Use(op, i), self.layouts) if is_tile(value) else None
                if wanted is not None and self.layouts.get(value) != wanted:
                    op.operands[i] = self.value_in(value, wanted, op)
        for op in list(self.region.walk()):
            if isinstance(op, tile.IotaOp | tile.FullOp) and not op.result.uses:
                Rewriter.erase_op(op)
        self.set_types()

    def value_in(
        self, value: SSAValue, layout: LayoutAttr, user: Operation
    ) -> SSAValue:
        """A value in another layout.

        It is converted where it is used, so that nothing waits for it earlier, or, if
        that is within a loop or a branch, where it is made.
        """
        home = owner_block(value)
        block = home if is_made_anew(value) else user.parent
        at_home = is_made_anew(value) or block is not home
        key = (value, layout, None if at_home else block)
        if key not in self.made:
            point = after(value) if at_home else InsertPoint.before(user)
            self.made[key] = self.make(value, layout, point)
        return self.made[key]

    def make(self, value: SSAValue, layout: LayoutAttr, point: InsertPoint) -> SSAValue:
        if is_made_anew(value):
            assert isinstance(value.owner, Operation)
            op = value.owner.clone()
        else:
            op = tile.ConvertLayoutOp(value, layout)
        Rewriter.insert_op(op, point)
        (result,) = op.results
        result.name_hint = value.name_hint
        self.layouts[result] = layout
        return result

    def set_types(self) -> None:
        for value, layout in self.layouts.items():
            type_ = value.type
            if isinstance(type_, schedule.PendingType):
                new = schedule.PendingType(type_.tile.with_layout(layout))
            else:
                assert isinstance(type_, TileType)
                new = type_.with_layout(layout)
            if new != type_:
                Rewriter.replace_value_with_new_type(value, new)


def owner_block(value: SSAValue) -> Block | None:
    owner = value.owner
    return owner if isinstance(owner, Block) else owner.parent  # pyright: ignore


def after(value: SSAValue) -> InsertPoint:
    owner = value.owner
    if isinstance(owner, Block):
        return InsertPoint.at_start(owner)
    assert isinstance(owner, Operation)
    return InsertPoint.after(owner)
