#!/usr/bin/env python3
"""Verifies a chain of records, one per line: verify_chain.py [FILE]. See docs/formats."""
import hashlib, json, sys


def complaint(line, record, seq, head, last):
    """Says why the record does not continue the chain, or nothing."""
    text = json.dumps(record, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    fork = {"act": "session_forked", "session": record["session"], "origin": last["session"]}
    first = {name: value for name, value in record["events"][0].items() if name != "through"}
    is_here = record["session"] == last["session"] or first == fork | {"at": seq - 1}
    tests = [(text.encode() == line, "is not in canonical form"),
             (record["v"] == 1, "has another version than 1"),
             (record["seq"] == seq, f"has another number than {seq}"),
             (record["prev_hash"] == head, "does not continue the record before it"),
             (record["at"] >= last["at"], "is earlier than the record before it"),
             (is_here, "belongs to another session")]
    return next((what for is_met, what in tests if not is_met), None)


count, head, last = 0, "0" * 64, None
for count, line in enumerate(open(sys.argv[1], "rb") if sys.argv[1:] else sys.stdin.buffer, 1):
    try:
        line = line.removesuffix(b"\n")
        record = json.loads(line, parse_float=str, parse_constant=str)  # No number is a fraction.
        wrong = complaint(line, record, count, head, last or record)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        wrong = "is not a record"
    if wrong: sys.exit(f"line {count} {wrong}")
    head, last = hashlib.sha256(line).hexdigest(), record
print(f"{count} records verified, head {head}" if count else sys.exit("there are no records"))
