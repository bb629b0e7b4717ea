/* Tests every dtype with every reduction it has, in every collective and kind of memory, against a reference that adds
 * the members' values one by one; and what is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/random.h"
#include "ranks.h"
#include "tree_order.h"

enum { MEMBERS_MAX = 5, ABOVE_STAGING = 600 << 10, BYTES_MAX = ABOVE_STAGING + 64, PLACES = 5 };

typedef struct world {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_group group;
  size_t members, index, element;
  ad_dtype dtype;
  ad_reduction reduction;
  // bit 0: input in the comm's memory; bit 1: output in it; value 4: in place in other memory
  int place;
  char *inputs[MEMBERS_MAX];  // inputs of all members
  char *expected;             // the reduction of all inputs
} world;

/* ---- the reference: one value after another ---- */

static int64_t whole_number(const world *w, const void *at) {
  int64_t wide = 0;
  int32_t word = 0;
  int16_t half = 0;
  uint8_t byte = *(const uint8_t *)at;
  if (w->dtype == AD_I64) memcpy(&wide, at, sizeof wide);
  if (w->dtype == AD_I32) memcpy(&word, at, sizeof word), wide = word;
  if (w->dtype == AD_I16) memcpy(&half, at, sizeof half), wide = half;
  if (w->dtype == AD_I8) wide = byte < 128 ? byte : byte - 256;
  if (w->dtype == AD_U8) wide = byte;
  if (w->dtype == AD_BOOL) wide = byte != 0;
  return wide;
}

static uint64_t combined(ad_reduction reduction, int64_t a, int64_t b) {
  uint64_t x = (uint64_t)a, y = (uint64_t)b;
  if (reduction == AD_SUM) return x + y;
  if (reduction == AD_PRODUCT) return x * y;
  if (reduction == AD_MAX) return a > b ? x : y;
  if (reduction == AD_MIN) return a < b ? x : y;
  return reduction == AD_BIT_AND ? x & y : reduction == AD_BIT_OR ? x | y : x ^ y;
}

/* Copies the low bytes of the number: all machines that the backends support are little-endian. */
static void reduce_whole_numbers(const world *w, size_t i, void *out) {
  int64_t number = whole_number(w, w->inputs[0] + i * w->element);
  for (size_t k = 1; k < w->members; k++) {
    uint64_t next = combined(w->reduction, number, whole_number(w, w->inputs[k] + i * w->element));
    memcpy(out, &next, w->element);
    if (w->dtype == AD_BOOL) *(uint8_t *)out = next != 0;
    number = whole_number(w, out);
  }
  if (w->members == 1) memcpy(out, &number, w->element);
}

typedef struct place_of {
  const world *w;
  size_t i;
} place_of;

static double term(const void *context, size_t member) {
  const place_of *at = context;
  double value;
  ad_cast(&value, AD_F64, at->w->inputs[member] + at->i * at->w->element, at->w->dtype, 1);
  return value;
}

static double join(const void *context, double a, double b) {
  const world *w = ((const place_of *)context)->w;
  double result = w->reduction == AD_SUM       ? a + b
                  : w->reduction == AD_PRODUCT ? a * b
                  : w->reduction == AD_MAX     ? (a > b ? a : b)
                                               : (a < b ? a : b);
  return w->dtype == AD_F64 ? result : (double)(float)result;
}

static void find_expected(const world *w, size_t n) {
  for (size_t i = 0; i < n; i++) {
    char *to = w->expected + i * w->element;
    if (!ad_dtype_is_float(w->dtype)) {
      reduce_whole_numbers(w, i, to);
      continue;
    }
    double value = in_tree_order(&(place_of){w, i}, term, join, 0, w->members);
    ad_cast(to, w->dtype, &value, AD_F64, 1);
  }
}

/* ---- values and memory ---- */

/* Fills inputs with random bits. Every other bool is 0, the rest any other byte. Floats have either sign and are near
 * 1, so that products stay finite. */
static void fill_inputs(const world *w) {
  for (size_t k = 0; k < w->members; k++)
    for (size_t i = 0; i < BYTES_MAX / w->element; i++) {
      uint64_t bits = ad_random_bits(8, k, i);
      double value = (bits & 1 ? -1 : 1) * (0.6 + 0.9 * ad_random_uniform(9, k, i));
      if (w->dtype == AD_BOOL && bits >> 32 & 1) bits = 0;
      if (ad_dtype_is_float(w->dtype))
        ad_cast(w->inputs[k] + i * w->element, w->dtype, &value, AD_F64, 1);
      else
        memcpy(w->inputs[k] + i * w->element, &bits, w->element);
    }
}

typedef struct buffer {
  char *memory;
  int in_comm;
} buffer;

static buffer take(const world *w, size_t n, int in_comm) {
  buffer b = {.in_comm = in_comm};
  if (in_comm)
    CHECK_OK(ad_comm_alloc(w->comm, n * w->element + 1, (void **)&b.memory));
  else
    b.memory = rank_memory(n * w->element);
  return b;
}

static void give(const world *w, buffer b) {
  if (b.in_comm)
    ad_comm_free(w->comm, b.memory);
  else
    rank_memory_free(b.memory);
}

static int is_in_comm(const world *w) { return w->place & 1; }
static int is_out_in_comm(const world *w) { return w->place >> 1 & 1; }

/* The first of n elements in member k's part. */
static size_t cut(const world *w, size_t n, size_t k) { return k * n / w->members; }
static size_t cut_count(const world *w, size_t n, size_t k) { return cut(w, n, k + 1) - cut(w, n, k); }

static void find_counts(const world *w, size_t n, size_t counts[MEMBERS_MAX]) {
  for (size_t k = 0; k < w->members; k++) counts[k] = cut_count(w, n, k);
}

/* ---- the collectives, each with n elements in all ---- */

static ad_collective describe(const world *w, ad_collective_op op, size_t n) {
  return (ad_collective){.size = sizeof(ad_collective),
                         .op = op,
                         .group = w->group,
                         .count = n,
                         .dtype = w->dtype,
                         .reduction = w->reduction};
}

static void all_reduce(const world *w, size_t n) {
  buffer out = take(w, n, is_out_in_comm(w)), in = w->place & 4 ? out : take(w, n, is_in_comm(w));
  ad_collective call = describe(w, AD_ALL_REDUCE, n);
  memcpy(in.memory, w->inputs[w->index], n * w->element);
  call.in = in.memory, call.out = out.memory;
  CHECK_OK(ad_comm_run(w->comm, &call));
  CHECK(!memcmp(out.memory, w->expected, n * w->element));
  if (!(w->place & 4)) {
    CHECK(!memcmp(in.memory, w->inputs[w->index], n * w->element));
    give(w, in);
  }
  give(w, out);
}

static void reduce_scatter(const world *w, size_t n) {
  size_t counts[MEMBERS_MAX], own = cut(w, n, w->index), count = cut_count(w, n, w->index);
  buffer in = take(w, n, is_in_comm(w)), out = w->place & 4 ? in : take(w, count, is_out_in_comm(w));
  ad_collective call = describe(w, AD_REDUCE_SCATTER, 0);
  find_counts(w, n, counts);
  memcpy(in.memory, w->inputs[w->index], n * w->element);
  call.in = in.memory, call.out = w->place & 4 ? in.memory + own * w->element : out.memory;
  call.counts = counts;
  CHECK_OK(ad_comm_run(w->comm, &call));
  CHECK(!memcmp(call.out, w->expected + own * w->element, count * w->element));
  if (!(w->place & 4)) give(w, out);
  give(w, in);
}

/* Collectives without a reduction copy bytes unchanged, also those of bools. */
static void all_gather(const world *w, size_t n) {
  size_t counts[MEMBERS_MAX], own = cut(w, n, w->index), count = cut_count(w, n, w->index);
  buffer in = take(w, count, is_in_comm(w)), out = take(w, n, is_out_in_comm(w));
  ad_collective call = describe(w, AD_ALL_GATHER, 0);
  find_counts(w, n, counts);
  memcpy(in.memory, w->inputs[w->index] + own * w->element, count * w->element);
  call.in = in.memory, call.out = out.memory, call.counts = counts;
  CHECK_OK(ad_comm_run(w->comm, &call));
  for (size_t k = 0; k < w->members; k++) {
    size_t at = cut(w, n, k) * w->element;
    CHECK(!memcmp(out.memory + at, w->inputs[k] + at, counts[k] * w->element));
  }
  give(w, in);
  give(w, out);
}

static void all_to_all(const world *w, size_t n) {
  size_t sends[MEMBERS_MAX], receives[MEMBERS_MAX], count = cut_count(w, n, w->index);
  buffer in = take(w, n, is_in_comm(w)), out = take(w, count * w->members, is_out_in_comm(w));
  ad_collective call = describe(w, AD_ALL_TO_ALL, 0);
  find_counts(w, n, sends);
  for (size_t k = 0; k < w->members; k++) receives[k] = count;
  memcpy(in.memory, w->inputs[w->index], n * w->element);
  call.in = in.memory, call.out = out.memory, call.counts = sends, call.receive_counts = receives;
  CHECK_OK(ad_comm_run(w->comm, &call));
  for (size_t k = 0; k < w->members; k++)
    CHECK(!memcmp(out.memory + k * count * w->element, w->inputs[k] + cut(w, n, w->index) * w->element,
                  count * w->element));
  give(w, in);
  give(w, out);
}

static void broadcast(const world *w, size_t n) {
  size_t root = w->members - 1;
  buffer in = take(w, n, is_in_comm(w)), out = take(w, n, is_out_in_comm(w));
  ad_collective call = describe(w, AD_BROADCAST, n);
  memcpy(in.memory, w->inputs[w->index], n * w->element);
  call.in = in.memory, call.out = out.memory, call.root = (int64_t)root;
  CHECK_OK(ad_comm_run(w->comm, &call));
  CHECK(!memcmp(out.memory, w->inputs[root], n * w->element));
  give(w, in);
  give(w, out);
}

static void exchange(const world *w, size_t n) {
  size_t next = (w->index + 1) % w->members, previous = (w->index + w->members - 1) % w->members;
  buffer in = take(w, n, is_in_comm(w)), out = take(w, n, is_out_in_comm(w));
  ad_collective call = describe(w, AD_EXCHANGE, 0);
  ad_message messages[] = {{.peer = (int64_t)next, .send = in.memory, .count = n},
                           {.peer = (int64_t)previous, .receive = out.memory, .count = n}};
  memcpy(in.memory, w->inputs[w->index], n * w->element);
  call.messages = messages, call.message_count = 2;
  CHECK_OK(ad_comm_run(w->comm, &call));
  CHECK(!memcmp(out.memory, w->inputs[previous], n * w->element));
  give(w, in);
  give(w, out);
}

/* ---- every case ---- */

/* Runs the reductions with each place of memory whose bit is set. */
static void reduce_everywhere(world *w, size_t n, unsigned places) {
  find_expected(w, n);
  for (w->place = 0; w->place < PLACES; w->place++) {
    if (!(places >> w->place & 1)) continue;
    all_reduce(w, n);
    reduce_scatter(w, n);
  }
}

static void move_everywhere(world *w, size_t n) {
  w->reduction = AD_SUM;
  for (w->place = 0; w->place < 4; w->place++) {
    all_gather(w, n);
    all_to_all(w, n);
    broadcast(w, n);
    exchange(w, n);
  }
}

static void every_size(world *w) {
  static const size_t sizes[] = {0, 1, 17, 1025};
  size_t large = ABOVE_STAGING / w->element + 3;
  ad_reduction last = ad_dtype_is_float(w->dtype) ? AD_PRODUCT : AD_BIT_XOR;
  for (ad_reduction r = AD_SUM; r <= last; r++) {
    w->reduction = r;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) reduce_everywhere(w, sizes[s], ~0u);
    reduce_everywhere(w, large, 1 | 1u << (r + w->dtype) % PLACES);
  }
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) move_everywhere(w, sizes[s]);
  move_everywhere(w, large);
}

static world open_world(ad_comm *comm) {
  char text[32];
  world w = {.comm = comm, .members = (size_t)ad_comm_size(comm), .index = (size_t)ad_comm_rank(comm)};
  snprintf(text, sizeof text, "dp=%zu", w.members);
  CHECK_OK(ad_mesh_create(text, &w.mesh));
  w.group = ad_mesh_group(w.mesh, AD_AXES_ALL, (int64_t)w.index);
  return w;
}

static int every_dtype(ad_comm *comm, void *context) {
  world w = open_world(comm);
  w.expected = malloc(BYTES_MAX);
  CHECK(w.expected && !context);
  for (size_t k = 0; k < w.members; k++) CHECK((w.inputs[k] = malloc(BYTES_MAX)));
  for (w.dtype = AD_F64; w.dtype <= AD_BOOL; w.dtype++) {
    w.element = ad_dtype_size(w.dtype);
    fill_inputs(&w);
    every_size(&w);
  }
  for (size_t k = 0; k < w.members; k++) free(w.inputs[k]);
  free(w.expected);
  ad_mesh_destroy(w.mesh);
  return 0;
}

static void holds_on(int64_t ranks, const char *name, const char *value) {
  if (name) setenv(name, value, 1);
  run_ranks(ranks, every_dtype, NULL);
  if (name) unsetenv(name);
}

static void every_dtype_is_reduced_and_moved_on_one_rank(void **state) { holds_on(1, NULL, NULL); }
static void every_dtype_is_reduced_and_moved_on_two_ranks(void **state) { holds_on(2, NULL, NULL); }
static void every_dtype_is_reduced_and_moved_on_three_ranks(void **state) { holds_on(3, NULL, NULL); }
static void every_dtype_is_reduced_and_moved_on_five_ranks(void **state) { holds_on(5, NULL, NULL); }
static void every_dtype_passes_through_staging(void **state) { holds_on(3, "ADDEND_STAGING", "1"); }
static void every_dtype_holds_under_a_hostile_backend(void **state) { holds_on(3, "ADDEND_HOSTILE", "3"); }

/* ---- bools ---- */

/* Logical or and logical and: every nonzero byte counts as true, and results are 0 or 1. */
static int reduce_bools(ad_comm *comm, void *context) {
  static const uint8_t held[3][4] = {{2, 0, 1, 0}, {1, 0, 0, 0}, {0x80, 0, 0, 0xff}};
  static const uint8_t any[4] = {1, 0, 1, 1}, all[4] = {1, 0, 0, 0}, odd[4] = {1, 0, 1, 1};
  static const uint8_t *const wanted[] = {any, any, all, all, all, any, odd};
  world w = open_world(comm);
  for (ad_reduction r = AD_SUM; r <= AD_BIT_XOR; r++) {
    uint8_t out[4];
    ad_collective call = {.size = sizeof call,
                          .op = AD_ALL_REDUCE,
                          .group = w.group,
                          .in = held[w.index],
                          .out = out,
                          .count = 4,
                          .dtype = AD_BOOL,
                          .reduction = r};
    CHECK_OK(ad_comm_run(comm, &call));
    CHECK(!memcmp(out, wanted[r], sizeof out) && !context);
  }
  ad_mesh_destroy(w.mesh);
  return 0;
}

static void bools_are_any_or_all_and_come_out_as_0_or_1(void **state) { run_ranks(3, reduce_bools, NULL); }

/* ---- products of 16-bit floats ---- */

/* The product of three factors 1 + 2^-10 needs 31 bits; rounding to f16 or f32 in between gives another result. */
static int multiply_halves(ad_comm *comm, void *context) {
  static const double held[4] = {0x1.004p+0, 0x1.004p+0, 0x1.004p+0, 1};  // three factors 1 + 2^-10
  world w = open_world(comm);
  double exact = held[0] * held[1] * held[2], back = 0;
  float single = (float)(held[0] * held[1]) * (float)held[2];
  uint16_t in, out, expected;
  ad_cast(&in, AD_F16, &held[w.index], AD_F64, 1);
  ad_cast(&expected, AD_F16, &single, AD_F32, 1);
  ad_collective call = {.size = sizeof call,
                        .op = AD_ALL_REDUCE,
                        .group = w.group,
                        .in = &in,
                        .out = &out,
                        .count = 1,
                        .dtype = AD_F16,
                        .reduction = AD_PRODUCT};
  CHECK_OK(ad_comm_run(comm, &call));
  CHECK(out == expected && !context);
  float wide = 0;
  call.out = &wide, call.out_dtype = AD_F32;
  CHECK_OK(ad_comm_run(comm, &call));
  CHECK(wide == single);
  call.out = &back, call.out_dtype = call.accumulate = AD_F64;
  CHECK_OK(ad_comm_run(comm, &call));
  CHECK(back == exact);
  ad_mesh_destroy(w.mesh);
  return 0;
}

static void products_form_in_the_accumulate_dtype(void **state) { run_ranks(4, multiply_halves, NULL); }

/* ---- what is refused ---- */

static void refused(ad_comm *comm, ad_collective call) {
  static double in[2], out[2];
  ad_mesh *mesh;
  assert_int_equal(ad_mesh_create("dp=1", &mesh), AD_OK);
  call.size = sizeof call, call.group = ad_mesh_group(mesh, AD_AXES_ALL, 0);
  call.in = in, call.out = out, call.count = 2;
  assert_int_equal(ad_comm_run(comm, &call), AD_INVALID);
  ad_mesh_destroy(mesh);
}

static void refuse_all(ad_comm *comm) {
  for (ad_dtype dtype = AD_F64; dtype <= AD_F16; dtype++) {
    refused(comm, (ad_collective){.dtype = dtype, .reduction = AD_BIT_AND});
    assert_says(ad_dtype_name(dtype), "bit_and");
    refused(comm, (ad_collective){.dtype = dtype, .reduction = AD_BIT_XOR});
    assert_says(ad_dtype_name(dtype), "bit_xor");
  }
  refused(comm, (ad_collective){.dtype = AD_U8, .reduction = (ad_reduction)7});
  assert_says("7", "bit_xor");
  refused(comm, (ad_collective){.dtype = (ad_dtype)11});
  assert_says("11");
  for (ad_dtype dtype = AD_I32; dtype <= AD_BOOL; dtype++) {
    refused(comm, (ad_collective){.dtype = dtype, .accumulate = AD_F32});
    assert_says(ad_dtype_name(dtype), "f32", "accumulate");
    refused(comm, (ad_collective){.dtype = dtype, .accumulate = dtype == AD_I64 ? AD_I32 : AD_I64});
    assert_says(ad_dtype_name(dtype), dtype == AD_I64 ? "i32" : "i64", "accumulate");
    refused(comm, (ad_collective){.dtype = dtype, .out_dtype = AD_F32});
    assert_says(ad_dtype_name(dtype), "f32", "out_dtype");
    refused(comm, (ad_collective){.dtype = dtype, .out_dtype = dtype == AD_U8 ? AD_I8 : AD_U8});
    assert_says(ad_dtype_name(dtype), dtype == AD_U8 ? "i8" : "u8", "out_dtype");
    refused(comm, (ad_collective){.dtype = dtype, .in_scale = 1});
    assert_says(ad_dtype_name(dtype), "in_scale");
    refused(comm, (ad_collective){.dtype = dtype, .op = AD_REDUCE_SCATTER, .adds = 1});
    assert_says(ad_dtype_name(dtype), "adds", "reduce_scatter");
  }
  refused(comm, (ad_collective){.dtype = AD_F32, .out_dtype = AD_U8});
  assert_says("f32", "u8", "out_dtype");
  refused(comm, (ad_collective){.dtype = AD_F32, .accumulate = AD_I16});
  assert_says("f32", "i16", "accumulate");
  refused(comm, (ad_collective){.dtype = AD_F32, .reduction = AD_PRODUCT, .out_scale = 1});
  assert_says("f32", "out_scale");
  refused(comm, (ad_collective){.dtype = AD_F32, .reduction = AD_PRODUCT, .op = AD_REDUCE_SCATTER, .adds = 1});
  assert_says("f32", "adds", "reduce_scatter");
}

static void what_a_dtype_does_not_have_is_refused(void **state) {
  ad_comm *comm;
  assert_int_equal(ad_comm_open_alone(&comm), AD_OK);
  refuse_all(comm);
  ad_comm_close(comm);
  assert_int_equal(ad_comm_open_dry(0, 1, &comm), AD_OK);
  refuse_all(comm);
  ad_comm_close(comm);
}

static void backend_dry_takes_every_dtype_and_leaves_values(void **state) {
  ad_comm *comm;
  ad_mesh *mesh;
  assert_int_equal(ad_comm_open_dry(1, 4, &comm), AD_OK);
  assert_int_equal(ad_mesh_create("dp=4", &mesh), AD_OK);
  for (ad_dtype dtype = AD_F64; dtype <= AD_BOOL; dtype++)
    for (ad_reduction r = AD_SUM; r <= (ad_dtype_is_float(dtype) ? AD_PRODUCT : AD_BIT_XOR); r++) {
      _Alignas(8) char values[8] = "seven 7";
      ad_collective call = {.size = sizeof call,
                            .op = AD_ALL_REDUCE,
                            .group = ad_mesh_group(mesh, AD_AXES_ALL, 1),
                            .in = values,
                            .out = values,
                            .count = sizeof values / ad_dtype_size(dtype),
                            .dtype = dtype,
                            .reduction = r};
      assert_int_equal(ad_comm_run(comm, &call), AD_OK);
      assert_string_equal(values, "seven 7");
    }
  ad_mesh_destroy(mesh);
  ad_comm_close(comm);
}

static int differ(ad_comm *comm, void *context) {
  world w = open_world(comm);
  _Alignas(8) char in[8] = {0}, out[8];
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .group = w.group, .in = in, .out = out, .count = 4, .dtype = AD_I16};
  call.reduction = w.index ? AD_PRODUCT : AD_BIT_OR;
  if (context) call.reduction = AD_MIN, call.count = 8, call.dtype = w.index ? AD_U8 : AD_BOOL;
  CHECK_STATUS(ad_comm_run(comm, &call), AD_MISMATCH);
  const char *const of_sizes[] = {"all_reduce(min)", "8 u8", "8 bool", NULL};
  const char *const of_operations[] = {"all_reduce(product)", "all_reduce(bit_or)", "4 i16", NULL};
  CHECK_SAYS_ALL(context ? of_sizes : of_operations);
  ad_mesh_destroy(w.mesh);
  return 0;
}

static void ranks_that_differ_in_reduction_or_dtype_are_reported_both(void **state) {
  run_ranks(2, differ, NULL);
  run_ranks(2, differ, "dtypes");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_dtype_is_reduced_and_moved_on_one_rank),
      cmocka_unit_test(every_dtype_is_reduced_and_moved_on_two_ranks),
      cmocka_unit_test(every_dtype_is_reduced_and_moved_on_three_ranks),
      cmocka_unit_test(every_dtype_is_reduced_and_moved_on_five_ranks),
      cmocka_unit_test(every_dtype_passes_through_staging),
      cmocka_unit_test(every_dtype_holds_under_a_hostile_backend),
      cmocka_unit_test(bools_are_any_or_all_and_come_out_as_0_or_1),
      cmocka_unit_test(products_form_in_the_accumulate_dtype),
      cmocka_unit_test(what_a_dtype_does_not_have_is_refused),
      cmocka_unit_test(backend_dry_takes_every_dtype_and_leaves_values),
      cmocka_unit_test(ranks_that_differ_in_reduction_or_dtype_are_reported_both),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
