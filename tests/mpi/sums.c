/* Runs every collective on every kind of group, with values whose sums depend on the order of addition, in memory of
 * every kind, and prints one hash of all results of all ranks: it must be the same on every backend, wherever ranks are
 * placed. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "addend/addend.h"

enum { CASES = 12, LARGEST = 300001 };

static ad_comm *comm;
static int64_t rank, size;
static uint64_t hash = 1469598103934665603ull, seed = 1;

static void must(ad_status status, int line) {
  if (!status) return;
  fprintf(stderr, "rank %" PRId64 ": sums.c:%d: %s: %s\n", rank, line, ad_status_name(status), ad_last_error());
  exit(1);
}
#define MUST(call) must((call), __LINE__)

static void add_to_hash(const void *bytes, size_t count) {
  const unsigned char *at = bytes;
  for (size_t i = 0; i < count; i++) hash = (hash ^ at[i]) * 1099511628211ull;
}

static uint64_t draw(uint64_t *state) {
  *state = *state * 6364136223846793005ull + 1442695040888963407ull;
  return *state >> 33;
}

// Fills memory with floats of mixed magnitudes, never NaN or infinite.
static void fill(void *memory, ad_dtype dtype, size_t count) {
  uint64_t state = seed * 1000003 + (uint64_t)rank * 7919;
  for (size_t i = 0; i < count; i++) {
    double value = ((double)draw(&state) / (1u << 30) - 1) * (double)(1 << (draw(&state) % 8));
    uint32_t bits;
    float single = (float)value;
    memcpy(&bits, &single, sizeof bits);
    if (dtype == AD_F64) ((double *)memory)[i] = value;
    if (dtype == AD_F32) ((float *)memory)[i] = single;
    if (dtype == AD_BF16) ((uint16_t *)memory)[i] = (uint16_t)(bits >> 16);
    if (dtype == AD_I32) ((int32_t *)memory)[i] = (int32_t)(value * 1000);
    if (dtype == AD_I64) ((int64_t *)memory)[i] = (int64_t)(value * 1000);
  }
  seed++;
}

// Allocates memory: in the backend's memory on some ranks, elsewhere on others.
static void *memory(size_t bytes, int kind) {
  void *out = NULL;
  if (kind == 0 || (kind == 2 && rank % 2)) {
    MUST(ad_comm_alloc(comm, bytes, &out));
  } else {
    out = aligned_alloc(64, bytes / 64 * 64 + 64);
    if (!out) exit(1);
    memset(out, 0, bytes);
  }
  return out;
}

static void release(void *given, int kind) {
  if (kind == 0 || (kind == 2 && rank % 2))
    ad_comm_free(comm, given);
  else
    free(given);
}

static void run(const ad_group *group, ad_collective_op op, ad_dtype dtype, size_t count, int kind, int in_place) {
  size_t members = (size_t)ad_group_size(group), index = (size_t)ad_group_index(group, rank);
  size_t element = ad_dtype_size(dtype), whole = count * members;
  size_t ins = op == AD_REDUCE_SCATTER || op == AD_ALL_TO_ALL ? whole : count;
  size_t outs = op == AD_ALL_GATHER || op == AD_ALL_TO_ALL ? whole : count;
  char *in = memory((ins > outs ? ins : outs) * element, kind), *out = in;
  int apart = !in_place || op == AD_ALL_TO_ALL;
  if (apart) out = memory(outs * element, (kind + 1) % 3);
  char *own = in;
  if (!apart && op == AD_REDUCE_SCATTER) out = in + index * count * element;
  if (!apart && op == AD_ALL_GATHER) own = in + index * count * element;
  fill(own, dtype, ins);
  ad_collective call = {.size = sizeof call,
                        .op = op,
                        .group = *group,
                        .in = own,
                        .out = out,
                        .count = count,
                        .dtype = dtype,
                        .root = (int64_t)members - 1,
                        .site = AD_HERE};
  if (dtype == AD_F32) call.accumulate = AD_F64;
  MUST(ad_comm_run(comm, &call));
  add_to_hash(out, outs * element);
  if (apart) release(out, (kind + 1) % 3);
  release(in, kind);
}

static void run_all(const ad_group *group) {
  static const size_t counts[] = {0, 1, 7, 1000, 5003, 100003};
  static const ad_dtype dtypes[] = {AD_F32, AD_BF16, AD_F64, AD_I32};
  for (ad_collective_op op = AD_ALL_REDUCE; op <= AD_BARRIER; op++)
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
      for (int kind = 0; kind < 3; kind++)
        run(group, op, dtypes[(c + (size_t)op + (size_t)kind) % 4], counts[c], kind, (int)(c + (size_t)kind) % 2);
}

// An all_to_all with unequal blocks: member i sends (i + 2 j) * scale elements to member j.
static void run_counts(const ad_group *group, size_t scale) {
  size_t members = (size_t)ad_group_size(group), index = (size_t)ad_group_index(group, rank), in_count = 0,
         out_count = 0;
  size_t sends[16] = {0}, receives[16] = {0}, blocks[16] = {0}, all = 0;
  for (size_t j = 0; j < members; j++) {
    in_count += sends[j] = (index + 2 * j) * scale;
    out_count += receives[j] = (j + 2 * index) * scale;
    all += blocks[j] = (j * scale) % 4001;
  }
  float *in = memory(in_count * 4 + 4, 1), *out = memory(out_count * 4 + 4, 0), *both = memory(all * 4 + 4, 0);
  fill(in, AD_F32, in_count);
  fill(both, AD_F32, all);
  ad_collective exchange = {.size = sizeof exchange,
                            .op = AD_ALL_TO_ALL,
                            .group = *group,
                            .in = in,
                            .out = out,
                            .counts = sends,
                            .receive_counts = receives,
                            .dtype = AD_F32};
  ad_collective scatter = {
      .size = sizeof scatter, .op = AD_REDUCE_SCATTER, .group = *group, .in = both, .counts = blocks, .dtype = AD_F32};
  float *part = memory(blocks[index] * 4 + 4, 1);
  scatter.out = part;
  MUST(ad_comm_run(comm, &exchange));
  MUST(ad_comm_run(comm, &scatter));
  ad_collective gather = {.size = sizeof gather,
                          .op = AD_ALL_GATHER,
                          .group = *group,
                          .in = part,
                          .out = both,
                          .counts = blocks,
                          .dtype = AD_F32};
  MUST(ad_comm_run(comm, &gather));
  add_to_hash(out, out_count * 4);
  add_to_hash(both, all * 4);
  release(in, 1), release(out, 0), release(both, 0), release(part, 1);
}

// An exchange with two messages to the next member and one to itself.
static void run_exchange(const ad_group *group, size_t count) {
  int64_t members = ad_group_size(group), index = ad_group_index(group, rank);
  float *in = memory(count * 12 + 4, 1), *out = memory(count * 12 + 4, 2);
  fill(in, AD_F32, 3 * count);
  int64_t next = (index + 1) % members, previous = (index + members - 1) % members;
  ad_message messages[] = {{.peer = next, .send = in, .count = count},
                           {.peer = previous, .receive = out, .count = count},
                           {.peer = previous, .receive = out + count, .count = count},
                           {.peer = next, .send = in + count, .count = count}};
  ad_collective call = {.size = sizeof call,
                        .op = AD_EXCHANGE,
                        .group = *group,
                        .messages = messages,
                        .message_count = 4,
                        .dtype = AD_F32};
  MUST(ad_comm_run(comm, &call));
  add_to_hash(out, 2 * count * 4);
  release(in, 1), release(out, 2);
}

// Posts as many calls as may be in flight, on two groups, and waits from the last to the first.
static void run_many(const ad_group *a, const ad_group *b) {
  enum { MANY = 64, COUNT = 3000 };
  ad_request requests[MANY];
  float *values = memory(MANY * COUNT * sizeof *values, 2);
  fill(values, AD_F32, MANY * COUNT);
  for (int i = 0; i < MANY; i++) {
    float *at = values + i * COUNT;
    ad_collective call = {.size = sizeof call,
                          .op = AD_ALL_REDUCE,
                          .group = i % 2 ? *a : *b,
                          .in = at,
                          .out = at,
                          .count = i % 3 ? COUNT : 9,
                          .dtype = AD_F32};
    MUST(ad_comm_post(comm, &call, &requests[i]));
  }
  for (int i = MANY - 1; i >= 0; i--) MUST(ad_comm_wait(comm, &requests[i]));
  add_to_hash(values, MANY * COUNT * sizeof *values);
  release(values, 2);
}

static void run_mesh(const char *text) {
  ad_mesh *mesh;
  MUST(ad_mesh_create(text, &mesh));
  ad_group all = ad_mesh_group(mesh, AD_AXES_ALL, rank), dp = ad_mesh_group(mesh, AD_AXES_DP, rank);
  ad_group tp = ad_mesh_group(mesh, AD_AXES(AD_TP), rank);
  const ad_group *groups[] = {&all, &dp, &tp};
  for (int i = 0; i < 3; i++) {
    run_all(groups[i]);
    for (size_t scale = 1; scale < 10000; scale *= 97) {
      run_counts(groups[i], scale);
      run_exchange(groups[i], scale);
    }
  }
  run_many(&dp, &all);
  run_many(&tp, &dp);
  ad_mesh_destroy(mesh);
}

static uint64_t hash_of_all(void) {
  char text[32];
  ad_mesh *mesh;
  int64_t own = (int64_t)hash, *hashes = calloc((size_t)size, sizeof *hashes);
  snprintf(text, sizeof text, "dp=%" PRId64, size);
  MUST(ad_mesh_create(text, &mesh));
  ad_collective gather = {.size = sizeof gather,
                          .op = AD_ALL_GATHER,
                          .group = ad_mesh_group(mesh, AD_AXES_ALL, rank),
                          .in = &own,
                          .out = hashes,
                          .count = 1,
                          .dtype = AD_I64};
  MUST(ad_comm_run(comm, &gather));
  add_to_hash(hashes, (size_t)size * sizeof *hashes);
  free(hashes);
  ad_mesh_destroy(mesh);
  return hash;
}

int main(void) {
  char text[64];
  MUST(ad_comm_open(&comm));
  rank = ad_comm_rank(comm);
  size = ad_comm_size(comm);
  snprintf(text, sizeof text, "dp=%" PRId64, size);
  run_mesh(text);
  snprintf(text, sizeof text, "dp=%" PRId64 " tp=2", size / 2);
  if (size % 2 == 0) run_mesh(text);
  snprintf(text, sizeof text, "dp=2 tp=%" PRId64, size / 2);
  if (size % 2 == 0) run_mesh(text);
  hash_of_all();
  uint64_t result = hash;
  if (rank == 0) printf("%016" PRIx64 " %s\n", result, ad_comm_backend(comm));
  ad_comm_close(comm);
  return 0;
}
