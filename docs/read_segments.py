"""Reads Tidelog's tiered segments out of a bucket, from docs/format.md alone.

    python read_segments.py LOCATION                    lists and checks segments and chains
    python read_segments.py LOCATION TOPIC [PARTITION]  prints committed records as JSON, in base64

LOCATION is a folder, or s3://bucket/prefix. Needs crc32c, cramjam (boto3). Problems exit with 1.
"""

import base64, gzip, hashlib, json, os, re, struct, sys, uuid  # noqa: E401, I001
from collections import defaultdict, namedtuple
from contextlib import suppress
from pathlib import Path
from cramjam import lz4, snappy, zstd
from crc32c import crc32c

INDEX = re.compile(r"([^/]+/[^/]+-[0-9a-f-]{36})/(\d+)/\d{20}-\d+-[0-9a-f-]{36}\.index").fullmatch
START = re.compile(r"([^/]+/[^/]+-[0-9a-f-]{36})/(\d+)/log-start-(\d{20})\.json").fullmatch
HEADER, SECTION = struct.Struct("<8sHHIqqQQqIIii16s16sQ"), struct.Struct("<IIQQII")
# Batches, aborted transactions, leader epochs, how it was rewritten, what it replaces.
TABLES = (1, "<qqqIIII"), (4, "<qqqq"), (6, "<qq"), (9, "<qq"), (10, "<16sqqQ32s32s32s")
BATCH = struct.Struct(">qiibIhiqqqhii")  # Kafka's record batch header, message format 2
CODECS = bytes, gzip.decompress, snappy.decompress_raw, lz4.decompress, zstd.decompress
# The objects of chains: header, and rows of slices, batches, references.
WAL = re.compile(r"[^/]+/wal/(\d{10})/([0-9a-f-]{36})/(\d{20})\.wal").fullmatch
WAL_HEADER, WAL_TABLES = struct.Struct("<8sHHI16s16siIqqQQqIQI"), (
    (1, "<16siiqqqIIIIII"), (2, "<qqqqiiiIIihHhH"), (3, "<16s16siiiIqqqqIIII"))  # fmt: skip
Wal = namedtuple(
    "Wal", "key kind sequence committed_end previous_crc crc slices batches references"
)
CODEC, APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20  # its attributes
Batch = namedtuple("Batch", "base size leader_epoch magic crc attributes last_delta first_ms max_ms"
                   " producer producer_epoch sequence count")  # fmt: skip
Segment = namedtuple("Segment", "base end leader_epoch key size crc batches aborted epochs"
                     " rewrite replaced previous sha256 chained")  # fmt: skip
Record = namedtuple("Record", "offset timestamp key value headers")


class Corrupt(Exception):
    """An object that is not what the format says; the message starts with its key."""


def require(is_right, key, problem):
    if not is_right:
        raise Corrupt(f"{key}: {problem}")


def open_bucket(location):
    """Return the size of every object by its key, and what gets an object's bytes."""
    if not location.startswith("s3://"):
        root = Path(location.removeprefix("file://"))
        found = {}
        for folder, _, names in os.walk(root):
            for path in (Path(folder, name) for name in names):
                with suppress(FileNotFoundError):  # It was deleted meanwhile, or got its name.
                    found[str(path.relative_to(root))] = path.stat().st_size
        return found, lambda key: (root / key).read_bytes()
    import boto3

    name, _, prefix = location.removeprefix("s3://").partition("/")
    bucket, prefix = boto3.resource("s3").Bucket(name), f"{prefix.strip('/')}/".lstrip("/")
    found = {o.key[len(prefix) :]: o.size for o in bucket.objects.filter(Prefix=prefix)}
    return found, lambda key: bucket.Object(prefix + key).get()["Body"].read()


def parse_index(key, data):
    """Return the segment that an index object describes, every CRC checked."""
    require(len(data) > 111 and data[:10] == b"TLINDEX\0\1\0", key, "no index of version 1")
    _, _, count, header_size, base, end, size, *fields, file_size = HEADER.unpack_from(data)
    _, _, crc, batch_count, epoch, partition, topic, own = fields
    table_end = HEADER.size + SECTION.size * count
    require(file_size == len(data) and table_end + 8 <= header_size <= file_size, key, "size")
    header_crc, sections = int.from_bytes(data[table_end : table_end + 4], "little"), {}
    require(crc32c(data[:table_end]) == header_crc, key, "CRC of the header")
    for at in range(HEADER.size, table_end, SECTION.size):
        kind, flags, start, length, _, section_crc = SECTION.unpack_from(data, at)
        require(kind in range(1, 11) or not flags & 1, key, f"unknown section {kind}")
        sections[kind] = data[start : start + length]
        require(crc32c(sections[kind]) == section_crc, key, f"CRC of section {kind}")
    name = f"-{uuid.UUID(bytes=topic)}/{partition}/{base:020}-{epoch}-{uuid.UUID(bytes=own)}.index"
    require(key.endswith(name), key, f"it is the index of another segment: {name}")
    previous, sha256, chained = struct.unpack("<32s32s32s", sections[8])
    link = previous + topic + struct.pack(">IQQQ", partition, base, end, size) + sha256
    require(hashlib.sha256(b"tidelog chain 1\0" + link).digest() == chained, key, "chained hash")
    rows = [list(struct.iter_unpack(row, sections.get(kind, b""))) for kind, row in TABLES]
    require(len(rows[0]) == batch_count, key, "number of batches")
    return Segment(base, end, epoch, key[:-5] + "log", size, crc, *rows, previous, sha256, chained)


def agree(one, other):
    """Whether two segments have the same leader epochs wherever they overlap, if they do."""
    low, high = max(one.base, other.base), min(one.end, other.end)
    edges = {low, *(first for _, first in one.epochs + other.epochs if low < first < high)}
    epochs = [[max(e for e, at in s.epochs if at <= o) for o in edges] for s in (one, other)]
    return low >= high or epochs[0] == epochs[1]


def is_rewritten(segment, segments):
    """Whether segments that were rewritten later hold all of its offsets."""
    end = segment.base
    for other in sorted(s[:2] for s in segments if s.rewrite > segment.rewrite):
        end = max(end, other[1]) if other[0] <= end else end
    return end >= segment.end


def log_starts(found):
    """Return (topic's folder, partition) -> where its log starts: the greatest told, or 0."""
    return defaultdict(int, {(m[1], int(m[2])): int(m[3]) for m in map(START, sorted(found)) if m})


def read_bucket(found, get, tell):
    """Return (topic's folder, partition) -> segments in order of offset; ``tell`` what is wrong."""
    partitions, starts = defaultdict(list), log_starts(found)
    for hit in (m for m in map(INDEX, sorted(found)) if m and f"{m[1]}.deleted.json" not in found):
        try:
            segment = parse_index(hit[0], get(hit[0]))
            require(found.get(segment.key) == segment.size, segment.key, "missing or cut short")
            partitions[hit[1], int(hit[2])].append(segment)
        except (Corrupt, KeyError, struct.error) as error:
            tell(f"{error}" if isinstance(error, Corrupt) else f"{hit[0]}: {error!r}")
    for name, segments in partitions.items():
        kept, deleted = [], max([starts[name], *(s.base for s in segments if not any(s.previous))])
        for segment in sorted(segments, key=lambda s: (-s.leader_epoch, -s.end)):
            if segment.end > deleted and all(agree(segment, other) for other in kept):
                kept.append(segment)
        kept = sorted((s for s in kept if not is_rewritten(s, kept)), key=lambda s: s.base)
        partitions[name], end = kept, deleted if starts[name] or not kept else kept[0].base
        for at, segment in enumerate(kept):
            if segment.base > end:
                tell(f"{segment.key}: offsets [{end}, {segment.base}) are missing before it")
            chain = {h for s in kept[:at] for h in (s.chained, *(row[-1] for row in s.replaced))}
            if kept[0].end <= segment.base <= end and segment.previous not in {bytes(32), *chain}:
                tell(f"{segment.key}: it does not continue the chain of hashes")
            end = max(end, segment.end)
    return partitions


def read_batches(segment, get):
    """Yield (header, payload) of each batch, CRCs and SHA-256 checked first. Raises Corrupt."""
    log = get(segment.key)
    sums = len(log), crc32c(log), hashlib.sha256(log).digest()
    require(sums == (segment.size, segment.crc, segment.sha256), segment.key, "wrong checksums")
    for base, last, _, position, size, *_ in segment.batches:
        header, body = Batch(*BATCH.unpack_from(log, position)), log[position : position + size]
        said = header.base, header.base + header.last_delta, header.size + 12, header.magic
        require(said == (base, last, size, 2), segment.key, f"the batch at {position}")
        require(crc32c(body[21:]) == header.crc, segment.key, f"CRC of the batch at {position}")
        yield header, body[BATCH.size :]


def decompress(codec, data):
    if codec != 2 or data[:8] != b"\x82SNAPPY\0":
        return bytes(CODECS[codec](data))
    out, at = b"", 16  # snappy-java's framing: blocks, each behind its size
    while at < len(data):
        start, at = at + 4, at + 4 + int.from_bytes(data[at : at + 4], "big")
        out += bytes(snappy.decompress_raw(data[start:at]))
    return out


def parse_records(header, payload):
    data, at = decompress(header.attributes & CODEC, payload), 0

    def varint():
        nonlocal at
        value, shift, at = data[at] & 127, 7, at + 1
        while data[at - 1] > 127:
            value, shift, at = value | (data[at] & 127) << shift, shift + 7, at + 1
        return (value >> 1) ^ -(value & 1)

    def field():
        nonlocal at
        size = varint()
        at += max(size, 0)
        return None if size < 0 else data[at - size : at]

    for _ in range(header.count):
        _, at = varint(), at + 1  # the record's size; a byte of attributes that mean nothing
        stamp, offset = header.first_ms + varint(), header.base + varint()
        content = field(), field(), [(field().decode(), field()) for _ in range(varint())]
        yield Record(offset, header.max_ms if header.attributes & APPEND_TIME else stamp, *content)


def read_records(segments, get, next_offset=0, *, committed=True):
    """Yield a partition's records from there on once each, in order of offset. Raises Corrupt."""
    for segment in segments:
        for header, payload in read_batches(segment, get) if segment.end > next_offset else ():
            is_hidden = committed and header.attributes & TRANSACTIONAL
            spans = (t[1:3] for t in segment.aborted if is_hidden and t[0] == header.producer)
            if not (header.attributes & CONTROL or any(a <= header.base < b for a, b in spans)):
                yield from (r for r in parse_records(header, payload) if r.offset >= next_offset)
        next_offset = max(next_offset, segment.end)


def parse_wal(key, data):
    """Return what an object of a chain says, every byte checked but those of gaps."""
    require(len(data) > 239 and data[:10] == b"TLWAL\0\0\0\1\0", key, "no WAL object of version 1")
    at, end_magic, crc = struct.unpack("<Q4sI", data[-16:])
    require(end_magic == b"TLWE" and crc32c(data[-16:-4]) == crc, key, "trailer")
    require(data[:112] == data[at : at + 112] and at % 8 == 0, key, "header and its copy")
    fields = WAL_HEADER.unpack_from(data)
    _, _, kind, count, _, chain, broker, table_crc, sequence, known, size, *_, own_crc = fields
    require(crc32c(data[:108]) == own_crc and size == len(data), key, "CRC of the header")
    table, sections, position = data[at + 112 : at + 112 + 32 * count], {}, 112
    require(crc32c(table) == table_crc, key, "CRC of the table of sections")
    for kind_of, flags, start, length, _, section_crc in SECTION.iter_unpack(table):
        require(kind_of in range(1, 8) or not flags & 1, key, f"unknown section {kind_of}")
        sections[kind_of] = data[start : start + length]
        require(crc32c(sections[kind_of]) == section_crc, key, f"CRC of section {kind_of}")
    name = f"/{broker:010}/{uuid.UUID(bytes=chain)}/{sequence:020}.wal"
    require(key.endswith(name), key, f"it is another object: {name}")
    rows = [list(struct.iter_unpack(row, sections.get(kind, b""))) for kind, row in WAL_TABLES]
    for row in rows[0]:
        require(row[6] == position, key, f"a slice begins at {row[6]} instead of {position}")
        position += row[7]
        require(crc32c(data[row[6] : position]) == row[9], key, f"CRC of the slice at {row[6]}")
    return Wal(key, kind, sequence, known, fields[13], own_crc, *rows)


def read_chains(found, get, tell):
    """Return (broker, chain id) -> its committed objects in order, and the sequence it ends at."""
    chains = defaultdict(dict)
    for hit in filter(None, map(WAL, sorted(found))):
        try:
            chains[hit[1], hit[2]][int(hit[3])] = parse_wal(hit[0], get(hit[0]))
        except (Corrupt, struct.error) as error:
            tell(f"{error}" if isinstance(error, Corrupt) else f"{hit[0]}: {error!r}")
    for name, objects in chains.items():
        end = max(wal.committed_end for wal in objects.values())
        while end in objects and objects[end].kind == 1:
            end += 1
        for wal in (objects[n] for n in objects if 0 < n <= end):
            before = objects.get(wal.sequence - 1)  # a seal below the end was put too late to count
            if before and before.kind == 1 and wal.kind == 1 and before.crc != wal.previous_crc:
                tell(f"{wal.key}: it does not follow the object before it")
        chains[name] = [w for n, w in sorted(objects.items()) if n < end and w.kind == 1], end
    return chains


def read_tails(chains, tell):
    """Return (topic id, partition) -> [epoch, offsets, batches with keys] of committed slices."""
    tails, objects = defaultdict(list), {}
    for (broker, chain), (committed, _) in chains.items():
        objects |= {(int(broker), uuid.UUID(chain).bytes, wal.sequence): wal for wal in committed}
    for wal in objects.values():
        rows = iter(wal.batches)
        for topic, partition, epoch, base, end, *_, count, _, is_foreign, _ in wal.slices:
            batches = [(wal.key, next(rows)) for _ in range(count)]
            if not is_foreign:
                tails[str(uuid.UUID(bytes=topic)), partition].append((epoch, base, end, batches))
        for (
            topic,
            chain,
            broker,
            partition,
            epoch,
            count,
            sequence,
            base,
            end,
            *_,
        ) in wal.references:
            batches, other = [next(rows) for _ in range(count)], (broker, chain, sequence)
            if other not in objects:
                tell(f"{wal.key}: object {sequence} of {uuid.UUID(bytes=chain)} is missing")
                continue
            batches = [(objects[other].key, row) for row in batches]
            tails[str(uuid.UUID(bytes=topic)), partition].append((epoch, base, end, batches))
    return {name: sorted(tail, key=lambda part: part[:3]) for name, tail in tails.items()}


def read_tail(tail, get, next_offset=0, *, committed=True):
    """Yield the records of a partition's slices from there on, without open transactions."""
    began, aborted, batches = {}, [], [batch for *_, part in tail for batch in part]
    for _, (base, producer, *_, attributes, marker, _) in batches:
        if marker >= 0:
            first = began.pop(producer, base)
            aborted += [(producer, first, base)] if marker == 0 else []
        elif attributes & TRANSACTIONAL:
            began.setdefault(producer, base)
    stable_end, gapless_end = min(began.values(), default=1 << 63), next_offset
    held = "", b""  # the object of the last batch: it mostly has the next one too
    for _, base, end, part in tail:
        missing = f"offsets [{gapless_end}, {base}) are missing before it"
        require(base <= gapless_end, part[0][0], missing)
        gapless_end = max(gapless_end, end)
    for key, (base, producer, *_, at, size, _, _, attributes, _, _) in batches:
        if base >= next_offset and not (committed and base >= stable_end):
            held = held if held[0] == key else (key, get(key))
            data = held[1][at : at + size]
            header = Batch(*BATCH.unpack_from(data))._replace(base=base)
            require(crc32c(data[21:]) == header.crc, key, f"CRC of the batch at {at}")
            is_hidden = committed and attributes & TRANSACTIONAL
            spans = (t[1:] for t in aborted if is_hidden and t[0] == producer)
            if not (attributes & CONTROL or any(a <= base < b for a, b in spans)):
                yield from parse_records(header, data[BATCH.size :])
            next_offset = base + header.last_delta + 1


def main(location, topic=None, partition=None):
    (found, get), problems = open_bucket(location), []
    partitions, chains = read_bucket(found, get, problems.append), read_chains(
        found, get, problems.append)  # fmt: skip
    for (broker, chain), (committed, end) in sorted(chains.items()) if topic is None else ():
        count = sum(len(wal.slices) for wal in committed)
        print(f"chain {chain} of broker {int(broker)} ends at {end}: {count} slices here")
    folders = {path.parent.name[-36:]: str(path.parent) for path in map(Path, found)
               if path.name == "topic.json"}  # fmt: skip
    tails = read_tails(chains, problems.append)
    names = {(folders[one], n) for one, n in tails if one in folders} | set(partitions)
    for folder, number in sorted(names):
        try:
            segments, tail = (
                partitions.get((folder, number), []),
                tails.get((folder[-36:], number), []),
            )
            name = json.loads(get(f"{folder}/topic.json"))["name"]
            for s in segments if topic is None else ():
                count = sum(header.count for header, _ in read_batches(s, get))
                print(f"{name}-{number} [{s.base}, {s.end}) {count} records {s.key}")
            for part in tail if topic is None else ():
                print(f"{name}-{number} [{part[1]}, {part[2]}) {part[3][0][0]}")
            if topic == name and partition in {None, str(number)}:
                start = log_starts(found)[folder, number]
                end = max([start, *(s.end for s in segments)])
                for record in (*read_records(segments, get, start), *read_tail(tail, get, end)):
                    fields = {"partition": number, **record._asdict()}
                    print(json.dumps(fields, default=lambda data: base64.b64encode(data).decode()))
        except (Corrupt, OSError, ValueError) as error:
            problems.append(str(error))
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
