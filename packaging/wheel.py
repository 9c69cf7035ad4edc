"""Writes a wheel with one program: wheel.py PROGRAM VERSION PLATFORM ABOUT FOLDER LEVEL."""

import base64
import hashlib
import stat
import sys
import zipfile
from pathlib import Path

# A fixed time, so that the same program gives the same wheel.
TIME = (2020, 1, 1, 0, 0, 0)


def main() -> None:
    program, version, platform, about, folder, level = sys.argv[1:]
    tag = f"py3-none-{platform}"
    metadata = (
        f"Metadata-Version: 2.1\nName: statehold\nVersion: {version}\n"
        "Summary: The state server for multi-agent AI systems\nLicense: Apache-2.0 OR MIT\n"
        "Requires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n"
    )
    wheel = f"Wheel-Version: 1.0\nGenerator: statehold\nRoot-Is-Purelib: false\nTag: {tag}\n"
    info = f"statehold-{version}.dist-info"
    files = {
        f"statehold-{version}.data/scripts/statehold": Path(program).read_bytes(),
        f"{info}/METADATA": (metadata + Path(about).read_text()).encode(),
        f"{info}/WHEEL": wheel.encode(),
    }
    record = ""
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    with zipfile.ZipFile(Path(folder) / f"statehold-{version}-{tag}.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, TIME)
            mode = 0o755 if name.endswith("/scripts/statehold") else 0o644
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content, compresslevel=int(level))


main()
