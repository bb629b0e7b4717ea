/* Tests that a collective is added by its record alone: two operations that comm does not have, a gather to a root and
 * a scatter from it, run on every backend. Also what every record must hold. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "addend/mesh.h"
#include "base/text.h"
#include "comm/dry.h"
#include "comm/operations.h"
#include "comm/signature.h"
#include "ranks.h"

enum { GATHER = AD_OP_RECEIVE + 1, SCATTER, MEMBERS_MAX = 8 };

static const ad_comm_operation gather = {
    .name = "gather", .in = AD_BUFFER_BLOCK, .out = AD_BUFFER_BLOCKS, .out_on_root = 1, .takes_segments = 1};
static const ad_comm_operation scatter = {
    .name = "scatter", .in = AD_BUFFER_BLOCKS, .out = AD_BUFFER_BLOCK, .in_on_root = 1, .takes_segments = 1};

const ad_comm_operation *__real_ad_comm_operation_of(ad_collective_op op);
const ad_comm_operation *__wrap_ad_comm_operation_of(ad_collective_op op);
const ad_comm_operation *__wrap_ad_comm_operation_of(ad_collective_op op) {
  if ((int)op == GATHER) return &gather;
  return (int)op == SCATTER ? &scatter : __real_ad_comm_operation_of(op);
}

/* ---- one gather or scatter ---- */

typedef struct world {
  ad_comm *comm;
  ad_group group;
  size_t members, index;
  int dry;
} world;

/* How a case is run: the root, whether buffers lie in comm memory, in place, with uneven blocks (some empty) or of
 * segments. */
typedef struct variant {
  size_t root, n;
  int in_comm, in_place, uneven, segments;
} variant;

static size_t count_of(const variant *v, size_t k) { return v->uneven ? (k % 3 == 1 ? 0 : v->n + k) : v->n; }
static int32_t value(size_t k, size_t i) { return (int32_t)(k * 1000003 + i); }

static int32_t *take(const world *w, const variant *v, size_t count) {
  void *memory;
  if (v->in_comm)
    CHECK_OK(ad_comm_alloc(w->comm, (count + 1) * sizeof(int32_t), &memory));
  else
    CHECK((memory = malloc((count + 1) * sizeof(int32_t))));
  memset(memory, 0xff, (count + 1) * sizeof(int32_t));
  return memory;
}

static void give(const world *w, const variant *v, int32_t *memory) {
  if (v->in_comm)
    ad_comm_free(w->comm, memory);
  else
    free(memory);
}

/* Element `at` of the full value is value(k, i): element i of member k's block. With two equal segments a block is two
 * runs, which lie apart in the full value. */
static size_t place(const world *w, const variant *v, size_t k, size_t i) {
  size_t start = 0, half = v->n / 2;
  for (size_t j = 0; j < k; j++) start += count_of(v, j);
  if (!v->segments) return start + i;
  return i < half ? k * half + i : w->members * half + k * half + (i - half);
}

static void run_case(const world *w, const variant *v, int op) {
  size_t counts[MEMBERS_MAX], total = 0, own = count_of(v, w->index), at = place(w, v, w->index, 0);
  for (size_t k = 0; k < w->members; k++) total += counts[k] = count_of(v, k);
  int is_root = w->index == v->root, in_place = is_root && v->in_place && !v->segments;
  int32_t *whole = take(w, v, is_root ? total : 0), *block = in_place ? whole + at : take(w, v, own);
  ad_segment segments[2] = {{(int64_t)w->members, v->n / 2}, {(int64_t)w->members, v->n / 2}};
  ad_collective call = {.size = sizeof call,
                        .op = (ad_collective_op)op,
                        .group = w->group,
                        .count = v->n,
                        .dtype = AD_I32,
                        .root = (int64_t)v->root,
                        .site = AD_HERE};
  if (v->uneven) call.counts = counts;
  if (v->segments) call.segments = segments, call.segment_count = 2, call.count = 0;
  void *sides[2] = {block, is_root ? whole : NULL};
  call.in = sides[op == SCATTER];
  call.out = sides[op == GATHER];
  for (size_t i = 0; i < own && op == GATHER; i++) block[i] = value(w->index, i);
  for (size_t k = 0; is_root && k < w->members && op == SCATTER; k++)
    for (size_t i = 0; i < counts[k]; i++) whole[place(w, v, k, i)] = value(k, i);
  CHECK_OK(ad_comm_run(w->comm, &call));
  for (size_t k = 0; is_root && k < w->members && !w->dry; k++)
    for (size_t i = 0; i < counts[k]; i++) CHECK(whole[place(w, v, k, i)] == value(k, i));
  for (size_t i = 0; i < own && !w->dry; i++) CHECK(block[i] == value(w->index, i));
  if (is_root) CHECK(whole[total] == -1);
  if (!in_place) CHECK(block[own] == -1);
  if (!in_place) give(w, v, block);
  give(w, v, whole);
}

static int run_all(ad_comm *comm, void *context) {
  static const size_t sizes[] = {0, 2, 130, 9000, 70002};
  world w = {.comm = comm, .dry = context != NULL};
  ad_mesh *mesh;
  char text[32];
  snprintf(text, sizeof text, "dp=%d", (int)ad_comm_size(comm));
  CHECK_OK(ad_mesh_create(text, &mesh));
  w.group = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm));
  w.members = (size_t)ad_group_size(&w.group);
  w.index = (size_t)ad_group_index(&w.group, ad_comm_rank(comm));
  alarm(RANK_HANGS);  // a rank that waits for what never comes ends the world by its death
  for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++)
    for (int c = 0; c < 24; c++) {
      variant v = {.root = (size_t)c % w.members, .n = sizes[z], .in_comm = c & 1, .in_place = c >> 1 & 1};
      v.uneven = c >> 2 & 1;
      v.segments = c >> 3 == 1 && !v.uneven && v.n;
      if (c >> 3 == 2) v.in_comm = (int)(w.index & 1);  // members differ
      run_case(&w, &v, GATHER);
      run_case(&w, &v, SCATTER);
    }
  alarm(0);
  ad_mesh_destroy(mesh);
  return 0;
}

/* ---- the backends ---- */

#define RUNS(name, ranks, variable, setting)       \
  static void name(void **state) {                 \
    if (*(variable)) setenv(variable, setting, 1); \
    run_ranks(ranks, run_all, NULL);               \
    if (*(variable)) unsetenv(variable);           \
  }

RUNS(on_one_rank, 1, "", "")
RUNS(on_three_ranks, 3, "", "")
RUNS(on_five_ranks, 5, "", "")
RUNS(on_three_ranks_by_staging, 3, "ADDEND_STAGING", "1")
RUNS(on_one_hostile_rank, 1, "ADDEND_HOSTILE", "1")
RUNS(on_three_hostile_ranks, 3, "ADDEND_HOSTILE", "3")

static void on_backend_dry(void **state) {
  for (int64_t size = 1; size <= 5; size += 2) {
    ad_comm *comm;
    assert_int_equal(ad_comm_open_dry(size - 1, size, &comm), AD_OK);
    run_all(comm, &size);
    ad_comm_close(comm);
  }
}

/* ---- records ---- */

static void every_record_is_one_that_backends_carry_out(void **state) {
  for (int op = 0; op <= SCATTER; op++) {
    const ad_comm_operation *o = ad_comm_operation_of((ad_collective_op)op);
    assert_true(o && o->name && o->name[0]);
    assert_true((o->in == AD_BUFFER_NONE) == (o->out == AD_BUFFER_NONE));
    assert_true((o->in == AD_BUFFER_PAIRS) == (o->out == AD_BUFFER_PAIRS));
    assert_true((o->in == AD_BUFFER_MESSAGES) == (o->out == AD_BUFFER_MESSAGES));
    if (o->reduces) assert_true(!ad_has_root(o) && (ad_is_sliced(o) || ad_may_add(o)));
    if (o->takes_segments) assert_true(ad_may_overlap(o) == AD_BLOCK_INSIDE);
    for (int k = 0; k < op; k++) assert_true(strcmp(o->name, ad_comm_operation_of((ad_collective_op)k)->name));
  }
  assert_null(ad_comm_operation_of((ad_collective_op)-1));
  assert_null(ad_comm_operation_of((ad_collective_op)(SCATTER + 1)));
}

static void a_signature_of_an_added_operation_tells_roots_and_counts_apart(void **state) {
  size_t counts[] = {0, 1, 4}, others[] = {0, 2, 4};
  ad_call call = {.op = (ad_collective_op)GATHER, .operation = &gather, .dtype = AD_F32, .members = 2, .count = 2};
  ad_signature plain, at_other_root, with_counts, with_others;
  ad_signature_take(&call, &plain);
  call.root = 1;
  ad_signature_take(&call, &at_other_root);
  call.in_starts = call.out_starts = counts;
  ad_signature_take(&call, &with_counts);
  call.in_starts = call.out_starts = others;
  ad_signature_take(&call, &with_others);
  assert_false(ad_signature_equal(&plain, &at_other_root));
  assert_false(ad_signature_equal(&at_other_root, &with_counts));
  assert_false(ad_signature_equal(&with_counts, &with_others));
  char words[256];
  ad_text text = ad_text_on(words, sizeof words);
  ad_signature_print(&text, &at_other_root);
  assert_non_null(strstr(words, "2 f32 per block"));
  assert_non_null(strstr(words, "member 1"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(on_one_rank),
      cmocka_unit_test(on_three_ranks),
      cmocka_unit_test(on_five_ranks),
      cmocka_unit_test(on_three_ranks_by_staging),
      cmocka_unit_test(on_one_hostile_rank),
      cmocka_unit_test(on_three_hostile_ranks),
      cmocka_unit_test(on_backend_dry),
      cmocka_unit_test(every_record_is_one_that_backends_carry_out),
      cmocka_unit_test(a_signature_of_an_added_operation_tells_roots_and_counts_apart),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
