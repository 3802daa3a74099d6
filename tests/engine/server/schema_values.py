"""Values of a JSON Schema, on its bounds and off them, for the schemas that fields publish."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

SMALL = 24
"""Longer texts and lists are not made, whatever a schema allows."""

ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**66), 2**66)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


def values_of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values the schema accepts, or nearly."""
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of([values_of(item) for item in schema["anyOf"]])
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return st.one_of([BY_TYPE[kind](schema) for kind in kinds]) if kinds else ANY


def near(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values the schema accepts, such values with one place changed, and any others."""
    good = values_of(schema)
    return good | st.tuples(good, st.randoms(use_true_random=False), ANY).map(_changed) | ANY


def _changed(drawn: tuple[Any, Any, Any]) -> Any:
    value, rng, other = drawn
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(sorted(value))
        changed = dict(value)
        match rng.randrange(3):
            case 0:
                del changed[name]
            case 1:
                changed[f"{name}x"] = other
            case _:
                changed[name] = _changed((value[name], rng, other))
        return changed
    if isinstance(value, list) and rng.random() < 0.8:
        at = rng.randrange(len(value) + 1)
        inner = [_changed((value[at], rng, other))] if at < len(value) else [other]
        return [*value[:at], *inner, *value[at + 1 :]]
    if isinstance(value, str) and rng.random() < 0.5:
        return value * rng.choice([0, 2, 300])
    return other


def _integers(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    low, high = schema["minimum"], schema["maximum"]
    whole = st.integers(low, high) | st.sampled_from([low - 1, low, high, high + 1])
    return whole | st.integers(max(low, -1000), min(high, 1000)).map(float)


def _numbers(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    low, high = schema.get("minimum", -1e9), schema.get("maximum", 1e9)
    return st.floats(low, high) | st.sampled_from([low - 1, low, high, high + 1, low - 1e-9])


def _texts(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    longest = schema.get("maxLength", SMALL)
    found = st.text(min_size=schema.get("minLength", 0), max_size=min(longest, SMALL))
    if longest > 300:
        return found
    return found | st.sampled_from([longest, longest + 1]).map(lambda size: "x" * size)


def _lists(schema: dict[str, Any]) -> st.SearchStrategy[list[Any]]:
    item, most = values_of(schema["items"]), schema.get("maxItems", SMALL)
    found = st.lists(item, min_size=schema.get("minItems", 0), max_size=min(most, 3))
    if most > SMALL:
        return found
    return found | st.tuples(item, st.sampled_from([most, most + 1])).map(lambda x: [x[0]] * x[1])


def _objects(schema: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    if "properties" in schema:
        known = {name: values_of(item) for name, item in schema["properties"].items()}
        required = {name: known.pop(name) for name in schema.get("required", ())}
        return st.fixed_dictionaries(required, optional=known)
    names = schema.get("propertyNames", {}).get("pattern")
    keys = st.from_regex(names, fullmatch=True) | st.text(max_size=5) if names else st.text()
    others = schema.get("additionalProperties")
    found = st.dictionaries(keys, values_of(others) if others else ANY, max_size=3)
    most = schema.get("maxProperties")
    if most is None:
        return found
    return found | st.sampled_from([most, most + 1]).map(lambda n: {f"{i}": 0 for i in range(n)})


BY_TYPE = {
    "string": _texts,
    "integer": _integers,
    "number": _numbers,
    "boolean": lambda _: st.booleans(),
    "null": lambda _: st.none(),
    "array": _lists,
    "object": _objects,
}
