/* Tests updates of whole matrices on real ranks: on every layout, in every way and with empty shards, parameters and
 * states have the bits that one process computes. Tests whole.c, stacks.c and
 * whole_known_bugs.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "allocations.h"
#include "addend/helpers.h"
#include "addend/optim.h"
#include "array/array.h"
#include "array/part.h"
#include "array/transit.h"
#include "comm/scratch.h"
#include "optim/known_bugs.h"
#include "optim/orthogonal.h"
#include "optim/whole.h"
#include "ranks.h"

enum { PARAMS_MAX = 12, STEPS = 3 };

/* Parameters of one shape and layout. */
typedef struct kind {
  ad_shape shape;
  const char *layout;
  int copies;
  ad_param_matrices matrices;
} kind;

typedef struct world {
  int64_t ranks;
  const char *mesh;
  kind kinds[6]; /* those with copies 0 end the list */
} world;

#define QKV                                                                             \
  {                                                                                     \
    .form = AD_MATRIX_FUSED, .along = 1, .count = 3, .repeats = 1, .piece = { 4, 2, 3 } \
  }
#define GROUPS_OF_ROWS                                                                               \
  {                                                                                                  \
    .form = AD_MATRIX_FUSED, .out_first = 1, .along = 0, .count = 2, .repeats = 3, .piece = { 2, 1 } \
  }
#define GROUPS_OF_COLUMNS                                                            \
  {                                                                                  \
    .form = AD_MATRIX_FUSED, .along = 1, .count = 2, .repeats = 3, .piece = { 2, 1 } \
  }

static const world worlds[] = {
    {1, "dp_shard=1", {{{2, {5, 7}}, "dp_shard=S0", 2, {0}}, {{2, {7, 9}}, "dp_shard=R", 2, QKV}}},
    {2, "dp_shard=2", {{{2, {5, 7}}, "dp_shard=S0", 3, {0}}, {{2, {9, 4}}, "dp_shard=S0", 1, {0}}}},
    // seven matrices of one shape and three of another, more replicas than shards
    {6,
     "dp_replicate=3 dp_shard=2",
     {{{2, {5, 7}}, "dp_replicate=R dp_shard=S0", 7, {0}}, {{2, {4, 11}}, "dp_replicate=I dp_shard=S0", 3, {0}}}},
    // rows and columns, nested both ways, and fused matrices that shards divide anywhere
    {8,
     "dp_replicate=2 dp_shard=2 tp=2",
     {{{2, {6, 10}}, "dp_replicate=R dp_shard=S0 tp=S1", 3, {0}},
      {{2, {10, 6}}, "dp_replicate=R tp=S0 dp_shard=S0", 2, {0}},
      {{2, {10, 6}}, "dp_replicate=R dp_shard=S0 tp=S0", 1, {0}},
      {{2, {6, 9}}, "dp_replicate=R dp_shard=S0 tp=S1", 2, QKV},
      {{2, {9, 6}}, "dp_replicate=R dp_shard=R tp=S0", 2, GROUPS_OF_ROWS},
      {{2, {6, 9}}, "dp_replicate=R dp_shard=S1 tp=I", 1, GROUPS_OF_COLUMNS}}},
    // more ranks than rows, so that some have no shard
    {5, "dp_shard=5", {{{2, {3, 8}}, "dp_shard=S0", 4, {0}}, {{2, {2, 2}}, "dp_shard=S1", 1, {0}}}},
    {4, "dp_shard=2 cp=2", {{{2, {5, 7}}, "dp_shard=R cp=R", 5, {0}}, {{2, {3, 4}}, "dp_shard=S0 cp=I", 1, {0}}}},
    // experts: each rank of ep has others, 3 of 5 or 2
    {8,
     "efsdp=2 ep=2 etp=2",
     {{{3, {5, 6, 10}}, "ep=S0 efsdp=R etp=S2", 2, {0}},
      {{3, {5, 10, 6}}, "ep=S0 efsdp=S0 etp=S1", 1, {0}},
      {{3, {3, 4, 5}}, "efsdp=S1 ep=S0 etp=S1", 1, {0}},
      {{2, {5, 7}}, "efsdp=S0 ep=R etp=R", 2, {0}}}},
    {4, "ep=2 etp=2", {{{3, {1, 6, 4}}, "ep=S0 etp=S1", 1, {0}}, {{2, {6, 4}}, "ep=I etp=S0", 1, {0}}}},
};
enum { WORLDS = sizeof worlds / sizeof *worlds };

/* ---- a run: some steps of one process, or of one rank of a world ---- */

typedef struct trial {
  const world *world;
  ad_optimizer_options options;
  ad_dtype dtype;
} trial;

typedef struct run {
  ad_comm *comm;
  ad_mesh *mesh;
  size_t count;
  char names[PARAMS_MAX][16];
  ad_param_spec specs[PARAMS_MAX];
  ad_array params[PARAMS_MAX], grads[PARAMS_MAX];
  ad_optimizer *optimizer;
} run;

/* Declares the world's parameters on the run's mesh; `alone`: on the mesh of one process. */
static void declare(run *r, const world *w, ad_dtype dtype, int alone) {
  CHECK_OK(ad_mesh_create(alone ? "dp_shard=1" : w->mesh, &r->mesh));
  for (size_t k = 0; k < 6 && w->kinds[k].copies; k++)
    for (int copy = 0; copy < w->kinds[k].copies; copy++) {
      size_t i = r->count++;
      ad_layout layout = ad_layout_all(r->mesh, AD_R);
      if (!alone) CHECK_OK(ad_layout_parse(r->mesh, w->kinds[k].layout, &layout));
      snprintf(r->names[i], sizeof r->names[i], "matrix%zu", i);
      r->specs[i] = (ad_param_spec){.size = sizeof(ad_param_spec),
                                    .name = r->names[i],
                                    .shape = w->kinds[k].shape,
                                    .layout = layout,
                                    .decays = copy != 1,
                                    .deviation = 1,
                                    .matrices = w->kinds[k].matrices};
      CHECK_OK(ad_array_create(r->comm, dtype, &r->specs[i].shape, &layout, &r->params[i]));
    }
}

static void create_optimizer(run *r, const ad_optimizer_options *options, const ad_matrix_cuts *cuts) {
  const ad_array *params[PARAMS_MAX];
  for (size_t i = 0; i < r->count; i++) params[i] = &r->params[i];
  const ad_optimizer_setup setup = {
      .size = sizeof setup, .groups = options, .group_count = 1, .comm = r->comm, .cuts = cuts};
  CHECK_OK(ad_optimizer_create_groups(params, r->specs, r->count, &setup, &r->optimizer));
}

/* The dtype of a parameter's gradient in a step; 0: it has none. */
static ad_dtype gradient_dtype(ad_dtype dtype, size_t param, int step) {
  if (step == 1 && param == 0) return AD_BF16;
  return step == 2 && param == 1 ? (ad_dtype)0 : dtype;
}

static void take_step(run *r, ad_dtype dtype, int step) {
  ad_array *params[PARAMS_MAX];
  const ad_array *grads[PARAMS_MAX];
  for (size_t i = 0; i < r->count; i++) {
    ad_dtype of_gradient = gradient_dtype(dtype, i, step);
    params[i] = &r->params[i];
    grads[i] = of_gradient ? &r->grads[i] : NULL;
    if (!of_gradient) continue;
    CHECK_OK(ad_array_create(r->comm, of_gradient, &r->specs[i].shape, &r->specs[i].layout, &r->grads[i]));
    CHECK_OK(ad_param_initialise(&r->specs[i], (uint64_t)(100 + step), ad_comm_rank(r->comm), &r->grads[i]));
  }
  CHECK_OK(ad_optimizer_step(r->optimizer, params, grads, 0.0625 * (step + 1), 0.75));
  for (size_t i = 0; i < r->count; i++)
    if (grads[i]) ad_array_destroy(r->comm, &r->grads[i]);
}

static void finish(run *r) {
  ad_optimizer_destroy(r->optimizer);
  for (size_t i = 0; i < r->count; i++) ad_array_destroy(r->comm, &r->params[i]);
  ad_mesh_destroy(r->mesh);
}

/* Where ranks divide dimension `dim` of n indices; returns how many cuts there are. */
static size_t cuts_of(const ad_layout *layout, int64_t ranks, int dim, int64_t n, int64_t *cuts) {
  size_t count = 0;
  for (int64_t at = 1; at < n; at++)
    for (int64_t rank = 0; rank < ranks; rank++) {
      ad_span span = {0, 0};
      ad_layout_spans(layout, dim, n, rank, &span, 1);
      if (!span.count || span.first != at) continue;
      cuts[count++] = at;
      break;
    }
  return count;
}

/* The cuts of each parameter in the world's layouts, for the options `blockwise`. */
static const ad_matrix_cuts *world_cuts(const world *w) {
  static ad_matrix_cuts cuts[PARAMS_MAX];
  static int64_t rows[PARAMS_MAX][16], cols[PARAMS_MAX][16];
  size_t i = 0;
  ad_mesh *mesh;
  CHECK_OK(ad_mesh_create(w->mesh, &mesh));
  for (size_t k = 0; k < 6 && w->kinds[k].copies; k++)
    for (int copy = 0; copy < w->kinds[k].copies; copy++, i++) {
      const ad_shape *shape = &w->kinds[k].shape;
      ad_layout layout;
      CHECK_OK(ad_layout_parse(mesh, w->kinds[k].layout, &layout));
      cuts[i] = (ad_matrix_cuts){.rows = rows[i], .cols = cols[i]};
      cuts[i].row_count = cuts_of(&layout, w->ranks, shape->ndim - 2, shape->dim[shape->ndim - 2], rows[i]);
      cuts[i].col_count = cuts_of(&layout, w->ranks, shape->ndim - 1, shape->dim[shape->ndim - 1], cols[i]);
    }
  ad_mesh_destroy(mesh);
  return cuts;
}

static void begin(run *r, ad_comm *comm, const trial *t, int alone) {
  *r = (run){.comm = comm};
  declare(r, t->world, t->dtype, alone);
  for (size_t i = 0; i < r->count; i++)
    CHECK_OK(ad_param_initialise(&r->specs[i], 7, ad_comm_rank(comm), &r->params[i]));
  create_optimizer(r, &t->options, alone && t->options.muon.blockwise ? world_cuts(t->world) : NULL);
}

/* ---- comparison with one process ---- */

typedef struct comparison {
  const char *part, *full;
  size_t element;
} comparison;

static void compare_run(void *context, int64_t first, int64_t count) {
  comparison *c = context;
  CHECK(!memcmp(c->part, c->full + (size_t)first * c->element, (size_t)count * c->element));
  c->part += (size_t)count * c->element;
}

/* Checks that this rank's part has the bits of the full array. */
static void check_part(const ad_comm *comm, const ad_array *part, const ad_array *full) {
  ad_part of;
  comparison c = {part->data, full->data, ad_dtype_size(part->dtype)};
  ad_part_of(&part->layout, &part->shape, ad_comm_rank(comm), &of);
  ad_part_visit(&of, &part->shape, compare_run, &c);
  CHECK((size_t)(c.part - (const char *)part->data) == ad_array_bytes(part));
}

static void check_equal(run *ranks, run *alone) {
  for (size_t i = 0; i < ranks->count; i++) {
    check_part(ranks->comm, &ranks->params[i], &alone->params[i]);
    const ad_array *state = ad_optimizer_state(ranks->optimizer, i, 0);
    CHECK((state != NULL) == (ad_optimizer_state(alone->optimizer, i, 0) != NULL));
    if (state) check_part(ranks->comm, state, ad_optimizer_state(alone->optimizer, i, 0));
  }
}

static int has_bits_of_one_process(ad_comm *comm, void *context) {
  const trial *t = context;
  run ranks, alone;
  ad_comm *one;
  CHECK_OK(ad_comm_open_alone(&one));
  begin(&ranks, comm, t, 0);
  begin(&alone, one, t, 1);
  for (int step = 0; step < STEPS; step++) {
    take_step(&ranks, t->dtype, step);
    take_step(&alone, t->dtype, step);
    check_equal(&ranks, &alone);
  }
  finish(&ranks);
  finish(&alone);
  ad_comm_close(one);
  return 0;
}

static const ad_muon_way ways[] = {AD_WAY_CHEAPEST, AD_WAY_GATHERED, AD_WAY_DEALT, AD_WAY_DEALT_TO_REPLICAS};
enum { WAYS = sizeof ways / sizeof *ways };

static trial trial_of(int number, ad_muon_way way) {
  ad_optimizer_options options = {.size = sizeof options, .kind = AD_MUON, .weight_decay = 0.125};
  options.muon.way = way;
  return (trial){.world = &worlds[number], .options = options, .dtype = number % 2 ? AD_F32 : AD_F64};
}

static void every_way_has_the_bits_of_one_process(void **state) {
  for (int w = 0; w < WORLDS; w++)
    for (int i = 0; i < WAYS; i++) {
      trial t = trial_of(w, ways[i]);
      run_ranks(worlds[w].ranks, has_bits_of_one_process, &t);
    }
}

static void backend_hostile_changes_no_bit(void **state) {
  setenv("ADDEND_HOSTILE", "7", 1);
  for (int w = 2; w < WORLDS; w += 2)
    for (int i = 1; i < WAYS; i++) {
      trial t = trial_of(w, ways[i]);
      run_ranks(worlds[w].ranks, has_bits_of_one_process, &t);
    }
  unsetenv("ADDEND_HOSTILE");
}

static void other_options_have_the_bits_of_one_process_too(void **state) {
  trial t = trial_of(3, AD_WAY_DEALT);
  t.options.muon.nesterov = AD_NO;
  t.options.muon.rate = AD_MUON_MATCH_RMS_ADAMW;
  t.options.muon.dtype = AD_BF16;
  run_ranks(worlds[3].ranks, has_bits_of_one_process, &t);
  t = trial_of(6, AD_WAY_DEALT_TO_REPLICAS);
  t.options.muon.momentum = AD_BETA_ZERO;
  t.options.muon.dtype = AD_F32;
  t.options.decays_all = 1;
  run_ranks(worlds[6].ranks, has_bits_of_one_process, &t);
}

/* One process repeats the blocks of a distributed run; that is another optimizer than one of whole matrices. */
static void blocks_have_the_bits_of_one_process_with_their_cuts(void **state) {
  static const int with_blocks[] = {1, 2, 4, 5, 6};
  for (size_t i = 0; i < sizeof with_blocks / sizeof *with_blocks; i++) {
    trial t = trial_of(with_blocks[i], AD_WAY_CHEAPEST);
    t.options.muon.blockwise = 1;
    run_ranks(t.world->ranks, has_bits_of_one_process, &t);
  }
}

static int differs_from_blocks(ad_comm *comm, void *context) {
  const trial *t = context;
  trial of_blocks = *t;
  of_blocks.options.muon.blockwise = 1;
  run whole, blocks;
  begin(&whole, comm, t, 0);
  begin(&blocks, comm, &of_blocks, 0);
  take_step(&whole, t->dtype, 0);
  take_step(&blocks, t->dtype, 0);
  CHECK(memcmp(whole.params[0].data, blocks.params[0].data, ad_array_bytes(&whole.params[0])));
  finish(&whole);
  finish(&blocks);
  return 0;
}

static void blocks_are_another_optimizer(void **state) {
  trial t = trial_of(1, AD_WAY_CHEAPEST);
  run_ranks(t.world->ranks, differs_from_blocks, &t);
}

/* ---- one process against the formula ---- */

/* One step of Muon on a matrix [rows, cols], written out. */
static void muon_step(double *param, double *average, const double *grad, int rows, int cols, double lr, double decay,
                      double rate) {
  static double direction[64];
  const ad_optimizer_options options = {.muon = {.a = 3.4445, .b = -4.7750, .c = 2.0315, .steps = 5, .epsilon = 1e-7}};
  const ad_update update = {.options = &options, .derived = {rate}};
  const ad_optimizer_product plain = {.multiply = ad_plain_product};
  _Alignas(64) static char scratch[65536];
  for (int i = 0; i < rows * cols; i++) {
    average[i] = 0.95 * average[i] + 0.05 * grad[i];
    direction[i] = 0.05 * grad[i] + 0.95 * average[i];
  }
  ad_whole_matrix matrix = {direction, AD_F64, rows, cols, cols};
  assert_int_equal(ad_orthogonalise(&update, &matrix, &plain, scratch), AD_OK);
  for (int i = 0; i < rows * cols; i++) param[i] -= lr * (direction[i] + decay * param[i]);
}

static ad_array array_of(const ad_mesh *mesh, const ad_shape *shape, double *data) {
  return (ad_array){
      .dtype = AD_F64, .shape = *shape, .local = *shape, .layout = ad_layout_all(mesh, AD_R), .data = data};
}

/* Takes steps of one parameter of one process, and holds them against steps of its pieces: piece p has pieces[p]
 * columns from column first[p] on. */
static void follows_formula(const ad_shape *shape, ad_param_matrices matrices, int pieces, const int *first,
                            const int *columns, double (*rate)(double in, double out)) {
  ad_comm *comm;
  ad_mesh *mesh;
  assert_int_equal(ad_comm_open_alone(&comm), AD_OK);
  assert_int_equal(ad_mesh_create("dp_shard=1", &mesh), AD_OK);
  const int rows = (int)shape->dim[shape->ndim - 2], cols = (int)shape->dim[shape->ndim - 1];
  const int experts = shape->ndim == 3 ? (int)shape->dim[0] : 1;
  double value[64], expected[64], gradient[64], average[64] = {0};
  for (int i = 0; i < experts * rows * cols; i++) value[i] = expected[i] = ad_random_normal(3, 1, (uint64_t)i);
  ad_array param = array_of(mesh, shape, value), grad = array_of(mesh, shape, gradient), *params[] = {&param};
  const ad_array *given[] = {&param}, *grads[] = {&grad};
  ad_optimizer_options options = {.size = sizeof options, .kind = AD_MUON, .weight_decay = 0.25};
  const ad_param_spec spec = {.size = sizeof spec, .name = "m", .shape = *shape, .decays = 1, .matrices = matrices};
  const ad_optimizer_setup setup = {.size = sizeof setup, .groups = &options, .group_count = 1, .comm = comm};
  ad_optimizer *optimizer;
  assert_int_equal(ad_optimizer_create_groups(given, &spec, 1, &setup, &optimizer), AD_OK);
  for (int step = 0; step < STEPS; step++) {
    for (int i = 0; i < experts * rows * cols; i++) gradient[i] = ad_random_normal(4, (uint64_t)step, (uint64_t)i);
    assert_int_equal(ad_optimizer_step(optimizer, params, grads, 0.1, 0.5), AD_OK);
    for (int e = 0; e < experts; e++)
      for (int p = 0; p < pieces; p++) {
        double m[64], v[64], g[64];
        for (int to_piece = 1; to_piece >= 0; to_piece--) {
          for (int i = 0; i < rows; i++)
            for (int j = 0; j < columns[p]; j++) {
              int at = (e * rows + i) * cols + first[p] + j, in = i * columns[p] + j;
              if (to_piece) {
                m[in] = average[at];
                v[in] = expected[at];
                g[in] = 0.5 * gradient[at];
              } else {
                average[at] = m[in];
                expected[at] = v[in];
              }
            }
          const int out_first = matrices.out_first;
          if (to_piece)
            muon_step(v, m, g, rows, columns[p], 0.1, 0.25,
                      rate(out_first ? columns[p] : rows, out_first ? rows : columns[p]));
        }
      }
    for (int i = 0; i < experts * rows * cols; i++) assert_true(fabs(value[i] - expected[i]) < 1e-12);
  }
  ad_optimizer_destroy(optimizer);
  ad_mesh_destroy(mesh);
  ad_comm_close(comm);
}

static double original_rate(double in, double out) { return sqrt(fmax(1, out / in)); }

static void the_update_follows_the_formula(void **state) {
  const ad_param_matrices plain = {0}, out_first = {.out_first = 1}, fused = QKV;
  follows_formula(&(ad_shape){2, {4, 9}}, plain, 1, (const int[]){0}, (const int[]){9}, original_rate);
  follows_formula(&(ad_shape){2, {9, 4}}, plain, 1, (const int[]){0}, (const int[]){4}, original_rate);
  follows_formula(&(ad_shape){2, {9, 4}}, out_first, 1, (const int[]){0}, (const int[]){4}, original_rate);
  follows_formula(&(ad_shape){3, {3, 2, 5}}, plain, 1, (const int[]){0}, (const int[]){5}, original_rate);
  follows_formula(&(ad_shape){2, {3, 9}}, fused, 3, (const int[]){0, 4, 6}, (const int[]){4, 2, 3}, original_rate);
}

/* ---- who works on what ---- */

static ad_status count_operations(void *context, ad_dtype dtype, int64_t m, int64_t n, int64_t k, double factor,
                                  ad_matrix a, ad_matrix b, int adds, void *c, int64_t c_stride) {
  *(double *)context += 2 * (double)m * (double)n * (double)k;
  return ad_plain_product(NULL, dtype, m, n, k, factor, a, b, adds, c, c_stride);
}

/* This rank's operations in a step, by the deal of the stacks over `worked`. */
static double dealt_operations(const ad_whole *whole, ad_axes worked, int64_t rank) {
  size_t count;
  const ad_stack *stacks = ad_whole_stacks(whole, &count);
  double load[16] = {0}, sum = 0;
  for (size_t i = 0; i < count; i++) {
    int64_t owned[64];
    if (stacks[i].worked != worked) continue;
    ad_owners_deal(stacks[i].count, stacks[i].operations, stacks[i].ranks, load, owned);
    ad_group group = ad_mesh_group(stacks[i].stored.mesh, worked, rank);
    sum = load[ad_group_index(&group, rank)];
  }
  return sum;
}

static int works_as_it_is_dealt(ad_comm *comm, void *context) {
  const trial *t = context;
  run r = {.comm = comm};
  const ad_array *params[PARAMS_MAX];
  double operations = 0, expected = 0;
  ad_axes seen[PARAMS_MAX], *end = seen;
  declare(&r, t->world, t->dtype, 0);
  for (size_t i = 0; i < r.count; i++) params[i] = &r.params[i];
  const ad_optimizer_setup setup = {.size = sizeof setup,
                                    .groups = &t->options,
                                    .group_count = 1,
                                    .comm = comm,
                                    .product = {.multiply = count_operations, .context = &operations}};
  CHECK_OK(ad_optimizer_create_groups(params, r.specs, r.count, &setup, &r.optimizer));
  take_step(&r, t->dtype, 0);
  size_t count;
  const ad_whole *whole = ad_optimizer_whole(r.optimizer);
  const ad_stack *stacks = ad_whole_stacks(whole, &count);
  for (size_t i = 0; i < count; i++) {
    CHECK(stacks[i].way == t->options.muon.way);
    CHECK(!i || stacks[i].operations <= stacks[i - 1].operations);
    ad_axes *known = seen;
    while (known < end && *known != stacks[i].worked) known++;
    if (known == end) expected += dealt_operations(whole, *end++ = stacks[i].worked, ad_comm_rank(comm));
  }
  CHECK(operations == expected);
  finish(&r);
  return 0;
}

static void each_rank_works_on_what_it_was_dealt(void **state) {
  for (int w = 0; w < WORLDS; w++)
    for (int i = 1; i < WAYS; i++) {
      trial t = trial_of(w, ways[i]);
      run_ranks(worlds[w].ranks, works_as_it_is_dealt, &t);
    }
}

/* ---- ranks whose products differ ---- */

typedef struct kinds_trial {
  trial trial;
  int differ;
  const char *refused; /* the first stack, if it is refused */
  ad_muon_way way;     /* of all stacks */
} kinds_trial;

static int takes_a_way_for_its_products(ad_comm *comm, void *context) {
  const kinds_trial *t = context;
  run r = {.comm = comm};
  const ad_array *params[PARAMS_MAX];
  declare(&r, t->trial.world, t->trial.dtype, 0);
  for (size_t i = 0; i < r.count; i++) params[i] = &r.params[i];
  const ad_optimizer_setup setup = {
      .size = sizeof setup,
      .groups = &t->trial.options,
      .group_count = 1,
      .comm = comm,
      .product = {.multiply = ad_plain_product,
                  .kind = 0xfedcba9876543210 + (t->differ && ad_comm_rank(comm) == 1 ? 2 : 0)}};
  CHECK_STATUS(ad_optimizer_create_groups(params, r.specs, r.count, &setup, &r.optimizer),
               t->refused ? AD_INVALID : AD_OK);
  if (t->refused) CHECK_SAYS("Muon", t->refused);
  size_t count = 0;
  const ad_stack *stacks = t->refused ? NULL : ad_whole_stacks(ad_optimizer_whole(r.optimizer), &count);
  for (size_t i = 0; i < count; i++) CHECK(stacks[i].way == t->way);
  if (!t->refused) take_step(&r, t->trial.dtype, 0);
  finish(&r);
  return 0;
}

/* World 2 has three replicas of two shards, world 1 has two shards alone. */
static void no_two_ranks_work_on_a_matrix_if_their_products_differ(void **state) {
  kinds_trial t = {trial_of(2, AD_WAY_GATHERED), 0, NULL, AD_WAY_GATHERED};
  run_ranks(6, takes_a_way_for_its_products, &t);
  t = (kinds_trial){trial_of(1, AD_WAY_GATHERED), 1, "matrix0 and 2 more", AD_WAY_GATHERED};
  run_ranks(2, takes_a_way_for_its_products, &t);
  t = (kinds_trial){trial_of(1, AD_WAY_DEALT), 1, NULL, AD_WAY_DEALT};
  run_ranks(2, takes_a_way_for_its_products, &t);
  t = (kinds_trial){trial_of(2, AD_WAY_GATHERED), 1, "matrix0 and 6 more", AD_WAY_GATHERED};
  run_ranks(6, takes_a_way_for_its_products, &t);
  t.trial = trial_of(2, AD_WAY_DEALT);
  run_ranks(6, takes_a_way_for_its_products, &t);
  t.trial = trial_of(2, AD_WAY_CHEAPEST);
  t.trial.options.muon.blockwise = 1;
  run_ranks(6, takes_a_way_for_its_products, &t);
  t = (kinds_trial){trial_of(2, AD_WAY_CHEAPEST), 1, NULL, AD_WAY_DEALT_TO_REPLICAS};
  run_ranks(6, takes_a_way_for_its_products, &t);
}

/* ---- memory, and backend dry ---- */

static int takes_what_dry_says(ad_comm *comm, void *context) {
  const trial *t = context;
  run real, paper;
  ad_comm *dry;
  begin(&real, comm, t, 0);
  CHECK_OK(ad_comm_open_dry(ad_comm_rank(comm), ad_comm_size(comm), &dry));
  paper = (run){.comm = dry};
  declare(&paper, t->world, t->dtype, 0);
  create_optimizer(&paper, &t->options, NULL);
  const ad_whole *one = ad_optimizer_whole(real.optimizer), *other = ad_optimizer_whole(paper.optimizer);
  CHECK(one && other && ad_whole_bytes(one) == ad_whole_bytes(other));
  take_step(&real, t->dtype, 0);
  ad_array *params[PARAMS_MAX];
  const ad_array *grads[PARAMS_MAX];
  for (size_t i = 0; i < paper.count; i++) {
    params[i] = &paper.params[i];
    grads[i] = NULL;
  }
  CHECK_OK(ad_optimizer_step(paper.optimizer, params, grads, 0.1, 1));
  finish(&paper);
  finish(&real);
  ad_comm_close(dry);
  return 0;
}

static void backend_dry_needs_the_same_memory(void **state) {
  for (int w = 0; w < WORLDS; w++)
    for (int i = 1; i < WAYS; i++) {
      trial t = trial_of(w, ways[i]);
      run_ranks(worlds[w].ranks, takes_what_dry_says, &t);
    }
}

/* ---- known bugs ---- */

typedef struct bug_trial {
  trial trial;
  const char *name;
  int fires, changes; /* whether the bug changes something on some rank, and whether parameters then differ */
} bug_trial;

static const ad_known_bug *bug_named(const char *name) {
  size_t count;
  const ad_known_bug *bugs = ad_optim_known_bugs(&count);
  for (size_t i = 0; i < count; i++)
    if (!strcmp(bugs[i].name, name)) return &bugs[i];
  return NULL;
}

/* The sum of a number over all ranks. */
static int64_t sum_over_ranks(ad_comm *comm, int64_t number) {
  const ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .in = &number, .out = &number, .count = 1, .dtype = AD_I64};
  CHECK_OK(ad_comm_run(comm, &call));
  return number;
}

static int makes_a_bug(ad_comm *comm, void *context) {
  const bug_trial *b = context;
  const ad_known_bug *bug = bug_named(b->name);
  ad_known_bug_scene scene = {.rank = ad_comm_rank(comm), .microbatches = 2};
  run right, wrong;
  int64_t differing = 0;
  CHECK(bug != NULL);
  if (!bug) return 1;
  begin(&right, comm, &b->trial, 0);
  begin(&wrong, comm, &b->trial, 0);
  for (int step = 0; step < STEPS; step++) {
    take_step(&right, b->trial.dtype, step);
    ad_known_bug_inject(bug, &scene);
    take_step(&wrong, b->trial.dtype, step);
    ad_injections_clear();
    scene.passed += scene.fired;
  }
  for (size_t i = 0; i < right.count; i++)
    differing += memcmp(right.params[i].data, wrong.params[i].data, ad_array_bytes(&right.params[i])) != 0;
  CHECK((sum_over_ranks(comm, differing) > 0) == b->changes);
  CHECK((sum_over_ranks(comm, scene.fired) > 0) == b->fires);
  finish(&right);
  finish(&wrong);
  return 0;
}

static void every_known_bug_changes_whole_matrices(void **state) {
  static const char *const names[] = {"update-applied-twice",
                                      "momentum-forgotten",
                                      "decay-missing",
                                      "decay-everywhere",
                                      "state-of-another-parameter",
                                      "state-sharded-otherwise",
                                      "update-per-microbatch",
                                      "muon-per-tp-shard",
                                      "muon-per-shard",
                                      "muon-halves-not-exchanged",
                                      "muon-not-orthogonalised",
                                      "muon-silently-off",
                                      "muon-flat-goes-to-adamw",
                                      "muon-split-by-shard-rows",
                                      "muon-norm-per-shard",
                                      "muon-rate-by-shard-shape",
                                      "muon-result-of-another-matrix",
                                      "muon-not-nesterov",
                                      "muon-decay-after-adjusted-rate"};
  for (size_t n = 0; n < sizeof names / sizeof *names; n++)
    for (int i = 1; i < WAYS; i++) {
      bug_trial b = {.trial = trial_of(3, ways[i]), .name = names[n], .fires = 1, .changes = 1};
      run_ranks(worlds[3].ranks, makes_a_bug, &b);
    }
}

/* Leaves out a move, as a program that did not call it. */
static void leave_out(void *context, void *passing) {
  ad_transit_passing *pass = passing;
  if (pass->transit->move != *(const ad_move *)context) return;
  pass->handled = 1;
  pass->out->layout = pass->in->layout;
  pass->out->local = pass->in->local;
}

static int refuses_a_move_that_is_left_out(ad_comm *comm, void *context) {
  const trial *t = context;
  static const ad_move moves[] = {AD_MOVE_ALL_TO_ALL, AD_MOVE_ALL_GATHER};
  for (int i = 0; i < 2; i++) {
    run r;
    ad_move move = moves[i];
    begin(&r, comm, t, 0);
    ad_array *params[PARAMS_MAX];
    const ad_array *none[PARAMS_MAX] = {0};
    for (size_t p = 0; p < r.count; p++) params[p] = &r.params[p];
    ad_injection_set(AD_INJECT_TRANSIT, (ad_injection){leave_out, &move});
    CHECK_STATUS(ad_optimizer_step(r.optimizer, params, none, 0.1, 1), AD_TYPE);
    ad_injections_clear();
    CHECK_SAYS("Muon", "matrix0 and 6 more");
    finish(&r);
  }
  return 0;
}

static void a_move_that_is_left_out_is_refused_by_type(void **state) {
  trial t = trial_of(2, AD_WAY_DEALT_TO_REPLICAS);
  run_ranks(t.world->ranks, refuses_a_move_that_is_left_out, &t);
}

static void bugs_of_shards_need_shards(void **state) {
  static const char *const names[] = {"muon-per-tp-shard",       "muon-per-shard",      "muon-halves-not-exchanged",
                                      "muon-flat-goes-to-adamw", "muon-norm-per-shard", "muon-rate-by-shard-shape"};
  for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
    bug_trial b = {.trial = trial_of(5, AD_WAY_CHEAPEST), .name = names[n], .fires = 0, .changes = 0};
    world replicas = worlds[5];
    replicas.kinds[1].copies = 0;
    b.trial.world = &replicas;
    run_ranks(replicas.ranks, makes_a_bug, &b);
  }
}

/* ---- groups, and what is refused ---- */

/* A matrix, a vector and a frozen matrix of one process. */
typedef struct little {
  ad_comm *comm;
  ad_mesh *mesh;
  double values[3][12], grads[3][12];
  ad_array params[3], gradients[3];
  ad_param_spec specs[3];
} little;

static void open_little(little *l) {
  static const ad_shape shapes[3] = {{2, {3, 4}}, {1, {5}}, {2, {2, 2}}};
  assert_int_equal(ad_comm_open_alone(&l->comm), AD_OK);
  assert_int_equal(ad_mesh_create("dp_shard=1", &l->mesh), AD_OK);
  for (int p = 0; p < 3; p++) {
    for (int i = 0; i < 12; i++) {
      l->values[p][i] = ad_random_normal(5, (uint64_t)p, (uint64_t)i);
      l->grads[p][i] = ad_random_normal(6, (uint64_t)p, (uint64_t)i);
    }
    l->params[p] = array_of(l->mesh, &shapes[p], l->values[p]);
    l->gradients[p] = array_of(l->mesh, &shapes[p], l->grads[p]);
    l->specs[p] = (ad_param_spec){
        .size = sizeof(ad_param_spec), .name = p == 1 ? "norm" : "weight", .shape = shapes[p], .frozen = p == 2};
  }
}

static void close_little(little *l) {
  ad_mesh_destroy(l->mesh);
  ad_comm_close(l->comm);
}

static const ad_optimizer_options muon_and_sgd[] = {{.size = sizeof(ad_optimizer_options), .kind = AD_MUON},
                                                    {.size = sizeof(ad_optimizer_options), .kind = AD_SGD}};
static const size_t group_of[] = {0, 1, 0};

static ad_status create_little(little *l, const ad_optimizer_options *groups, const size_t *of, ad_comm *comm,
                               ad_optimizer **out) {
  const ad_array *params[] = {&l->params[0], &l->params[1], &l->params[2]};
  const ad_optimizer_setup setup = {
      .size = sizeof setup, .groups = groups, .group_count = 2, .group_of = of, .comm = comm};
  return ad_optimizer_create_groups(params, l->specs, 3, &setup, out);
}

static void groups_have_rates_and_optimizers_of_their_own(void **state) {
  little l;
  ad_optimizer *optimizer;
  open_little(&l);
  double matrix[12], average[12] = {0}, vector[5], frozen[4];
  memcpy(matrix, l.values[0], sizeof matrix);
  memcpy(vector, l.values[1], sizeof vector);
  memcpy(frozen, l.values[2], sizeof frozen);
  assert_int_equal(create_little(&l, muon_and_sgd, group_of, l.comm, &optimizer), AD_OK);
  ad_array *params[] = {&l.params[0], &l.params[1], &l.params[2]};
  const ad_array *grads[] = {&l.gradients[0], &l.gradients[1], NULL};
  for (int step = 0; step < 2; step++) {
    assert_int_equal(ad_optimizer_step_rates(optimizer, params, grads, ((const double[]){0.5, 0.25}), 1), AD_OK);
    muon_step(matrix, average, l.grads[0], 3, 4, 0.5, 0, sqrt(4.0 / 3));
    for (int i = 0; i < 5; i++) vector[i] -= 0.25 * l.grads[1][i];
  }
  for (int i = 0; i < 12; i++) assert_true(fabs(l.values[0][i] - matrix[i]) < 1e-13);
  assert_memory_equal(l.values[1], vector, sizeof vector);
  assert_memory_equal(l.values[2], frozen, sizeof frozen);
  assert_int_equal(ad_optimizer_bytes(optimizer), sizeof average);
  ad_optimizer_destroy(optimizer);
  close_little(&l);
}

static void count_passing(void *context, void *passing) { ++*(int *)context; }

/* A mutation sees each parameter that is updated, before and after, whole matrices too. */
static void every_update_passes_its_injection_points(void **state) {
  little l;
  ad_optimizer *optimizer;
  int before = 0, after = 0, matrices = 0, stacks = 0;
  open_little(&l);
  assert_int_equal(create_little(&l, muon_and_sgd, group_of, l.comm, &optimizer), AD_OK);
  ad_array *params[] = {&l.params[0], &l.params[1], &l.params[2]};
  const ad_array *grads[] = {&l.gradients[0], &l.gradients[1], NULL};
  ad_injection_set(AD_INJECT_UPDATE, (ad_injection){count_passing, &before});
  ad_injection_set(AD_INJECT_UPDATED, (ad_injection){count_passing, &after});
  ad_injection_set(AD_INJECT_MATRIX, (ad_injection){count_passing, &matrices});
  ad_injection_set(AD_INJECT_STACK, (ad_injection){count_passing, &stacks});
  assert_int_equal(ad_optimizer_step(optimizer, params, grads, 0.1, 1), AD_OK);
  ad_injections_clear();
  assert_true(before == 2 && after == 2 && matrices == 1 && stacks == 1);
  ad_optimizer_destroy(optimizer);
  close_little(&l);
}

/* Without a gradient and with a rate of 0 the average goes on; a direction of zero moves nothing but decay. */
static void a_missing_gradient_and_a_rate_of_zero_are_defined(void **state) {
  little l;
  ad_optimizer *optimizer;
  ad_optimizer_options groups[2] = {muon_and_sgd[0], muon_and_sgd[1]};
  groups[0].weight_decay = 0.5;
  groups[0].decays_all = 1;
  open_little(&l);
  assert_int_equal(create_little(&l, groups, group_of, l.comm, &optimizer), AD_OK);
  ad_array *params[] = {&l.params[0], &l.params[1], &l.params[2]};
  const ad_array *none[3] = {0}, *grads[] = {&l.gradients[0], &l.gradients[1], NULL};
  double before[12], average[12];
  memcpy(before, l.values[0], sizeof before);
  assert_int_equal(ad_optimizer_step(optimizer, params, none, 0.25, 1), AD_OK);
  for (int i = 0; i < 12; i++) assert_true(l.values[0][i] == before[i] * (1 - 0.25 * 0.5));
  memcpy(before, l.values[0], sizeof before);
  assert_int_equal(ad_optimizer_step(optimizer, params, grads, 0, 1), AD_OK);
  assert_memory_equal(l.values[0], before, sizeof before);
  memcpy(average, ad_optimizer_state(optimizer, 0, 0)->data, sizeof average);
  for (int i = 0; i < 12; i++) assert_true(fabs(average[i] - 0.05 * l.grads[0][i]) < 1e-15);
  assert_int_equal(ad_optimizer_step(optimizer, params, none, 0.25, 1), AD_OK);
  assert_memory_not_equal(l.values[0], before, sizeof before);
  l.grads[0][3] = NAN;
  assert_int_equal(ad_optimizer_step(optimizer, params, grads, 0.25, 1), AD_NUMBER);
  assert_says("weight", "Muon", "3", "4");
  ad_optimizer_destroy(optimizer);
  close_little(&l);
}

static void refused(little *l, ad_optimizer_options options) {
  ad_optimizer *none = NULL;
  options.size = sizeof options;
  const ad_optimizer_options groups[] = {options, muon_and_sgd[1]};
  assert_int_equal(create_little(l, groups, group_of, l->comm, &none), AD_INVALID);
  assert_null(none);
}

#define MUON_WITH(...)                       \
  (ad_optimizer_options) {                   \
    .kind = AD_MUON, .muon = { __VA_ARGS__ } \
  }

static void what_muon_cannot_do_is_refused(void **state) {
  little l;
  ad_optimizer *none = NULL;
  open_little(&l);
  assert_int_equal(create_little(&l, muon_and_sgd, group_of, NULL, &none), AD_INVALID);
  assert_says("Muon", "comm", "ad_optimizer_setup");
  assert_int_equal(create_little(&l, muon_and_sgd, NULL, l.comm, &none), AD_INVALID);
  assert_says("Muon", "norm", "kind");
  refused(&l, MUON_WITH(.steps = 100));
  assert_says("Muon", "steps", "100");
  refused(&l, MUON_WITH(.steps = -1));
  refused(&l, MUON_WITH(.momentum = 1));
  assert_says("Muon", "momentum", "1");
  refused(&l, MUON_WITH(.epsilon = -1e-7));
  assert_says("Muon", "epsilon", "-1e-07");
  refused(&l, MUON_WITH(.nesterov = 2));
  assert_says("Muon", "nesterov", "2");
  refused(&l, MUON_WITH(.b = NAN));
  assert_says("Muon", "b");
  refused(&l, MUON_WITH(.dtype = AD_F16));
  assert_says("Muon", "dtype", "f16");
  refused(&l, MUON_WITH(.way = (ad_muon_way)4));
  assert_says("Muon", "way", "4");
  refused(&l, MUON_WITH(.rate = (ad_muon_rate)3));
  refused(&l, (ad_optimizer_options){.kind = AD_MUON, .beta1 = 0.5});
  assert_facts(ad_last_error(), "Muon", "beta1", "AdamW");
  refused(&l, (ad_optimizer_options){.kind = AD_SGD, .muon = {.steps = 3}});
  assert_says("SGD", "muon.steps", "Muon");
  l.specs[0].matrices.form = AD_MATRIX_NONE;
  assert_int_equal(create_little(&l, muon_and_sgd, group_of, l.comm, &none), AD_INVALID);
  assert_facts(ad_last_error(), "Muon", "weight");
  l.specs[0].matrices =
      (ad_param_matrices){.form = AD_MATRIX_FUSED, .along = 1, .count = 2, .repeats = 1, .piece = {1, 3}};
  refused(&l, MUON_WITH(.blockwise = 1));
  assert_says("Muon", "weight", "blockwise");
  assert_null(none);
  close_little(&l);
}

static void cuts_that_divide_no_matrix_are_refused(void **state) {
  static const int64_t rows[][2] = {{3, 0}, {0, 2}, {-1, 2}, {2, 2}, {2, 1}, {1, 3}};
  static const size_t counts[] = {1, 2, 2, 2, 2, 2};
  const ad_optimizer_options blockwise = {
      .size = sizeof blockwise, .kind = AD_MUON, .muon = {.blockwise = 1, .steps = 1}};
  little l;
  open_little(&l);
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
    const ad_matrix_cuts cuts = {.rows = rows[i], .row_count = counts[i]};
    const ad_array *read = &l.params[0];
    ad_optimizer_setup setup = {
        .size = sizeof setup, .groups = &blockwise, .group_count = 1, .comm = l.comm, .cuts = &cuts};
    ad_optimizer *none = NULL;
    assert_int_equal(ad_optimizer_create_groups(&read, l.specs, 1, &setup, &none), AD_INVALID);
    assert_says("Muon", "weight", "3", "4");
    assert_null(none);
  }
  close_little(&l);
}

/* On backend dry, as rank 0 of a world of nine. */
static void layouts_and_ways_that_do_not_work_are_refused(void **state) {
  static const struct {
    const char *layout;
    ad_status status;
  } cases[] = {{"dp_replicate=R", AD_INVALID}, {"dp_replicate=S0z", AD_TYPE}, {"dp_replicate=S0", AD_OK}};
  ad_comm *comm;
  ad_mesh *mesh;
  assert_int_equal(ad_comm_open_dry(0, 9, &comm), AD_OK);
  assert_int_equal(ad_mesh_create("dp_replicate=9", &mesh), AD_OK);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_layout layout;
    ad_optimizer *optimizer = NULL;
    const ad_shape shape = {2, {36, 3}};
    assert_int_equal(ad_layout_parse(mesh, cases[i].layout, &layout), AD_OK);
    const ad_array array = ad_array_describe(comm, AD_F32, &shape, &layout), *params[] = {&array};
    const ad_param_spec spec = {.size = sizeof spec, .name = "weight", .shape = shape};
    const ad_optimizer_options options = {
        .size = sizeof options, .kind = AD_MUON, .muon = {.way = AD_WAY_DEALT_TO_REPLICAS}};
    const ad_optimizer_setup setup = {.size = sizeof setup, .groups = &options, .group_count = 1, .comm = comm};
    assert_int_equal(ad_optimizer_create_groups(params, &spec, 1, &setup, &optimizer), cases[i].status);
    if (i == 0) assert_says("Muon", "weight", "9", "8");
    if (i == 1) assert_says("Muon", "weight", "dp_replicate");
    ad_optimizer_destroy(optimizer);
  }
  ad_mesh_destroy(mesh);
  ad_comm_close(comm);
}

static void a_failed_allocation_leaves_nothing_behind(void **state) {
  little l;
  open_little(&l);
  for (long n = 1;; n++) {
    ad_optimizer *optimizer = NULL;
    ad_memory_fail_at(n);
    ad_status status = create_little(&l, muon_and_sgd, group_of, l.comm, &optimizer);
    assert_true(reports_allocation(n, status));
    assert_true((optimizer == NULL) == (status != AD_OK));
    ad_optimizer_destroy(optimizer);
    if (!status) break;
  }
  close_little(&l);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(groups_have_rates_and_optimizers_of_their_own),
      cmocka_unit_test(every_update_passes_its_injection_points),
      cmocka_unit_test(a_missing_gradient_and_a_rate_of_zero_are_defined),
      cmocka_unit_test(what_muon_cannot_do_is_refused),
      cmocka_unit_test(cuts_that_divide_no_matrix_are_refused),
      cmocka_unit_test(layouts_and_ways_that_do_not_work_are_refused),
      cmocka_unit_test(a_failed_allocation_leaves_nothing_behind),
      cmocka_unit_test(blocks_have_the_bits_of_one_process_with_their_cuts),
      cmocka_unit_test(blocks_are_another_optimizer),
      cmocka_unit_test(the_update_follows_the_formula),
      cmocka_unit_test(every_way_has_the_bits_of_one_process),
      cmocka_unit_test(other_options_have_the_bits_of_one_process_too),
      cmocka_unit_test(backend_hostile_changes_no_bit),
      cmocka_unit_test(every_known_bug_changes_whole_matrices),
      cmocka_unit_test(bugs_of_shards_need_shards),
      cmocka_unit_test(a_move_that_is_left_out_is_refused_by_type),
      cmocka_unit_test(each_rank_works_on_what_it_was_dealt),
      cmocka_unit_test(no_two_ranks_work_on_a_matrix_if_their_products_differ),
      cmocka_unit_test(backend_dry_needs_the_same_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
