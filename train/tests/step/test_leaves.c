/* Tests runs with train.leaves: gradients, norms, losses, weights and the validation loss have the same bits on every
 * number of data-parallel ranks, whatever the microbatches, their syncs, the buckets and the ZeRO stage; and what a tape
 * of a leaf refuses. */
#include "draw.h"
#include "says.h"
#include "world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "addend/helpers.h"
#include "array/array.h"
#include "base/memory.h"
#include "base/text.h"
#include "files/file.h"
#include "program/program.h"
#include "recipe/leaves.h"
#include "step/run.h"

enum { STEPS = 3 };

/* ---- a custom program, which reads all microbatches on every rank ---- */

enum { IN = 5, MID = 4, MICROBATCHES_MAX = 16, ROWS_MAX = 24 };
enum { NEVER, W, B, U, V, PARAMS };
enum { SQUARE, LINEAR, SIZE };

typedef struct sums_options {
  int64_t moves; /* 1: the phase moves bytes over dp */
  int64_t rare;  /* 1: only every other microbatch uses v; 2: only every third uses u as well */
  int64_t apart; /* 1: each parameter is a unit of its own */
  int64_t full;  /* 1: no ZeRO stage shards a parameter */
} sums_options;

typedef struct sums {
  const sums_options *options;
  const ad_program_setting *setting;
  ad_layout rows;
  ad_array x[MICROBATCHES_MAX];
  float data[MICROBATCHES_MAX][ROWS_MAX * IN];
} sums;

/* h = (x w + b) u; the loss `square` is the sum of h^2 and of h v. With `rare` every other microbatch leaves the latter out, so
 * that v has no gradient there; b or u is left out, too. Backward does not read b. The first parameter has no gradient at all. The loss `linear`, the sum of h, is weighted by microbatches. */
static ad_status run_sums(void *own, ad_phase_run *at) {
  sums *model = own;
  ad_tape *t = ad_phase_tape(at);
  size_t m = ad_phase_microbatch(at);
  ad_tensor *h = ad_linear(t, ad_constant(t, &model->x[m]), ad_parameter(t, ad_phase_parameters(at), W));
  if (m % 2 || !model->options->rare) h = ad_add_row(t, h, ad_parameter(t, ad_phase_parameters(at), B));
  if (model->options->rare < 2 || !(m % 3)) h = ad_linear(t, h, ad_parameter(t, ad_phase_parameters(at), U));
  ad_tensor *square = ad_sum(t, ad_multiply(t, h, h));
  if (m % 2 || !model->options->rare)
    square = ad_add(t, square, ad_sum(t, ad_linear(t, h, ad_parameter(t, ad_phase_parameters(at), V))));
  if (model->options->moves) ad_all_gather(t, h, "dp", AD_R);
  ad_phase_loss(at, SQUARE, square);
  ad_phase_loss(at, LINEAR, ad_sum(t, h));
  ad_phase_loss(at, SIZE, ad_sum(t, ad_multiply(t, h, h)));
  return AD_OK;
}

static ad_param_spec sums_param(const char *name, int unit, int64_t rows, int64_t columns, ad_layout layout) {
  return (ad_param_spec){.size = sizeof(ad_param_spec),
                         .name = name,
                         .unit = unit,
                         .shape = {columns ? 2 : 1, {rows, columns}},
                         .layout = layout,
                         .storage = layout,
                         .sharded = AD_AXES(AD_DP_SHARD),
                         .deviation = 0.5};
}

static ad_status create_sums(const void *options, ad_program *to, void **own) {
  sums *model;
  AD_TRY(ad_new(1, &model));
  *own = model;
  model->options = options;
  model->setting = ad_program_setting_of(to);
  ad_layout full = ad_layout_all(ad_program_mesh(to, 0), AD_R), counted = full;
  model->rows = full;
  ad_layout_set(&model->rows, AD_AXES_DP, AD_S(0));
  ad_layout_set(&counted, AD_AXES_DP, AD_P);
  ad_param_spec params[PARAMS] = {sums_param("never", 0, 7, 1, full), sums_param("w", 0, IN, MID, full),
                                  sums_param("b", 0, MID, 0, full), sums_param("u", 1, MID, MID, full),
                                  sums_param("v", 1, MID, 1, full)};
  for (int i = 0; model->options->full && i < PARAMS; i++) params[i].sharded = 0;
  for (int i = 0; model->options->apart && i < PARAMS; i++) params[i].unit = i;
  ad_module_spec module = {
      .size = sizeof module, .name = "model", .mesh = full.mesh, .params = params, .param_count = PARAMS};
  AD_TRY(ad_program_add_module(to, &module));
  AD_TRY(ad_program_add_count(to, &(ad_count_spec){sizeof(ad_count_spec), "weight", counted}));
  AD_TRY(ad_program_add_count(to, &(ad_count_spec){sizeof(ad_count_spec), "parts", full}));
  AD_TRY(ad_program_add_loss(to, &(ad_loss_spec){.size = sizeof(ad_loss_spec), .name = "square"}));
  AD_TRY(ad_program_add_loss(to, &(ad_loss_spec){.size = sizeof(ad_loss_spec), .name = "linear", .per_microbatch = 1}));
  AD_TRY(ad_program_add_loss(
      to, &(ad_loss_spec){.size = sizeof(ad_loss_spec), .name = "size", .count = 1, .is_metric = 1}));
  return ad_program_add_phase(to, &(ad_phase){.size = sizeof(ad_phase), .name = "model", .run = run_sums});
}

/* Reads all microbatches, and counts a weight of each row, and one part of each microbatch. */
static ad_status read_sums(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  sums *model = own;
  const ad_program_setting *s = model->setting;
  for (int64_t m = 0; m < s->microbatches; m++) {
    ad_span rows = ad_batch_rows(&model->rows, ad_comm_rank(s->comm), s->global_batch, s->microbatches, m);
    ad_shape shape = {2, {ad_cut(s->global_batch, m, s->microbatches).count, IN}};
    model->x[m] = ad_array_describe(s->comm, AD_F32, &shape, &model->rows);
    model->x[m].data = model->data[m];
    counted[0][m] = 0;
    counted[1][m] = 1;
    for (int64_t i = 0; i < rows.count; i++) {
      counted[0][m] += 1 + (rows.first + i) % 3;
      for (int64_t j = 0; j < IN; j++)
        model->data[m][i * IN + j] = (float)ad_random_normal((uint64_t)step, (uint64_t)(rows.first + i), (uint64_t)j);
    }
  }
  return AD_OK;
}

static const ad_key sums_keys[] = {AD_INTEGER_KEY("model.moves", sums_options, moves, 0, 1, "0", "moves over dp"),
                                   AD_INTEGER_KEY("model.rare", sums_options, rare, 0, 2, "0", "uses v rarely"),
                                   AD_INTEGER_KEY("model.apart", sums_options, apart, 0, 1, "0", "units"),
                                   AD_INTEGER_KEY("model.full", sums_options, full, 0, 1, "0", "shards no parameter")};
static const ad_program_kind sums_kind = {.size = sizeof sums_kind,
                                          .name = "sums",
                                          .help = "sums of products, for tests",
                                          .keys = sums_keys,
                                          .key_count = 4,
                                          .options_size = sizeof(sums_options),
                                          .create = create_sums,
                                          .read = read_sums};

/* ---- runs, and the checksum of what they computed ---- */

static const char gpt_text[] =
    "name: leaves\nmodel: {kind: gpt, layers: 1, d_model: 16, heads: 2}\n"
    "data: {text: [/usr/share/common-licenses], seq: 12, valid: [1, 0.5, 0, 0.25, 0.75], validation: 0.1}\n"
    "evaluate: {samples: 11}\nmesh: \"dp=1\"\ntrain: {seed: 4, steps: 4, lr: 1e-2, clip: 0.1}\n";
static const char sums_text[] =
    "name: leaves\nmodel: {kind: sums}\nmesh: \"dp=1\"\ntrain: {seed: 4, steps: 4, lr: 1e-2, clip: 0.1}\n";

/* Experts of both ranks of tp, with two ways of balancing them and a limit. */
static const char moe_text[] =
    "name: leaves\nmodel: {kind: moe, layers: 2, d_model: 16, heads: 2, experts: 5, top_k: 2, expert_hidden: 6, "
    "shared_experts: 3, capacity: 0.9, balance_loss: 0.1, balance_rate: 0.02}\n"
    "data: {text: [/usr/share/common-licenses], seq: 8, valid: [1, 0.5, 0, 0.25, 0.75], validation: 0.1}\n"
    "evaluate: {samples: 11}\nmesh: \"dp=1\"\ntrain: {seed: 4, steps: 4, lr: 1e-2, clip: 0.1}\n";

typedef struct found {
  uint64_t gradients, weights, losses; /* checksums over all steps */
  uint64_t end;                        /* checksum of values and optimizer states after the last step */
  double loss, count;                  /* of the last step */
} found;

/* The steps of a run. The folder has the checkpoint from which it begins, if that is not step 0, and gets the one with
 * which it ends; NULL: none. */
typedef struct leg {
  int64_t begin, end;
  const char *folder;
} leg;
static const leg whole = {0, STEPS, NULL};

typedef struct job {
  const ad_recipe *recipe;
  leg steps;
  found *found;
} job;

/* The checksum FNV-1a. */
static void add_bytes(uint64_t *sum, const void *data, size_t size) {
  for (size_t i = 0; i < size; i++) *sum = (*sum ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
}

/* Adds the full arrays of all parameters to the checksum. */
static ad_status add_arrays(ad_run *run, ad_param_part part, uint64_t *sum) {
  static char memory[1 << 18];
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    ad_array full = {.data = memory};
    if (!ad_run_part(run, i, part)) continue;
    AD_TRY(ad_run_full(run, ad_run_part(run, i, part), &full));
    add_bytes(sum, memory, (size_t)ad_shape_numel(&full.shape) * ad_dtype_size(full.dtype));
  }
  return AD_OK;
}

/* Adds the states of the module, and the numbers that the program measured in the step. */
static void add_states(ad_run *run, uint64_t *sum) {
  const ad_array *state;
  const double *numbers;
  const char *name;
  size_t count;
  for (size_t i = 0; i < ad_program_module(ad_run_program(run), 0)->state_count; i++) {
    state = ad_run_state(run, 0, i);
    add_bytes(sum, state->data, ad_array_bytes(state));
  }
  for (size_t i = 0; (numbers = ad_program_measured(ad_run_program(run), i, &name, &count)); i++)
    add_bytes(sum, numbers, count * sizeof *numbers);
}

static ad_status load(ad_run *run, const leg *of) {
  int64_t steps = 0;
  if (of->begin) AD_TRY(ad_run_load(run, of->folder, &steps));
  return steps == of->begin ? AD_OK : AD_INVALID;
}

static ad_status save(ad_run *run, const leg *of) {
  ad_checkpointer *checkpointer;
  if (!of->folder) return AD_OK;
  AD_TRY(ad_checkpointer_create(ad_run_comm(run), ad_run_everyone(run).mesh, of->folder, 2, &checkpointer));
  ad_status status = ad_run_save(run, checkpointer, of->end);
  if (!status) status = ad_checkpointer_finish(checkpointer);
  ad_checkpointer_destroy(checkpointer);
  return status;
}

static int take_steps(ad_comm *comm, void *context) {
  const job *j = context;
  ad_run_options options = {.size = sizeof options};
  enum { EMPTY = 0x811c9dc5 };
  found own = {.gradients = EMPTY, .weights = EMPTY, .losses = EMPTY, .end = EMPTY};
  ad_step_report report;
  ad_evaluation evaluation;
  ad_run *run;
  RANK_MUST(comm, ad_run_create(comm, j->recipe, &options, &run));
  RANK_MUST(comm, load(run, &j->steps));
  for (int64_t step = j->steps.begin; step < j->steps.end; step++) {
    RANK_MUST(comm, ad_run_step(run, step, &report));
    RANK_MUST(comm, add_arrays(run, AD_PART_GRADIENT, &own.gradients));
    RANK_MUST(comm, add_arrays(run, AD_PART_VALUE, &own.weights));
    add_states(run, &own.weights);
    add_bytes(&own.losses, report.losses, ad_program_loss_count(ad_run_program(run)) * sizeof *report.losses);
    add_bytes(&own.losses, &report.norm, sizeof report.norm);
  }
  RANK_MUST(comm, save(run, &j->steps));
  for (int part = 0; part < AD_PART_GRADIENT; part++) RANK_MUST(comm, add_arrays(run, (ad_param_part)part, &own.end));
  add_states(run, &own.end);
  RANK_MUST(comm, ad_run_evaluate(run, &evaluation));
  add_bytes(&own.losses, &evaluation.loss, sizeof evaluation.loss);
  add_bytes(&own.losses, &evaluation.standard_error, sizeof evaluation.standard_error);
  own.loss = report.loss;
  own.count = (double)report.count;
  if (ad_run_is_first(run)) *j->found = own;
  ad_run_destroy(run);
  return 0;
}

/* Names the --set of a run for a message; a NULL ends them, too. Returns buffer. */
static const char *named(const char *const *sets, size_t count, char *buffer, size_t size) {
  ad_text out = ad_text_on(buffer, size);
  for (size_t i = 0; i < count && sets[i]; i++) ad_text_add(&out, "%s%s", i ? " " : "", sets[i]);
  return buffer;
}

/* Takes steps of the recipe with these --set. */
static found run_with(const char *text, const char *const *sets, size_t count, leg of) {
  job j = {.steps = of, .found = shared_memory(sizeof(found))};
  ad_recipe *recipe = NULL;
  ad_launch_result result = {.size = sizeof result};
  char name[400];
  int64_t ranks;
  ad_status status = ad_recipe_parse(text, "leaves.yaml", sets, count, &recipe);
  if (status) fail_msg("%s", ad_last_error());
  must(ad_recipe_world(recipe, &ranks));
  j.recipe = recipe;
  status = launch(ranks, take_steps, &j, &result);
  if (status) fail_msg("%s with %s", result.message, named(sets, count, name, sizeof name));
  found seen = *j.found;
  munmap(j.found, sizeof(found));
  ad_recipe_destroy(recipe);
  return seen;
}

static const char one[] = "mesh=dp_replicate=1 dp_shard=1", two[] = "mesh=dp_replicate=2 dp_shard=1",
                  two_shards[] = "mesh=dp_shard=2", three_shards[] = "mesh=dp_shard=3",
                  four[] = "mesh=dp_replicate=2 dp_shard=2", four_shards[] = "mesh=dp_shard=4",
                  five_shards[] = "mesh=dp_shard=5", six[] = "mesh=dp_replicate=3 dp_shard=2",
                  eight[] = "mesh=dp_replicate=2 dp_shard=4", zero1[] = "shard.zero=1", zero2[] = "shard.zero=2",
                  zero3[] = "shard.zero=3", small[] = "shard.bucket_mib=0.001";

enum { SETS_MAX = 8, COMMON_MAX = 8 };

/* A world: the mesh, and other keys, NULL at the end. */
typedef const char *world[SETS_MAX];

static found run_in(const char *text, const char *const *common, const char *const *own, leg of) {
  const char *sets[SETS_MAX + COMMON_MAX];
  size_t n = 0;
  for (size_t k = 0; own[k]; k++) sets[n++] = own[k];
  for (size_t k = 0; common[k]; k++) sets[n++] = common[k];
  return run_with(text, sets, n, of);
}

/* Runs a recipe with some --set in the first of these worlds and in `taken` others, which are drawn. All must compute the
 * same bits. */
static void all_compute_the_same(const char *test, const char *text, const char *const *common, const world *worlds,
                                 size_t count, size_t taken) {
  draw drawn = draw_cases(test, (int)count, 1, (int)(taken && taken < count ? taken : count));
  found first = {0};
  char name[300];
  for (size_t i = 0; i < count; i++) {
    if (!is_drawn(&drawn, (int)i)) continue;
    found seen = run_in(text, common, worlds[i], whole);
    if (!i) first = seen;
    if (seen.gradients != first.gradients)
      fail_msg("the gradients differ with %s", named(worlds[i], SETS_MAX, name, sizeof name));
    if (seen.losses != first.losses)
      fail_msg("the losses differ with %s", named(worlds[i], SETS_MAX, name, sizeof name));
    if (seen.weights != first.weights)
      fail_msg("the weights differ with %s", named(worlds[i], SETS_MAX, name, sizeof name));
    if (seen.count != first.count) fail_msg("the counts differ with %s", named(worlds[i], SETS_MAX, name, sizeof name));
  }
}
/* In all worlds, and in so many of them. */
#define ALL_COMPUTE_THE_SAME(text, worlds, ...) SOME_COMPUTE_THE_SAME(0, text, worlds, __VA_ARGS__)
#define SOME_COMPUTE_THE_SAME(taken, text, worlds, ...)                                    \
  all_compute_the_same(__func__, text, (const char *const[]){__VA_ARGS__, NULL}, (worlds), \
                       sizeof(worlds) / sizeof *(worlds), taken)

/* Worlds that share 16 leaves. With ZeRO 2 and 3 each microbatch is one leaf of a rank, unless it says how many there
 * are. Where ranks are no power of two, some have fewer leaves than others, or none at all. */
static const world worlds[] = {
    {one},
    {one, zero3, "train.microbatches=5"},
    {two},
    {two, "train.microbatches=3"}, /* two positions have eight leaves each in nine rounds */
    {two, "train.microbatches=4", "train.sync=[none, all, none, all]"},
    {two, zero2, "train.microbatches=4"},
    {two_shards, zero1, "shard.bucket_mib=0.002"},
    {two_shards, zero2},
    {two_shards, zero3, small, "train.microbatches=8",
     "train.sync=[shard, shard, shard, all, none, shard, shard, all]"},
    {"mesh=dp_replicate=3"},
    {three_shards, zero1, small, "train.microbatches=2", "train.sync=[shard, all]"},
    {three_shards, zero3},
    {four, zero1, "train.microbatches=2", "train.sync=[none, all]"},
    {four, zero2, "train.microbatches=4", "train.sync=[shard, all, shard, all]"},
    {four, zero3, small, "shard.prefetch=0"},
    {four, "train.microbatches=4", "train.sync=[shard, all, none, all]"},
    {two, "train.microbatches=20",
     "train.sync=[all, all, all, all, all, all, all, all, all, all, all, all, all, all, all, "
     "all, all, all, all, all]"},
    {four_shards, zero3, "train.microbatches=2"}, /* two leaves are sent together */
    {four_shards, zero3, "train.microbatches=2", "train.sync=[none, all]"},
    {"mesh=dp_replicate=5", small},
    {five_shards, zero2},
    {five_shards, zero3, small},
    {five_shards, zero3, "train.microbatches=1", "shard.prefetch=3"},
    {six},
    {six, zero1, "train.microbatches=3", "train.sync=[shard, shard, all]"},
    {six, zero2, "train.microbatches=4", "train.sync=[shard, all, shard, all]"},
    {six, zero3, small, "train.microbatches=3", "train.sync=[none, shard, all]"},
    {six, zero3, "train.microbatches=4", "train.sync=[shard, all, shard, all]"},
    {six, zero1, "train.microbatches=5", "train.sync=[all, shard, all, none, all]"}, /* leaves [0, 3) are no node */
    {"mesh=dp_replicate=6", zero2, "train.microbatches=5"}, /* replicas have three leaves at most: some send nothing */
    {"mesh=dp_shard=7", zero3},
    {eight, zero1, small},
    {eight, zero3},
    {"mesh=dp_shard=8", zero1, "train.microbatches=3", "train.sync=[none, none, all]"},
    {"mesh=dp_shard=8", zero2, small},
    {"mesh=dp_replicate=12"},
    {"mesh=dp_replicate=4 dp_shard=3", zero2},
    {"mesh=dp_replicate=3 dp_shard=4", zero3, small}};

static void gpt_has_the_same_bits_on_any_number_of_ranks(void **state) {
  ALL_COMPUTE_THE_SAME(gpt_text, worlds, "train.global_batch=21", "train.leaves=16");
}

static void a_custom_program_has_the_same_bits(void **state) {
  SOME_COMPUTE_THE_SAME(20, sums_text, worlds, "train.global_batch=21", "train.leaves=16", "shard.bucket_mib=0.00004");
}

static void some_leaves_may_have_no_gradient_of_a_parameter(void **state) {
  SOME_COMPUTE_THE_SAME(16, sums_text, worlds, "train.global_batch=21", "train.leaves=16", "shard.bucket_mib=0.00004",
                        "model.rare=1");
}

/* With ZeRO 3 ranks gather units together, and reduce buckets between gathers, although their leaves use different
 * parameters. Each parameter may be a unit and a bucket of its own. */
static void leaves_may_use_different_parameters(void **state) {
  static const world gathered[] = {{one, zero3},
                                   {two_shards, zero3},
                                   {two_shards, zero3, "shard.prefetch=0"},
                                   {three_shards, zero3, "shard.prefetch=3"},
                                   {three_shards, zero3, "shard.prefetch=0", "train.microbatches=2"},
                                   {four, zero3, "train.microbatches=4", "train.sync=[shard, all, none, all]"},
                                   {five_shards, zero3},
                                   {six, zero3, "shard.prefetch=2"},
                                   {"mesh=dp_shard=7", zero3, "shard.prefetch=0"},
                                   {eight, zero3}};
  static const char *const forms[][3] = {{"model.rare=1", "model.apart=1", "shard.bucket_mib=0.00004"},
                                         {"model.rare=2", "model.apart=1", "shard.bucket_mib=0.00004"},
                                         {"model.rare=2", "model.apart=0", "shard.bucket_mib=0.00004"},
                                         {"model.rare=2", "model.apart=1", "shard.bucket_mib=25"},
                                         {"model.rare=0", "model.apart=1", "shard.bucket_mib=0.00004"}};
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
    ALL_COMPUTE_THE_SAME(sums_text, gathered, "train.global_batch=21", "train.leaves=16", forms[i][0], forms[i][1],
                         forms[i][2]);
}

static void parameters_may_be_full_on_every_rank(void **state) {
  SOME_COMPUTE_THE_SAME(12, sums_text, worlds, "train.global_batch=21", "train.leaves=16", "shard.bucket_mib=0.00004",
                        "model.full=1");
}

static void leaves_may_be_empty(void **state) {
  SOME_COMPUTE_THE_SAME(8, gpt_text, worlds, "train.global_batch=5", "train.leaves=16");
  SOME_COMPUTE_THE_SAME(12, sums_text, worlds, "train.global_batch=5", "train.leaves=16");
}

/* In the last round only one of the ranks has a leaf. */
static void the_number_of_leaves_may_be_odd(void **state) {
  static const world odd[] = {{one},
                              {two_shards, zero3, small},
                              {"mesh=dp_replicate=3", "train.microbatches=2"},
                              {three_shards, zero2},
                              {three_shards, zero3, "train.microbatches=2"},
                              {six, zero3, small},
                              {"mesh=dp_shard=12", zero3}};
  ALL_COMPUTE_THE_SAME(gpt_text, odd, "train.global_batch=26", "train.leaves=13");
  ALL_COMPUTE_THE_SAME(sums_text, odd, "train.global_batch=26", "train.leaves=13");
}

static void gpt_has_the_same_bits_beside_tp_and_cp(void **state) {
  static const world tp[] = {
      {"mesh=dp_shard=1 tp=2"},
      {"mesh=dp_replicate=2 tp=2"},
      {"mesh=dp_replicate=2 dp_shard=2 tp=2", zero1},
      {"mesh=dp_shard=4 tp=2", zero1, small},
      {"mesh=dp_shard=2 tp=2", zero2, "train.microbatches=4"},
      {"mesh=dp_shard=3 tp=2", zero3, small},
      {"mesh=dp_replicate=2 dp_shard=2 tp=2", zero3, "train.microbatches=2", "train.sync=[all, all]"},
      {"mesh=dp_replicate=3 dp_shard=2 tp=2", zero3}};
  // three ranks have addends of each sample's validation loss
  static const world cp[] = {{"mesh=dp_shard=1 cp=3"},
                             {"mesh=dp_shard=2 cp=3"},
                             {"mesh=dp_replicate=2 dp_shard=2 cp=3", zero1},
                             {"mesh=dp_shard=4 cp=3", zero3}};
  SOME_COMPUTE_THE_SAME(5, gpt_text, tp, "train.global_batch=13", "train.leaves=8");
  SOME_COMPUTE_THE_SAME(3, gpt_text, cp, "train.global_batch=13", "train.leaves=8");
}

/* Takes each step in another world, from the checkpoint of the step before. Returns what the last found. */
static found resumed(const char *text, const char *const *common, const world legs[STEPS]) {
  char folder[] = "/tmp/addend-leaves-XXXXXX";
  found last = {0};
  assert_non_null(mkdtemp(folder));
  for (int i = 0; i < STEPS; i++) last = run_in(text, common, legs[i], (leg){i, i + 1, folder});
  for (int i = 1; i <= STEPS; i++) {
    char step[sizeof folder + 8];
    snprintf(step, sizeof step, "%s/step-%d", folder, i);
    must(ad_folder_remove(step));
  }
  must(ad_folder_remove(folder));
  return last;
}

/* Each leaf's tokens are exchanged among the ranks of tp and cp, or each rank has a part of every expert, or (ep=1) a
 * replica; and where experts are on two of four ranks, there are two replicas of each within a position. */
static void experts_have_the_same_bits_where_they_are_on_the_ranks_of_one_position(void **state) {
  static const char *const common[] = {"train.global_batch=11", "train.leaves=7"};
  static const struct {
    const char *other, *view;
  } positions[] = {{"tp=2", "views.sparse=ep=2 etp=1"},      {"tp=2", "views.sparse=ep=1 etp=2"},
                   {"tp=1", "views.sparse=ep=1 etp=1"},      {"cp=2", "views.sparse=ep=2 etp=1"},
                   {"cp=2 tp=2", "views.sparse=ep=4 etp=1"}, {"cp=2 tp=2", "views.sparse=ep=2 etp=1"},
                   {"tp=2 cp=2", "views.sparse=ep=2 etp=1"}};
  static const char *const data[] = {"dp_shard=1",
                                     "dp_shard=2",
                                     "dp_replicate=3 dp_shard=1",
                                     "dp_shard=3",
                                     "dp_replicate=2 dp_shard=2",
                                     "dp_replicate=1 dp_shard=5"};
  for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
    char meshes[6][64];
    world in[] = {{meshes[0]},
                  {meshes[1], zero1},
                  {meshes[2], "train.microbatches=2", "train.sync=[all, all]"},
                  {meshes[3], zero3, small},
                  {meshes[4], zero2, "train.microbatches=2", "train.sync=[shard, all]"},
                  {meshes[5], zero3}}; /* two ranks have one leaf, one has a pass through another's */
    for (size_t k = 0; k < 6; k++) snprintf(meshes[k], sizeof *meshes, "mesh=%s %s", data[k], positions[i].other);
    SOME_COMPUTE_THE_SAME(i ? 3 : 0, moe_text, in, common[0], common[1], positions[i].view);
  }
}

static void experts_in_bf16_have_the_same_bits(void **state) {
  static const world in[] = {{"mesh=dp_shard=1 tp=2"},
                             {"mesh=dp_shard=3 tp=2", zero3, small},
                             {"mesh=dp_replicate=2 dp_shard=2 tp=2", zero1},
                             {"mesh=dp_replicate=5 tp=2"}};
  ALL_COMPUTE_THE_SAME(moe_text, in, "train.global_batch=11", "train.leaves=7", "views.sparse=ep=2 etp=1",
                       "model.sigmoid=true", "model.score_before_experts=true", "precision.compute=bf16",
                       "precision.param=bf16", "precision.reduce=f32");
}

static void a_run_with_experts_that_resumes_elsewhere_has_the_same_bits(void **state) {
  static const char *const common[] = {"train.global_batch=11", "train.leaves=7", "views.sparse=ep=2 etp=1", NULL};
  static const world first = {"mesh=dp_shard=1 tp=2"}, legs[STEPS] = {{"mesh=dp_shard=3 tp=2", zero3},
                                                                      {"mesh=dp_replicate=2 dp_shard=2 tp=2", zero1},
                                                                      {"mesh=dp_replicate=3 tp=2", zero2}};
  assert_true(resumed(moe_text, common, legs).end == run_in(moe_text, common, first, whole).end);
}

static void gpt_in_bf16_has_the_same_bits_where_sums_are_f32(void **state) {
  SOME_COMPUTE_THE_SAME(10, gpt_text, worlds, "train.global_batch=21", "train.leaves=16", "precision.compute=bf16",
                        "precision.param=bf16", "precision.grad=bf16", "precision.reduce=f32");
}

/* Losses in f64, unlike those in f32, are rounded when they are added as doubles. */
static void gpt_in_f64_has_the_same_bits(void **state) {
  SOME_COMPUTE_THE_SAME(8, gpt_text, worlds, "train.global_batch=21", "train.leaves=16", "precision.param=f64",
                        "precision.compute=f64");
}

/* A run goes on twice, each time on another number of ranks with another ZeRO stage. */
static void a_run_that_resumes_elsewhere_has_the_same_bits(void **state) {
  static const char *const common[] = {"train.global_batch=21", "train.leaves=16", "precision.param=bf16",
                                       "precision.reduce=f32", NULL};
  static const world legs[STEPS] = {{six, zero3}, {four, zero1}, {five_shards, zero2, small}};
  assert_true(resumed(gpt_text, common, legs).end == run_in(gpt_text, common, (const world){one}, whole).end);
}

static void backend_hostile_changes_no_bit(void **state) {
  setenv("ADDEND_HOSTILE", "5", 1);
  SOME_COMPUTE_THE_SAME(8, sums_text, worlds, "train.global_batch=21", "train.leaves=16", "shard.bucket_mib=0.00004");
  unsetenv("ADDEND_HOSTILE");
}

/* The checksum sees what leaves are for: without them a sum of eight parts depends on who computed them. */
static void without_leaves_the_bits_depend_on_the_ranks(void **state) {
  found alone =
      run_with(gpt_text, (const char *const[]){one, "train.global_batch=13", "train.microbatches=8"}, 3, whole);
  found both =
      run_with(gpt_text, (const char *const[]){two, "train.global_batch=13", "train.microbatches=4"}, 3, whole);
  assert_true(alone.gradients != both.gradients && alone.weights != both.weights);
  assert_true(alone.count == both.count);
}

/* Leaves are the microbatches of one rank: the same numbers, but for the rounding of sums. */
static void leaves_are_what_one_rank_computes_in_microbatches(void **state) {
  const char *texts[] = {gpt_text, sums_text};
  for (size_t i = 0; i < 2; i++) {
    found leaves = run_with(texts[i], (const char *const[]){four, "train.global_batch=13", "train.leaves=8"}, 3, whole);
    found plain =
        run_with(texts[i], (const char *const[]){one, "train.global_batch=13", "train.microbatches=8"}, 3, whole);
    assert_true(leaves.count == plain.count && plain.count > 0);
    assert_true(fabs(leaves.loss - plain.loss) < 1e-5 * fabs(plain.loss));
  }
}

/* ---- leaves that a rank passes through to gather parameters ---- */

static void count_addends(void *context, size_t index, const ad_array *addend) {
  (void)addend;
  if (index == W) ++*(int *)context;
}

static int visit_addends(ad_comm *comm, void *context) {
  const job *j = context;
  ad_run_options options = {.size = sizeof options};
  int visits = 0, own = 0;
  ad_run *run;
  RANK_MUST(comm, ad_run_create(comm, j->recipe, &options, &run));
  RANK_MUST(comm, ad_run_addends(run, 0, 0, count_addends, &visits, NULL));
  for (int64_t round = 0; round < ad_recipe_rounds(j->recipe); round++) own += run->leaves[round] >= 0;
  ad_run_destroy(run);
  return visits != own;
}

/* Rank 0 has none of the leaves, and the others have one each in every round. */
static void gradients_that_count_nowhere_are_not_visited(void **state) {
  const char *sets[] = {five_shards, zero3, "train.global_batch=21", "train.leaves=16"};
  ad_recipe *recipe = NULL;
  ad_launch_result result = {.size = sizeof result};
  must(ad_recipe_parse(sums_text, "leaves.yaml", sets, 4, &recipe));
  job j = {.recipe = recipe};
  assert_int_equal(launch(5, visit_addends, &j, &result), AD_OK);
  ad_recipe_destroy(recipe);
}

/* ---- what is refused when it runs ---- */

static void a_leafs_phase_moves_nothing_between_positions(void **state) {
  const char *sets[] = {two, "train.global_batch=8", "train.leaves=4", "model.moves=1"};
  ad_recipe *recipe = NULL;
  found unused;
  job j = {.steps = whole, .found = &unused};
  ad_launch_result result = {.size = sizeof result};
  must(ad_recipe_parse(sums_text, "leaves.yaml", sets, 4, &recipe));
  j.recipe = recipe;
  assert_int_not_equal(launch(2, take_steps, &j, &result), AD_OK);
  assert_says_in("moves", result.message, SAYS_FACTS("all_gather", "dp_replicate", "train.leaves"));
  ad_recipe_destroy(recipe);
}

static int register_sums(void **state) { return ad_program_register(&sums_kind) != AD_OK; }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gpt_has_the_same_bits_on_any_number_of_ranks),
      cmocka_unit_test(a_custom_program_has_the_same_bits),
      cmocka_unit_test(some_leaves_may_have_no_gradient_of_a_parameter),
      cmocka_unit_test(leaves_may_use_different_parameters),
      cmocka_unit_test(parameters_may_be_full_on_every_rank),
      cmocka_unit_test(leaves_may_be_empty),
      cmocka_unit_test(the_number_of_leaves_may_be_odd),
      cmocka_unit_test(gpt_has_the_same_bits_beside_tp_and_cp),
      cmocka_unit_test(experts_have_the_same_bits_where_they_are_on_the_ranks_of_one_position),
      cmocka_unit_test(experts_in_bf16_have_the_same_bits),
      cmocka_unit_test(a_run_with_experts_that_resumes_elsewhere_has_the_same_bits),
      cmocka_unit_test(gpt_in_bf16_has_the_same_bits_where_sums_are_f32),
      cmocka_unit_test(gpt_in_f64_has_the_same_bits),
      cmocka_unit_test(a_run_that_resumes_elsewhere_has_the_same_bits),
      cmocka_unit_test(backend_hostile_changes_no_bit),
      cmocka_unit_test(without_leaves_the_bits_depend_on_the_ranks),
      cmocka_unit_test(leaves_are_what_one_rank_computes_in_microbatches),
      cmocka_unit_test(gradients_that_count_nowhere_are_not_visited),
      cmocka_unit_test(a_leafs_phase_moves_nothing_between_positions),
  };
  return cmocka_run_group_tests(tests, register_sums, NULL);
}
