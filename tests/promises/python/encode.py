"""Encodes FOLDER/plain as gzip, deflate, br and zstd beside it, and makes a bomb: 200 MB of zeros in zstd."""

import gzip
import sys
import zlib
from pathlib import Path

import brotli
import zstandard

folder = Path(sys.argv[1])
plain = (folder / "plain").read_bytes()
(folder / "gzip").write_bytes(gzip.compress(plain))
(folder / "deflate").write_bytes(zlib.compress(plain))
(folder / "br").write_bytes(brotli.compress(plain))
(folder / "zstd").write_bytes(zstandard.compress(plain))
(folder / "bomb").write_bytes(zstandard.compress(bytes(200_000_000)))
