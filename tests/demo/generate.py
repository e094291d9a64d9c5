# SPDX-License-Identifier: GPL-2.0-or-later
"""generate.py NAME FILE: writes one input; its bytes depend only on NAME."""
import json
import os
import random
import sys

import numpy as np

CITIES = ("Aachen", "Bremen", "Chur", "Delft", "Essen", "Fulda", "Gent", "Halle", "Imst", "Jena",
          "Kiel", "Linz", "Mainz", "Nancy", "Olten", "Passau", "Riga", "Siegen", "Trier", "Ulm")
FIRST_SECOND = 1_700_000_000


def orders(out, r):
    for i in range(1_200_000):
        out.write(b"%d,%d,%s,%d,%.2f,%040x\n" % (
            i, FIRST_SECOND + i * 7 + r.randrange(7), r.choice(CITIES).encode(),
            r.randrange(1, 200_000), r.randrange(100, 99_999) / 100, r.getrandbits(160)))


def access_log(out, r):
    second = FIRST_SECOND
    for i in range(600_000):
        second += r.randrange(3)
        out.write(b'10.%d.%d.%d - - [%d] "GET /%s/%d.html HTTP/1.1" %d %d "-" '
                  b'"Mozilla/5.0 (X11; Linux x86_64)"\n' % (
                      r.randrange(256), r.randrange(256), r.randrange(256), second,
                      r.choice(CITIES).lower().encode(), r.randrange(100_000),
                      r.choice((200, 200, 200, 304, 404)), r.randrange(200, 90_000)))


def resp(out, *words):
    """Writes one command in redis's protocol."""
    out.write(b"*%d\r\n" % len(words))
    for word in words:
        out.write(b"$%d\r\n" % len(word))
        out.write(word)
        out.write(b"\r\n")


def bitmaps(out, r):
    g = np.random.default_rng(r.randrange(1 << 32))
    for day in range(1, 41):
        # About one user in eight was active.
        bits = g.integers(0, 256, (3, 4 << 20), dtype=np.uint8)
        resp(out, b"SET", b"active:%d" % day, (bits[0] & bits[1] & bits[2]).tobytes())


def events(out, r):
    for i in range(100_000):
        event = {"id": i, "at": FIRST_SECOND + i * 3, "user": f"user{r.randrange(50_000)}",
                 "city": r.choice(CITIES), "tags": r.sample(CITIES, 3),
                 "place": {"lat": r.random(), "lon": r.random()},
                 "price": r.randrange(100_000) / 100}
        out.write(b"," if i else b"[")
        out.write(json.dumps(event).encode() + b"\n")
    out.write(b"]\n")


def values(out, r):
    for i in range(600_000):
        resp(out, b"SET", b"user:%d" % i, b"%0200x" % r.getrandbits(800))


def gets(out, r):
    for _ in range(60_000):
        out.write(b"GET user:%d\n" % r.randrange(600_000))


def reads(out, r):
    bases = np.frombuffer(b"ACGT", np.uint8)
    g = np.random.default_rng(r.randrange(1 << 32))
    lines = np.full((500_000, 151), ord("\n"), np.uint8)
    lines[:, :150] = bases[g.integers(0, 4, (500_000, 150), dtype=np.uint8)]
    out.write(lines.tobytes())


def photo(out, r):
    side = 4000
    g = np.random.default_rng(r.randrange(1 << 32))
    y, x = np.mgrid[0:side, 0:side]
    image = np.stack([x * 255 // side, y * 255 // side, (x + y) % 256], -1).astype(np.uint8)
    image ^= g.integers(0, 8, image.shape, dtype=np.uint8)
    out.write(b"P6\n%d %d\n255\n" % (side, side) + image.tobytes())


INPUTS = {
    "orders.csv": orders, "access.log": access_log, "bitmaps.resp": bitmaps,
    "events.json": events, "values.resp": values, "gets.txt": gets, "reads.txt": reads,
    "photo.ppm": photo,
}


def main():
    name, path = sys.argv[1:3]
    staging = path + ".new"
    with open(staging, "wb", buffering=1 << 20) as out:
        INPUTS[name](out, random.Random(name))
    os.replace(staging, path)


if __name__ == "__main__":
    main()
