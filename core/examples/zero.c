/* A trainer with ZeRO on libaddend alone: two matrices, gradients by hand, and everything around them from the library.
 * Each rank stores its rows of the parameters and of AdamW's moments; the full copies, which computation uses, are
 * gathered after each update. Samples that do not count, the global norm, clipping, a loss scale, checkpoints that any
 * number of ranks resumes, weights in and out as safetensors, and a dump of a step for `addend diff`:
 *
 *   example_zero [--steps N] [--checkpoints FOLDER] [--resume FOLDER] [--export FILE] [--from FILE] [--dump FOLDER]
 *                [--replicas R]
 *
 * Starts 4 ranks, or joins those that `addend run -n N` or mpirun started. The result does not depend on their number,
 * except for rounding. With R replicas, a divisor of that number, each rank stores rows that R ranks store, and updates
 * an R-th of them (HFSDP). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "addend/core.h"

enum { RANKS = 4, FEATURES = 6, HIDDEN = 9, BATCH = 50, MICROBATCHES = 3, PARAMS = 2, STEPS = 40, SEED = 7 };
enum { W1, W2 }; /* [HIDDEN, FEATURES] and [HIDDEN] */

typedef struct settings {
  const char *checkpoints, *resumes, *export_to, *from, *dump;
  int64_t steps, replicas;
} settings;

typedef struct trainer {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_group everyone;
  ad_layout rows; /* the layout of the batch's rows, which are sharded over the ranks */
  /* the layouts in which parameters are stored and updated: of rows over the ranks of one replica, then over replicas */
  ad_layout stored, updated;
  ad_param_spec specs[PARAMS];
  ad_store *store;
  ad_reducer *reducer;
  ad_optimizer *optimizer;
  ad_count *count; /* for each microbatch, the number of its samples that the loss counts */
  ad_checkpointer *checkpointer;
  ad_loss_scale scale;
  int64_t step;
} trainer;

/* ---- data, forward and backward ---- */

static double feature(int64_t sample, int k) { return sin((double)sample * (1.3 + k) + k * k); }
static double target(int64_t sample) { return fabs(feature(sample, 0)) - 0.5 * feature(sample, 1); }
static int counts(int64_t sample) { return sample % 7 != 3; }

/* Adds the gradient of seed * (w2 relu(w1 x) - y)^2 / 2 for one sample; returns the loss without the seed. */
static double backward(const double *w1, const double *w2, int64_t sample, double seed, double *g1, double *g2) {
  double hidden[HIDDEN], error = -target(sample);
  for (int h = 0; h < HIDDEN; h++) {
    hidden[h] = 0;
    for (int k = 0; k < FEATURES; k++) hidden[h] += w1[h * FEATURES + k] * feature(sample, k);
    hidden[h] = fmax(hidden[h], 0);
    error += w2[h] * hidden[h];
  }
  for (int h = 0; h < HIDDEN; h++) {
    g2[h] += seed * error * hidden[h];
    for (int k = 0; hidden[h] > 0 && k < FEATURES; k++)
      g1[h * FEATURES + k] += seed * error * w2[h] * feature(sample, k);
  }
  return error * error / 2;
}

/* ---- what the trainer consists of ---- */

static void describe_params(trainer *t) {
  static const char *const names[PARAMS] = {"w1", "w2"};
  const ad_shape shapes[PARAMS] = {{2, {HIDDEN, FEATURES}}, {1, {HIDDEN}}};
  for (int p = 0; p < PARAMS; p++) {
    ad_layout everywhere = ad_layout_all(t->mesh, AD_R);  // every rank computes with the full parameter
    t->specs[p] = (ad_param_spec){.size = sizeof(ad_param_spec),
                                  .name = names[p],
                                  .shape = shapes[p],
                                  .layout = everywhere,
                                  .storage = t->stored,  // every rank stores its own rows of the parameter,
                                  .update = t->updated,  // and updates these, or its part of them
                                  .policy = {.param = AD_F64},
                                  .unit = p,
                                  .decays = p == W1,
                                  .deviation = 0.4};
  }
}

/* Fills in random initial values: each depends on the seed, the parameter's name and the element's index in the full
 * parameter. */
static ad_status draw_values(trainer *t) {
  for (size_t p = 0; p < PARAMS; p++)
    AD_TRY(ad_param_initialise(&t->specs[p], SEED, ad_comm_rank(t->comm), ad_store_master(t->store, p)));
  return ad_store_refresh(t->store, AD_MASTERS_WRITTEN);
}

static ad_status create_trainer(trainer *t, const settings *s) {
  char text[64];
  snprintf(text, sizeof text, "dp_replicate=%d dp_shard=%d", (int)s->replicas,
           (int)(ad_comm_size(t->comm) / s->replicas));
  AD_TRY(ad_mesh_create(text, &t->mesh));
  AD_TRY(ad_layout_parse(t->mesh, "dp=S0", &t->rows));
  AD_TRY(ad_layout_parse(t->mesh, "dp_shard=S0 dp_replicate=R", &t->stored));
  AD_TRY(ad_layout_parse(t->mesh, s->replicas > 1 ? "dp_shard=S0 dp_replicate=S0" : "dp_shard=S0 dp_replicate=R",
                         &t->updated));
  t->everyone = ad_mesh_group(t->mesh, AD_AXES_ALL, ad_comm_rank(t->comm));
  t->scale = (ad_loss_scale){.enabled = 1, .exponent = 6};
  describe_params(t);
  ad_store_options full = {.size = sizeof full, .compute = AD_F64};
  AD_TRY(ad_store_create(t->comm, t->specs, PARAMS, &full, &t->store));
  AD_TRY(ad_reducer_create(t->comm, t->specs, PARAMS, NULL, &t->reducer));
  const ad_array *masters[PARAMS] = {ad_store_master(t->store, W1), ad_store_master(t->store, W2)};
  ad_optimizer_options options = {.size = sizeof options, .weight_decay = 0.01};
  AD_TRY(ad_optimizer_create(masters, t->specs, PARAMS, &options, &t->optimizer));
  ad_layout addends = ad_layout_all(t->mesh, AD_P);  // each rank counts its own samples
  AD_TRY(ad_count_create(t->comm, &addends, MICROBATCHES, &t->count));
  if (s->checkpoints) AD_TRY(ad_checkpointer_create(t->comm, t->mesh, s->checkpoints, 2, &t->checkpointer));
  return draw_values(t);
}

static void destroy_trainer(trainer *t) {
  ad_checkpointer_destroy(t->checkpointer);
  ad_count_destroy(t->count);
  ad_optimizer_destroy(t->optimizer);
  ad_reducer_destroy(t->reducer);
  ad_store_destroy(t->store);
  ad_mesh_destroy(t->mesh);
}

/* ---- a step ---- */

static ad_span own_samples(const trainer *t, int64_t m) {
  return ad_batch_rows(&t->rows, ad_comm_rank(t->comm), BATCH, MICROBATCHES, m);
}

/* Posts the sum of the counts over all ranks. The first microbatch could run while this sum is in flight. */
static ad_status post_counts(trainer *t) {
  int64_t own[MICROBATCHES] = {0};
  for (int64_t m = 0; m < MICROBATCHES; m++) {
    ad_span samples = own_samples(t, m);
    for (int64_t i = 0; i < samples.count; i++) own[m] += counts(t->step * BATCH + samples.first + i);
  }
  return ad_count_post(t->count, own);
}

/* Runs one microbatch, and adds this rank's part of the loss to *loss. */
static ad_status run_microbatch(trainer *t, int64_t m, int64_t total, double *loss) {
  double g1[HIDDEN * FEATURES] = {0}, g2[HIDDEN] = {0};
  const double *w1 = ad_store_compute(t->store, W1)->data, *w2 = ad_store_compute(t->store, W2)->data;
  double divisor = (double)total, seed = 1 / (divisor * ad_loss_scale_factor(&t->scale));
  ad_span samples = own_samples(t, m);
  for (int64_t i = 0; i < samples.count; i++) {
    int64_t sample = t->step * BATCH + samples.first + i;
    if (counts(sample)) *loss += backward(w1, w2, sample, seed, g1, g2) / divisor;
  }
  ad_array gradients[PARAMS] = {ad_reducer_describe(t->reducer, W1), ad_reducer_describe(t->reducer, W2)};
  gradients[W1].data = g1;
  gradients[W2].data = g2;
  AD_TRY(ad_reducer_begin_microbatch(t->reducer, m == MICROBATCHES - 1 ? AD_SYNC_ALL : AD_SYNC_NONE));
  AD_TRY(ad_reducer_divided_by(t->reducer, divisor));
  for (size_t p = 0; p < PARAMS; p++) AD_TRY(ad_reducer_add(t->reducer, p, &gradients[p]));
  return ad_reducer_end_microbatch(t->reducer);
}

/* Updates the masters by the summed gradients, unless a gradient overflowed. */
static ad_status update(trainer *t, double norm) {
  const ad_schedule schedule = {
      .size = sizeof schedule, .lr = 0.05, .warmup = 4, .steps = STEPS, .final_fraction = 0.1};
  ad_array *masters[PARAMS];
  const ad_array *gradients[PARAMS];
  double lr, clip, unscaled = ad_loss_scale_factor(&t->scale);
  if (!ad_loss_scale_update(&t->scale, norm)) return AD_OK;
  AD_TRY(ad_schedule_at(&schedule, t->step, &lr));
  AD_TRY(ad_clip_factor(norm * unscaled, 0.5, &clip));
  for (size_t p = 0; p < PARAMS; p++) {
    if (ad_reducer_is_absent(t->reducer, p))
      return ad_fail(AD_INVALID,
                     "no rank submitted a gradient of the parameter %s in this step; submit one in every step",
                     t->specs[p].name);
    masters[p] = ad_store_master(t->store, p);
    gradients[p] = ad_reducer_gradient(t->reducer, p);
  }
  AD_TRY(ad_optimizer_step(t->optimizer, masters, gradients, lr, clip * unscaled));
  return ad_store_refresh(t->store, AD_MASTERS_WRITTEN);
}

static ad_status take_step(trainer *t) {
  double loss = 0, norm, unscaled = ad_loss_scale_factor(&t->scale);
  int64_t total;
  AD_TRY(post_counts(t));
  AD_TRY(ad_count_wait(t->count, &total));
  for (int64_t m = 0; m < MICROBATCHES; m++) AD_TRY(run_microbatch(t, m, total, &loss));
  AD_TRY(ad_reducer_finish(t->reducer));
  AD_TRY(ad_reducer_norm(t->reducer, &t->everyone, &norm));
  AD_TRY(ad_reducer_reported(t->reducer, norm));
  AD_TRY(update(t, norm));
  ad_collective sum = {.size = sizeof sum, .op = AD_ALL_REDUCE, .in = &loss, .out = &loss, .count = 1, .dtype = AD_F64};
  sum.site = AD_HERE;
  AD_TRY(ad_comm_run(t->comm, &sum));
  if (!ad_comm_rank(t->comm) && t->step % 10 == 9)
    printf("step %2d  loss %.9f  norm %.9f  samples %d, %d in the first microbatch\n", (int)t->step, loss,
           norm * unscaled, (int)total, (int)ad_count_of(t->count, 0));
  return AD_OK;
}

/* ---- checkpoints, and weights in and out ---- */

enum { STATES = AD_OPTIMIZER_STATES_MAX, VALUES = (1 + STATES) * PARAMS };

/* The values of a checkpoint, and the memory of their names. */
typedef struct stored {
  ad_checkpoint_value values[VALUES];
  size_t count;
  char names[STATES * PARAMS][48];
} stored;

/* Lists the masters, from which the values follow, and the states of AdamW, each called STATE.PARAMETER. */
static void list_values(trainer *t, stored *out) {
  size_t count = 0;
  for (size_t p = 0; p < PARAMS; p++)
    out->values[count++] = (ad_checkpoint_value){t->specs[p].name, ad_store_master(t->store, p)};
  for (size_t k = 0; ad_optimizer_state_name(AD_ADAMW, k); k++)
    for (size_t p = 0; p < PARAMS; p++) {
      char *name = out->names[count - PARAMS];
      snprintf(name, sizeof *out->names, "%s.%s", ad_optimizer_state_name(AD_ADAMW, k), t->specs[p].name);
      out->values[count++] = (ad_checkpoint_value){name, ad_optimizer_state(t->optimizer, p, k)};
    }
  out->count = count;
}

static ad_status save(trainer *t) {
  stored all;
  ad_checkpoint_number numbers[] = {{"optimizer_steps", ad_optimizer_steps(t->optimizer)},
                                    {"loss_scale", t->scale.exponent},
                                    {"good_steps", t->scale.good_steps}};
  list_values(t, &all);
  ad_checkpoint_state state = {
      .size = sizeof state, .step = t->step, .values = all.values, .value_count = all.count, .numbers = numbers};
  state.number_count = sizeof numbers / sizeof *numbers;
  return ad_checkpointer_save(t->checkpointer, &state);
}

static ad_status resume(trainer *t, const char *folder) {
  stored all;
  ad_checkpoint_number numbers[] = {{"optimizer_steps", 0}, {"loss_scale", 0}, {"good_steps", 0}};
  list_values(t, &all);
  ad_checkpoint_state state = {
      .size = sizeof state, .values = all.values, .value_count = all.count, .numbers = numbers};
  state.number_count = sizeof numbers / sizeof *numbers;
  AD_TRY(ad_checkpoint_load(t->comm, t->mesh, folder, &state));
  AD_TRY(ad_optimizer_set_steps(t->optimizer, numbers[0].value));
  t->scale.exponent = (int)numbers[1].value;
  t->scale.good_steps = numbers[2].value;
  t->step = state.step;
  return ad_store_refresh(t->store, AD_MASTERS_WRITTEN);
}

/* Gathers each full parameter on every rank; the first rank writes the file. */
static ad_status export_weights(trainer *t, const char *path) {
  double w1[HIDDEN * FEATURES], w2[HIDDEN];
  ad_array full[PARAMS] = {{.data = w1}, {.data = w2}};
  ad_safetensor tensors[PARAMS];
  const char *const metadata[] = {"made_by", "example_zero", NULL};
  ad_safetensors_writer *writer;
  for (size_t p = 0; p < PARAMS; p++) {
    AD_TRY(ad_array_full(t->comm, ad_store_value(t->store, p), &full[p]));
    tensors[p] = (ad_safetensor){.name = t->specs[p].name, .dtype = AD_F64, .shape = t->specs[p].shape};
  }
  if (ad_comm_rank(t->comm)) return AD_OK;
  AD_TRY(ad_safetensors_create(path, tensors, PARAMS, metadata, &writer));
  ad_status status = ad_safetensors_add(writer, w1);
  if (!status) status = ad_safetensors_add(writer, w2);
  if (!status) status = ad_safetensors_finish(writer, NULL, NULL);
  ad_safetensors_writer_destroy(writer);
  return status;
}

/* Copies this rank's rows of one parameter from a file's tensor. */
static ad_status read_value(trainer *t, size_t p, const ad_safetensors *file) {
  char have[64], need[64];
  const ad_param_spec *spec = &t->specs[p];
  const ad_safetensor *tensor = ad_safetensors_find(file, spec->name);
  if (!tensor || !ad_dtype_is_float(tensor->dtype) || !ad_shape_equal(&tensor->shape, &spec->shape))
    return ad_fail(AD_INVALID, "the tensor %s must have shape %s, but is %s", spec->name,
                   ad_shape_print(&spec->shape, need, sizeof need),
                   tensor ? ad_shape_print(&tensor->shape, have, sizeof have) : "missing");
  double numbers[HIDDEN * FEATURES];
  AD_TRY(ad_cast(numbers, AD_F64, tensor->data, tensor->dtype, (size_t)ad_shape_numel(&spec->shape)));
  ad_array full = ad_array_describe(t->comm, AD_F64, &spec->shape, &spec->layout);
  full.data = numbers;
  return ad_array_from_full(t->comm, &full, ad_store_value(t->store, p));
}

static ad_status read_weights(trainer *t, const char *path) {
  ad_safetensors *file;
  AD_TRY(ad_safetensors_open(path, &file));
  const char *maker = ad_safetensors_metadata(file, "made_by");
  if (!ad_comm_rank(t->comm))
    printf("%d tensors of %s, the first is %s\n", (int)ad_safetensors_count(file), maker ? maker : "somebody",
           ad_safetensors_count(file) ? ad_safetensors_at(file, 0)->name : "none");
  ad_status status = AD_OK;
  for (size_t p = 0; !status && p < PARAMS; p++) status = read_value(t, p, file);
  ad_safetensors_close(file);
  return status ? status : ad_store_refresh(t->store, AD_VALUES_WRITTEN);
}

/* Prints the norm of all parameters, which is the same on any number of ranks. */
static ad_status print_size(trainer *t) {
  const ad_array *values[PARAMS] = {ad_store_value(t->store, W1), ad_store_value(t->store, W2)};
  double squares;
  AD_TRY(ad_array_square_sum(t->comm, &t->everyone, values, PARAMS, &squares));
  if (!ad_comm_rank(t->comm)) printf("norm of the parameters %.9f\n", sqrt(squares));
  return AD_OK;
}

static ad_status train(trainer *t, const settings *s) {
  AD_TRY(create_trainer(t, s));
  if (s->from) AD_TRY(read_weights(t, s->from));
  if (s->resumes) AD_TRY(resume(t, s->resumes));
  if (s->dump) AD_TRY(ad_reducer_dump(t->reducer, s->dump, 0, t->step));
  for (; t->step < s->steps; t->step++) {
    AD_TRY(take_step(t));
    if (t->checkpointer) AD_TRY(ad_checkpointer_poll(t->checkpointer));
  }
  if (t->checkpointer) {
    AD_TRY(save(t));
    AD_TRY(ad_checkpointer_finish(t->checkpointer));
  }
  AD_TRY(print_size(t));
  return s->export_to ? export_weights(t, s->export_to) : AD_OK;
}

static int on_each_rank(ad_comm *comm, void *context) {
  trainer t = {.comm = comm};
  ad_status status = train(&t, context);
  if (status) fprintf(stderr, "rank %d failed: %s\n", (int)ad_comm_rank(comm), ad_last_error());
  destroy_trainer(&t);
  return status != AD_OK;
}

int main(int argc, char **argv) {
  settings s = {.steps = STEPS, .replicas = 1};
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!strcmp(argv[i], "--checkpoints")) s.checkpoints = argv[i + 1];
    if (!strcmp(argv[i], "--resume")) s.resumes = argv[i + 1];
    if (!strcmp(argv[i], "--export")) s.export_to = argv[i + 1];
    if (!strcmp(argv[i], "--from")) s.from = argv[i + 1];
    if (!strcmp(argv[i], "--dump")) s.dump = argv[i + 1];
    if (!strcmp(argv[i], "--steps")) s.steps = strtoll(argv[i + 1], NULL, 10);
    if (!strcmp(argv[i], "--replicas")) s.replicas = strtoll(argv[i + 1], NULL, 10);
  }
  ad_launch_options options = {
      .size = sizeof options, .ranks = RANKS, .function = on_each_rank, .context = &s, .joins = 1};
  ad_launch_result result = {.size = sizeof result};
  if (ad_launch(&options, &result) == AD_OK) return 0;
  return fprintf(stderr, "%s\n", ad_last_error()), 1;
}
