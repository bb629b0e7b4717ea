"""Random numbers as the documents define them: Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011, Random123) and
XXH64 (xxHash's specification), and what train/include/addend/data.h and tensor.h make of them. With Python's standard
library alone.
"""
import math

MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1
P1, P2, P3, P4, P5 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)


def philox4x32(counter, key):
    """Philox with ten rounds; the counter has four words of 32 bits, the key two."""
    c, k = list(counter), list(key)
    for _ in range(10):
        low, high = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [high >> 32 ^ c[1] ^ k[0], high & MASK32, low >> 32 ^ c[3] ^ k[1], low & MASK32]
        k = [k[0] + 0x9E3779B9 & MASK32, k[1] + 0xBB67AE85 & MASK32]
    return c


def draw(seed, stream, index):
    """Return the two 64-bit numbers of a draw (data.h)."""
    words = philox4x32((index & MASK32, index >> 32, stream & MASK32, stream >> 32), (seed & MASK32, seed >> 32))
    return words[1] << 32 | words[0], words[3] << 32 | words[2]


def random_bits(seed, stream, index):
    return draw(seed, stream, index)[0]


def normal(seed, stream, index):
    """Return a normal number, as initial values are drawn (model.h), divided by their deviation."""
    u, v = ((bits >> 11) * 2.0**-53 for bits in draw(seed, stream, index))
    return math.sqrt(-2 * math.log(1 - u)) * math.cos(2 * math.pi * v)


def uniform(seed, name, step, sample, of_sample):
    """Return the numbers of one sample in the order of its elements (tensor.h, ad_array_uniform)."""
    own = random_bits(seed, xxh64(name.encode()), step)
    return [(random_bits(own, sample, e) >> 40) * 2.0**-24 for e in range(of_sample)]


def turned(x, n):
    return (x << n | x >> (64 - n)) & MASK64


def xxh64_round(lane, data):
    return turned(lane + int.from_bytes(data, "little") * P2 & MASK64, 31) * P1 & MASK64


def xxh64(data):
    """XXH64 with seed 0."""
    h, at = P5, 0
    if len(data) >= 32:
        lanes = [P1 + P2 & MASK64, P2, 0, -P1 & MASK64]
        while at + 32 <= len(data):
            lanes = [xxh64_round(lane, data[at + 8 * i:at + 8 * i + 8]) for i, lane in enumerate(lanes)]
            at += 32
        h = sum(turned(lane, n) for lane, n in zip(lanes, (1, 7, 12, 18))) & MASK64
        for lane in lanes:
            h = (h ^ turned(lane * P2 & MASK64, 31) * P1 & MASK64) * P1 + P4 & MASK64
    h = h + len(data) & MASK64
    while at + 8 <= len(data):
        h, at = (turned(h ^ xxh64_round(0, data[at:at + 8]), 27) * P1 + P4) & MASK64, at + 8
    if at + 4 <= len(data):
        h, at = (turned(h ^ int.from_bytes(data[at:at + 4], "little") * P1 & MASK64, 23) * P2 + P3) & MASK64, at + 4
    for byte in data[at:]:
        h = turned(h ^ byte * P5 & MASK64, 11) * P1 & MASK64
    h = (h ^ h >> 33) * P2 & MASK64
    h = (h ^ h >> 29) * P3 & MASK64
    return h ^ h >> 32


def permuted(key, n, x):
    """Return x's place in the permutation of data.h: a generalised Feistel network with cycle walking."""
    a = math.isqrt(n - 1) + 1 if n > 1 else 1
    b = -(-n // a)

    def below(most, turn, of):
        return most * random_bits(key, turn, of) >> 64
    while True:
        left, right = divmod(x, b)
        for turn in range(0, 8, 2):
            left = (left + below(a, turn, right)) % a
            right = (right + below(b, turn + 1, left)) % b
        x = left * b + right
        if x < n:
            return x


def window_of(seed, sample, windows):
    """Return which of the windows of the token files is this sample (data.h)."""
    return permuted(random_bits(seed, xxh64(b"tokens"), sample // windows), windows, sample % windows)


def check_random_numbers():
    """Check published answers: kat_vectors of Random123, and hashes that the xxhash package prints."""
    assert philox4x32((0,) * 4, (0,) * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox4x32((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)) == [
        0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]
    assert xxh64(b"") == 0xEF46DB3751D8E999
    assert xxh64(b"a") == 0xD24EC4F1A98C6E5B
    assert xxh64(b"abc") == 0x44BC2CF5AD770999
    assert xxh64(b"Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1
