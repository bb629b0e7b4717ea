/* Tests the watch of a reducer's sums of leaves: it sees every leaf, every sum of two nodes, and every result of a
 * collective, with their values, and together with mutations at the same injection points. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "addend/reduce.h"
#include "array/array.h"
#include "array/part.h"
#include "base/injection.h"
#include "mesh/mesh.h"
#include "ranks.h"
#include "reduce/reducer.h"
#include "reduce/watch.h"

enum { MOST_LEAVES = 16, PARAMS = 3, VISITS = 400 };

typedef struct setting {
  const char *mesh, *sync; /* sync: for each round, the first letter of its sync: n (none), s (shard) or a (all) */
  int64_t leaves;
  int shards, reuses; /* shards 1: storage is sharded over dp_shard; 2: not that of parameter 1 */
} setting;

/* Fewer rows than ranks, several, and a parameter that other axes shard or sum. */
static const ad_shape shapes[PARAMS] = {{2, {2, 3}}, {2, {5, 2}}, {1, {7}}};
static const char *const names[PARAMS] = {"low", "odd", "flat"};

typedef struct seen {
  ad_comm *comm;
  int64_t leaves;
  ad_watched_sum sums[VISITS];
  size_t count;
  /* [param][first][count]: how many elements of sums of the leaves [first, first + count) were seen on this rank;
   * [param][first][0]: how many elements of leaf `first` were seen where the rank had computed the leaf */
  int64_t elements[PARAMS][MOST_LEAVES][MOST_LEAVES + 1];
} seen;

/* A power of two for each leaf, times the element's position in the full gradient: so a sum shows which leaves are in
 * it. The sums are exact in f32. */
static float value_of(int64_t leaf, int64_t place) { return (float)((1 << leaf) * (place + 1)); }

static float sum_of(ad_node node, int64_t place) {
  float sum = 0;
  for (int64_t leaf = node.first; leaf < node.first + node.count; leaf++) sum += value_of(leaf, place);
  return sum;
}

typedef struct checking {
  const float *at;
  ad_node node;
  float factor; /* the factor of the sum: the number of ranks on other axes over which it was summed, too */
} checking;

static void check_run(void *context, int64_t first, int64_t count) {
  checking *c = context;
  for (int64_t i = 0; i < count; i++) CHECK(*c->at++ == c->factor * sum_of(c->node, first + i));
}

/* Checks the values against the node's leaves and the elements' positions, and records the sum. */
static void keep(void *context, const ad_watched_sum *sum) {
  seen *all = context;
  ad_part part;
  ad_node nodes[AD_NODES_MAX];
  const ad_array *values = &sum->values;
  checking c = {values->data, sum->node, (float)ad_mesh_ranks_over(values->layout.mesh, sum->beyond)};
  CHECK(all->count < VISITS && values->dtype == AD_F32);
  CHECK(ad_nodes_of(sum->node.first, sum->node.count, all->leaves, nodes) == 1);
  ad_part_of(&values->layout, &values->shape, ad_comm_rank(all->comm), &part);
  CHECK(ad_part_numel(&part) == ad_array_numel(values));
  ad_part_visit(&part, &values->shape, check_run, &c);
  int64_t numel = (int64_t)ad_array_numel(values), *seen_of = all->elements[sum->param][sum->node.first];
  seen_of[sum->node.count] += numel;
  if (sum->node.count == 1 && !sum->over) seen_of[0] += numel;
  all->sums[all->count++] = *sum;
}

static void run_round(ad_reducer *reducer, ad_sync sync, int64_t leaf) {
  float values[16];
  CHECK_OK(ad_reducer_begin_leaf(reducer, sync, leaf));
  for (size_t p = 0; leaf >= 0 && p < PARAMS; p++) {
    ad_array grad = ad_reducer_describe(reducer, p);
    for (size_t i = 0; i < ad_array_numel(&grad); i++) values[i] = value_of(leaf, (int64_t)i);
    grad.data = values;
    CHECK_OK(ad_reducer_add(reducer, p, &grad));
  }
  CHECK_OK(ad_reducer_end_microbatch(reducer));
}

/* Runs a step of the setting on this rank while it is watched. Depending on `bucket_bytes`, each parameter has its own
 * bucket or all share one. */
static void watch_step(ad_comm *comm, const setting *s, size_t bucket_bytes, seen *all,
                       void (*install)(ad_sum_watch *)) {
  ad_mesh *mesh;
  ad_reducer *reducer;
  ad_sync sync[MOST_LEAVES];
  ad_param_spec specs[PARAMS];
  int64_t rounds = (int64_t)strlen(s->sync);
  ad_leaf_options leaves = {s->leaves, rounds, sync};
  ad_reducer_options options = {.size = sizeof options, .leaves = &leaves, .reuses = s->reuses};
  options.bucket_bytes = bucket_bytes;
  CHECK_OK(ad_mesh_create(s->mesh, &mesh));
  for (int64_t r = 0; r < rounds; r++)
    sync[r] = s->sync[r] == 'n' ? AD_SYNC_NONE : s->sync[r] == 's' ? AD_SYNC_SHARD : AD_SYNC_ALL;
  for (int p = 0; p < PARAMS; p++) {
    specs[p] = (ad_param_spec){
        .size = sizeof *specs, .name = names[p], .shape = shapes[p], .layout = ad_layout_all(mesh, AD_R)};
    specs[p].policy = (ad_precision_policy){AD_F32, AD_F32, 0, AD_F32, AD_F32};
    specs[p].storage = specs[p].layout;
    if (s->shards == 1 || (s->shards && p != 1)) ad_layout_set(&specs[p].storage, AD_AXES(AD_DP_SHARD), AD_S(0));
  }
  CHECK_OK(ad_reducer_create(comm, specs, PARAMS, &options, &reducer));
  ad_sum_watch watch = {.visit = keep, .context = all};
  memset(all, 0, sizeof *all);
  all->comm = comm;
  all->leaves = s->leaves;
  install(&watch);
  for (int64_t r = 0; r < rounds; r++) run_round(reducer, sync[r], ad_reducer_leaf(reducer, r));
  CHECK_OK(ad_reducer_finish(reducer));
  ad_injections_clear();
  ad_reducer_destroy(reducer);
  ad_mesh_destroy(mesh);
}

static void watch_alone(ad_sum_watch *watch) { ad_sums_watch(watch); }

static void add_up(ad_comm *comm, seen *all) {
  ad_collective add = {.size = sizeof add,
                       .op = AD_ALL_REDUCE,
                       .group = ad_mesh_group(ad_comm_mesh(comm), AD_AXES_ALL, ad_comm_rank(comm)),
                       .in = all->elements,
                       .out = all->elements,
                       .count = sizeof all->elements / sizeof(int64_t),
                       .dtype = AD_I64};
  CHECK_OK(ad_comm_run(comm, &add));
}

/* Each leaf is seen once by the rank that computed it, for each position of tp. Of every sum that is seen, the ranks
 * together see a whole number of copies, and the sum of all leaves is seen. */
static int see_all(ad_comm *comm, void *context) {
  static seen all;
  const setting *s = context;
  int64_t places = strstr(s->mesh, "tp=2") ? 2 : 1;
  for (size_t bytes = 1; bytes < 200; bytes += 150) {
    watch_step(comm, s, bytes, &all, watch_alone);
    add_up(comm, &all);
    for (size_t p = 0; p < PARAMS; p++)
      for (int64_t first = 0; first < s->leaves; first++) {
        int64_t numel = ad_shape_numel(&shapes[p]);
        CHECK(all.elements[p][first][0] == places * numel);
        for (int64_t count = 1; count <= s->leaves; count++) CHECK(all.elements[p][first][count] % numel == 0);
        CHECK(first || all.elements[p][0][s->leaves] > 0);
      }
  }
  return 0;
}

static void run_case(const char *text, int (*function)(ad_comm *, void *), const void *one) {
  ad_mesh *mesh;
  assert_int_equal(ad_mesh_create(text, &mesh), AD_OK);
  int64_t ranks = ad_mesh_size(mesh);
  ad_mesh_destroy(mesh);
  run_ranks(ranks, function, (void *)(uintptr_t)one);
}

static void what_ranks_have_of_every_sum_is_seen_and_adds_up(void **state) {
  static const setting cases[] = {{"dp_shard=1", "nnnnna", 6, 0, 0},
                                  {"dp_replicate=2", "nna", 6, 0, 0},
                                  {"dp_shard=2", "nna", 6, 1, 0},
                                  {"dp_shard=2", "ssssssa", 13, 1, 1},
                                  {"dp_shard=3", "sssa", 12, 1, 1},
                                  {"dp_shard=3", "nsna", 11, 1, 0},
                                  {"dp_shard=5", "sa", 3, 1, 1},
                                  {"dp_replicate=2 dp_shard=2", "sssa", 16, 1, 1},
                                  {"dp_replicate=2 dp_shard=2", "sasa", 13, 1, 0},
                                  {"dp_replicate=3 dp_shard=2", "asa", 16, 1, 0},
                                  {"dp_replicate=3", "nanna", 13, 0, 0},
                                  {"dp_shard=2", "sssa", 8, 2, 1},
                                  {"dp_replicate=2 dp_shard=2", "sasa", 13, 2, 0},
                                  {"dp_shard=2 tp=2", "sasa", 7, 1, 1},
                                  {"dp_shard=2 tp=2", "na", 3, 0, 0}};
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_case(cases[i].mesh, see_all, &cases[i]);
}

/* The sums of one parameter that one rank sees, in order. */
typedef struct expected {
  setting s;
  int64_t rank;
  struct {
    int64_t first, count;
    /* how the sum was made. 'r', 's': by a collective over dp_replicate or dp_shard; 'm': by this rank, from results of
     * collectives; 0: by this rank, from its own leaves */
    int over;
  } sums[16];
} expected;

static int see_in_order(ad_comm *comm, void *context) {
  static seen all;
  const expected *e = context;
  size_t i = 0;
  ad_axes replicas = AD_AXES(AD_DP_REPLICATE), shards = AD_AXES(AD_DP_SHARD);
  watch_step(comm, &e->s, 0, &all, watch_alone);
  if (ad_comm_rank(comm) != e->rank) return 0;
  for (size_t k = 0; k < all.count; k++) {
    const ad_watched_sum *sum = &all.sums[k];
    int over = e->sums[i].over;
    if (sum->param != 1) continue;
    CHECK(sum->node.first == e->sums[i].first && sum->node.count == e->sums[i].count && !sum->beyond);
    CHECK(sum->over == (over == 'r' ? replicas : over == 's' ? shards : 0));
    int64_t rows = e->s.shards == 1 && over ? ad_cut(5, e->rank % 2, 2).count : 5;
    CHECK(ad_array_numel(&sum->values) == (size_t)rows * 2);
    i++;
  }
  CHECK(e->sums[i].count == 0);
  return 0;
}

static void each_sum_is_seen_once_and_in_order(void **state) {
  static const expected cases[] = {
      {{"dp_shard=2", "na", 4, 0, 0}, 1, {{2, 1, 0}, {3, 1, 0}, {2, 2, 0}, {0, 4, 's'}}},
      {{"dp_shard=2", "na", 4, 1, 0}, 0, {{0, 1, 0}, {1, 1, 0}, {0, 2, 0}, {0, 4, 's'}}},
      {{"dp_shard=2", "sssa", 8, 1, 1}, /* the collective adds its result to the sibling */
       1,
       {{1, 1, 0}, {0, 2, 's'}, {3, 1, 0}, {0, 4, 's'}, {5, 1, 0}, {4, 2, 's'}, {7, 1, 0}, {4, 4, 's'}, {0, 8, 'm'}}},
      {{"dp_replicate=2 dp_shard=2", "sasa", 16, 1, 0}, /* replica 1; the second segment joins the first at its end */
       3,
       {{5, 1, 0},
        {4, 2, 's'},
        {7, 1, 0},
        {4, 4, 's'},
        {0, 8, 'r'},
        {13, 1, 0},
        {12, 2, 's'},
        {15, 1, 0},
        {12, 4, 's'},
        {8, 8, 'r'},
        {0, 16, 'm'}}},
      {{"dp_shard=2", "sa", 3, 1, 1}, /* rank 0 has no leaf in round 0 */
       0,
       {{0, 1, 's'}, {1, 1, 0}, {1, 1, 's'}, {0, 2, 'm'}, {2, 1, 's'}, {0, 3, 'm'}}},
      {{"dp_shard=2", "sa", 4, 2, 0}, 0, {{0, 1, 0}, {0, 2, 's'}, {2, 1, 0}, {2, 2, 's'}, {0, 4, 'm'}}},
      {{"dp_replicate=3", "aa", 6, 0, 0}, /* each segment is two nodes */
       0,
       {{0, 1, 0},
        {0, 2, 'r'},
        {2, 1, 'r'},
        {3, 1, 0},
        {3, 1, 'r'},
        {2, 2, 'm'},
        {0, 4, 'm'},
        {4, 2, 'r'},
        {0, 6, 'm'}}}};
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_case(cases[i].s.mesh, see_in_order, &cases[i]);
}

static void spoil_leaf(void *context, void *passing) {
  const ad_bucket_passing *of = passing;
  float *values = of->bucket->sent.data;
  (void)context;
  values[0] += 0.5f;
}

/* Two mutations: spoil_node changes the sum of two leaves, spoil_reduced the result of a collective. */
static void spoil_node(void *context, void *passing) {
  const ad_node_passing *of = passing;
  (void)context;
  if (of->stack->node[of->stack->count - 1].count == 2) ((float *)ad_stack_level(of->stack, 0))[0] += 0.25f;
}

static void spoil_reduced(void *context, void *passing) {
  const ad_bucket_passing *of = passing;
  (void)context;
  ((float *)of->bucket->sum.data)[0] += 0.125f;
}

static void see_mutants_of(void *context, const ad_watched_sum *sum) {
  seen *all = context;
  if (sum->param == 2) all->sums[all->count++] = *sum;
  if (sum->param == 2) memcpy(&all->elements[0][0][all->count], sum->values.data, sizeof(float));
}

static void watch_mutants(ad_sum_watch *watch) {
  watch->visit = see_mutants_of;
  ad_injection_set(AD_INJECT_LEAF, (ad_injection){spoil_leaf, NULL});
  ad_injection_set(AD_INJECT_NODE, (ad_injection){spoil_node, NULL});
  ad_injection_set(AD_INJECT_REDUCED, (ad_injection){spoil_reduced, NULL});
  ad_sums_watch(watch);
}

static float first_of(const seen *all, size_t number) {
  float value;
  memcpy(&value, &all->elements[0][0][number + 1], sizeof value);
  return value;
}

/* "flat" is the first parameter of the bucket. */
static int see_mutants(ad_comm *comm, void *context) {
  static seen all;
  const setting s = {"dp_shard=2", "na", 4, 0, 0};
  int64_t first = ad_comm_rank(comm) * 2;
  (void)context;
  watch_step(comm, &s, 0, &all, watch_mutants);
  CHECK(all.count == 4);
  CHECK(first_of(&all, 0) == value_of(first, 0) + 0.5f);          /* mutated before it is seen */
  CHECK(first_of(&all, 2) == sum_of((ad_node){first, 2}, 0) + 1); /* mutated after it is seen */
  /* a collective's result is mutated before it is seen, too */
  CHECK(first_of(&all, 3) == sum_of((ad_node){0, 4}, 0) + 2.625f);
  return 0;
}

static void mutations_act_beside_the_watch(void **state) {
  (void)state;
  run_ranks(2, see_mutants, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(what_ranks_have_of_every_sum_is_seen_and_adds_up),
                                     cmocka_unit_test(each_sum_is_seen_once_and_in_order),
                                     cmocka_unit_test(mutations_act_beside_the_watch)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
