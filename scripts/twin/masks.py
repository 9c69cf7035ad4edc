"""Which words of two answers stand for the same thing, and where two answers differ."""

import json
import re
from datetime import datetime

TIMES_APART_SECONDS = 20
TOKEN = re.compile(
    r"(?P<id>\b(?:ses|tsk|req|hld|itm|key|usr|msg|chatcmpl)[_-][0-9a-f]{32}\b)"
    r"|(?P<secret>\b(?:shk|whsec)_[A-Za-z0-9_+/=-]{20,})"
    r"|(?P<digest>\b[0-9a-f]{64}\b)"
    r"|(?P<time>\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)"
    r"|(?P<stamp>(?<=\"at\":)\d{13,17}|(?<=_at\":)\d{13,17}|(?<=until\":)\d{13,17}|(?<=deadline\":)\d{13,17})"
    r"|(?P<second>(?<=\"created\":)\d{10}\b)"
    r"|(?P<opaque>\b[A-Za-z0-9_-]{60,}={0,2})"
    r"|(?P<place>127\.0\.0\.1:\d+)")
TIMES = {"time": lambda text: datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp(),
         "stamp": lambda text: int(text) / (1e6 if len(text) > 14 else 1e3), "second": float}


class Pairs:
    """Partners: a word of the old server and the word that the new one has in its place."""

    def __init__(self, old, new):
        self.old, self.new, self.there, self.back = old, new, {}, {}

    def pair(self, one, other):
        """Whether these two are partners, which they become if neither has one."""
        if one not in self.there and other not in self.back:
            self.there[one], self.back[other] = other, one
        return self.there.get(one) == other

    def translate(self, text):
        """A text for the old server, as the new one must get it."""
        return TOKEN.sub(lambda found: self.there.get(found[0], found[0]), text)

    def difference(self, one, other):
        """Where two texts first differ, and how; None if they say the same."""
        olds, news = list(TOKEN.finditer(one)), list(TOKEN.finditer(other))
        if TOKEN.sub(mask, one) != TOKEN.sub(mask, other):
            self.pair_by_path(one, other)
            return place_of(one, other)
        for left, right in zip(olds, news):
            if not self.same(left.lastgroup, left[0], right[0]):
                near = one[max(0, left.start() - 40):left.end()]
                known = self.there.get(left[0])
                what = f"{near} is {right[0]} there, and not {known}" if known else f"{near} is {right[0]} there"
                return path_at(one, left.start()), what
        return None

    def same(self, kind, one, other):
        if kind == "place":
            return (one == self.old.place) == (other == self.new.place) and (
                one == self.old.place or one == other)
        if kind in TIMES:
            return abs(TIMES[kind](one) - TIMES[kind](other)) < TIMES_APART_SECONDS
        return self.pair(one, other)

    def pair_by_path(self, one, other):
        """Pairs the ids of two answers that differ, so that one difference does not become many."""
        try:
            leaves = dict(walk(json.loads(other)))
            for path, leaf in walk(json.loads(one)):
                if isinstance(leaf, str) and isinstance(leaves.get(path), str):
                    found, there = TOKEN.fullmatch(leaf), TOKEN.fullmatch(leaves[path])
                    if found and there and found.lastgroup == there.lastgroup and found.lastgroup not in TIMES:
                        self.pair(leaf, leaves[path])
        except ValueError:
            return


def mask(found):
    return f"<{found.lastgroup}>"


def walk(value, path=""):
    """Every leaf of a JSON value with its path, in order."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from walk(inner, f"{path}.{name}")
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from walk(inner, f"{path}[{index}]")
    else:
        yield path or ".", value


def place_of(one, other):
    """The path where two JSON texts differ, or the place in the text."""
    try:
        olds = list(walk(json.loads(TOKEN.sub(lambda found: mask_number(found), one))))
        news = list(walk(json.loads(TOKEN.sub(lambda found: mask_number(found), other))))
    except ValueError:
        one, other = TOKEN.sub(mask, one), TOKEN.sub(mask, other)
        at = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
        return "text", f"{one[max(0, at - 60):at + 100]!r} | {other[max(0, at - 60):at + 100]!r}"
    for left, right in zip(olds, news):
        if left != right:
            return plain(left[0]), f"{left[0]}: {short(left[1])} | {right[0]}: {short(right[1])}"
    longer = (olds if len(olds) > len(news) else news)[min(len(olds), len(news)):]
    if longer:
        who = "old" if len(olds) > len(news) else "new"
        return plain(longer[0][0]), f"only {who} has {longer[0][0]}: {short(longer[0][1])}"
    return "form", "the same values in another spelling"


def mask_number(found):
    """Numbers stay numbers, so that the text stays JSON."""
    return "0" if found.lastgroup in ("stamp", "second") else mask(found)


def plain(path):
    return re.sub(r"\[\d+\]", "[]", path)


def short(value):
    text = json.dumps(value)
    return text if len(text) < 120 else text[:120] + "…"


def path_at(text, at):
    names = re.findall(r'"([A-Za-z_]+)":', text[:at])
    return f"…{names[-1]}" if names else "text"


def flat_metrics(text):
    """The series, and how many calls were counted; times and sizes of memory are a machine's own."""
    kept = []
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        is_count = line.startswith("statehold_calls_total")
        kept.append(line if is_count or line.startswith("#") else name)
    return "\n".join(sorted(kept))


def flat_audit(text):
    """Without the signatures, which a clock asks for, and without numbers that count them or what is being erased."""
    try:
        body = json.loads(text)
    except ValueError:
        return text
    if "records" in body and isinstance(body["records"], list):
        kept = [one for one in body["records"] if one.get("event", {}).get("act") != "heads_signed"]
        for one in kept:
            one.update(seq=0, prev_hash="", hash="")
        body["records"] = kept
    for name in ("head", "entries", "roots", "public_key", "payloads", "unverified_payloads"):
        body[name] = name in body
    return json.dumps(body, separators=(",", ":"))


def flat_stream(text):
    """A stream of a chat with its pieces joined: where a piece ends is a matter of time."""
    told, said = [], ""
    for block in text.split("\n\n"):
        data = "\n".join(line[5:].strip() for line in block.splitlines() if line.startswith("data:"))
        if not data:
            continue
        try:
            chunk = json.loads(data)
            choices = chunk.get("choices") or [{}]
            delta = choices[0].get("delta", {})
        except (ValueError, AttributeError, IndexError):
            told.append(data)
            continue
        if set(delta) == {"content"} and not choices[0].get("finish_reason"):
            said += delta["content"]
            if told[-1:] != ["<pieces>"]:
                told.append("<pieces>")
        else:
            told.append(data)
    return json.dumps({"said": said}) + "\n" + "\n".join(told)
