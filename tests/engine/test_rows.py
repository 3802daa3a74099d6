"""Live rows always fill the first slots, and one copy closes any gap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.rows import RowTable


@given(actions=st.lists(st.integers(-1, 9), max_size=60))
def test_slots_stay_dense_and_every_rows_slot_follows_its_copy(actions: list[int]) -> None:
    table: RowTable[object] = RowTable()
    slots: dict[int, object] = {}
    for action in actions:
        if action < 0 or not len(table):
            row = object()
            slots[table.join(row)] = row
        else:
            row = list(table)[action % len(table)]
            index = table.index(row)
            move = table.leave(row)
            if move is not None:
                source, destination = move
                assert destination == index
                slots[destination] = slots.pop(source)
            else:
                del slots[index]
        assert sorted(slots) == list(range(len(table)))
        assert all(table.index(row) == index for index, row in slots.items())
