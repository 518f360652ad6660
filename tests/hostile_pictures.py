"""Pictures that are small files and much work."""

import io

from PIL import Image


def many_scans(side, count):
    """Return a valid progressive JPEG, `side` x `side`, whose last scan is repeated `count` times.

    Each repetition takes some 26 bytes, and has the decoder go through all blocks again.
    """
    buffer = io.BytesIO()
    Image.new("L", (side, side), 128).save(buffer, "JPEG", progressive=True, quality=50)
    content = buffer.getvalue()
    # the last scan's header, and the end of the image
    start, end = content.rindex(b"\xff\xda"), len(content) - 2
    return content[:end] + content[start:end] * count + content[end:]
