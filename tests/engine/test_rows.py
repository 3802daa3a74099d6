"""Live rows keep their slots until fewer slots would do, and every move is told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.rows import SlotTable
from engine.shapes import row_bucket

actions = st.lists(st.integers(-2, 9), max_size=80)


@given(actions=actions)
def test_every_rows_slot_follows_its_copies_and_no_step_is_wider_than_its_rows_need(
    actions: list[int],
) -> None:
    table: SlotTable[object] = SlotTable()
    slots: dict[int, object] = {}
    for action in actions:
        if action == -1:
            for source, destination in table.compact():
                assert destination not in slots
                slots[destination] = slots.pop(source)
            assert row_bucket(max(1, table.num_slots)) == row_bucket(max(1, len(table)))
        elif action < 0 or not len(table):
            row = object()
            slot = table.join(row)
            assert slot == min(set(range(len(slots) + 1)) - set(slots))
            slots[slot] = row
        else:
            slot, row = list(table.items())[action % len(table)]
            table.leave(row)
            assert slots.pop(slot) is row
        assert dict(table.items()) == slots
        assert table.num_slots == max(slots, default=-1) + 1


def table_of(num_rows: int) -> SlotTable[int]:
    """A table whose rows are named by the slot they first took."""
    table: SlotTable[int] = SlotTable()
    for row in range(num_rows):
        table.join(row)
    return table


def test_a_row_that_leaves_a_batch_of_eight_moves_nobody() -> None:
    table = table_of(8)
    table.leave(2)
    assert table.compact() == []
    assert table.join(8) == 2


def test_rows_move_only_when_a_smaller_bucket_holds_them() -> None:
    table = table_of(8)
    for row in (0, 2, 3, 6):
        table.leave(row)
    assert table.compact() == [(7, 0), (5, 2), (4, 3)]
    assert [row for _, row in table.items()] == [7, 1, 5, 4]
