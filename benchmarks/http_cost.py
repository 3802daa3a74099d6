"""What HTTP costs: processor time of one streamed token and of one request, thread by thread.

    uv run python benchmarks/http_cost.py [MODEL [ROUNDS]]

A server of the model (tiny-thinking) in this process and the load client in a child; chats of one
token and of TOKENS take turns. A step of the engine takes PACE_S at least, so that every token
wakes the event loop and the client by itself, as those of a real model do. Processor time, not
seconds: what else runs on the machine only makes caches colder, so beside the median over rounds
the least is told. Linux only.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from statistics import median
from typing import Any

from engine.config import EngineConfig
from engine.loop import Engine
from engine.models.load import load_model
from engine.request import TokenEvent
from engine.server.app import Server
from engine.server.listen import Listener, listening_socket, url_of
from engine.server.settings import ServerConfig
from engine.server.worker import EngineWorker, State
from harness.http.chat_reply import ChatReply
from harness.http.client import Ask, LoadClient

PACE_S = 0.002
TOKENS = 129
REQUESTS = 8
ROUNDS = 15
LOOP, ENGINE, READERS, CLIENT = "event loop", "engine beside steps", "reading", "client"
PARTS = {"fm-loop": LOOP, "fm-engine": ENGINE, "fm-read": READERS}
"""What threads of the server are called -> what they do."""

Costs = dict[str, float]
"""Part -> seconds of processor time."""


class PacedEngine(Engine):
    """An engine that knows what its steps cost, and takes its time for them."""

    step_s = 0.0

    def step(self) -> list[TokenEvent]:
        """Take a step, not before it is due."""
        due_s, began_s = time.monotonic() + PACE_S, time.thread_time()
        events = super().step()
        time.sleep(max(0.0, due_s - time.monotonic()))
        self.step_s += time.thread_time() - began_s
        return events


@contextmanager
def serving(model: str) -> Iterator[tuple[str, EngineWorker]]:
    """Serve the model from threads of this process; yields the URL, and the worker."""
    config = ServerConfig(port=0)
    worker = EngineWorker(
        lambda: PacedEngine(load_model(model), EngineConfig()),
        max_waiting=config.max_waiting,
        stuck_after_s=config.stuck_after_s,
    )
    server = Server(config, model, worker)
    with listening_socket(config) as bound:
        listener = Listener(server, worker)
        loop = threading.Thread(target=listener.run, args=([bound],), name="fm-loop")
        worker.start()
        loop.start()
        try:
            while worker.state is State.STARTING or not listener.started:
                time.sleep(0.05)
            yield url_of(bound), worker
        finally:
            listener.end()
            loop.join()
            server.close()
            worker.stop()


def server_costs(worker: EngineWorker) -> Costs:
    """Return what the threads of the server have cost so far."""
    engine = worker.engine
    assert isinstance(engine, PacedEngine)
    costs = dict.fromkeys(PARTS.values(), 0.0)
    for thread in threading.enumerate():
        part = PARTS.get(thread.name.partition("_")[0])
        if part is not None and thread.ident is not None:
            costs[part] += time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    costs[ENGINE] -= engine.step_s
    return costs


def client_cost(url: str, model: str, tokens: int) -> float:
    """Send the requests one after another; returns what that cost this process."""
    fields: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "Say the same again."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    asks = [Ask.of("/v1/chat/completions", fields)] * REQUESTS
    with LoadClient(url, 1, reply=ChatReply) as client:
        client.closed_loop(asks[:1], 1)
        began_s = time.process_time()
        load = client.closed_loop(asks, 1)
        spent_s = time.process_time() - began_s
    told = [len(item.reply.token_ids or ()) for item in load.exchanges]
    assert told == [tokens] * REQUESTS, [item.error for item in load.exchanges]
    return spent_s


def request_costs(
    pool: ProcessPoolExecutor, url: str, worker: EngineWorker, model: str, tokens: int
) -> Costs:
    """Return what one reply of so many tokens costs, part by part."""
    before = server_costs(worker)
    client_s = pool.submit(client_cost, url, model, tokens).result()
    after = server_costs(worker)
    # The server has answered one request more than the client counts, to warm up.
    costs = {part: (after[part] - before[part]) / (REQUESTS + 1) for part in before}
    return costs | {CLIENT: client_s / REQUESTS}


def main(arguments: list[str]) -> int:
    """Print a line for each part: microseconds a token, and a request of one token."""
    model = arguments[0] if arguments else "tiny-thinking"
    num_rounds = int(arguments[1]) if len(arguments) > 1 else ROUNDS
    rounds: list[tuple[Costs, Costs]] = []
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawning) as pool, serving(model) as (url, worker):
        for _ in range(num_rounds):
            short = request_costs(pool, url, worker, model, 1)
            long = request_costs(pool, url, worker, model, TOKENS)
            per_token = {part: (long[part] - short[part]) / (TOKENS - 1) for part in short}
            rounds.append((per_token, short))
    print(f"{model}: us of processor time, median (least) of {len(rounds)} rounds")
    for part in (*PARTS.values(), CLIENT):
        tokens, requests = (
            [1e6 * costs[part] for costs in found] for found in zip(*rounds, strict=True)
        )
        print(
            f"{part:20} {median(tokens):6.1f} ({min(tokens):6.1f}) a token "
            f"{median(requests):8.1f} ({min(requests):7.1f}) a request"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
