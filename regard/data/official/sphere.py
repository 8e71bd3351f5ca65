"""NIST SPHERE files: a header of lines "name -type value", then samples.

NIST_1A
   1024
sample_count -i 19200
sample_byte_format -s2 10        the highest byte first; 01: the lowest
end_head
"""

import numpy as np
import numpy.typing as npt

__all__ = ["read_sphere"]

MAGIC = b"NIST_1A\n"
MAX_HEADER = 1 << 16  # bytes
ORDERS = {"10": ">i2", "01": "<i2"}


def read_sphere(content: bytes, rate: int, name: str) -> npt.NDArray[np.int16]:
    """The samples of a mono recording of 16-bit integers at that rate."""
    size = content[len(MAGIC) : 16].strip()
    if not content.startswith(MAGIC) or not size.isdigit() or not 16 <= int(size) <= min(MAX_HEADER, len(content)):
        raise ValueError(f"{name} is not a NIST SPHERE file; get the official file")
    start = int(size)
    header = {}
    for line in content[16:start].decode("ascii", "replace").splitlines():
        if line.strip() == "end_head":
            break
        key, _, rest = line.strip().partition(" ")
        header[key] = rest.partition(" ")[2].strip()
    coding, order = header.get("sample_coding", "pcm"), header.get("sample_byte_format", "")
    found = (header.get("channel_count", "1"), header.get("sample_n_bytes", "2"), header.get("sample_rate"), coding)
    if found != ("1", "2", str(rate), "pcm") or order not in ORDERS:
        raise ValueError(f"{name} has channels, bytes, rate and coding {found}, byte order {order!r}; wanted one channel of "
                         f"16-bit PCM at {rate} Hz")  # fmt: skip
    samples = np.frombuffer(content[start : start + (len(content) - start) // 2 * 2], ORDERS[order])
    count = header.get("sample_count", "")
    if not count.isdecimal() or not 0 < int(count) <= len(samples):
        raise ValueError(f"{name} has {len(samples):,} samples, its header says {count or 'nothing'}: it was cut; get it again")
    return samples[: int(count)].astype(np.int16)
