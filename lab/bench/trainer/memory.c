/* Trains a few steps of a recipe on backend shm and compares the memory that the ranks hold with the plan of the same
 * recipe. Times are not measured here. */
#include "module/module.h"
#include "program/program.h"
#include "memory.h"
#include "step/run.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "measured.h"
#include "bench/row.h"

enum { STEPS = 4, BATCH = 8, SEQ = 32, FOLDER_BYTES = 256 };

typedef struct memory_case {
  const char *mesh;
  int ranks, microbatches, zero;
  const char *dtype; /* dtype of the parameters */
  int saves;         /* 1: write a checkpoint after every step */
  /* How many times the usual batch of train_step's model, whose memory is mostly activations; 0: a model whose memory
   * is mostly parameters. */
  int batches;
  const char *compute;
  double bucket_mib;
} memory_case;

#define LEVEL(mesh, ranks, microbatches, zero, dtype, mib) \
  { mesh, ranks, microbatches, zero, dtype, 0, 0, "f32", mib }
#define DTYPES(mesh, ranks, microbatches, zero) \
  LEVEL(mesh, ranks, microbatches, zero, "f32", 25), LEVEL(mesh, ranks, microbatches, zero, "bf16", 25)
#define LEVELS(mesh, ranks, microbatches) \
  DTYPES(mesh, ranks, microbatches, 1), DTYPES(mesh, ranks, microbatches, 2), DTYPES(mesh, ranks, microbatches, 3)
/* Cases with buckets so small that three of them are an eighth of the gradients: then ZeRO levels differ in the
 * memory of gradients. */
#define SMALL_BUCKETS(dtype)                                                            \
  LEVEL("dp_shard=4", 4, 2, 1, dtype, 2.75), LEVEL("dp_shard=4", 4, 2, 2, dtype, 2.75), \
      LEVEL("dp_shard=4", 4, 2, 3, dtype, 2.75)
/* Two cases that differ only in the batch, so their difference is the activations' memory. */
#define BATCHES(compute) \
  {"dp_shard=2", 2, 1, 1, "f32", 0, 1, compute, 25}, { "dp_shard=2", 2, 1, 1, "f32", 0, 2, compute, 25 }
static const char hybrid[] = "dp_replicate=2 dp_shard=2";
static const memory_case cases[] = {
    LEVELS("dp_shard=2", 2, 1),
    LEVELS("dp_shard=4", 4, 2),
    LEVELS(hybrid, 4, 2),
    SMALL_BUCKETS("f32"),
    SMALL_BUCKETS("bf16"),
    {"dp_shard=2", 2, 1, 2, "f32", 1, 0, "f32", 25},
    {hybrid, 4, 1, 3, "bf16", 1, 0, "f32", 25},
    BATCHES("f32"),
    BATCHES("bf16"),
};
enum { CASES = sizeof cases / sizeof *cases };

/* Large enough that most memory is parameters, not the program; `small` is for --quick. */
static const bench_model usual = {.layers = 6, .d_model = 512, .heads = 8, .seq = SEQ, .batch = BATCH};
static const bench_model small = {.layers = 2, .d_model = 256, .heads = 4, .seq = SEQ, .batch = BATCH};

static bench_model model_of(const memory_case *c, int quick) {
  if (!c->batches) return quick ? small : usual;
  bench_model model = quick ? bench_tiny_doubled : bench_small;
  model.batch *= c->batches;
  return model;
}

static const char RECIPE[] =
    "name: bench-memory\n"
    "model: {kind: gpt, layers: %d, d_model: %d, heads: %d}\n"
    "data: {text: [/usr/share/common-licenses], seq: %d}\n"
    "mesh: \"%s\"\n"
    "precision: {param: %s, compute: %s}\n"
    "shard: {zero: %d, bucket_mib: %g}\n"
    "train: {global_batch: %d, microbatches: %d, steps: %d, lr: 3e-3, clip: 1.0, seed: 1}\n"
    "checkpoint: {every: %d}\n";

static ad_status read_recipe(const memory_case *c, const bench_model *model, ad_recipe **out) {
  char text[sizeof RECIPE + 192];
  snprintf(text, sizeof text, RECIPE, model->layers, model->d_model, model->heads, model->seq, c->mesh, c->dtype,
           c->compute, c->zero, c->bucket_mib, model->batch, c->microbatches, STEPS, c->saves);
  return ad_recipe_parse(text, "bench", NULL, 0, out);
}

/* ---- measuring the memory that ranks hold ---- */

/* Results in memory that all ranks share: the first rank writes them, and all ranks add to `gradients`. */
typedef struct held_memory {
  ad_run_memory memory;
  size_t gradients; /* bytes of buckets and sums of all ranks together */
  double seconds[STEPS];
} held_memory;

typedef struct memory_job {
  const ad_recipe *recipe;
  const char *folder; /* the folder for checkpoints */
  held_memory *out;
} memory_job;

static size_t gradient_bytes(const ad_run *run) {
  size_t bytes = 0;
  for (size_t m = 0; m < ad_program_module_count(ad_run_program(run)); m++)
    if (ad_run_module(run, m)) bytes += ad_reducer_bytes(ad_module_reducer(ad_run_module(run, m)));
  return bytes;
}

/* Takes the steps. Copies of parameters for a checkpoint are made while it is written, and their memory is kept. */
static ad_status take_steps(ad_run *run, const memory_job *job, ad_checkpointer *checkpointer, held_memory *held) {
  ad_step_report report;
  for (int step = 0; step < STEPS; step++) {
    AD_TRY(ad_run_step(run, step, &report));
    held->seconds[step] = report.seconds;
    if (checkpointer) AD_TRY(ad_run_save(run, checkpointer, step + 1));
  }
  if (checkpointer) AD_TRY(ad_checkpointer_finish(checkpointer));
  __atomic_fetch_add(&job->out->gradients, gradient_bytes(run), __ATOMIC_SEQ_CST);
  return ad_run_measure_memory(run, &held->memory);
}

static ad_status train(ad_comm *comm, const memory_job *job, held_memory *held) {
  ad_run *run;
  ad_checkpointer *checkpointer = NULL;
  ad_status status = AD_OK;
  AD_TRY(ad_run_create(comm, job->recipe, NULL, &run));
  if (job->recipe->checkpoint.every)
    status = ad_checkpointer_create(comm, ad_run_everyone(run).mesh, job->folder, 1, &checkpointer);
  if (!status) status = take_steps(run, job, checkpointer, held);
  ad_checkpointer_destroy(checkpointer);
  ad_run_destroy(run);
  return status;
}

static int be_rank(ad_comm *comm, void *context) {
  const memory_job *job = context;
  held_memory held;
  ad_status status = train(comm, job, &held);
  if (status) return ad_comm_fail(comm, status, ad_last_error()), 1;
  if (ad_comm_rank(comm) > 0) return 0;
  job->out->memory = held.memory;
  memcpy(job->out->seconds, held.seconds, sizeof held.seconds);
  return 0;
}

/* A buffer for error messages of this file, where the library has none. */
typedef char own_words[FOLDER_BYTES + 128];

static int remove_entry(const char *path, const struct stat *is, int kind, struct FTW *place) { return remove(path); }

static void remove_folder(const char *folder) {
  if (nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS))
    fprintf(stderr, "addend bench: the temporary folder %s could not be removed; remove it yourself\n", folder);
}

static ad_status make_folder(char folder[FOLDER_BYTES], own_words why) {
  const char *parent = getenv("TMPDIR");
  snprintf(folder, FOLDER_BYTES, "%s/addend-bench-XXXXXX", parent && *parent ? parent : "/tmp");
  if (mkdtemp(folder)) return AD_OK;
  snprintf(why, sizeof(own_words),
           "the folder %s for checkpoints cannot be made: %s; set TMPDIR to a folder that can be written to", folder,
           strerror(errno));
  return AD_IO;
}

static ad_status launch(const memory_case *c, memory_job *job, own_words why) {
  ad_launch_options options = {.size = sizeof options, .ranks = c->ranks, .function = be_rank, .context = job};
  ad_launch_result result = {.size = sizeof result};
  char folder[FOLDER_BYTES];
  AD_TRY(make_folder(folder, why));
  job->folder = folder;
  ad_status status = ad_launch(&options, &result);
  remove_folder(folder);
  return status;
}

static ad_status hold(const memory_case *c, const ad_recipe *recipe, held_memory *out, own_words why) {
  held_memory *seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (seen == MAP_FAILED) {
    snprintf(why, sizeof(own_words), "no memory for what the ranks report: %s", strerror(errno));
    return AD_MEMORY;
  }
  memory_job job = {.recipe = recipe, .out = seen};
  ad_status status = launch(c, &job, why);
  *out = *seen;
  munmap(seen, sizeof *seen);
  return status;
}

/* ---- reading the plan ---- */

typedef struct planned_memory {
  json_int_t numel, rank, node; /* number of parameters; bytes of the rank that needs most; bytes of all ranks */
  json_int_t activations;       /* bytes of activations on the rank that has most */
  json_int_t gradients;         /* bytes of gradients of all ranks */
} planned_memory;

static json_int_t fold(const json_t *list, const char *key, int adds) {
  size_t i;
  json_t *entry;
  json_int_t result = 0;
  json_array_foreach(list, i, entry) {
    json_int_t value = json_integer_value(json_object_get(entry, key));
    result = adds ? result + value : value > result ? value : result;
  }
  return result;
}

static ad_status plan(const ad_recipe *recipe, planned_memory *out, own_words why) {
  char *text;
  AD_TRY(ad_plan_json(recipe, NULL, &text));
  json_error_t error;
  json_t *document = json_loads(text, 0, &error);
  free(text);
  if (!document) {
    snprintf(why, sizeof(own_words), "the plan cannot be read: %s", error.text);
    return AD_MEMORY;
  }
  out->numel = fold(json_object_get(document, "params"), "numel", 1);
  out->rank = fold(json_object_get(document, "memory_per_rank"), "peak", 0);
  out->activations = fold(json_object_get(document, "memory_per_rank"), "activations", 0);
  out->gradients = fold(json_object_get(document, "memory_per_rank"), "buckets", 1) +
                   fold(json_object_get(document, "memory_per_rank"), "grads", 1);
  out->node = fold(json_object_get(document, "memory_per_node"), "peak", 1);
  json_decref(document);
  return AD_OK;
}

/* ---- rows of the document ---- */

/* Returns the number as JSON, or null if it is 0, which means that the kernel does not report it. */
static json_t *bytes_or_null(int64_t bytes) { return bytes ? json_integer(bytes) : json_null(); }

static json_t *row_of(const memory_case *c, const bench_model *model, const planned_memory *planned,
                      held_memory *held) {
  bench_task task = {.op = "memory", .memory = "comm", .in_place = 1};
  snprintf(task.dtype, sizeof task.dtype, "%s", c->dtype);
  snprintf(task.storage, sizeof task.storage, "zero%d", c->zero);
  task.bytes = (size_t)planned->numel * bench_element(c->dtype);
  json_t *row = bench_row(&task, c->ranks, held->seconds, STEPS);
  json_object_set_new(row, "mesh", json_string(c->mesh));
  json_object_set_new(row, "numel", json_integer(planned->numel));
  json_object_set_new(row, "microbatches", json_integer(c->microbatches));
  json_object_set_new(row, "compute", json_string(c->compute));
  json_object_set_new(row, "batches", json_integer(c->batches));
  json_object_set_new(row, "model", bench_model_words(model));
  json_object_set_new(row, "planned_activation_bytes", json_integer(planned->activations));
  json_object_set_new(row, "checkpoint", json_boolean(c->saves));
  json_object_set_new(row, "bucket_mib", json_real(c->bucket_mib));
  json_object_set_new(row, "planned_gradient_bytes", json_integer(planned->gradients));
  json_object_set_new(row, "gradient_bytes", json_integer((json_int_t)held->gradients));
  json_object_set_new(row, "planned_rank_bytes", json_integer(planned->rank));
  json_object_set_new(row, "pss_rank_bytes", bytes_or_null(held->memory.rank_bytes));
  json_object_set_new(row, "planned_node_bytes", json_integer(planned->node));
  json_object_set_new(row, "pss_node_bytes", bytes_or_null(held->memory.all_bytes));
  return row;
}

static ad_status measure(const bench_options *options, const memory_case *c, const bench_model *model,
                         const ad_recipe *recipe, json_t *rows, own_words why) {
  planned_memory planned;
  held_memory held;
  AD_TRY(plan(recipe, &planned, why));
  if (options->largest && (size_t)planned.numel * bench_element(c->dtype) > options->largest) return AD_OK;
  AD_TRY(hold(c, recipe, &held, why));
  json_array_append_new(rows, row_of(c, model, &planned, &held));
  return AD_OK;
}

static int is_wanted(const bench_options *options, const memory_case *c) {
  if (options->quick && !options->rank_count) return c->ranks == 2;
  for (int i = 0; i < options->rank_count; i++)
    if (options->ranks[i] == c->ranks) return 1;
  return !options->rank_count;
}

ad_status bench_measure_memory(const bench_options *options, json_t *rows) {
  ad_status first = AD_OK;
  for (int i = 0; i < CASES && first != AD_INTERRUPTED; i++) {
    char text[BENCH_MESSAGE];
    own_words why = "";
    ad_recipe *recipe = NULL;
    if (!is_wanted(options, &cases[i])) continue;
    bench_model model = model_of(&cases[i], options->quick);
    snprintf(text, sizeof text, "memory %s, computing in %s, zero%d, %s", cases[i].dtype, cases[i].compute,
             cases[i].zero, cases[i].mesh);
    if (options->progress) options->progress(text, i, CASES);
    ad_status status = read_recipe(&cases[i], &model, &recipe);
    if (!status) status = measure(options, &cases[i], &model, recipe, rows, why);
    if (status) fprintf(stderr, "addend bench: %s: %s\n", text, why[0] ? why : ad_last_error());
    if (!first || status == AD_INTERRUPTED) first = status;
    if (recipe) ad_recipe_destroy(recipe);
  }
  if (options->progress) options->progress("done", CASES, CASES);
  return first;
}
