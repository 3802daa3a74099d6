r"""String formats as patterns that match only texts the validator's format checker accepts.

Every pattern is at least as strict as jsonschema's checker of the same name, and is written in
the part of the regular expression language that Python and Rust share. Sources: RFC 3339 (date,
time, duration), RFC 3986 (uri), RFC 4291 (ipv6), RFC 5321 (email), RFC 1123 (hostname),
RFC 6570 (uri-template), RFC 6901 (json-pointer).
"""

from __future__ import annotations

from dataclasses import dataclass

# Years 0001 to 9999: Python's calendar has no year 0.
_YEAR = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_MONTH_DAY = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = rf"(?:{_YEAR}-{_MONTH_DAY}|{_LEAP_YEAR}-02-29)"
# No second 60: checkers disagree on when a leap second is one.
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
_TIME = rf"{_CLOCK}(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

_N = r"[0-9]{1,6}"
_DAY_TIME = rf"T(?:{_N}H(?:{_N}M(?:{_N}S)?)?|{_N}M(?:{_N}S)?|{_N}S)"
_DAYS = rf"(?:{_N}Y(?:{_N}M(?:{_N}D)?)?|{_N}M(?:{_N}D)?|{_N}D)"
_DURATION = rf"P(?:{_N}W|{_DAYS}(?:{_DAY_TIME})?|{_DAY_TIME})"

# A label of up to 63 characters without "--": that keeps "xn--" names, which need decoding, out.
_LABEL = r"(?:[A-Za-z0-9]{1,63}|[A-Za-z0-9](?:-?[A-Za-z0-9]){0,31})"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
_IDN_HOSTNAME = _HOSTNAME.replace("A-Z", "")
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[!-~]){0,30}"'
_EMAIL = rf"(?:{_ATOM}{{1,24}}(?:\.{_ATOM}{{1,12}}){{0,3}}|{_QUOTED})@{_HOSTNAME}"

_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H16 = r"[0-9A-Fa-f]{1,4}"
_LS32 = rf"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = (
    rf"(?:(?:{_H16}:){{6}}{_LS32}|::(?:{_H16}:){{5}}{_LS32}"
    rf"|(?:{_H16})?::(?:{_H16}:){{4}}{_LS32}"
    rf"|(?:(?:{_H16}:){{0,1}}{_H16})?::(?:{_H16}:){{3}}{_LS32}"
    rf"|(?:(?:{_H16}:){{0,2}}{_H16})?::(?:{_H16}:){{2}}{_LS32}"
    rf"|(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}"
    rf"|(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}"
    rf"|(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}"
    rf"|(?:(?:{_H16}:){{0,6}}{_H16})?::)"
)

_HEX2 = r"%[0-9A-Fa-f]{2}"
_PCHAR = rf"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|{_HEX2})"
_QUERY = rf"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|{_HEX2})*"
_NAME = rf"(?:[A-Za-z0-9._~!$&'()*+,;=-]|{_HEX2})*"
_HOST = rf"(?:\[{_IPV6}\]|{_NAME})"
_AUTHORITY = rf"(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|{_HEX2})*@)?{_HOST}(?::[0-9]{{1,5}})?"
_PATH = rf"(?:/{_PCHAR}*)*"
_ROOTED = rf"/(?:{_PCHAR}+{_PATH})?"
_TAIL = rf"(?:\?{_QUERY})?(?:#{_QUERY})?"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*:(?://{_AUTHORITY}{_PATH}|{_ROOTED}|{_PCHAR}+{_PATH}){_TAIL}"
_SEGMENT = rf"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|{_HEX2})+"
_REFERENCE = rf"(?:{_URI}|(?://{_AUTHORITY}{_PATH}|{_ROOTED}|{_SEGMENT}{_PATH})?{_TAIL})"
# The checker of iri reads no IPv6 address that is not written in full.
_IRI, _IRI_REFERENCE = (text.replace(_HOST, _NAME) for text in (_URI, _REFERENCE))
# The checker reads no prefix length such as {name:10}.
_VARIABLE = r"[A-Za-z0-9_]+\*?"
_URI_TEMPLATE = (
    rf"(?:[A-Za-z0-9._~:/?&=+,;@!$()*#-]|{_HEX2}|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
)

_POINTER = r"(?:/(?:[^/~]|~[01])*)*"
# The checker reads no zero before the last digit of the leading number.
_RELATIVE_POINTER = rf"(?:0|[1-9]{{1,8}}0?)(?:#|{_POINTER})"
_UUID = r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"


@dataclass(frozen=True, slots=True)
class StringFormat:
    """A format the mask enforces.

    Args:
        pattern: matches the whole text, without anchors.
        max_length: longest text in characters, None when the pattern alone bounds it or nothing.
        note: how it is narrower than the standard; "" where it is the same.
    """

    pattern: str
    max_length: int | None = None
    note: str = ""

    def schema(self) -> dict[str, object]:
        """Return the format as keywords that apply to strings only, as a format does."""
        found: dict[str, object] = {"pattern": f"^(?:{self.pattern})$"}
        if self.max_length is not None:
            found["maxLength"] = self.max_length
        return found


_ASCII_ONLY = "ASCII only"
_NO_LEAP_SECOND = "exact calendar, years 0001 to 9999, no second 60"

FORMATS: dict[str, StringFormat] = {
    "date": StringFormat(_DATE, note="exact calendar, years 0001 to 9999"),
    "date-time": StringFormat(rf"{_DATE}T{_TIME}", note=_NO_LEAP_SECOND),
    "time": StringFormat(_TIME, note="no second 60"),
    "duration": StringFormat(_DURATION, note="at most six digits a part"),
    "email": StringFormat(_EMAIL, 254, "local part of at most 63 characters, domain a hostname"),
    "idn-email": StringFormat(_EMAIL, 254, _ASCII_ONLY),
    "hostname": StringFormat(_HOSTNAME, 253, 'no "--" in a label'),
    "idn-hostname": StringFormat(_IDN_HOSTNAME, 253, "lower-case ASCII only"),
    "ipv4": StringFormat(_IPV4),
    "ipv6": StringFormat(_IPV6),
    "uri": StringFormat(_URI),
    "uri-reference": StringFormat(_REFERENCE),
    "iri": StringFormat(_IRI, note=_ASCII_ONLY),
    "iri-reference": StringFormat(_IRI_REFERENCE, note=_ASCII_ONLY),
    "uri-template": StringFormat(_URI_TEMPLATE, note="plain variable names"),
    "json-pointer": StringFormat(_POINTER),
    "relative-json-pointer": StringFormat(_RELATIVE_POINTER, note="at most nine digits"),
    "uuid": StringFormat(_UUID),
}

UNENFORCEABLE_FORMATS = frozenset({"regex"})
"""Formats that a checker decides and no pattern can."""
