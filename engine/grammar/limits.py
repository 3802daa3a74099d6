"""What a constraint may cost: checked before compiling, so that no input hurts its neighbours."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarLimits:
    """Bounds on constraints, and on what a mask lets a model write.

    `max_depth` and `max_chain` protect the process: the schema parser stops near 125 levels, and
    a chain of references recurses on the native stack (about 9 kB a step, 64 MB are given).
    """

    max_schema_bytes: int = setting(
        500_000, "size of a schema as compact JSON text", low=2, high=10_000_000
    )
    max_depth: int = setting(110, "levels of nesting in the schema's JSON", low=1, high=115)
    max_chain: int = setting(1000, "steps down through keywords and $refs", low=1, high=2000)
    max_nodes: int = setting(20_000, "subschemas reached from the root", low=1, high=1_000_000)
    max_properties: int = setting(2000, "properties of one object", low=0, high=100_000)
    max_enum_values: int = setting(20_000, "values of one enum, or choices", low=1, high=1_000_000)
    max_pattern_bytes: int = setting(4096, "size of one regular expression", low=1, high=65_536)
    max_grammar_bytes: int = setting(100_000, "size of a Lark grammar", low=1, high=10_000_000)
    max_rules: int = setting(2000, "rules of a Lark grammar", low=1, high=2000)
    max_structures: int = setting(128, "structures, and triggers, of one reply", low=1, high=1000)
    max_tag_bytes: int = setting(1024, "size of a structure's begin or end", low=1, high=65_536)
    compile_s: float = setting(5.0, "seconds one compile may take", low=0.01, high=600)
    max_integer_digits: int = setting(
        15, "digits before the point where the schema sets no bound", low=1, high=15
    )
    max_fraction_digits: int = setting(9, "digits after the point", low=0, high=9)
    max_free_depth: int = setting(6, "levels of a value the schema leaves open", low=1, high=16)
    max_blanks: int = setting(0, "blanks between two JSON tokens; 0 is compact", low=0, high=64)
    max_idle_bytes: int = setting(
        1024, "blanks, or digits, in one run before a row is ended", low=16, high=1_000_000
    )
    max_lexer_states: int = setting(
        100_000, "states of one grammar's lexer (1 to 2 kB each) before it starts over", low=16
    )
    cache_entries: int = setting(256, "compiled grammars kept", low=1, high=100_000)

    def __post_init__(self) -> None:
        check_settings(self)
