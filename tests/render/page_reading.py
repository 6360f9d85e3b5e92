"""Reads an explorer page back: its head, blocks and columns, written apart from the code that writes them."""

import base64
import json
import re
import zlib

import numpy as np


def decode_varints(data):
    """Numbers of LEB128, one after the other."""
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets < 128)
    begins = np.append(0, ends[:-1] + 1)[: len(ends)]
    values = np.zeros(len(ends), np.int64)
    for place in range(int((ends - begins).max(initial=-1)) + 1):
        inside = begins + place <= ends
        values[inside] += (octets[(begins + place)[inside]].astype(np.int64) & 127) << (7 * place)
    assert not len(octets) or octets[-1] < 128
    return values


def unfold_signs(values):
    """The signed numbers of zigzag."""
    return (values >> 1) ^ -(values & 1)


class Page:
    """A written page."""

    def __init__(self, text):
        self.head = json.loads(
            re.search(r'<script type="application/json" id="head">(.*?)</script>', text, re.DOTALL)[1]
        )
        found = re.findall(r'<script type="application/octet-stream" id="b-(\w+)">([^<]*)</script>', text)
        self.raw = {name: zlib.decompress(base64.b64decode(data), -15) for name, data in found}
        assert len(self.raw) == len(found), "a name of a block is given once"
        self.names = json.loads(self.raw["names"])["names"]
        self.paths = json.loads(self.raw["names"])["paths"]

    def columns(self, name, count):
        """The columns of a block, one array each."""
        values = decode_varints(self.raw[name])
        rows = int(values[0])
        assert len(values) == 1 + rows * count, name
        return values[1:].reshape(count, rows)

    def started(self, name, count, at=1):
        """The columns of a block with starts as signed differences, starts put together again."""
        columns = self.columns(name, count)
        columns[at] = np.cumsum(unfold_signs(columns[at]))
        return columns

    def cells(self):
        """The lines of `cells` with their boxes: (line, nine columns) each."""
        lines = self.columns("cells", 7).T.tolist()
        decoded = {}
        for line in lines:
            row = line[0]
            values, place = decoded.get(row) or (decode_varints(self.raw[f"k{row}"]), 0)
            count = int(values[place])
            columns = values[place + 1 : place + 1 + 9 * count].reshape(9, count).copy()
            columns[0] = np.cumsum(columns[0])
            decoded[row] = values, place + 1 + 9 * count
            assert count == line[5]
            yield line, columns
        assert all(place == len(values) for values, place in decoded.values()), "every number is of a cell"
        assert {f"k{row}" for row in decoded} == {name for name in self.raw if re.fullmatch(r"k\d+", name)}

    def path(self, number):
        """The names of a path (stored + 1), from the outermost on."""
        names = []
        while number:
            parent, name = self.paths[number - 1]
            names.insert(0, self.names[name])
            number = parent + 1
        return names
