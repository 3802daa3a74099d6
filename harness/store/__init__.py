"""The eval database: rows, migrations and the one class that reads and writes them."""

from harness.store.connection import StoreError
from harness.store.loaded import AcceptPoint, BlockRow, CellTotals, FigureRow, RunData
from harness.store.rows import (
    AcceptRow,
    CellRow,
    ComparisonRow,
    ConditionRow,
    DivergenceRow,
    GateRow,
    ImportOutcome,
    ModelRow,
    RequestRow,
    RunPlan,
    RunRow,
    SaveOutcome,
    TrialRecord,
    TrialRow,
    WorkloadRow,
    content_hash,
    new_id,
    utc_now,
)
from harness.store.store import EvalStore

__all__ = [
    "AcceptPoint",
    "AcceptRow",
    "BlockRow",
    "CellRow",
    "CellTotals",
    "ComparisonRow",
    "ConditionRow",
    "DivergenceRow",
    "EvalStore",
    "FigureRow",
    "GateRow",
    "ImportOutcome",
    "ModelRow",
    "RequestRow",
    "RunData",
    "RunPlan",
    "RunRow",
    "SaveOutcome",
    "StoreError",
    "TrialRecord",
    "TrialRow",
    "WorkloadRow",
    "content_hash",
    "new_id",
    "utc_now",
]
