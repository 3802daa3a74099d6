"""The prompts of the workload schema-zoo, made of its entries: one for each schema.

`python -m harness.zoo.prompts` writes them again after an entry has changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import click

from harness.resources import workloads_dir
from harness.workloads.files import PROMPTS_FILE
from harness.workloads.zoo_entries import ZOO, Entry, compact, read_zoo

INSTRUCTION = "Answer with one line of compact JSON that meets the schema, and nothing else."


def prompt_lines(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield one line of prompts.jsonl for each schema that compiles and is an object."""
    for entry in entries:
        if entry.refused is None and isinstance(entry.schema, dict):
            user = f"Give me {entry.about}. The schema: {compact(entry.schema)}"
            messages = [
                {"role": "system", "content": INSTRUCTION},
                {"role": "user", "content": user},
            ]
            yield compact({"id": entry.name, "schema": entry.name, "messages": messages})


@click.command(help=__doc__)
def main() -> None:
    """Write prompts.jsonl."""
    path = workloads_dir() / ZOO / PROMPTS_FILE
    lines = list(prompt_lines(read_zoo()))
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    click.echo(json.dumps({"prompts": len(lines)}))


if __name__ == "__main__":
    main()
