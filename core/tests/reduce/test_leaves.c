/* Tests a reducer with leaves: the same leaves on any number of ranks have the same sums bit for bit, which are those of
 * the tree over the leaves; and what cannot be summed by leaves is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "addend/reduce.h"
#include "aligned.h"
#include "allocations.h"
#include "array/array.h"
#include "ranks.h"
#include "layout/type.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"

enum { PARAMS = 6, LEAVES_MAX = 24, ROUNDS_MAX = 24, NUMEL_MAX = 32 };

/* What the leaves' gradients of a parameter are like. */
enum { COPIED, BY_COLUMNS, INVARIANT, SOMETIMES, NEVER, EMPTY };
static const ad_shape shapes[PARAMS] = {{2, {5, 3}}, {2, {4, 6}}, {1, {7}}, {2, {3, 4}}, {1, {6}}, {1, {0}}};
static const char *const names[PARAMS] = {"copied", "by columns", "invariant", "sometimes", "never", "empty"};

typedef struct setting {
  const char *mesh;
  int64_t ranks, leaves;
  ad_precision_policy policy;
  // 1: storage is sharded over dp_shard; 2: only that of some parameters; 3 and 4: as 1 and 2, and each replica updates
  // a part of its shards
  int shards;
  size_t bucket_bytes;
  int64_t rounds;
  ad_sync early;  // sync of all rounds but the last
  // if not NULL, the sync of each round, as its first letter: "nsa"; repeated if there are more rounds
  const char *list;
  int reuses;
  const char *view;  // if not NULL, "by columns" is on this view of the mesh, with etp in place of tp
} setting;

typedef struct world {
  ad_comm *comm;
  ad_mesh *mesh, *view;
  const setting *s;
  ad_param_spec specs[PARAMS];
  ad_sync sync[ROUNDS_MAX];
  ad_reducer *reducer;
} world;

static void describe(world *w, ad_comm *comm, const setting *s) {
  *w = (world){.comm = comm, .s = s};
  CHECK_OK(ad_mesh_create(s->mesh, &w->mesh));
  if (s->view) CHECK_OK(ad_mesh_create_view(w->mesh, s->view, &w->view));
  for (int p = 0; p < PARAMS; p++) {
    ad_param_spec *spec = &w->specs[p];
    *spec = (ad_param_spec){
        .size = sizeof(ad_param_spec), .name = names[p], .shape = shapes[p], .layout = ad_layout_all(w->mesh, AD_R)};
    if (p == BY_COLUMNS && s->view) spec->layout = ad_layout_all(w->view, AD_R);
    if (p == BY_COLUMNS) ad_layout_set(&spec->layout, AD_AXES(s->view ? AD_ETP : AD_TP), AD_S(1));
    if (p == INVARIANT) ad_layout_set(&spec->layout, AD_AXES(AD_TP), AD_I);
    spec->storage = spec->layout;
    int is_sharded = s->shards % 2 || (s->shards && p != COPIED && p != BY_COLUMNS);
    if (is_sharded) ad_layout_set(&spec->storage, AD_AXES(AD_DP_SHARD), AD_S(0));
    if (is_sharded && s->shards > 2) {
      spec->update = spec->storage;
      ad_layout_set(&spec->update, AD_AXES(AD_DP_REPLICATE), AD_S(0));
    }
    spec->policy = s->policy;
  }
  for (int64_t round = 0; round < s->rounds; round++) {
    w->sync[round] = round + 1 == s->rounds ? AD_SYNC_ALL : s->early;
    char letter = s->list ? s->list[(size_t)round % strlen(s->list)] : 0;
    if (letter) w->sync[round] = letter == 'n' ? AD_SYNC_NONE : letter == 's' ? AD_SYNC_SHARD : AD_SYNC_ALL;
  }
}

static ad_status create(world *w) {
  ad_leaf_options leaves = {w->s->leaves, w->s->rounds, w->sync};
  ad_reducer_options options = {
      .size = sizeof options, .bucket_bytes = w->s->bucket_bytes, .leaves = w->s->leaves ? &leaves : NULL};
  options.reuses = w->s->reuses;
  return ad_reducer_create(w->comm, w->specs, PARAMS, &options, &w->reducer);
}

static void open_world(world *w, ad_comm *comm, const setting *s) {
  describe(w, comm, s);
  CHECK_OK(create(w));
}

static void close_world(world *w) {
  ad_reducer_destroy(w->reducer);
  ad_mesh_destroy(w->view);
  ad_mesh_destroy(w->mesh);
}

/* ---- the leaves' gradients ---- */

static int is_present(int p, int64_t leaf) { return p == SOMETIMES ? leaf % 3 == 1 : p != NEVER; }

/* One element of the gradient of a leaf on a position of tp, as it is submitted. Leaf 3 is empty, so its gradients are
 * 0. Element 0 of "copied" is -0 in every leaf, so that a +0 of no leaf changes the sum's sign. */
static double gradient_of(const world *w, int p, int64_t leaf, int64_t tp, int step, size_t element) {
  double value = drawn_value(5, (uint64_t)((step * LEAVES_MAX + leaf) * PARAMS + p) * 2 + (uint64_t)tp, element),
         rounded;
  ad_dtype dtype = w->s->policy.grad;
  char narrow[8];
  if (p == COPIED && !element) return -0.0;
  if (leaf == 3) return 0;
  if (ad_cast(narrow, dtype, &value, AD_F64, 1) || ad_cast(&rounded, AD_F64, narrow, dtype, 1)) return NAN;
  return rounded;
}

/* Returns one element of the sum, by definition, of the gradient that this rank submits: over the leaves by their tree,
 * then over tp. */
static double expected_sum(const world *w, int p, int step, size_t element) {
  double leaf[LEAVES_MAX], total = 0;
  int64_t tp_size = ad_mesh_axis_size(w->mesh, AD_TP), own = ad_mesh_position(w->mesh, ad_comm_rank(w->comm), AD_TP);
  int is_summed = p != BY_COLUMNS && p != INVARIANT;
  for (int64_t tp = 0; tp < (is_summed ? tp_size : 1); tp++) {
    int64_t at = is_summed ? tp : p == INVARIANT ? 0 : own;
    for (int64_t i = 0; i < w->s->leaves; i++) leaf[i] = is_present(p, i) ? gradient_of(w, p, i, at, step, element) : 0;
    double sum = aligned_sum(w->s->policy.accumulate, leaf, w->s->leaves);
    total = tp ? sum_of_two(w->s->policy.accumulate, total, sum) : sum;
  }
  return total;
}

/* ---- steps ---- */

static void fill(const world *w, int p, int64_t leaf, int step, ad_array *grad) {
  int64_t tp = p == INVARIANT ? 0 : ad_mesh_position(w->mesh, ad_comm_rank(w->comm), AD_TP);
  double values[NUMEL_MAX];
  size_t numel = ad_array_numel(grad);
  for (size_t i = 0; i < numel; i++) values[i] = leaf < 0 ? NAN : gradient_of(w, p, leaf, tp, step, i);
  if (numel) CHECK_OK(ad_cast(grad->data, grad->dtype, values, AD_F64, numel));
}

/* Submits one gradient: writes it in place if `in_place` is 1 and the reducer has memory for it. A leaf's gradient
 * never has to be added to earlier contents. */
static void submit(world *w, int p, int64_t leaf, int step, int in_place) {
  double memory[NUMEL_MAX];
  ad_array target, grad = ad_reducer_describe(w->reducer, (size_t)p);
  int adds = 2;
  grad.data = memory;
  if (in_place) {
    CHECK_OK(ad_reducer_target(w->reducer, (size_t)p, &target, &adds));
    CHECK(adds == 0);
    int offered = leaf >= 0 && target.dtype == w->s->policy.grad && ad_array_numel(&target);
    CHECK(!offered || target.data != NULL);
    CHECK(leaf >= 0 || target.data == NULL);
    CHECK(!ad_array_numel(&target) || ad_reducer_writes_in_place(w->reducer, (size_t)p) == (target.data != NULL));
    if (offered) grad = target;
  }
  fill(w, p, leaf, step, &grad);
  CHECK_OK(ad_reducer_add(w->reducer, (size_t)p, &grad));
}

/* Runs one round. Ranks submit gradients in other orders; a rank without a leaf submits NaN, or every second time
 * nothing. */
static void run_round(world *w, int64_t round, int step) {
  int64_t leaf = ad_reducer_leaf(w->reducer, round);
  CHECK_OK(ad_reducer_begin_leaf(w->reducer, w->sync[round], leaf));
  for (int k = 0; k < PARAMS; k++) {
    int p = ad_comm_rank(w->comm) % 2 ? k : PARAMS - 1 - k;
    int submits = leaf < 0 ? (round + step) % 2 : is_present(p, leaf);
    int in_place = !ad_comm_is_dry(w->comm) && (p + round + step) % 2;
    if (submits) submit(w, p, leaf, step, in_place);
  }
  CHECK_OK(ad_reducer_end_microbatch(w->reducer));
  /* the next leaf is written to memory that no other rank reads */
  for (size_t i = 0; i < w->reducer->bucket_count; i++)
    CHECK(w->reducer->buckets[i].counters.sends || !w->reducer->buckets[i].steps.unsettled);
}

/* The index, in the gradient that this rank submitted, of the first element of its shard of the result. */
static size_t result_start(const world *w, int p) {
  int64_t rank = ad_comm_rank(w->comm);
  ad_shape local = ad_layout_local_shape(&w->specs[p].layout, &shapes[p], rank);
  ad_span rows = {0};
  ad_layout_spans(ad_param_update(&w->specs[p]), 0, shapes[p].dim[0], rank, &rows, 1);
  return local.dim[0] ? (size_t)(rows.first * (ad_shape_numel(&local) / local.dim[0])) : 0;
}

static void check_sums(const world *w, int step) {
  for (int p = 0; p < PARAMS; p++) {
    const ad_array *sum = ad_reducer_gradient(w->reducer, (size_t)p);
    double found[NUMEL_MAX];
    CHECK(ad_layout_equal(&sum->layout, ad_param_update(&w->specs[p])) && sum->dtype == w->s->policy.accumulate);
    int is_absent = 1;
    for (int64_t leaf = 0; leaf < w->s->leaves; leaf++) is_absent &= !is_present(p, leaf);
    CHECK(ad_reducer_is_absent(w->reducer, (size_t)p) == is_absent);
    if (ad_array_numel(sum)) CHECK_OK(ad_cast(found, AD_F64, sum->data, sum->dtype, ad_array_numel(sum)));
    for (size_t i = 0; i < ad_array_numel(sum); i++) {
      double expected = expected_sum(w, p, step, result_start(w, p) + i);
      CHECK(!memcmp(&found[i], &expected, sizeof expected));
    }
  }
}

/* The norm has the bits of the exact sum of the rows' squares, unless tp cuts rows. */
static void check_norm(const world *w, int step) {
  ad_exact squares = {0};
  double norm, expected;
  ad_group all = ad_mesh_group(w->mesh, AD_AXES_ALL, ad_comm_rank(w->comm));
  CHECK_OK(ad_reducer_norm(w->reducer, &all, &norm));
  if (ad_mesh_axis_size(w->mesh, AD_TP) > 1) return;
  for (int p = 0; p < PARAMS; p++) {
    size_t numel = (size_t)ad_shape_numel(&shapes[p]), row = numel ? numel / (size_t)shapes[p].dim[0] : 1;
    for (size_t first = 0; first < numel; first += row) {
      double sum = 0;
      for (size_t e = first; e < first + row; e++) sum += expected_sum(w, p, step, e) * expected_sum(w, p, step, e);
      ad_exact_add(&squares, sum);
    }
  }
  expected = sqrt(ad_exact_value(&squares));
  CHECK(!memcmp(&norm, &expected, sizeof norm));
}

static void run_step(world *w, int step) {
  for (int64_t round = 0; round < w->s->rounds; round++) run_round(w, round, step);
  CHECK_OK(ad_reducer_finish(w->reducer));
}

static int sum_two_steps(ad_comm *comm, void *context) {
  world w;
  open_world(&w, comm, context);
  for (int step = 0; step < 2; step++) {
    run_step(&w, step);
    check_sums(&w, step);
    check_norm(&w, step);
  }
  close_world(&w);
  return 0;
}

/* Tests every precision policy, size of buckets and list of syncs in one world. */
static int sum_all(ad_comm *comm, void *context) {
  static const ad_precision_policy policies[] = {{AD_F32, AD_F32, 0, AD_F32, AD_F32},
                                                 {AD_BF16, AD_BF16, 0, AD_F32, AD_F32},
                                                 {AD_F32, AD_BF16, 1, AD_F64, AD_F64},
                                                 {AD_F64, AD_F64, 0, AD_F64, AD_F64}};
  static const size_t sizes[] = {1, 100, 0};
  setting s = *(const setting *)context;
  int64_t least = s.rounds;
  for (int policy = 0; policy < 4; policy++)
    for (int size = 0; size < 3; size++)
      for (int64_t more = 0; more < 3; more++)
        for (s.shards = 0; s.shards < 2; s.shards++) {
          s.policy = policies[policy];
          s.bucket_bytes = sizes[size];
          s.rounds = least + more;
          s.early = s.shards || more == 1 ? AD_SYNC_NONE : AD_SYNC_SHARD;
          sum_two_steps(comm, &s);
        }
  return 0;
}

static void on_each_mesh(const char *const *meshes, int64_t leaves) {
  for (; *meshes; meshes++) {
    ad_mesh *mesh;
    assert_int_equal(ad_mesh_create(*meshes, &mesh), AD_OK);
    setting s = {.mesh = *meshes, .ranks = ad_mesh_size(mesh), .leaves = leaves};
    int64_t positions = ad_mesh_axis_size(mesh, AD_DP_REPLICATE) * ad_mesh_axis_size(mesh, AD_DP_SHARD);
    s.rounds = (leaves + positions - 1) / positions;
    ad_mesh_destroy(mesh);
    run_ranks(s.ranks, sum_all, &s);
  }
}

static void sums_are_those_of_the_tree_over_leaves_on_any_number_of_ranks(void **state) {
  static const char *const meshes[] = {"tp=1",
                                       "dp_shard=1",
                                       "dp_shard=2",
                                       "dp_replicate=4",
                                       "dp_replicate=2 dp_shard=2",
                                       "dp_replicate=2 dp_shard=4",
                                       "dp_shard=8",
                                       NULL};
  (void)state;
  on_each_mesh(meshes, 16);
}

static void three_ranks_have_the_sums_of_one(void **state) {
  static const char *const meshes[] = {"dp_replicate=1 dp_shard=1", "dp_shard=3", "dp_replicate=3", NULL};
  (void)state;
  on_each_mesh(meshes, 12);
}

/* Ranks have sums of several nodes, and some ranks none. */
static void any_number_of_ranks_has_the_sums_of_one(void **state) {
  static const char *const many[] = {"dp_shard=5",
                                     "dp_replicate=6",
                                     "dp_replicate=2 dp_shard=3",
                                     "dp_replicate=3 dp_shard=2 tp=2",
                                     "dp_replicate=5 dp_shard=2",
                                     "dp_shard=1",
                                     NULL};
  static const char *const few[] = {"dp_shard=4", "dp_replicate=3", "dp_replicate=2 dp_shard=4", NULL};
  (void)state;
  on_each_mesh(many, 16);
  on_each_mesh(many, 11);
  on_each_mesh(few, 3);
}

/* Any number of leaves can be summed on one rank. */
static void an_odd_number_of_leaves_is_summed(void **state) {
  static const char *const meshes[] = {"dp_shard=1", NULL}, *const seven[] = {"dp_replicate=7", "dp_shard=1", NULL};
  (void)state;
  on_each_mesh(meshes, 1);
  on_each_mesh(meshes, 11);
  on_each_mesh(seven, 7);
}

static void other_axes_are_summed_after_the_leaves(void **state) {
  static const char *const meshes[] = {
      "dp_shard=1 tp=2", "tp=2", "dp_replicate=2 tp=2", "tp=2 dp_shard=2", "dp_replicate=2 dp_shard=2 tp=2", NULL};
  (void)state;
  on_each_mesh(meshes, 8);
}

static void backend_hostile_changes_no_bit(void **state) {
  static const char *const meshes[] = {"dp_shard=1", "dp_replicate=2 dp_shard=2", NULL};
  (void)state;
  setenv("ADDEND_HOSTILE", "3", 1);
  on_each_mesh(meshes, 8);
  unsetenv("ADDEND_HOSTILE");
}

/* ---- rounds before the last that send ---- */

/* Tests every precision policy, size of buckets and use of memory. */
static int sum_scattered(ad_comm *comm, void *context) {
  static const ad_precision_policy policies[] = {
      {AD_F32, AD_F32, 0, AD_F32, AD_F32}, {AD_BF16, AD_BF16, 0, AD_F32, AD_F32}, {AD_F32, AD_BF16, 1, AD_F64, AD_F64}};
  static const size_t sizes[] = {1, 100, 0};
  setting s = *(const setting *)context;
  for (int policy = 0; policy < 3; policy++)
    for (int size = 0; size < 3; size++)
      for (s.reuses = 0; s.reuses < (strchr(s.list, 'n') ? 1 : 2); s.reuses++) {
        s.policy = policies[policy];
        s.bucket_bytes = sizes[size];
        sum_two_steps(comm, &s);
      }
  return 0;
}

typedef struct scattered {
  const char *mesh;
  int64_t leaves, rounds;
  const char *list;
  int shards;  // 1: storage is sharded over dp_shard; 2: only that of some parameters
} scattered;

static void on_each(const scattered *cases, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const scattered *c = &cases[i];
    ad_mesh *mesh;
    assert_int_equal(ad_mesh_create(c->mesh, &mesh), AD_OK);
    setting s = {.mesh = c->mesh, .leaves = c->leaves, .rounds = c->rounds, .list = c->list, .shards = c->shards};
    s.ranks = ad_mesh_size(mesh);
    int has_replicas = ad_mesh_axis_size(mesh, AD_DP_REPLICATE) > 1;
    ad_mesh_destroy(mesh);
    run_ranks(s.ranks, sum_scattered, &s);
    s.shards += 2;
    if (c->shards && has_replicas) run_ranks(s.ranks, sum_scattered, &s);
  }
}
#define ON_EACH(cases) on_each((cases), sizeof(cases) / sizeof *(cases))

/* Each list has one letter for each round. */
static void every_round_may_scatter(void **state) {
  static const scattered cases[] = {{"dp_shard=1", 12, 12, "sssssssssssa", 1}, {"dp_shard=2", 16, 8, "sssssssa", 1},
                                    {"dp_shard=4", 16, 4, "sssa", 1},          {"dp_shard=8", 16, 2, "sa", 1},
                                    {"dp_shard=8", 24, 3, "ssa", 1},           {"dp_shard=3", 3, 1, "a", 1},
                                    {"dp_shard=2", 14, 7, "ssssssa", 1},       {"tp=2 dp_shard=2", 8, 4, "sssa", 1},
                                    {"dp_shard=2 tp=2", 6, 3, "ssa", 1}};
  (void)state;
  ON_EACH(cases);
}

/* As experts are: on a view with the mesh's data-parallel axes, beside parameters on the mesh itself. */
static void parameters_on_a_view_are_summed_beside_others(void **state) {
  static const setting cases[] = {{.mesh = "dp_shard=3 tp=2",
                                   .view = "dp_shard=3 ep=1 etp=2",
                                   .ranks = 6,
                                   .leaves = 12,
                                   .rounds = 4,
                                   .list = "nnna"},
                                  {.mesh = "dp_replicate=2 dp_shard=2 tp=2",
                                   .view = "dp_replicate=2 dp_shard=2 efsdp=1 etp=2",
                                   .ranks = 8,
                                   .leaves = 8,
                                   .rounds = 2,
                                   .list = "sa",
                                   .shards = 1},
                                  {.mesh = "dp_replicate=3 dp_shard=2 tp=2",
                                   .view = "dp_replicate=3 dp_shard=2 etp=2",
                                   .ranks = 12,
                                   .leaves = 13,
                                   .rounds = 4,
                                   .list = "sasa",
                                   .shards = 2}};
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    setting s = cases[i];
    run_ranks(s.ranks, sum_scattered, &s);
  }
}

static void scattered_sums_are_added_over_replicas(void **state) {
  static const scattered cases[] = {{"dp_replicate=2 dp_shard=2", 16, 4, "sssa", 1},
                                    {"dp_replicate=3 dp_shard=2", 12, 2, "sa", 1},
                                    {"dp_replicate=3 dp_shard=2", 24, 4, "sssa", 1},
                                    {"dp_replicate=2 dp_shard=2 tp=2", 8, 2, "sa", 1}};
  (void)state;
  ON_EACH(cases);
}

static void a_scattered_sum_may_have_leaves_of_several_rounds(void **state) {
  static const scattered cases[] = {{"dp_shard=1", 16, 16, "nnnsnnnsnnnsnnna", 1},
                                    {"dp_shard=2", 16, 8, "nsnsnsna", 1},
                                    {"dp_shard=3", 12, 4, "nnna", 1},
                                    {"dp_shard=2", 12, 6, "nsnsna", 1},
                                    {"dp_shard=2", 8, 4, "nsna", 1},
                                    {"dp_shard=2", 8, 4, "nssa", 1},
                                    {"dp_shard=2", 6, 3, "nsa", 1},
                                    {"dp_replicate=2 dp_shard=2", 16, 4, "nssa", 1}};
  (void)state;
  ON_EACH(cases);
}

static void a_step_may_reduce_before_its_last_round(void **state) {
  static const scattered cases[] = {{"dp_shard=1", 16, 16, "sssasssasssassaa", 1},
                                    {"dp_shard=2", 16, 8, "sassssaa", 1},
                                    {"dp_shard=2", 16, 8, "sasaasna", 1},
                                    {"dp_replicate=1 dp_shard=2", 16, 8, "saasaaaa", 1},
                                    {"dp_replicate=2 dp_shard=1", 16, 8, "sasaaasa", 1},
                                    {"dp_replicate=1 dp_shard=1 tp=2", 8, 8, "sasaaaaa", 1},
                                    {"dp_replicate=2 dp_shard=2", 16, 4, "sasa", 1},
                                    {"dp_replicate=2 dp_shard=2", 24, 6, "sasasa", 1},
                                    {"dp_shard=4", 12, 3, "aaa", 1},
                                    {"dp_shard=4", 12, 3, "aaa", 0},
                                    {"dp_replicate=2 dp_shard=2 tp=2", 16, 4, "sasa", 1},
                                    {"dp_replicate=2 tp=2", 12, 6, "nanana", 0},
                                    {"tp=2", 11, 11, "nananaaaaaa", 0},
                                    {"dp_shard=1", 11, 11, "naannnaaaaa", 0}};
  (void)state;
  ON_EACH(cases);
}

/* The leaves before an AD_SYNC_ALL that is not the last may be several nodes. */
static void a_step_may_reduce_any_leaves_before_its_last_round(void **state) {
  static const scattered cases[] = {{"dp_replicate=3 dp_shard=2", 24, 4, "sasa", 1},
                                    {"dp_replicate=3 dp_shard=2", 24, 4, "nasa", 1},
                                    {"dp_replicate=3 dp_shard=1", 24, 8, "sasaaaaa", 1},
                                    {"dp_replicate=2 dp_shard=3", 23, 5, "asasa", 1},
                                    {"dp_replicate=5", 16, 4, "aaaa", 0},
                                    {"dp_replicate=3", 11, 4, "nana", 0},
                                    {"dp_replicate=2 dp_shard=3", 13, 3, "ana", 0},
                                    {"dp_replicate=3 dp_shard=2 tp=2", 17, 3, "asa", 1}};
  (void)state;
  ON_EACH(cases);
}

/* In some rounds that send there is no leaf, on all ranks or on those of one replica. */
static void rounds_may_have_no_leaf(void **state) {
  static const scattered cases[] = {{"dp_shard=5", 3, 4, "sssa", 1},
                                    {"dp_shard=2", 2, 3, "ssa", 1},
                                    {"dp_shard=2", 1, 4, "saaa", 1},
                                    {"dp_shard=3", 1, 3, "aaa", 0},
                                    {"dp_replicate=3 dp_shard=2", 2, 4, "sasa", 1},
                                    {"dp_replicate=2 dp_shard=2", 3, 5, "ssasa", 1},
                                    {"dp_replicate=2 dp_shard=2 tp=2", 1, 2, "sa", 1},
                                    {"dp_replicate=2 tp=2", 1, 3, "ana", 0},
                                    {"dp_shard=1", 2, 6, "sasasa", 1}};
  (void)state;
  ON_EACH(cases);
}

/* Some gradients are reduce-scattered, and the others are all-reduced over the shards in the same rounds. */
static void some_sums_may_be_scattered_and_others_not(void **state) {
  static const scattered cases[] = {{"dp_shard=2", 8, 4, "sssa", 2},
                                    {"dp_shard=2", 8, 4, "nssa", 2},
                                    {"dp_shard=2", 8, 4, "nnna", 2},
                                    {"dp_shard=3", 16, 6, "sasssa", 2},
                                    {"dp_shard=1", 5, 5, "ssnsa", 2},
                                    {"dp_replicate=2 dp_shard=2", 16, 4, "sasa", 2},
                                    {"dp_replicate=3 dp_shard=2", 17, 3, "ssa", 2},
                                    {"dp_replicate=2 dp_shard=2 tp=2", 7, 2, "sa", 2},
                                    {"dp_shard=5", 3, 4, "sssa", 2}};
  (void)state;
  ON_EACH(cases);
}

static void scattered_sums_may_be_of_any_leaves(void **state) {
  static const scattered cases[] = {{"dp_shard=3", 12, 4, "sssa", 1},
                                    {"dp_shard=5", 16, 4, "sssa", 1},
                                    {"dp_shard=4", 8, 3, "ssa", 1},
                                    {"dp_shard=2", 11, 6, "sssssa", 1},
                                    {"dp_replicate=3 dp_shard=2", 18, 3, "nsa", 1},
                                    {"dp_replicate=2 dp_shard=3", 24, 4, "sssa", 1},
                                    {"dp_replicate=2 dp_shard=3", 13, 4, "nssa", 1},
                                    {"dp_shard=3", 12, 4, "sasa", 1},
                                    {"dp_shard=2", 2, 2, "aa", 0},
                                    {"dp_shard=2", 2, 2, "aa", 1},
                                    {"dp_shard=3 tp=2", 16, 6, "sansaa", 1},
                                    {"dp_replicate=3 dp_shard=1", 18, 6, "ssnnsa", 1},
                                    {"dp_shard=1", 11, 11, "nnsnnsnnssa", 1},
                                    {"dp_replicate=2 dp_shard=2", 13, 4, "sssa", 1}};
  (void)state;
  ON_EACH(cases);
}

/* A reducer that is destroyed in any round frees all its memory, even if a level of the stack above the lowest was in
 * use: the next reducer gets the same memory. */
static int stop_in_each_round(ad_comm *comm, void *context) {
  setting s = *(const setting *)context;
  for (s.shards = 0; s.shards < 2; s.shards++)
    for (int64_t rounds = 1, first = 0; rounds <= s.rounds; rounds++) {
      world w;
      open_world(&w, comm, &s);
      int64_t last = (int64_t)(intptr_t)w.reducer->buckets[w.reducer->bucket_count - 1].sum.data;
      if (rounds == 1) first = last;
      CHECK(last == first);
      for (int64_t round = 0; round < rounds; round++) run_round(&w, round, 0);
      for (size_t i = 0; i < w.reducer->bucket_count; i++) CHECK_OK(ad_bucket_settle(w.reducer, i));
      close_world(&w);
    }
  return 0;
}

static void a_step_may_stop_in_any_round(void **state) {
  setting s = {.mesh = "dp_shard=2", .leaves = 16, .rounds = 8, .bucket_bytes = 100, .list = "sasasasa"};
  (void)state;
  run_ranks(2, stop_in_each_round, &s);
}

static void backend_hostile_changes_no_bit_of_scattered_sums(void **state) {
  static const scattered cases[] = {{"dp_replicate=2 dp_shard=2", 16, 4, "sasa", 1},
                                    {"dp_shard=2", 16, 8, "nsnsnsna", 1},
                                    {"dp_replicate=2 dp_shard=3", 24, 4, "sssa", 1},
                                    {"dp_replicate=3 dp_shard=2", 24, 4, "sasa", 1},
                                    {"dp_replicate=5", 16, 4, "aaaa", 0},
                                    {"dp_shard=5", 16, 4, "sssa", 1}};
  (void)state;
  setenv("ADDEND_HOSTILE", "3", 1);
  ON_EACH(cases);
  unsetenv("ADDEND_HOSTILE");
}

/* ---- gradients that not every rank has ---- */

static ad_array array_of(const world *w, int p, ad_dtype dtype, void *data) {
  ad_layout layout = ad_layout_dual(&w->specs[p].layout);
  ad_array array = ad_array_describe(w->comm, dtype, &shapes[p], &layout);
  array.data = data;
  return array;
}

/* Two steps; in the first, raw gradients have another dtype on the last rank. In the second, only the last rank has a
 * gradient, of parameter 2. */
static int differ(ad_comm *comm, void *context) {
  world w;
  int is_last = ad_comm_rank(comm) + 1 == ad_comm_size(comm);
  float values[NUMEL_MAX] = {0};
  open_world(&w, comm, context);
  ad_array odd = array_of(&w, INVARIANT, is_last ? AD_F32 : AD_BF16, values);
  CHECK_OK(ad_reducer_begin_leaf(w.reducer, AD_SYNC_ALL, ad_comm_rank(comm)));
  CHECK_OK(ad_reducer_add(w.reducer, INVARIANT, &odd));
  CHECK_OK(ad_reducer_end_microbatch(w.reducer));
  CHECK_STATUS(ad_reducer_finish(w.reducer), AD_MISMATCH);
  CHECK_SAYS("invariant", "bf16", "f32", "rank 3");
  CHECK_OK(ad_reducer_begin_leaf(w.reducer, AD_SYNC_ALL, ad_comm_rank(comm)));
  values[1] = 3;
  if (is_last) CHECK_OK(ad_reducer_add(w.reducer, INVARIANT, &odd));
  CHECK_OK(ad_reducer_end_microbatch(w.reducer));
  CHECK_OK(ad_reducer_finish(w.reducer));
  for (size_t p = 0; p < PARAMS; p++) CHECK(ad_reducer_is_absent(w.reducer, p) == (p != INVARIANT));
  CHECK(((const float *)ad_reducer_gradient(w.reducer, INVARIANT)->data)[1] == 3);
  close_world(&w);
  return 0;
}

static void ranks_may_have_gradients_of_other_parameters_but_of_one_dtype(void **state) {
  setting s = {.mesh = "dp_shard=4", .leaves = 4, .rounds = 1, .policy = {.raw = 1, .reduce = AD_F32}};
  (void)state;
  run_ranks(4, differ, &s);
}

static int create_other_leaves(ad_comm *comm, void *context) {
  world w;
  setting s = *(const setting *)context;
  if (ad_comm_rank(comm)) s.leaves = 2;
  open_world(&w, comm, &s);
  CHECK_STATUS(ad_reducer_begin_leaf(w.reducer, AD_SYNC_NONE, ad_reducer_leaf(w.reducer, 0)), AD_MISMATCH);
  CHECK_SAYS("leaves 4", "leaves 2", "rank 0", "rank 1");
  close_world(&w);
  s.leaves = 4;
  if (ad_comm_rank(comm)) s.early = AD_SYNC_SHARD;
  open_world(&w, comm, &s);
  CHECK_STATUS(ad_reducer_begin_leaf(w.reducer, w.sync[0], ad_reducer_leaf(w.reducer, 0)), AD_MISMATCH);
  CHECK_SAYS("leaves 4", "rank 0", "rank 1");
  close_world(&w);
  return 0;
}

static void ranks_agree_on_their_leaves(void **state) {
  setting s = {.mesh = "dp_shard=2", .leaves = 4, .rounds = 2};
  (void)state;
  run_ranks(2, create_other_leaves, &s);
}

/* ---- what is refused, on backend dry ---- */

/* Opens the world of a setting as rank 1 of a dry world; the test ends it with close_dry. */
static void describe_dry(world *w, const setting *s) {
  ad_comm *comm;
  ad_mesh *mesh;
  assert_int_equal(ad_mesh_create(s->mesh, &mesh), AD_OK);
  assert_int_equal(ad_comm_open_dry(ad_mesh_size(mesh) - 1, ad_mesh_size(mesh), &comm), AD_OK);
  ad_mesh_destroy(mesh);
  describe(w, comm, s);
}

static void close_dry(world *w) {
  ad_comm *comm = w->comm;
  close_world(w);
  ad_comm_close(comm);
}

/* A setting that create refuses with AD_INVALID, and what the message has. */
typedef struct refusal {
  setting s;
  const char *facts[6];
} refusal;

static void each_is_refused(const refusal *cases, size_t count, const char *test) {
  for (size_t i = 0; i < count; i++) {
    world w;
    describe_dry(&w, &cases[i].s);
    assert_int_equal(create(&w), AD_INVALID);
    assert_null(w.reducer);
    assert_says_in(test, ad_last_error(), cases[i].facts);
    close_dry(&w);
  }
}
#define REFUSED(cases) each_is_refused((cases), sizeof(cases) / sizeof *(cases), __func__)

static void leaves_that_cannot_be_summed_by_collectives_are_refused(void **state) {
  const refusal cases[] = {
      {{.mesh = "dp_shard=2 dp_replicate=2", .leaves = 4, .rounds = 1}, {"dp_replicate", "dp_shard"}}};
  (void)state;
  REFUSED(cases);
}

static void rounds_that_do_not_fit_are_refused(void **state) {
  const refusal cases[] = {
      {{.mesh = "dp_shard=4", .leaves = 16, .rounds = 3}, {"16", "3", "4"}},
      {{.mesh = "dp_shard=2", .leaves = 4, .rounds = 2, .list = "as"}, {"round 1", "AD_SYNC_ALL"}},
      {{.mesh = "dp_shard=2", .leaves = 4, .rounds = 2, .early = (ad_sync)7}, {"7"}},
      {{.mesh = "dp_shard=2", .leaves = 4, .rounds = 2, .list = "na", .reuses = 1}, {"reuses", "round 0"}},
      {{.mesh = "dp_shard=2", .leaves = -1, .rounds = 2}, {"-1"}},
      {{.mesh = "dp_shard=2", .leaves = 2, .rounds = 0}, {"0"}}};
  (void)state;
  REFUSED(cases);
}

static void sums_that_are_rounded_are_refused(void **state) {
  const refusal cases[] = {
      {{.mesh = "dp_shard=2", .leaves = 4, .rounds = 2, .policy = {.param = AD_BF16}}, {"copied", "bf16", "f32"}},
      {{.mesh = "dp_shard=2", .leaves = 4, .rounds = 2, .policy = {.reduce = AD_F32, .accumulate = AD_F64}},
       {"copied", "f32", "f64"}}};
  (void)state;
  REFUSED(cases);
}

/* Makes a reducer of one parameter after `change`, which must be refused. */
static void one_param_is_refused(const char *mesh, void (*change)(world *w), const ad_reducer_options *given,
                                 ad_status status) {
  world w;
  setting s = {.mesh = mesh, .leaves = 4, .rounds = 4};
  ad_reducer_options options = *given;
  describe_dry(&w, &s);
  change(&w);
  ad_leaf_options leaves = {4, 4, w.sync};
  options.size = sizeof options;
  if (!options.leaves) options.leaves = &leaves;
  assert_int_equal(ad_reducer_create(w.comm, w.specs, 2, &options, &w.reducer), status);
  assert_null(w.reducer);
  close_dry(&w);
}

static void change_nothing(world *w) { (void)w; }
static void make_invariant(world *w) {
  ad_layout_set(&w->specs[1].layout, AD_AXES(AD_DP_SHARD), AD_I);
  w->specs[1].storage = w->specs[1].layout;
}
static void shard_over_cp(world *w) {
  ad_layout_set(&w->specs[1].storage, AD_AXES(AD_DP_SHARD) | AD_AXES(AD_CP), AD_S(0));
}
static ad_mesh *other_mesh;
static void take_other_mesh(world *w) { w->specs[1].layout.mesh = w->specs[1].storage.mesh = other_mesh; }

static void parameters_that_leaves_do_not_fit_are_refused(void **state) {
  const ad_reducer_options none = {0};
  (void)state;
  one_param_is_refused("dp_shard=2", make_invariant, &none, AD_TYPE);
  assert_says("by columns", "dp_shard");
  one_param_is_refused("dp_shard=2 cp=2", shard_over_cp, &none, AD_INVALID);
  assert_says("by columns", "reduce_scatter", "dp_shard,cp");
  assert_int_equal(ad_mesh_create("efsdp=2", &other_mesh), AD_OK);
  one_param_is_refused("dp_shard=2", take_other_mesh, &none, AD_INVALID);
  assert_says("by columns", "efsdp=2", "copied", "dp_shard=2");
  ad_mesh_destroy(other_mesh);
  one_param_is_refused("dp_shard=2", change_nothing, &(ad_reducer_options){.leaves = &(ad_leaf_options){4, 2, NULL}},
                       AD_INVALID);
  assert_says("NULL");
}

static void a_reducer_with_leaves_has_parameters(void **state) {
  ad_comm *comm;
  ad_reducer *reducer = NULL;
  ad_sync sync = AD_SYNC_ALL;
  ad_reducer_options options = {.size = sizeof options, .leaves = &(ad_leaf_options){1, 1, &sync}};
  (void)state;
  assert_int_equal(ad_comm_open_dry(0, 1, &comm), AD_OK);
  assert_int_equal(ad_reducer_create(comm, NULL, 0, &options, &reducer), AD_INVALID);
  assert_says("leaves");
  ad_comm_close(comm);
}

static void calls_that_do_not_fit_are_refused(void **state) {
  world w;
  setting s = {.mesh = "dp_shard=2", .leaves = 4, .rounds = 2};
  const ad_array *none[PARAMS] = {NULL};
  (void)state;
  describe_dry(&w, &s);
  assert_int_equal(create(&w), AD_OK);
  for (int64_t round = -1; round < 3; round++)
    assert_int_equal(ad_reducer_leaf(w.reducer, round), round == 0 || round == 1 ? 2 + round : -1);
  for (int step = 0; step < 2; step++) {
    assert_int_equal(ad_reducer_begin_microbatch(w.reducer, AD_SYNC_ALL), AD_INVALID);
    assert_says("ad_reducer_begin_microbatch", "ad_reducer_begin_leaf");
    assert_int_equal(ad_reducer_step(w.reducer, none), AD_INVALID);
    assert_int_equal(ad_reducer_begin_leaf(w.reducer, AD_SYNC_NONE, 0), AD_INVALID);
    assert_says("round 0", "leaf 0", "leaf 2");
    assert_int_equal(ad_reducer_begin_leaf(w.reducer, AD_SYNC_NONE, -1), AD_INVALID);
    assert_int_equal(ad_reducer_begin_leaf(w.reducer, AD_SYNC_ALL, 2), AD_INVALID);
    assert_int_equal(ad_reducer_begin_leaf(w.reducer, AD_SYNC_NONE, 2), AD_OK);
    assert_int_equal(ad_reducer_begin_leaf(w.reducer, AD_SYNC_ALL, 3), AD_INVALID);
    ad_reducer_expect(w.reducer, 0, 1);
    assert_int_equal(ad_reducer_end_microbatch(w.reducer), AD_INVALID);
    assert_says("copied", "1");
    ad_reducer_expect(w.reducer, 0, -1);
    assert_int_equal(ad_reducer_end_microbatch(w.reducer), AD_OK);
    assert_int_equal(ad_reducer_finish(w.reducer), AD_INVALID);
    assert_int_equal(ad_reducer_begin_leaf(w.reducer, AD_SYNC_NONE, 2), AD_INVALID);
    assert_int_equal(ad_reducer_begin_leaf(w.reducer, AD_SYNC_ALL, 3), AD_OK);
    assert_int_equal(ad_reducer_end_microbatch(w.reducer), AD_OK);
    assert_int_equal(ad_reducer_begin_leaf(w.reducer, AD_SYNC_ALL, 3), AD_INVALID);
    assert_says("2", "ad_reducer_finish");
    assert_int_equal(ad_reducer_finish(w.reducer), AD_OK);
  }
  assert_int_equal(ad_reducer_dump(w.reducer, ".", 0, 0), AD_INVALID);
  assert_says("leaves");
  close_dry(&w);
}

static void without_leaves_there_are_no_rounds(void **state) {
  world w;
  setting s = {.mesh = "dp_shard=2"};
  (void)state;
  describe_dry(&w, &s);
  assert_int_equal(create(&w), AD_OK);
  assert_int_equal(ad_reducer_leaf(w.reducer, 0), -1);
  assert_int_equal(ad_reducer_begin_leaf(w.reducer, AD_SYNC_ALL, 0), AD_INVALID);
  assert_says("ad_reducer_begin_leaf", "leaves", "ad_reducer_begin_microbatch");
  close_dry(&w);
}

/* ---- sums that are wrong inside ---- */

/* A sum of earlier leaves is lost, or a sum of the step before is still in the stack: law 6 (like adds to like) refuses
 * it. */
static void a_sum_that_is_not_of_this_ranks_leaves_is_refused(void **state) {
  (void)state;
  for (int kept = 0; kept < 2; kept++) {
    world w;
    setting s = {.mesh = "dp_shard=2", .leaves = 4, .rounds = 2};
    describe_dry(&w, &s);
    assert_int_equal(create(&w), AD_OK);
    assert_int_equal(ad_reducer_begin_leaf(w.reducer, AD_SYNC_NONE, 2), AD_OK);
    assert_int_equal(ad_reducer_end_microbatch(w.reducer), AD_OK);
    ad_node_stack *stack = &w.reducer->buckets[0].stack;
    assert_int_equal(stack->count, 1);
    if (kept) stack->node[0] = (ad_node){2, 2};
    if (!kept) stack->count = 0;
    ad_status status = ad_reducer_begin_leaf(w.reducer, AD_SYNC_ALL, 3);
    if (!kept) {
      assert_int_equal(status, AD_OK);
      status = ad_reducer_end_microbatch(w.reducer);
    }
    assert_int_equal(status, AD_TYPE);
    assert_says("empty", kept ? "[2, 4)" : "[3, 4)");
    close_dry(&w);
  }
}

/* ---- memory ---- */

static const size_t value_elements = 15 + 24 + 7 + 12 + 6;

/* The bytes that the reducer has from the comm. */
static size_t allocated_bytes(const world *w) {
  size_t bytes = ad_slots_bytes(w->reducer);
  for (size_t i = 0; i < w->reducer->bucket_count; i++) {
    const ad_bucket *bucket = &w->reducer->buckets[i];
    if (bucket->stack.memory && bucket->turn.window < 0) bytes += ad_stack_bytes(&bucket->stack);
    if (bucket->early_sums.memory) bytes += ad_stack_bytes(&bucket->early_sums);
    if (bucket->late_sums.memory) bytes += ad_stack_bytes(&bucket->late_sums);
    CHECK(!bucket->earlier.data && !bucket->relayed.data);
  }
  return bytes;
}

static int bytes_on_rank(ad_comm *comm, void *context) {
  world w, dry;
  ad_comm *dry_comm;
  setting s = *(const setting *)context;
  for (s.shards = 0; s.shards < 5; s.shards++) {
    open_world(&w, comm, &s);
    for (int step = 0; step < 2; step++) run_step(&w, step);
    CHECK_OK(ad_comm_open_dry(ad_comm_rank(comm), ad_comm_size(comm), &dry_comm));
    open_world(&dry, dry_comm, &s);
    for (int step = 0; step < 2; step++) run_step(&dry, step);
    CHECK(ad_reducer_bytes(w.reducer) == ad_reducer_bytes(dry.reducer));
    CHECK(ad_reducer_bytes(w.reducer) == allocated_bytes(&w));
    CHECK(ad_reducer_bucket(w.reducer, 0).bytes == ad_reducer_bucket(dry.reducer, 0).bytes);
    CHECK((ad_slots_bytes(w.reducer) > 0) == (s.reuses && s.shards));
    int updates_parts = s.shards > 2 && ad_mesh_axis_size(w.mesh, AD_DP_REPLICATE) > 1;
    CHECK(w.reducer->buckets[0].key.rescatters == (updates_parts && ad_mesh_axis_size(w.mesh, AD_DP_SHARD) > 1));
    close_world(&dry);
    ad_comm_close(dry_comm);
    close_world(&w);
  }
  return 0;
}

static void memory_is_planned_exactly(void **state) {
  setting s = {.mesh = "dp_shard=2", .leaves = 16, .rounds = 8, .policy = {.grad = AD_F32}};
  (void)state;
  run_ranks(2, bytes_on_rank, &s);
  static const char *const lists[] = {"sssssssa", "sasasasa", "nsnsnsna", "aaaaaaaa"};
  for (int i = 0; i < 4; i++)
    for (s.reuses = 0; s.reuses < (i == 2 ? 1 : 2); s.reuses++) {
      s.list = lists[i];
      s.bucket_bytes = 1;
      run_ranks(2, bytes_on_rank, &s);
    }
  s = (setting){.mesh = "dp_shard=3", .leaves = 16, .rounds = 6, .policy = {.grad = AD_F32}, .list = "sssssa"};
  s.bucket_bytes = 1;
  for (s.reuses = 0; s.reuses < 2; s.reuses++) run_ranks(3, bytes_on_rank, &s);
  s = (setting){.mesh = "dp_replicate=3", .leaves = 24, .rounds = 8, .policy = {.grad = AD_F32}, .list = "nananana"};
  run_ranks(3, bytes_on_rank, &s);
  s = (setting){.mesh = "dp_replicate=2 dp_shard=2", .leaves = 16, .rounds = 4, .policy = {.grad = AD_F32}};
  s.bucket_bytes = 1;
  static const char *const four[] = {"sssa", "sasa", "nsna", "aaaa"};
  for (int i = 0; i < 4; i++)
    for (s.reuses = 0; s.reuses < (i == 2 ? 1 : 2); s.reuses++) {
      s.list = four[i];
      run_ranks(4, bytes_on_rank, &s);
    }
  for (int levels = 1; levels < 6; levels++) { /* 16 leaves on 16 ranks need one level, on one rank 1 + log2(16) */
    static const char *const meshes[] = {"dp_shard=16", "dp_shard=8", "dp_shard=4", "dp_shard=2", "dp_shard=1"};
    world w;
    s = (setting){.mesh = meshes[levels - 1], .leaves = 16, .rounds = 1 << (levels - 1)};
    describe_dry(&w, &s);
    assert_int_equal(create(&w), AD_OK);
    assert_int_equal(ad_reducer_bytes(w.reducer), (size_t)levels * value_elements * sizeof(float));
    close_dry(&w);
  }
}

/* A collective adds its result to the sibling on top of the stack. So 8 scattered sums need only 3 levels of shards, as
 * many as 4 sums that arrive one by one; but the first sum after an AD_SYNC_ALL needs a level of its own. The leaves of
 * a rank that are scattered together need 1 + log2 of their number. */
static void scattered_sums_need_few_levels(void **state) {
  static const struct {
    const char *list;
    size_t leaf, sums;
  } cases[] = {{"sssssssa", 1, 3}, {"sasasasa", 1, 3}, {"aaaaaaaa", 1, 4}, {"nsnsnsna", 2, 2},
               {"nnnsnnna", 3, 1}, {"nnnnnnna", 4, 1}, {"nnnsssss", 3, 3}};
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    world w;
    setting s = {.mesh = "dp_shard=2", .leaves = 16, .rounds = 8, .shards = 1, .list = cases[i].list};
    describe_dry(&w, &s);
    w.sync[7] = AD_SYNC_ALL;
    assert_int_equal(create(&w), AD_OK);
    assert_int_equal(w.reducer->bucket_count, 1);
    const ad_bucket *bucket = &w.reducer->buckets[0];
    assert_int_equal(bucket->stack.levels, cases[i].leaf);
    assert_int_equal(bucket->early_sums.levels, cases[i].sums);
    size_t values = value_elements * sizeof(float), shard = ad_array_bytes(&bucket->sum);
    assert_int_equal(ad_reducer_sum_bytes(w.reducer), cases[i].sums * shard);
    assert_int_equal(ad_reducer_bytes(w.reducer) - ad_reducer_sum_bytes(w.reducer), cases[i].leaf * values);
    close_dry(&w);
  }
}

static void a_failed_allocation_leaves_nothing_behind(void **state) {
  world w;
  setting s = {.mesh = "dp_replicate=2 dp_shard=2", .leaves = 8, .rounds = 2, .shards = 1};
  (void)state;
  describe_dry(&w, &s);
  ad_status status = AD_MEMORY;
  for (long n = 1; status; n++) {
    ad_memory_fail_at(n);
    status = create(&w);
    assert_true(reports_allocation(n, status));
    assert_true(!status || !w.reducer);
  }
  close_dry(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sums_are_those_of_the_tree_over_leaves_on_any_number_of_ranks),
      cmocka_unit_test(three_ranks_have_the_sums_of_one),
      cmocka_unit_test(any_number_of_ranks_has_the_sums_of_one),
      cmocka_unit_test(an_odd_number_of_leaves_is_summed),
      cmocka_unit_test(other_axes_are_summed_after_the_leaves),
      cmocka_unit_test(backend_hostile_changes_no_bit),
      cmocka_unit_test(every_round_may_scatter),
      cmocka_unit_test(parameters_on_a_view_are_summed_beside_others),
      cmocka_unit_test(scattered_sums_are_added_over_replicas),
      cmocka_unit_test(a_scattered_sum_may_have_leaves_of_several_rounds),
      cmocka_unit_test(a_step_may_reduce_before_its_last_round),
      cmocka_unit_test(a_step_may_reduce_any_leaves_before_its_last_round),
      cmocka_unit_test(rounds_may_have_no_leaf),
      cmocka_unit_test(some_sums_may_be_scattered_and_others_not),
      cmocka_unit_test(scattered_sums_may_be_of_any_leaves),
      cmocka_unit_test(a_step_may_stop_in_any_round),
      cmocka_unit_test(backend_hostile_changes_no_bit_of_scattered_sums),
      cmocka_unit_test(ranks_may_have_gradients_of_other_parameters_but_of_one_dtype),
      cmocka_unit_test(ranks_agree_on_their_leaves),
      cmocka_unit_test(leaves_that_cannot_be_summed_by_collectives_are_refused),
      cmocka_unit_test(rounds_that_do_not_fit_are_refused),
      cmocka_unit_test(sums_that_are_rounded_are_refused),
      cmocka_unit_test(parameters_that_leaves_do_not_fit_are_refused),
      cmocka_unit_test(a_reducer_with_leaves_has_parameters),
      cmocka_unit_test(calls_that_do_not_fit_are_refused),
      cmocka_unit_test(without_leaves_there_are_no_rounds),
      cmocka_unit_test(a_sum_that_is_not_of_this_ranks_leaves_is_refused),
      cmocka_unit_test(memory_is_planned_exactly),
      cmocka_unit_test(scattered_sums_need_few_levels),
      cmocka_unit_test(a_failed_allocation_leaves_nothing_behind),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
