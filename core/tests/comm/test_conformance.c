/* Runs the conformance suite on every backend and world: one line for each, at the end of the file. Values are small
 * integers, so that every dtype holds the exact sums and every rank can compute what every other sends. */
#include "conformance.h"
#include "tree_order.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "addend/layout.h"
#include "addend/mesh.h"
#include "base/random.h"
#include "kernels/kernels.h"
#include "addend/helpers.h"
#include "comm/hint.h"
#include "comm/shared.h"
#include "kernels/nodes.h"
#include "draw.h"
#include "ranks.h"

enum { MEMBERS_MAX = 16, ALIGNMENT = 64 };

typedef struct suite {
  const conformance *wanted;
  ad_comm *comm;
  ad_mesh *mesh;
  ad_group group;
  int64_t rank;
  size_t members, index;
  ad_dtype dtype;
  size_t element;
} suite;

/* ---- values that every rank can compute for every other ---- */

// Element i of what member k holds, or of what it sends to member j.
static int64_t value(size_t k, size_t i, size_t j) { return (int64_t)((k * 7 + i * 3 + j * 5 + (i >> 4)) & 7); }

static void put(const suite *s, void *memory, size_t i, int64_t number) {
  double wide = (double)number;
  float narrow = (float)number;
  char *to = (char *)memory + i * s->element;
  switch (s->dtype) {
    case AD_I32:
      *(int32_t *)to = (int32_t)number;
      break;
    case AD_I64:
      *(int64_t *)to = number;
      break;
    case AD_F32:
      memcpy(to, &narrow, sizeof narrow);
      break;
    default:
      ad_cast(to, s->dtype, &wide, AD_F64, 1);
  }
}

static int holds(const suite *s, const void *memory, size_t i, int64_t number) {
  char expected[8];
  const char *held = (const char *)memory + i * s->element;
  put(s, expected, 0, number);
  // Most of the suite's time is spent here: with a constant size memcmp is inlined.
  if (s->element == 4) return !memcmp(expected, held, 4);
  return !memcmp(expected, held, s->element);
}

/* ---- buffers: in the backend's memory or elsewhere, always between red zones ---- */

typedef struct buffer {
  void *memory;
  int in_comm;
  size_t bytes;
  char *block;
} buffer;

static buffer take(const suite *s, size_t count, int in_comm) {
  buffer b = {.in_comm = in_comm, .bytes = count * s->element};
  if (in_comm) {
    CHECK_OK(ad_comm_alloc(s->comm, b.bytes + 2 * ALIGNMENT, (void **)&b.block));
    memset(b.block, 0xff, b.bytes + 2 * ALIGNMENT);
    b.memory = b.block + ALIGNMENT;
  } else {
    b.memory = rank_memory(b.bytes);
  }
  return b;
}

static void give(const suite *s, buffer *b) {
  if (!b->in_comm) {
    rank_memory_free(b->memory);
    return;
  }
  for (int i = 0; i < ALIGNMENT; i++)
    CHECK((unsigned char)b->block[i] == 0xff && (unsigned char)b->block[ALIGNMENT + b->bytes + i] == 0xff);
  ad_comm_free(s->comm, b->block);
}

/* ---- one collective ---- */

/* How a case is run: whether input and output lie in comm memory, in place, with uneven blocks (some empty), posted. */
typedef struct variant {
  int in_comm, out_comm, in_place, uneven, posted;
} variant;

static size_t block_count(const suite *s, const variant *v, size_t n, size_t i, size_t j) {
  if (!v->uneven) return n;
  return (i + 2 * j) % 3 ? n + i * 3 + j : 0;
}

static void run(const suite *s, const variant *v, const ad_collective *call) {
  ad_request request;
  if (!v->posted) {
    CHECK_OK(ad_comm_run(s->comm, call));
    return;
  }
  // Ranks may differ in whether they write past the caches.
  CHECK_OK(ad_comm_post_hinted(s->comm, call, (call->count + s->index) % 3 == 0, &request));
  for (int done = 0; !done;) CHECK_OK(ad_comm_test(s->comm, &request, &done));
  CHECK_OK(ad_comm_wait(s->comm, &request));
}

static ad_collective collective(const suite *s, ad_collective_op op, size_t count) {
  return (ad_collective){
      .size = sizeof(ad_collective), .op = op, .group = s->group, .count = count, .dtype = s->dtype, .site = AD_HERE};
}

static int64_t reduced(const suite *s, ad_reduction reduction, size_t i) {
  int64_t result = value(0, i, 0);
  for (size_t k = 1; k < s->members; k++) {
    int64_t next = value(k, i, 0);
    if (reduction == AD_SUM) result += next;
    if (reduction == AD_MAX && next > result) result = next;
    if (reduction == AD_MIN && next < result) result = next;
  }
  return result;
}

static void all_reduce(const suite *s, const variant *v, size_t n, ad_reduction reduction) {
  buffer out = take(s, n, v->out_comm), in = v->in_place ? out : take(s, n, v->in_comm);
  for (size_t i = 0; i < n; i++) put(s, in.memory, i, value(s->index, i, 0));
  ad_collective call = collective(s, AD_ALL_REDUCE, n);
  call.in = in.memory;
  call.out = out.memory;
  call.reduction = reduction;
  run(s, v, &call);
  for (size_t i = 0; i < n; i++) CHECK(holds(s, out.memory, i, reduced(s, reduction, i)));
  for (size_t i = 0; i < n && !v->in_place; i++) CHECK(holds(s, in.memory, i, value(s->index, i, 0)));
  give(s, &out);
  if (!v->in_place) give(s, &in);
}

static void broadcast(const suite *s, const variant *v, size_t n, size_t root) {
  buffer out = take(s, n, v->out_comm), in = v->in_place ? out : take(s, n, v->in_comm);
  for (size_t i = 0; i < n && s->index == root; i++) put(s, in.memory, i, value(root, i, 0));
  ad_collective call = collective(s, AD_BROADCAST, n);
  call.in = s->index == root ? in.memory : NULL;
  call.out = out.memory;
  call.root = (int64_t)root;
  run(s, v, &call);
  for (size_t i = 0; i < n; i++) CHECK(holds(s, out.memory, i, value(root, i, 0)));
  give(s, &out);
  if (!v->in_place) give(s, &in);
}

// Gets the blocks' counts, which all members know, and the start of this member's block.
static size_t blocks(const suite *s, const variant *v, size_t n, size_t counts[MEMBERS_MAX], size_t *own) {
  size_t total = 0;
  for (size_t i = 0; i < s->members; i++) {
    if (i == s->index) *own = total;
    total += counts[i] = block_count(s, v, n, i, 0);
  }
  return total;
}

static void reduce_scatter(const suite *s, const variant *v, size_t n) {
  size_t counts[MEMBERS_MAX], own = 0, total = blocks(s, v, n, counts, &own), count = counts[s->index];
  buffer in = take(s, total, v->in_comm), out = v->in_place ? in : take(s, count, v->out_comm);
  for (size_t i = 0; i < total; i++) put(s, in.memory, i, value(s->index, i, 0));
  ad_collective call = collective(s, AD_REDUCE_SCATTER, n);
  call.in = in.memory;
  call.out = v->in_place ? (char *)in.memory + own * s->element : out.memory;
  if (v->uneven) call.counts = counts;
  run(s, v, &call);
  for (size_t i = 0; i < count; i++) CHECK(holds(s, call.out, i, reduced(s, AD_SUM, own + i)));
  give(s, &in);
  if (!v->in_place) give(s, &out);
}

static void all_gather(const suite *s, const variant *v, size_t n) {
  size_t counts[MEMBERS_MAX], own = 0, total = blocks(s, v, n, counts, &own), count = counts[s->index];
  buffer out = take(s, total, v->out_comm), in = v->in_place ? out : take(s, count, v->in_comm);
  ad_collective call = collective(s, AD_ALL_GATHER, n);
  void *block = v->in_place ? (char *)out.memory + own * s->element : in.memory;
  for (size_t i = 0; i < count; i++) put(s, block, i, value(s->index, i, 0));
  call.in = block;
  call.out = out.memory;
  if (v->uneven) call.counts = counts;
  run(s, v, &call);
  for (size_t k = 0, at = 0; k < s->members; k++)
    for (size_t i = 0; i < counts[k]; i++) CHECK(holds(s, out.memory, at++, value(k, i, 0)));
  give(s, &out);
  if (!v->in_place) give(s, &in);
}

static void all_to_all(const suite *s, const variant *v, size_t n) {
  size_t sends[MEMBERS_MAX] = {0}, receives[MEMBERS_MAX] = {0}, sent = 0, received = 0;
  for (size_t k = 0; k < s->members; k++) {
    sent += sends[k] = block_count(s, v, n, s->index, k);
    received += receives[k] = block_count(s, v, n, k, s->index);
  }
  buffer in = take(s, sent, v->in_comm), out = take(s, received, v->out_comm);
  for (size_t k = 0, at = 0; k < s->members; k++)
    for (size_t i = 0; i < sends[k]; i++) put(s, in.memory, at++, value(s->index, i, k));
  ad_collective call = collective(s, AD_ALL_TO_ALL, n);
  call.in = in.memory;
  call.out = out.memory;
  if (v->uneven) call.counts = sends, call.receive_counts = receives;
  run(s, v, &call);
  for (size_t k = 0, at = 0; k < s->members; k++)
    for (size_t i = 0; i < receives[k]; i++) CHECK(holds(s, out.memory, at++, value(k, i, s->index)));
  give(s, &in);
  give(s, &out);
}

// Sends two messages to the next member, of n and n / 2 + 1 elements; an uneven exchange leaves the last member out.
static void exchange(const suite *s, const variant *v, size_t n) {
  size_t taking_part = v->uneven ? s->members - 1 : s->members, counts[2] = {n, n / 2 + 1};
  ad_collective call = collective(s, AD_EXCHANGE, 0);
  if (s->index >= taking_part) {
    run(s, v, &call);
    return;
  }
  size_t next = (s->index + 1) % taking_part, previous = (s->index + taking_part - 1) % taking_part;
  buffer in[2], out[2];
  ad_message messages[4];
  for (size_t m = 0; m < 2; m++) {
    in[m] = take(s, counts[m], v->in_comm);
    out[m] = take(s, counts[m], v->out_comm);
    for (size_t i = 0; i < counts[m]; i++) put(s, in[m].memory, i, value(s->index, i, m));
    messages[m] = (ad_message){.peer = (int64_t)next, .send = in[m].memory, .count = counts[m]};
    messages[2 + m] = (ad_message){.peer = (int64_t)previous, .receive = out[m].memory, .count = counts[m]};
  }
  call.messages = messages;
  call.message_count = 4;
  run(s, v, &call);
  for (size_t m = 0; m < 2; m++) {
    for (size_t i = 0; i < counts[m]; i++) CHECK(holds(s, out[m].memory, i, value(previous, i, m)));
    give(s, &in[m]);
    give(s, &out[m]);
  }
}

enum { TURNS = 2 };

// Sends TURNS messages to each member and to itself, with sends and receives mixed and the last members first; each
// pair's messages lie one after another in two buffers.
static void exchange_among_all(const suite *s, const variant *v, size_t n) {
  size_t sent = 0, received = 0, count = 2 * TURNS * s->members;
  ad_message messages[2 * TURNS * MEMBERS_MAX];
  for (size_t k = 0; k < s->members; k++) sent += TURNS * block_count(s, v, n, s->index, k);
  for (size_t k = 0; k < s->members; k++) received += TURNS * block_count(s, v, n, k, s->index);
  buffer in = take(s, sent, v->in_comm), out = take(s, received, v->out_comm);
  char *from = in.memory, *to = out.memory;
  for (size_t i = 0, send = 0, receive = 0; i < TURNS * s->members; i++) {
    size_t k = s->members - 1 - i % s->members, turn = i / s->members;
    size_t gives = block_count(s, v, n, s->index, k), takes = block_count(s, v, n, k, s->index);
    messages[2 * i] = (ad_message){.peer = (int64_t)k, .receive = to + receive * s->element, .count = takes};
    messages[2 * i + 1] = (ad_message){.peer = (int64_t)k, .send = from + send * s->element, .count = gives};
    for (size_t e = 0; e < gives; e++) put(s, from, send++, value(s->index, e, k + turn));
    receive += takes;
  }
  ad_collective call = collective(s, AD_EXCHANGE, 0);
  call.messages = messages;
  call.message_count = count;
  run(s, v, &call);
  for (size_t i = 0, at = 0; i < TURNS * s->members; i++) {
    size_t k = s->members - 1 - i % s->members, turn = i / s->members;
    for (size_t e = 0; e < block_count(s, v, n, k, s->index); e++)
      CHECK(holds(s, to, at++, value(k, e, s->index + turn)));
  }
  give(s, &in);
  give(s, &out);
}

/* ---- all cases of a world ---- */

// Number `c` of the ways to place memory; in the last ways members differ.
static variant placed(const suite *s, int c) {
  variant v = {
      .in_comm = c & 1, .out_comm = c >> 1 & 1, .in_place = c >> 2 & 1, .uneven = c >> 3 & 1, .posted = c % 3 == 1};
  if (c == 7 || c == 15) v.in_comm = v.out_comm = s->index % 2, v.in_place = s->index % 3 == 0;
  if (v.in_place) v.in_comm = v.out_comm;
  return v;
}

static void every_operation(const suite *s, const variant *v, size_t n) {
  if (!v->uneven)
    for (ad_reduction r = AD_SUM; r <= (n < 2000 ? AD_MIN : AD_SUM); r++) all_reduce(s, v, n, r);
  if (!v->uneven)
    for (size_t root = 0; root < s->members; root += s->members / 2 + 1) broadcast(s, v, n, root);
  reduce_scatter(s, v, n);
  all_gather(s, v, n);
  all_to_all(s, v, n);
  if (s->members > 1) exchange(s, v, n);
  exchange_among_all(s, v, n);
  ad_collective barrier = collective(s, AD_BARRIER, 0);
  run(s, v, &barrier);
}

static void set_dtype(suite *s, ad_dtype dtype) {
  s->dtype = dtype;
  s->element = ad_dtype_size(dtype);
}

static void every_size(suite *s) {
  // Sizes: empty, one, odd; near the size of a slot, of a chunk, of a staging buffer.
  static const size_t sizes[] = {0, 1, 17, 130, 1025, 9001, 70001};
  for (ad_dtype dtype = AD_F64; dtype <= AD_I64; dtype++) {
    set_dtype(s, dtype);
    // All ways to place memory in f32; in each other dtype, some ways for each size.
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      int step = dtype == AD_F32 ? sizes[i] < 2000 ? 1 : 3 : 7;
      if (sizes[i] > 9001 && dtype != AD_F32) continue;
      for (int c = (int)(i + dtype) % step; c < 16; c += step) {
        variant v = placed(s, c);
        every_operation(s, &v, sizes[i]);
      }
    }
  }
}

static void large_sizes(suite *s) {
  set_dtype(s, AD_F32);
  for (size_t bytes = 4 << 20; bytes <= s->wanted->bytes_max; bytes *= 4)
    for (int c = 0; c < 3; c++) {
      variant v = placed(s, (int[]){0, 4, 5}[c]);
      all_reduce(s, &v, bytes / s->element + 1, AD_SUM);
      all_gather(s, &v, bytes / s->element / s->members + 1);
    }
}

/* ---- many calls in flight ---- */

enum { REQUESTS = 100 };  // more than may be in flight: a post then waits for the oldest call

// Posts sums of many sizes, then waits for them in another order.
static void many_requests(suite *s) {
  ad_request requests[REQUESTS];
  buffer buffers[REQUESTS];
  set_dtype(s, AD_F32);
  for (size_t r = 0; r < REQUESTS; r++) {
    size_t n = r * r;
    buffers[r] = take(s, n, (r + s->index) % 3 != 0);
    for (size_t i = 0; i < n; i++) put(s, buffers[r].memory, i, value(s->index, i + r, 0));
    ad_collective call = collective(s, AD_ALL_REDUCE, n);
    call.in = call.out = buffers[r].memory;
    CHECK_OK(ad_comm_post(s->comm, &call, &requests[r]));
  }
  for (size_t k = 0; k < REQUESTS; k++) {
    size_t r = (k * 37 + s->index * 11) % REQUESTS;
    CHECK_OK(ad_comm_wait(s->comm, &requests[r]));
    CHECK(requests[r].id == 0);
    for (size_t i = 0; i < r * r; i++) CHECK(holds(s, buffers[r].memory, i, reduced(s, AD_SUM, i + r)));
    give(s, &buffers[r]);
  }
}

/* ---- bits: sums of numbers whose sum is not exact ---- */

enum { NOISE_MEMBERS = 9, NOISE = 100003 };

// Filled before the ranks are started, which inherit it.
static double noise[NOISE_MEMBERS][NOISE];

static void make_noise(void) {
  for (size_t k = 0; k < NOISE_MEMBERS; k++)
    for (size_t i = 0; i < NOISE; i++) noise[k][i] = ad_random_normal(3, k, i) * (i % 7 ? 1 : 1e3);
}

typedef struct addends {
  const float *of_members;  // [members][n]
  size_t n, i;
} addends;

static double addend_of(const void *context, size_t k) {
  const addends *a = context;
  return a->of_members[k * a->n + a->i];
}

static double add_in_f32(const void *context, double a, double b) { return (float)(a + b); }

// The sum in the order of law 10, in f32, which every path must give on every member. `terms` has space for n floats of
// each member, `sums` for n.
static void sum_in_order(const suite *s, size_t n, void *narrow, float *terms, float *sums) {
  for (size_t k = 0; k < s->members; k++) {
    ad_cast(narrow, s->dtype, noise[k], AD_F64, n);
    ad_cast(terms + k * n, AD_F32, narrow, s->dtype, n);
  }
  for (size_t i = 0; i < n; i++)
    sums[i] = (float)in_tree_order(&(addends){terms, n, i}, addend_of, add_in_f32, 0, s->members);
  ad_cast(narrow, s->dtype, sums, AD_F32, n);
}

static void same_bits_by(const suite *s, const variant *v, size_t n, const char *expected) {
  buffer out = take(s, n, v->out_comm), in = v->in_place ? out : take(s, n, v->in_comm);
  ad_cast(in.memory, s->dtype, noise[s->index], AD_F64, n);
  ad_collective call = collective(s, AD_ALL_REDUCE, n);
  call.in = in.memory;
  call.out = out.memory;
  run(s, v, &call);
  CHECK(!memcmp(out.memory, expected, n * s->element));
  give(s, &out);
  if (!v->in_place) give(s, &in);
}

static void same_bits(suite *s) {
  static const ad_dtype dtypes[] = {AD_F32, AD_BF16, AD_F16};
  static const size_t sizes[] = {5, 300, 4097, NOISE};
  CHECK(s->members <= NOISE_MEMBERS);
  for (int d = 0; d < 3; d++) {
    for (int z = 0; z < 4; z++) {
      size_t n = sizes[z];
      set_dtype(s, dtypes[d]);
      char *expected = malloc(n * s->element);
      float *terms = malloc(s->members * n * sizeof *terms), *sums = malloc(n * sizeof *sums);
      CHECK(expected && terms && sums);
      sum_in_order(s, n, expected, terms, sums);
      for (int c = 0; c < 8; c++) {
        variant v = placed(s, c);
        same_bits_by(s, &v, n, expected);
      }
      free(expected);
      free(terms);
      free(sums);
    }
  }
}

/* ---- sums of leaves: the same bits however the leaves are divided among members ---- */

enum { LEAVES_MAX = 21, SUMS_MAX = 10 }; /* most leaves, and most nodes of a range of them */

/* Divides the leaves [first, end) among members, differently for each `number`; some members may get no leaf. */
static void divide_leaves(const suite *s, int64_t first, int64_t end, uint64_t number, int64_t *starts) {
  starts[0] = first;
  for (size_t i = 0; i < s->members; i++) {
    int64_t left = end - starts[i], even = left / (int64_t)(s->members - i);
    int64_t drawn = ad_random_below(number, i, 0, (number % 4 ? 2 * even : left) + 1);
    starts[i + 1] = starts[i] + (number % 5 ? drawn : even);
    if (starts[i + 1] > end || i + 1 == s->members) starts[i + 1] = end;
  }
}

/* Writes the sums of the nodes of leaves [first, end), one after another, and returns their number. */
static size_t sum_nodes(int64_t first, int64_t end, int64_t leaves, size_t n, float *sums) {
  static float of_leaves[LEAVES_MAX * NOISE];
  ad_node nodes[AD_NODES_MAX];
  size_t count = ad_nodes_of(first, end - first, leaves, nodes);
  for (size_t leaf = (size_t)first; leaf < (size_t)end; leaf++)
    for (size_t i = 0; i < n; i++)
      of_leaves[leaf * n + i] = (float)noise[leaf % NOISE_MEMBERS][(i + 97 * leaf) % NOISE];
  for (size_t k = 0; k < count; k++)
    for (size_t i = 0; i < n; i++)
      sums[k * n + i] = (float)in_node_order(&(addends){of_leaves, n, i}, addend_of, add_in_f32, (size_t)nodes[k].first,
                                             (size_t)(nodes[k].first + nodes[k].count));
  return count;
}

/* Which part of a sum of leaves each member gets: all elements, its block, or its rows of two segments. */
typedef enum scattering { WHOLE, BLOCKS, SEGMENTS, SCATTERINGS } scattering;

/* This member's part of a result: two runs of its elements. */
typedef struct own_part {
  ad_span runs[2];
  size_t size;
} own_part;

static own_part part_of(const suite *s, size_t n, scattering how) {
  int64_t count = (int64_t)n, half = how == SEGMENTS ? count / 2 : count, i = (int64_t)s->index,
          g = (int64_t)s->members;
  own_part part = {.runs = {ad_cut(half, i, g), ad_cut(count - half, i, g)}, .size = n};
  if (how == WHOLE) part.runs[0] = (ad_span){0, count};
  part.runs[1].first += half;
  part.size = (size_t)(part.runs[0].count + part.runs[1].count);
  return part;
}

static int is_part(const own_part *part, const float *found, const float *whole) {
  size_t first = (size_t)part->runs[0].count;
  return !memcmp(found, whole + part->runs[0].first, first * sizeof *found) &&
         !memcmp(found + first, whole + part->runs[1].first, (part->size - first) * sizeof *found);
}

/* Returns 1 if each member's leaves are one node and all leaves together are one node: then buffers may be in any
 * memory. */
static int are_even(const suite *s, const ad_leaf_ranges *ranges) {
  ad_node nodes[AD_NODES_MAX];
  const int64_t *starts = ranges->starts;
  int even = ad_nodes_of(starts[0], starts[s->members] - starts[0], ranges->leaves, nodes) == 1;
  for (size_t i = 0; i < s->members; i++)
    even &= ad_nodes_of(starts[i], starts[i + 1] - starts[i], ranges->leaves, nodes) == 1;
  return even;
}

/* Runs one sum of leaves, in which member i has the leaves [starts[i], starts[i + 1]). */
static void sum_leaves(const suite *s, const variant *v, const ad_leaf_ranges *ranges, size_t n, scattering how) {
  size_t counts[MEMBERS_MAX];
  const int64_t *starts = ranges->starts;
  ad_segment segments[] = {{(int64_t)(n / 2), 1}, {(int64_t)(n - n / 2), 1}};
  own_part part = part_of(s, n, how);
  for (size_t i = 0; i < s->members; i++) counts[i] = (size_t)ad_cut((int64_t)n, (int64_t)i, (int64_t)s->members).count;
  float *expected = malloc(SUMS_MAX * n * sizeof *expected), *own = malloc(SUMS_MAX * n * sizeof *own);
  CHECK(expected && own);
  size_t given = sum_nodes(starts[s->index], starts[s->index + 1], ranges->leaves, n, own);
  size_t results = sum_nodes(starts[0], starts[s->members], ranges->leaves, n, expected);
  int in_place = v->in_place && results == 1 && given && how == WHOLE, even = are_even(s, ranges);
  buffer in = take(s, given * n, !even || v->in_comm), out = take(s, results * part.size, !even || v->out_comm);
  memcpy(in.memory, own, given * n * sizeof *own);
  ad_collective call = collective(s, how == WHOLE ? AD_ALL_REDUCE : AD_REDUCE_SCATTER, n);
  call.in = in.memory;
  call.out = in_place ? in.memory : out.memory;
  call.ranges = ranges;
  if (how == BLOCKS) call.counts = counts;
  call.adds = how == BLOCKS && results == 1;
  for (size_t i = 0; call.adds && i < part.size; i++) {
    float *sum = &expected[(size_t)part.runs[0].first + i];
    ((float *)out.memory)[i] = (float)noise[0][i];
    *sum = (float)noise[0][i] + *sum;
  }
  if (how == SEGMENTS) call.segments = segments, call.segment_count = 2;
  run(s, v, &call);
  for (size_t r = 0; r < results; r++) CHECK(is_part(&part, (const float *)call.out + r * part.size, expected + r * n));
  give(s, &in);
  give(s, &out);
  free(expected);
  free(own);
}

static void sums_by_nodes(suite *s) {
  static const size_t sizes[] = {1, 50, 5000, NOISE};
  int64_t starts[MEMBERS_MAX + 1];
  set_dtype(s, AD_F32);
  for (uint64_t number = 0; number < 36; number++) {
    int64_t leaves = 1 + ad_random_below(number, 1, 1, LEAVES_MAX);
    int64_t first = number % 3 ? 0 : ad_random_below(number, 1, 2, leaves);
    int64_t end = number % 3 == 2 ? first + 1 + ad_random_below(number, 1, 3, leaves - first) : leaves;
    size_t n = sizes[number / 2 % 4];
    variant v = placed(s, (int)(number % 8));
    divide_leaves(s, first, end, number, starts);
    if (n == NOISE && !s->wanted->bytes_max) n /= 10;
    sum_leaves(s, &v, &(ad_leaf_ranges){leaves, starts}, n, (scattering)(number / 8 % SCATTERINGS));
  }
}

/* ---- running the suite in one world ---- */

static ad_axes axes_of(const conformance *wanted) {
  ad_axes axes = AD_AXES_ALL;
  if (wanted->axes) CHECK_OK(ad_axes_parse(wanted->axes, &axes));
  return axes;
}

static int run_suite(ad_comm *comm, void *context) {
  suite s = {.wanted = context, .comm = comm, .rank = ad_comm_rank(comm)};
  char mesh[64];
  snprintf(mesh, sizeof mesh, "dp=%d", (int)ad_comm_size(comm));
  CHECK_OK(ad_mesh_create(s.wanted->mesh ? s.wanted->mesh : mesh, &s.mesh));
  s.group = ad_mesh_group(s.mesh, axes_of(s.wanted), s.rank);
  s.members = (size_t)ad_group_size(&s.group);
  s.index = (size_t)ad_group_index(&s.group, s.rank);
  static void (*const parts[])(suite *) = {every_size, large_sizes, many_requests, same_bits, sums_by_nodes};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    alarm(RANK_HANGS);  // a rank that waits for what never comes ends the world by its death
    parts[i](&s);
  }
  alarm(0);
  ad_mesh_destroy(s.mesh);
  return 0;
}

void conforms(const conformance *wanted) {
  if (wanted->hostile) setenv("ADDEND_HOSTILE", wanted->hostile, 1);
  if (wanted->staged) setenv("ADDEND_STAGING", "1", 1);
  run_ranks(wanted->ranks, run_suite, (void *)wanted);
  unsetenv("ADDEND_HOSTILE");
  unsetenv("ADDEND_STAGING");
}

/* ---- backends and worlds ---- */

#define CONFORMS(name, ...) \
  static void name(void **state) { conforms(&(conformance){__VA_ARGS__}); }

CONFORMS(shm_conforms_on_one_rank, .ranks = 1, .bytes_max = 64 << 20)
CONFORMS(shm_conforms_on_two_ranks, .ranks = 2, .bytes_max = 64 << 20)
CONFORMS(shm_conforms_on_three_ranks, .ranks = 3, .bytes_max = 16 << 20)
CONFORMS(shm_conforms_on_five_ranks, .ranks = 5)
CONFORMS(shm_conforms_on_eight_ranks, .ranks = 8)
CONFORMS(shm_conforms_on_groups_with_strides, .ranks = 6, .mesh = "dp_replicate=3 dp_shard=1 tp=2",
         .axes = "dp_replicate")
CONFORMS(shm_conforms_on_outer_and_inner_axes, .ranks = 8, .mesh = "dp_replicate=2 cp=2 tp=2",
         .axes = "dp_replicate tp")
CONFORMS(shm_conforms_by_staging_on_two_ranks, .staged = 1, .ranks = 2, .bytes_max = 16 << 20)
CONFORMS(shm_conforms_by_staging_on_five_ranks, .staged = 1, .ranks = 5)
CONFORMS(hostile_conforms_on_one_rank, .hostile = "1", .ranks = 1)
CONFORMS(hostile_conforms_on_two_ranks, .hostile = "2", .ranks = 2, .bytes_max = 4 << 20)
CONFORMS(hostile_conforms_on_three_ranks, .hostile = "3", .ranks = 3)
CONFORMS(hostile_conforms_on_five_ranks, .hostile = "5", .ranks = 5)

/* Runs most worlds on backend shm; under an MPI launcher, which starts this program for each world, only a few. */
static int run_worlds(const struct CMUnitTest *worlds, int count, int always) {
  struct CMUnitTest taken[32];
  size_t n = 0;
  char what[256];
  const char *launcher = getenv("ADDEND_TEST_MPIRUN"), *nodes = getenv("ADDEND_TEST_NODES");
  snprintf(what, sizeof what, "worlds of %s, nodes: %s", launcher ? launcher : "shm", nodes ? nodes : "1");
  draw d = draw_cases(what, count, always, launcher ? always + 2 : always + 5);
  for (int i = 0; i < count; i++)
    if (is_drawn(&d, i)) taken[n++] = worlds[i];
  return _cmocka_run_group_tests("worlds", taken, n, NULL, NULL);
}

int main(int argc, char **argv) {
  const struct CMUnitTest worlds[] = {
      cmocka_unit_test(shm_conforms_on_three_ranks),  // the worlds up to here always run
      cmocka_unit_test(hostile_conforms_on_two_ranks),
      cmocka_unit_test(shm_conforms_on_one_rank),
      cmocka_unit_test(shm_conforms_on_two_ranks),
      cmocka_unit_test(shm_conforms_on_five_ranks),
      cmocka_unit_test(shm_conforms_on_eight_ranks),
      cmocka_unit_test(shm_conforms_on_groups_with_strides),
      cmocka_unit_test(shm_conforms_on_outer_and_inner_axes),
      cmocka_unit_test(shm_conforms_by_staging_on_two_ranks),
      cmocka_unit_test(shm_conforms_by_staging_on_five_ranks),
      cmocka_unit_test(hostile_conforms_on_one_rank),
      cmocka_unit_test(hostile_conforms_on_three_ranks),
      cmocka_unit_test(hostile_conforms_on_five_ranks),
  };
  make_noise();
  if (argc > 1) {  // an argument names the one world to run
    cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(worlds, NULL, NULL);
  }
  return run_worlds(worlds, sizeof worlds / sizeof *worlds, 2);
}
