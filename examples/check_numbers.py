#!/usr/bin/env python3
"""Checks the test vectors of `docs/formats/numbers.md` with nothing but Python's standard library.

    python3 examples/check_numbers.py docs/formats/numbers-v1.json
"""
import hashlib
import json
import re
import sys

NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def is_integer(text):
    return re.fullmatch(r"-?[0-9]+", text) is not None


def digits(text):
    """The significant digits of a number, without zeros at either end."""
    mantissa = re.split("[eE]", text)[0]
    return re.sub("[^0-9]", "", mantissa).strip("0")


def is_kept(text):
    if not NUMBER.fullmatch(text):
        return False
    if is_integer(text):
        return -(2**63) <= int(text) < 2**64
    value = float(text)
    if value in (float("inf"), float("-inf")):
        return False
    return digits(text) == digits(repr(value))


def is_kept_in_arguments(text):
    if is_integer(text):
        return is_kept(text)
    value = float(text)
    return is_kept(text) and not (value.is_integer() and abs(value) >= 2**53)


def write_number(value):
    """An integer as its digits, any other number as RFC 8785 writes it."""
    if isinstance(value, int):
        return str(value)
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    shown = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(shown))
    shown = shown.rstrip("0")
    if len(shown) <= point <= 21:
        return sign + shown + "0" * (point - len(shown))
    if 0 < point <= 21:
        return sign + shown[:point] + "." + shown[point:]
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + shown
    rest = "." + shown[1:] if len(shown) > 1 else ""
    power = point - 1
    return f"{sign}{shown[0]}{rest}e{'+' if power > 0 else ''}{power}"


def canonical(value):
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return "{" + ",".join(canonical(n) + ":" + canonical(value[n]) for n in names) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return write_number(value)
    return json.dumps(value, ensure_ascii=False)


def read(text):
    # Python reads `-0` as the integer 0; JSON has it as a double.
    return json.loads(text, parse_int=lambda digits: -0.0 if digits == "-0" else int(digits))


def main(path):
    with open(path, encoding="utf-8") as file:
        vectors = json.load(file)
    for vector in vectors["numbers"]:
        text = vector["json"]
        assert is_kept(text) == vector["value"], text
        assert (vector["value"] and is_kept_in_arguments(text)) == vector["args"], text
        if vector["value"]:
            assert canonical(read(text)) == vector["canonical"], text
    for vector in vectors["actions"]:
        action = {"v": 1, "hold_id": vector["hold_id"], "tool": vector["tool"], "args": read(vector["args"])}
        written = canonical(action)
        assert written == vector["canonical"], written
        assert hashlib.sha256(written.encode()).hexdigest() == vector["digest"], written
    print(f"{len(vectors['numbers'])} numbers and {len(vectors['actions'])} actions hold")


if __name__ == "__main__":
    main(sys.argv[1])
