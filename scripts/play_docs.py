"""Plays pages as a reader would: play_docs.py STATEHOLD PAGE…

Each path of a page is played in a clean folder, with nothing in the environment but the program and Python. A comment
above a fenced block says what the reader does with it:

    <!-- clean folder -->          a path begins: an empty folder, and no terminal is open
    <!-- file: NAME -->            saves the block under that name
    <!-- play: TERMINAL -->        runs the block in a terminal, and waits for its end; with `exit 5` it ends with 5
    <!-- play: TERMINAL stays -->  runs it, and leaves it running
    <!-- type: TERMINAL -->        types the block into what runs there
    <!-- prints: TERMINAL -->      what the reader sees there; `…` stands for anything, alone for any lines,
                                   and a number of milliseconds for any other
    <!-- ctrl-c: TERMINAL -->      without a block: ends what runs there
    <!-- unplayed: REASON -->      the block is to be read, or needs something that a test has not
    <!-- test: NAME -->            another test plays the block too, or alone

A block without such a comment is a mistake, so that nobody adds a command that is never tried.
"""

import fcntl
import itertools
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

MARK = re.compile(r"<!-- (clean folder|(?:file|play|type|prints|ctrl-c|unplayed|test)(?=:))(?:: (.*))? -->")
WITHOUT_BLOCK = ("clean folder", "ctrl-c")
SECONDS_MAX = 40


class Terminal:
    """One terminal of the reader. It runs one command at a time."""

    def __init__(self, folder, env, output):
        self.folder, self.env, self.output = folder, env, output
        self.process, self.stays, self.seen = None, False, 0

    def run(self, commands, stays, code):
        self.end(lambda: None)
        self.seen, self.stays = len(self.text()), stays
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen(
                ["bash", "-ec", commands], cwd=self.folder, env=self.env, stdin=subprocess.PIPE, stdout=output,
                stderr=subprocess.STDOUT, text=True, start_new_session=True)
        if not stays:
            self.process.stdin.close()
            ended = self.process.wait(SECONDS_MAX)
            assert ended == code, f"ended with {ended} in place of {code}:\n{commands}\n{self.unseen()}"

    def type(self, text):
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def end(self, make_end):
        """Waits for the end of what runs here, which `make_end` brings about if it does not come by itself."""
        if self.process:
            make_end()
            self.process.wait(SECONDS_MAX)
            self.process = None

    def interrupt(self):
        self.end(lambda: os.killpg(self.process.pid, signal.SIGINT))

    def kill(self):
        if self.process and self.process.poll() is None:
            self.end(lambda: os.killpg(self.process.pid, signal.SIGKILL))

    def text(self):
        if not os.path.exists(self.output):
            return ""
        with open(self.output, encoding="utf-8", errors="replace") as output:
            return output.read()

    def unseen(self):
        return self.text()[self.seen:]

    def expect(self, shown):
        """Waits for the lines of a page. A command that has ended printed nothing else."""
        lines = "".join(pattern_of(line) for line in shown.splitlines())
        pattern = re.compile(f"^{lines}" if self.stays else rf"\A{lines}\Z", re.MULTILINE)
        end = time.monotonic() + (SECONDS_MAX if self.stays else 0)
        while not (found := pattern.search(self.unseen())):
            assert time.monotonic() < end, f"the page shows\n{shown}\nand the terminal\n{self.unseen()}"
            time.sleep(0.05)
        self.seen += found.end()


def pattern_of(line):
    """The lines of a terminal that one line of a page stands for."""
    if line == "…":
        return "(?:.*\n)*?"
    words = re.escape(line).replace("…", ".*?")
    return re.sub(r"\d+\\ ms", r"\\d+ ms", words) + "[ ]*\n"


class Reader:
    """Does what a page says, and compares what it shows."""

    def __init__(self, program, page):
        self.page, self.terminals, self.temporary = page, {}, tempfile.TemporaryDirectory()
        self.tools = os.path.join(self.temporary.name, "bin")
        os.mkdir(self.tools)
        os.symlink(program, os.path.join(self.tools, "statehold"))
        self.folder, self.heading, self.played = None, "", []

    def read(self):
        lines = iter(enumerate(open(self.page, encoding="utf-8"), 1))
        mark = None
        try:
            for number, line in lines:
                if line.startswith("#"):
                    self.heading = line.strip("# \n")
                elif line.startswith("```"):
                    block = "".join(text for _, text in itertools.takewhile(lambda line: line[1] != "```\n", lines))
                    assert mark, f"{self.page}:{number}: a block that nobody plays; say what the reader does with it"
                    self.do(number, *mark, block)
                    mark = None
                elif found := MARK.fullmatch(line.strip()):
                    mark = mark if mark and found[1] == "test" else found.groups()
                    if mark[0] in WITHOUT_BLOCK:
                        self.do(number, *mark, None)
                        mark = None
                elif mark and line.strip():
                    raise AssertionError(f"{self.page}:{number}: a block belongs below its comment")
            self.close()
        finally:
            for terminal in self.terminals.values():
                terminal.kill()

    def do(self, number, what, more, block):
        try:
            if what == "clean folder":
                self.close()
                self.folder = os.path.join(self.temporary.name, f"path-{len(self.played)}")
                os.mkdir(self.folder)
                self.played.append(self.heading)
            elif what == "file":
                with open(os.path.join(self.folder, more), "w", encoding="utf-8") as file:
                    file.write(block)
            elif what == "play":
                name, *how = more.split()
                code = int(how[how.index("exit") + 1]) if "exit" in how else 0
                self.terminal(name).run(block, "stays" in how, code)
            elif what == "type":
                self.terminal(more).type(block)
            elif what == "prints":
                self.terminal(more).expect(block)
            elif what == "ctrl-c":
                self.terminal(more).interrupt()
        except BaseException:
            print(f"at {self.page}:{number}", flush=True)
            raise

    def terminal(self, name):
        assert self.folder, "a page says where a path begins: <!-- clean folder -->"
        if name not in self.terminals:
            path = f"{self.tools}:{os.path.dirname(sys.executable)}:/usr/bin:/bin"
            env = {"HOME": self.folder, "PATH": path, "LANG": "C.UTF-8", "TERM": "dumb"}
            output = os.path.join(self.temporary.name, f"path-{len(self.played)}-{name}.log")
            self.terminals[name] = Terminal(self.folder, env, output)
        return self.terminals[name]

    def close(self):
        """Ends what a path has left running, and says that it was played to its end."""
        for terminal in self.terminals.values():
            terminal.kill()
        self.terminals = {}
        if self.folder:
            print(f"ok   {self.page}: {self.played[-1]}", flush=True)
            shutil.rmtree(self.folder)
            self.folder = None


def have_loopback():
    """Turns the loopback interface on. In a network of its own, a process finds it off."""
    with socket.socket() as any_socket:
        asked = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(any_socket, 0x8913, asked)[:18])[1]  # SIOCGIFFLAGS
        if not flags & 1:
            fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", flags | 1))  # SIOCSIFFLAGS, IFF_UP


def main(program, *pages):
    have_loopback()
    count = 0
    for page in pages:
        reader = Reader(os.path.abspath(program), page)
        reader.read()
        count += len(reader.played)
    print(f"{count} passed, 0 failed")


if __name__ == "__main__":
    main(*sys.argv[1:])
