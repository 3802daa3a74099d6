"""The peer cells of a run, whichever target runs ours: mlx-lm in children, and servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from engine.models.load import LoadedModel
from harness.cells.cell import Cell
from harness.peers.children import Peers, peer_model, peer_work
from harness.peers.servers import ServerPeers
from harness.store.rows import TrialRecord
from harness.trials.target import CannotRunError, OnTokens, Tell, TrialJob


@dataclass(slots=True)
class PeerCells:
    """Runs peer cells.

    Args:
        tell: takes a line when a server is started.
        folder_of: the folder from which mlx-lm loads a draft model.
    """

    tell: Tell
    folder_of: Callable[[str], Path]
    children: Peers = field(default_factory=Peers)
    servers: ServerPeers = field(init=False)

    def __post_init__(self) -> None:
        self.servers = ServerPeers(self.tell, self.folder_of)

    def check(self, cell: Cell, model: LoadedModel | None) -> None:
        """See that a cell can be run; nothing is started.

        Args:
            model: on this machine; None where the run's target is elsewhere and names another.

        Raises:
            CannotRunError, FmError: as Target.check.
        """
        if _is_server(cell):
            self.servers.check(cell, model)
        else:
            peer_model(_here(model), cell, self.folder_of)

    def run(self, job: TrialJob, model: LoadedModel | None, on_tokens: OnTokens) -> TrialRecord:
        """Run a turn of a trial."""
        if _is_server(job.cell):
            return self.servers.run(job, model, on_tokens)
        return self.children.run(job, peer_work(_here(model), job, self.folder_of), on_tokens)

    def close(self) -> None:
        """End every child."""
        self.children.close()
        self.servers.close()


def _is_server(cell: Cell) -> bool:
    return cell.server is not None or bool(cell.key.url)


def _here(model: LoadedModel | None) -> LoadedModel:
    if model is None:
        raise CannotRunError("mlx-lm needs the model on this machine, under a name `fm models` has")
    return model
