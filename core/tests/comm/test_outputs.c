/* Tests how a reduction writes its result: in another dtype, scaled, added to the old value, sharded by rows of several
 * segments. Every kind of memory and size takes another path through the backend; all must give the bits of one plain
 * computation. Also tests memory that ranks share. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "addend/layout.h"
#include "kernels/kernels.h"
#include "addend/helpers.h"
#include "ranks.h"
#include "says.h"
#include "comm/shared.h"

enum { MEMBERS_MAX = 5, OUTPUT = MEMBERS_MAX, SEGMENTS = 6, COUNT_MAX = 220000 };

typedef struct world {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_group group;
  uint32_t members, index;
} world;

static world open_world(ad_comm *comm) {
  char text[32];
  world w = {.comm = comm, .members = (uint32_t)ad_comm_size(comm), .index = (uint32_t)ad_comm_rank(comm)};
  snprintf(text, sizeof text, "dp_shard=%u", w.members);
  CHECK_OK(ad_mesh_create(text, &w.mesh));
  w.group = ad_mesh_group(w.mesh, AD_AXES_ALL, w.index);
  return w;
}

/* Segments with uneven parts, with fewer rows than ranks, empty, and of one element. */
static size_t make_segments(size_t unit, ad_segment segments[SEGMENTS]) {
  const ad_segment made[SEGMENTS] = {{7, unit}, {1, 3 * unit}, {0, 5}, {12, 1}, {3, unit}, {5, 2 * unit}};
  size_t count = 0;
  memcpy(segments, made, sizeof made);
  for (int s = 0; s < SEGMENTS; s++) count += (size_t)made[s].rows * made[s].row;
  return count;
}

/* What each member holds, and the old values of the output: filled before the ranks are started, which inherit it. */
static double numbers[MEMBERS_MAX + 1][COUNT_MAX];

static int make_numbers(void **state) {
  for (uint32_t k = 0; k <= OUTPUT; k++)
    for (size_t i = 0; i < COUNT_MAX; i++) numbers[k][i] = ad_random_uniform(5, k, i) - 0.4;
  return 0;
}

static void fill(void *memory, ad_dtype dtype, uint32_t member, size_t count, double most) {
  double *scaled = malloc((count + 1) * sizeof *scaled);
  CHECK(scaled && count <= COUNT_MAX);
  for (size_t i = 0; i < count; i++) scaled[i] = numbers[member][i] * most;
  ad_cast(memory, dtype, scaled, AD_F64, count);
  free(scaled);
}

typedef struct buffer {
  void *memory;
  int in_comm;
} buffer;

static buffer take(const world *w, size_t bytes, int in_comm) {
  buffer b = {.in_comm = in_comm};
  if (in_comm)
    CHECK_OK(ad_comm_alloc(w->comm, bytes, &b.memory));
  else
    b.memory = rank_memory(bytes);
  return b;
}

static void give(const world *w, buffer b) {
  if (b.in_comm)
    ad_comm_free(w->comm, b.memory);
  else
    rank_memory_free(b.memory);
}

/* The sum of all members, computed on one rank with one kernel. */
static void sum_alone(const world *w, const ad_collective *call, size_t count, double most, void *out) {
  void *sources[MEMBERS_MAX];
  size_t element = ad_dtype_size(call->dtype);
  for (uint32_t k = 0; k < w->members; k++) {
    sources[k] = calloc(count + 1, element);
    fill(sources[k], call->dtype, k, count, most);
  }
  ad_reducing how = {.dtype = call->dtype,
                     .accumulate = call->accumulate,
                     .out_dtype = call->out_dtype,
                     .shift = call->in_scale - call->out_scale,
                     .adds = call->adds};
  ad_reduce(&out, 1, (const void *const *)sources, w->members, &how, count);
  for (uint32_t k = 0; k < w->members; k++) free(sources[k]);
}

/* Copies the rows of every segment that `member` holds, one after another. */
static size_t own_rows(const ad_segment *segments, uint32_t member, uint32_t members, const char *whole, size_t element,
                       char *out) {
  size_t start = 0, count = 0;
  for (int s = 0; s < SEGMENTS; s++) {
    ad_span span = ad_cut(segments[s].rows, member, members);
    size_t row = segments[s].row;
    if (out)
      memcpy(out + count * element, whole + (start + (size_t)span.first * row) * element,
             (size_t)span.count * row * element);
    start += (size_t)segments[s].rows * row;
    count += (size_t)span.count * row;
  }
  return count;
}

static void check_reduction(const world *w, ad_collective *call, size_t unit, int in_comm, int out_comm) {
  ad_segment segments[SEGMENTS];
  const double most = call->dtype == AD_F16 ? 1000 : 3;
  size_t count = make_segments(unit, segments), element = ad_dtype_size(call->out_dtype);
  int scatters = call->op == AD_REDUCE_SCATTER;
  size_t out_count = scatters ? own_rows(segments, w->index, w->members, NULL, element, NULL) : count;
  buffer in = take(w, count * ad_dtype_size(call->dtype), in_comm), out = take(w, out_count * element, out_comm);
  char *whole = calloc(count + 1, element), *expected = calloc(out_count + 1, element);
  fill(in.memory, call->dtype, w->index, count, most);
  fill(whole, call->out_dtype, OUTPUT, count, most);
  own_rows(segments, w->index, w->members, whole, element, scatters ? expected : NULL);
  memcpy(out.memory, expected, out_count * element);
  sum_alone(w, call, count, most, whole);
  if (scatters)
    own_rows(segments, w->index, w->members, whole, element, expected);
  else
    memcpy(expected, whole, count * element);
  call->group = w->group;
  call->in = in.memory;
  call->out = out.memory;
  call->count = count;
  call->segments = scatters ? segments : NULL;
  call->segment_count = scatters ? SEGMENTS : 0;
  call->site = AD_HERE;
  CHECK_OK(ad_comm_run(w->comm, call));
  CHECK(!memcmp(out.memory, expected, out_count * element));
  free(whole);
  free(expected);
  give(w, in);
  give(w, out);
}

static int reduce_everything(ad_comm *comm, void *context) {
  world w = open_world(comm);
  static const ad_dtype floats[] = {AD_F64, AD_F32, AD_BF16, AD_F16};
  static const size_t units[] = {1, 40, 9000};
  for (int k = 0, turn = 0; k < 64; k++) {
    ad_dtype dtype = floats[k % 4], out = floats[k / 4 % 4], sum = k & 16 || dtype == AD_F64 ? AD_F64 : AD_F32;
    // the largest size takes long, so it is tried in one case of three
    for (int u = 0; u < (k % 3 ? 2 : 3); u++, turn++) {
      ad_collective call = {
          .size = sizeof call, .op = k & 32 ? AD_ALL_REDUCE : AD_REDUCE_SCATTER, .dtype = dtype, .accumulate = sum};
      call.out_dtype = out;
      call.in_scale = turn % 3;
      call.out_scale = turn % 5 - 1;
      call.adds = !(k & 32) && out == sum && turn % 2;
      // Ranks differ in where their memory lies, too.
      check_reduction(&w, &call, units[u], (turn + (int)w.index * (turn % 4 == 3)) & 1, turn & 2);
    }
  }
  ad_mesh_destroy(w.mesh);
  return 0;
}

static void sums_are_written_identically_on_every_way(void **state) {
  for (int64_t ranks = 1; ranks <= MEMBERS_MAX; ranks += ranks == 3 ? 2 : 1) run_ranks(ranks, reduce_everything, NULL);
  setenv("ADDEND_HOSTILE", "9", 1);
  run_ranks(3, reduce_everything, NULL);
  unsetenv("ADDEND_HOSTILE");
}

static int gather_segments(ad_comm *comm, void *context) {
  world w = open_world(comm);
  static const size_t units[] = {1, 40, 9000};
  for (int turn = 0; turn < 12; turn++) {
    ad_segment segments[SEGMENTS];
    size_t count = make_segments(units[turn / 4], segments);
    size_t own = own_rows(segments, w.index, w.members, NULL, 4, NULL);
    buffer in = take(&w, own * 4, turn & 1), out = take(&w, count * 4, turn & 2);
    char *whole = calloc(count + 1, 4);
    fill(whole, AD_F32, 3, count, 9);
    own_rows(segments, w.index, w.members, whole, 4, in.memory);
    ad_collective call = {.size = sizeof call,
                          .op = AD_ALL_GATHER,
                          .group = w.group,
                          .in = in.memory,
                          .out = out.memory,
                          .dtype = AD_F32};
    call.segments = segments;
    call.segment_count = SEGMENTS;
    call.site = AD_HERE;
    CHECK_OK(ad_comm_run(comm, &call));
    CHECK(!memcmp(out.memory, whole, count * 4));
    free(whole);
    give(&w, in);
    give(&w, out);
  }
  ad_mesh_destroy(w.mesh);
  return 0;
}

static void rows_of_segments_are_gathered_to_their_places(void **state) {
  for (int64_t ranks = 1; ranks <= MEMBERS_MAX; ranks += ranks == 3 ? 2 : 1) run_ranks(ranks, gather_segments, NULL);
}

/* ---- ranks whose outputs do not match ---- */

typedef enum difference {
  OTHER_IN_SCALE,
  OTHER_OUT_SCALE,
  OTHER_OUT_DTYPE,
  OTHER_ADDS,
  OTHER_ROWS,
  DIFFERENCES
} difference;

static int differ(ad_comm *comm, void *context) {
  difference what = *(const difference *)context;
  static const char *const names[] = {"OTHER_IN_SCALE", "OTHER_OUT_SCALE", "OTHER_OUT_DTYPE", "OTHER_ADDS",
                                      "OTHER_ROWS"};
  static const char *const facts[][4] = {{"rank 0", "2^-2", "2^-3"},
                                         {"rank 0", "2^-1"},
                                         {"rank 0", "f32"},
                                         {"rank 0", "f64, added"},
                                         {"rank 0", "rank 1", "32 f16"}};
  world w = open_world(comm);
  uint16_t in[64] = {0};
  double out[64] = {0};
  ad_segment segments[2] = {{4, 4}, {4, 4}};
  ad_collective call = {
      .size = sizeof call, .op = AD_REDUCE_SCATTER, .group = w.group, .in = in, .out = out, .dtype = AD_F16};
  call.accumulate = call.out_dtype = AD_F64;
  call.in_scale = 2;
  call.segments = segments;
  call.segment_count = 2;
  call.site = AD_HERE;
  if (w.index && what == OTHER_IN_SCALE) call.in_scale = 3;
  if (w.index && what == OTHER_OUT_SCALE) call.out_scale = 1;
  if (w.index && what == OTHER_OUT_DTYPE) call.out_dtype = AD_F32;
  if (w.index && what == OTHER_ADDS) call.adds = 1;
  if (w.index && what == OTHER_ROWS) segments[0].row = 2, segments[1].row = 6;
  CHECK_STATUS(ad_comm_run(comm, &call), AD_MISMATCH);
  CHECK_SAYS_IN(names[what], ad_last_error(), facts[what]);
  ad_mesh_destroy(w.mesh);
  return 0;
}

static void outputs_that_differ_between_ranks_are_a_mismatch(void **state) {
  for (difference what = 0; what < DIFFERENCES; what++) run_ranks(2, differ, &what);
}

static void refused(const world *w, ad_collective call) {
  float memory[8] = {0};
  call.group = w->group;
  call.in = memory;
  call.out = memory + 4;
  call.count = 4;
  call.site = AD_HERE;
  CHECK_STATUS(ad_comm_run(w->comm, &call), AD_INVALID);
}

static int refuse(ad_comm *comm, void *context) {
  world w = open_world(comm);
  ad_segment segment = {4, 1};
  refused(&w, (ad_collective){.size = sizeof(ad_collective), .op = AD_ALL_REDUCE, .dtype = AD_F32, .adds = 1});
  CHECK_SAYS("adds", "reduce_scatter");
  refused(
      &w,
      (ad_collective){
          .size = sizeof(ad_collective), .op = AD_REDUCE_SCATTER, .dtype = AD_F32, .adds = 1, .out_dtype = AD_BF16});
  CHECK_SAYS("adds", "bf16", "f32");
  refused(&w, (ad_collective){.size = sizeof(ad_collective), .op = AD_ALL_REDUCE, .dtype = AD_I32, .out_scale = 1});
  CHECK_SAYS("out_scale", "i32");
  refused(&w,
          (ad_collective){
              .size = sizeof(ad_collective), .op = AD_ALL_REDUCE, .dtype = AD_F32, .in_scale = 1, .reduction = AD_MAX});
  CHECK_SAYS("in_scale", "f32");
  refused(&w,
          (ad_collective){.size = sizeof(ad_collective), .op = AD_ALL_REDUCE, .dtype = AD_I32, .out_dtype = AD_F32});
  CHECK_SAYS("out_dtype", "i32", "f32");
  refused(&w, (ad_collective){.size = sizeof(ad_collective), .op = AD_ALL_REDUCE, .dtype = AD_F32, .in_scale = 101});
  CHECK_SAYS("in_scale", "-100", "100", "101", "0");
  refused(&w, (ad_collective){.size = sizeof(ad_collective), .op = AD_BROADCAST, .dtype = AD_F32, .out_dtype = AD_F64});
  CHECK_SAYS("broadcast", "out_dtype");
  refused(&w, (ad_collective){.size = sizeof(ad_collective),
                              .op = AD_ALL_REDUCE,
                              .dtype = AD_F32,
                              .segments = &segment,
                              .segment_count = 1});
  CHECK_SAYS("reduce_scatter");
  segment.rows = -1;
  refused(&w, (ad_collective){.size = sizeof(ad_collective),
                              .op = AD_ALL_GATHER,
                              .dtype = AD_F32,
                              .segments = &segment,
                              .segment_count = 1});
  CHECK_SAYS("-1 rows");
  ad_mesh_destroy(w.mesh);
  return 0;
}

static void outputs_that_mean_nothing_are_refused(void **state) { run_ranks(1, refuse, NULL); }

/* ---- memory that all members of a group share ---- */

static int share(ad_comm *comm, void *context) {
  world w = open_world(comm);
  CHECK(ad_comm_shares(comm, &w.group));
  for (int turn = 0; turn < 6; turn++) {
    const size_t bytes = turn % 2 ? 3u << 20 : 640;
    void *memory;
    CHECK_OK(ad_comm_alloc_shared(comm, &w.group, bytes, &memory));
    unsigned char *seen = memory;
    for (size_t i = w.index; i < bytes; i += w.members) CHECK(seen[i] == 0);
    CHECK_OK(ad_comm_barrier(comm, &w.group));
    for (size_t i = w.index; i < bytes; i += w.members) seen[i] = (unsigned char)(1 + w.index);
    CHECK_OK(ad_comm_barrier(comm, &w.group));
    for (size_t i = 0; i < bytes; i++) CHECK(seen[i] == 1 + i % w.members);
    if (turn % 3) CHECK_OK(ad_comm_barrier(comm, &w.group));
    // Without the barrier a rank may free the memory while another one still reads it.
    ad_comm_free(comm, memory);
  }
  ad_mesh_destroy(w.mesh);
  return 0;
}

static void shared_memory_is_one_block_for_all_members(void **state) {
  for (int64_t ranks = 1; ranks <= 4; ranks++) run_ranks(ranks, share, NULL);
  setenv("ADDEND_HOSTILE", "3", 1);
  run_ranks(3, share, NULL);
  unsetenv("ADDEND_HOSTILE");
}

static int outlive(ad_comm *comm, void *context) {
  world w = open_world(comm);
  void *memory;
  CHECK_OK(ad_comm_alloc_shared(comm, &w.group, 4096, &memory));
  if (!w.index) {
    memset(memory, 7, 4096);
    ad_comm_free(comm, memory);
  }
  CHECK_OK(ad_comm_barrier(comm, &w.group));
  void *next;
  CHECK_OK(ad_comm_alloc(comm, 4096, &next));  // would get the first block's memory if that were free already
  memset(next, 9, 4096);
  CHECK_OK(ad_comm_barrier(comm, &w.group));
  if (w.index) CHECK(((unsigned char *)memory)[4095] == 7);
  ad_mesh_destroy(w.mesh);
  return 0;
}

static void shared_memory_stays_until_the_last_member_frees_it(void **state) { run_ranks(3, outlive, NULL); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sums_are_written_identically_on_every_way),
      cmocka_unit_test(rows_of_segments_are_gathered_to_their_places),
      cmocka_unit_test(outputs_that_differ_between_ranks_are_a_mismatch),
      cmocka_unit_test(outputs_that_mean_nothing_are_refused),
      cmocka_unit_test(shared_memory_is_one_block_for_all_members),
      cmocka_unit_test(shared_memory_stays_until_the_last_member_frees_it),
  };
  return cmocka_run_group_tests(tests, make_numbers, NULL);
}
