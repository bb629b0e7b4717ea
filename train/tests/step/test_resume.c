/* Tests resuming: bit for bit on the same mesh, with the same values on any other, with every precision policy and kind
 * of sharding; and full weights as a file. */
#include "says.h"
#include "world.h"
#include "forge.h"

#include <sys/stat.h>
#include <unistd.h>
#include "kernels/kernels.h"
#include "base/memory.h"
#include "files/file.h"
#include "module/module.h"
#include "step/run.h"

enum { STEPS = 6, STOP = 3, ELEMENTS_MAX = 1 << 16 };
#define TRAINING ", global_batch: 6, microbatches: 2, steps: 6, lr: 1e-2, warmup: 2, weight_decay: 0.1"

/* Full values, moments and masters as the first rank sees them. */
typedef struct seen {
  float elements[ELEMENTS_MAX];
  size_t numel;
  int64_t optimizer_steps, skipped;
  ad_loss_scale loss_scale;
  double loss;
  char message[512];
} seen;

typedef struct job {
  const ad_recipe *recipe;
  int64_t first, last; /* steps to take: from first to before last */
  int loads, saves;
  const char *weights_out;
  seen *seen;
} job;

static char folder[64];

static const char *in_folder(const char *name) {
  static char path[160];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static int make_folder(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-resume-XXXXXX");
  return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
  static const char *const names[] = {"step-3",      "step-6", "checkpoints/step-3", "checkpoints/step-6",
                                      "checkpoints", ""};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) must(ad_folder_remove(in_folder(names[i])));
  return 0;
}

/* Keeps full values as f32: no dtype here is wider, so nothing is lost. */
static ad_status keep_array(ad_run *run, const ad_array *array, seen *to) {
  static float full[ELEMENTS_MAX];
  ad_array out = {.data = full};
  AD_TRY(ad_array_full(ad_run_comm(run), array, &out));
  size_t numel = (size_t)ad_shape_numel(&array->shape);
  if (ad_comm_rank(ad_run_comm(run)) != 0) return AD_OK;
  ad_cast(to->elements + to->numel, AD_F32, full, array->dtype, numel);
  to->numel += numel;
  return AD_OK;
}

static ad_status keep_all(ad_run *run, seen *to) {
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    const ad_array *value = ad_run_part(run, i, AD_PART_VALUE), *master = ad_run_part(run, i, AD_PART_MASTER);
    AD_TRY(keep_array(run, value, to));
    for (int part = AD_PART_STATE; part < AD_PART_GRADIENT; part++)
      if (ad_run_part(run, i, (ad_param_part)part))
        AD_TRY(keep_array(run, ad_run_part(run, i, (ad_param_part)part), to));
    if (master != value) AD_TRY(keep_array(run, master, to));
  }
  to->optimizer_steps = ad_optimizer_steps(ad_module_optimizer(ad_run_module(run, 0)));
  to->loss_scale = *ad_run_loss_scale(run);
  return AD_OK;
}

static ad_status save(ad_run *run, int64_t steps) {
  ad_checkpointer *c;
  AD_TRY(ad_checkpointer_create(ad_run_comm(run), ad_run_everyone(run).mesh, folder, 2, &c));
  ad_status status = ad_run_save(run, c, steps);
  if (!status) status = ad_checkpointer_finish(c);
  ad_checkpointer_destroy(c);
  return status;
}

static ad_status take_steps(ad_run *run, const job *j) {
  ad_step_report report = {0};
  int64_t loaded = j->first;
  if (j->loads) AD_TRY(ad_run_load(run, folder, &loaded));
  for (int64_t step = loaded; step < j->last; step++) {
    AD_TRY(ad_run_step(run, step, &report));
    if (ad_comm_rank(ad_run_comm(run)) == 0) j->seen->skipped += report.skipped;
  }
  j->seen->loss = report.loss;
  if (j->saves) AD_TRY(save(run, j->last));
  if (j->weights_out) AD_TRY(ad_run_write_weights(run, j->weights_out));
  return keep_all(run, j->seen);
}

static int run_on_rank(ad_comm *comm, void *context) {
  const job *j = context;
  ad_run *run;
  ad_status status = ad_run_create(comm, j->recipe, NULL, &run);
  if (!status) {
    status = ad_run_recipe(run) == j->recipe ? take_steps(run, j) : AD_INVALID;
    ad_run_destroy(run);
  }
  if (status && ad_comm_rank(comm) == 0) snprintf(j->seen->message, sizeof j->seen->message, "%s", ad_last_error());
  return 0;
}

/* Runs the job; `more` has further keys of train, `storage` the recipe's sections shard, precision and optimizer. */
static seen *run_with(const char *mesh, int64_t ranks, const char *more, const char *storage, job j) {
  char training[512];
  snprintf(training, sizeof training, TRAINING "%s}\n%scheckpoint: {every: 0", more, storage);
  ad_recipe *recipe = tiny_recipe(mesh, "", training);
  ad_launch_result result = {.size = sizeof result};
  j.recipe = recipe;
  j.seen = shared_memory(sizeof(seen));
  must(launch(ranks, run_on_rank, &j, &result));
  ad_recipe_destroy(recipe);
  if (j.seen->message[0]) fail_msg("%s", j.seen->message);
  return j.seen;
}

static seen *run_stored(const char *mesh, int64_t ranks, const char *storage, job j) {
  return run_with(mesh, ranks, "", storage, j);
}

static seen *run_job(const char *mesh, int64_t ranks, job j) { return run_stored(mesh, ranks, "", j); }

static void forget(seen *s) { munmap(s, sizeof *s); }

static void same(seen *a, seen *b) {
  assert_true(a->numel > 1000);
  assert_int_equal(a->numel, b->numel);
  assert_int_equal(a->optimizer_steps, b->optimizer_steps);
  assert_int_equal(a->loss_scale.exponent, b->loss_scale.exponent);
  assert_int_equal(a->loss_scale.good_steps, b->loss_scale.good_steps);
  assert_memory_equal(a->elements, b->elements, a->numel * sizeof *a->elements);
}

static void a_run_that_was_stopped_takes_the_same_steps_bit_for_bit(void **state) {
  seen *unbroken = run_job("dp_replicate=3 dp_shard=1", 3, (job){.last = STEPS});
  seen *stopped = run_job("dp_replicate=3 dp_shard=1", 3, (job){.last = STOP, .saves = 1});
  seen *resumed = run_job("dp_replicate=3 dp_shard=1", 3, (job){.last = STEPS, .loads = 1});
  same(unbroken, resumed);
  assert_true(unbroken->loss == resumed->loss);
  assert_int_equal(stopped->optimizer_steps, STOP);
  assert_int_equal(resumed->optimizer_steps, STEPS);
  assert_memory_not_equal(stopped->elements, resumed->elements, stopped->numel * sizeof *stopped->elements);
}

static void every_other_mesh_loads_the_same_values(void **state) {
  static const struct {
    const char *mesh;
    int64_t ranks;
  } others[] = {{"dp_shard=2", 2}, {"dp_shard=1", 1}, {"dp_replicate=2 dp_shard=2", 4}};
  seen *saved = run_job("dp_replicate=3 dp_shard=1", 3, (job){.last = STOP, .saves = 1});
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    same(saved, run_job(others[i].mesh, others[i].ranks, (job){.last = STOP, .loads = 1}));
}

/* ---- precision policies and sharding ---- */

/* With f16 the initial loss scale makes some steps before the stop overflow, so that they are skipped. */
static const struct {
  const char *words;
  int overflows;
} policies[] = {{"{param: f32, reduce: bf16}", 0},
                {"{param: bf16, reduce: f32, overrides: {\"*norm*\": {param: f32}}}", 0},
                {"{param: f16, loss_scale: 19}", 1}};
enum { POLICIES = sizeof policies / sizeof *policies };

static const char *storage_of(int zero, int policy) {
  static char text[256];
  snprintf(text, sizeof text, "shard: {zero: %d, bucket_mib: 0.01}\nprecision: %s\n", zero, policies[policy].words);
  return text;
}

/* Returns how many steps were skipped before the stop. */
static int64_t goes_on_bit_for_bit(const char *storage) {
  const char *mesh = "dp_replicate=2 dp_shard=2";
  seen *unbroken = run_stored(mesh, 4, storage, (job){.last = STEPS});
  seen *stopped = run_stored(mesh, 4, storage, (job){.last = STOP, .saves = 1});
  seen *resumed = run_stored(mesh, 4, storage, (job){.last = STEPS, .loads = 1});
  same(unbroken, resumed);
  assert_true(unbroken->loss == resumed->loss);
  assert_int_equal(unbroken->skipped, stopped->skipped + resumed->skipped);
  int64_t skipped = stopped->skipped;
  assert_memory_not_equal(stopped->elements, resumed->elements, stopped->numel * sizeof *stopped->elements);
  forget(unbroken);
  forget(stopped);
  forget(resumed);
  must(ad_folder_remove(in_folder("step-3")));
  return skipped;
}

static void every_policy_and_sharding_resumes_bit_for_bit(void **state) {
  for (int policy = 0; policy < POLICIES; policy++)
    for (int zero = 1; zero <= 3; zero++) {
      int64_t skipped = goes_on_bit_for_bit(storage_of(zero, policy));
      if (policies[policy].overflows) assert_in_range(skipped, 1, STOP - 1);
    }
}

/* ---- optimizers ---- */

/* What Muon does not update. */
#define OTHERS "groups: [{match: \"embedding.*\", kind: adamw}, {match: \"*norm*\", kind: adamw}]\n"

static void every_optimizer_resumes_bit_for_bit(void **state) {
  goes_on_bit_for_bit("optimizer: {kind: sgd, momentum: 0.9, nesterov: true}\nshard: {zero: 3, bucket_mib: 0.01}\n");
  goes_on_bit_for_bit("optimizer: {kind: sgd, momentum: 0.9}\nprecision: {param: bf16}\n");
  goes_on_bit_for_bit("optimizer: {kind: sgd}\n");
  goes_on_bit_for_bit("optimizer: {kind: muon, muon: {way: dealt}}\nshard: {zero: 3, bucket_mib: 0.01}\n" OTHERS);
  goes_on_bit_for_bit("optimizer: {kind: muon, muon: {dtype: bf16}}\nprecision: {param: bf16}\n" OTHERS);
}

/* Muon's states are stored as its parameters are, so where and how matrices were brought together does not matter. */
static void muon_resumes_on_other_ranks_in_another_way_to_the_same_bits(void **state) {
  seen *unbroken = run_with("dp=1", 1, ", leaves: 6", "optimizer: {kind: muon}\n" OTHERS, (job){.last = STEPS});
  run_with("dp_replicate=2 dp_shard=2", 4, ", leaves: 6",
           "optimizer: {kind: muon, muon: {way: dealt}}\nshard: {zero: 3}\n" OTHERS, (job){.last = STOP, .saves = 1});
  seen *resumed = run_with("dp_replicate=1 dp_shard=3", 3, ", leaves: 6",
                           "optimizer: {kind: muon, muon: {way: gathered}}\nshard: {zero: 2}\n" OTHERS,
                           (job){.last = STEPS, .loads = 1});
  same(unbroken, resumed);
}

static int loads_on_rank(ad_comm *comm, void *context) {
  const job *j = context;
  ad_run *run;
  int64_t steps;
  RANK_MUST(comm, ad_run_create(comm, j->recipe, NULL, &run));
  ad_status status = ad_run_load(run, folder, &steps);
  if (status && ad_comm_rank(comm) == 0) snprintf(j->seen->message, sizeof j->seen->message, "%s", ad_last_error());
  ad_run_destroy(run);
  return 0;
}

/* A checkpoint has the states of the optimizer that wrote it. */
static void a_checkpoint_of_another_optimizer_is_of_another_run(void **state) {
  static const char *const others[][3] = {
      {"kind: adamw", "embedding.weight", "--fresh-states"},
      {"kind: sgd, momentum: 0.8", "optimizer.momentum", "--force"},
      {"kind: sgd, momentum: 0.9, nesterov: true", "optimizer.nesterov", "--force"}};
  run_stored("dp=1", 1, "optimizer: {kind: sgd, momentum: 0.9}\n", (job){.last = STOP, .saves = 1});
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    char training[512];
    snprintf(training, sizeof training, TRAINING "}\noptimizer: {%s", others[i][0]);
    ad_launch_result result = {.size = sizeof result};
    job j = {.recipe = tiny_recipe("dp=1", "", training), .seen = shared_memory(sizeof(seen))};
    must(launch(1, loads_on_rank, &j, &result));
    assert_facts(j.seen->message, others[i][1], others[i][2]);
    ad_recipe_destroy((ad_recipe *)j.recipe);
    forget(j.seen);
  }
}

static void loads_elsewhere(int policy) {
  static const struct {
    const char *mesh;
    int64_t ranks;
    int zero;
  } others[] = {{"dp_replicate=2 dp_shard=2", 4, 3},
                {"dp_replicate=1 dp_shard=3", 3, 1},
                {"dp_replicate=3 dp_shard=2", 6, 2},
                {"dp_replicate=1 dp_shard=1", 1, 0}};
  seen *saved = run_stored("dp_replicate=2 dp_shard=2", 4, storage_of(2, policy), (job){.last = STOP, .saves = 1});
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    seen *loaded = run_stored(others[i].mesh, others[i].ranks, storage_of(others[i].zero, policy),
                              (job){.last = STOP, .loads = 1});
    same(saved, loaded);
    forget(loaded);
  }
  forget(saved);
  must(ad_folder_remove(in_folder("step-3")));
}

static void every_policy_loads_under_another_sharding(void **state) {
  for (int policy = 0; policy < POLICIES; policy++) loads_elsewhere(policy);
}

/* ---- weight files ---- */

static ad_status create_alone(const char *model, char *message) {
  char text[512];
  ad_recipe *recipe;
  ad_comm *comm;
  ad_run *run;
  snprintf(text, sizeof text,
           "model: {kind: gpt, layers: 1, %s, heads: 2, weights: \"%s\"}\nmesh: dp=1\n"
           "data: {text: [/usr/share/common-licenses], seq: 12}\ntrain: {global_batch: 2, steps: 1, lr: 1}\n",
           model, in_folder("w"));
  must(ad_recipe_parse(text, "w.yaml", NULL, 0, &recipe));
  must(ad_comm_open_alone(&comm));
  ad_status status = ad_run_create(comm, recipe, NULL, &run);
  if (!status) ad_run_destroy(run);
  snprintf(message, 512, "%s", status ? ad_last_error() : "");
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
  return status;
}

static int read_on_rank(ad_comm *comm, void *context) {
  const job *j = context;
  ad_run *run;
  RANK_MUST(comm, ad_run_create(comm, j->recipe, NULL, &run));
  RANK_MUST(comm, ad_run_read_weights(run, in_folder("w")));
  for (size_t i = 0; i < ad_run_param_count(run); i++)
    RANK_MUST(comm, keep_array(run, ad_run_part(run, i, AD_PART_VALUE), j->seen));
  ad_run_destroy(run);
  return 0;
}

static void weights_written_on_one_mesh_are_read_on_another(void **state) {
  char path[160];
  snprintf(path, sizeof path, "%s", in_folder("w"));
  seen *written = run_job("dp_replicate=3 dp_shard=1", 3, (job){.last = STOP, .weights_out = path});
  ad_recipe *recipe = tiny_recipe("dp=2", "", TRAINING);
  job j = {.recipe = recipe, .seen = shared_memory(sizeof(seen))};
  ad_launch_result result = {.size = sizeof result};
  must(launch(2, read_on_rank, &j, &result));
  // `written` has each value followed by its two moments, which a weight file does not have; the embedding comes first.
  assert_memory_equal(written->elements, j.seen->elements, (size_t)256 * 16 * sizeof(float));
  assert_int_equal(3 * j.seen->numel, written->numel);
  ad_recipe_destroy(recipe);
  char message[512];
  assert_int_equal(create_alone("d_model: 16", message), AD_OK);
  assert_int_equal(create_alone("d_model: 20", message), AD_INVALID);
  assert_text_says(message, "embedding.weight", "[256, 16]", "[256, 20]");
  assert_int_equal(create_alone("d_model: 16, tied: false", message), AD_INVALID);
  assert_text_says(message, "head.weight");
  unlink(path);
  assert_int_equal(create_alone("d_model: 16", message), AD_IO);
}

/* ---- resuming by ad_train ---- */

static int train_on_rank(ad_comm *comm, void *context) {
  const job *j = context;
  ad_train_options options = {.size = sizeof options, .folder = folder, .resume = j->loads};
  if (j->first && ad_comm_rank(comm) == 1) ad_train_interrupt();
  ad_status status = ad_train(comm, j->recipe, &options);
  if (status && ad_comm_rank(comm) == 0) snprintf(j->seen->message, sizeof j->seen->message, "%s", ad_last_error());
  return 0;
}

static char *train(job j) {
  ad_recipe *recipe = tiny_recipe("dp=2", "", TRAINING "}\ncheckpoint: {every: 3, keep: 1");
  ad_launch_result result = {.size = sizeof result};
  j.recipe = recipe;
  j.seen = shared_memory(sizeof(seen));
  must(launch(2, train_on_rank, &j, &result));
  ad_recipe_destroy(recipe);
  return j.seen->message;
}

static int is_there(const char *name) { return !access(in_folder(name), F_OK); }

static void training_leaves_checkpoints_and_resumes_from_them(void **state) {
  assert_string_equal(train((job){.loads = 1}), "");  // there is no checkpoint yet
  assert_true(is_there("checkpoints/step-6/index.json") && is_there("weights.safetensors"));
  assert_false(is_there("checkpoints/step-3"));  // keep: 1 leaves one checkpoint
  assert_text_says(train((job){0}), "6", "--resume");
}

static void resuming_a_finished_run_writes_what_is_missing(void **state) {
  char *kept;
  int64_t size, again;
  assert_string_equal(train((job){0}), "");
  must(ad_file_read(in_folder("weights.safetensors"), 1 << 24, &kept, &size));
  assert_int_equal(unlink(in_folder("weights.safetensors")) | unlink(in_folder("report.html")), 0);
  assert_string_equal(train((job){.loads = 1}), "");
  assert_true(is_there("report.html"));
  char *written;
  must(ad_file_read(in_folder("weights.safetensors"), 1 << 24, &written, &again));
  assert_int_equal(size, again);
  assert_memory_equal(kept, written, (size_t)size);
  ad_release(kept);
  ad_release(written);
  assert_string_equal(train((job){.loads = 1}), "");  // a second time: nothing is missing now
}

static void numbers_that_no_run_has_are_refused(void **state) {
  static const struct {
    const char *from, *to, *facts[4]; /* no facts: the run is resumed */
  } forgeries[] = {{"\"optimizer_steps\":6", "\"optimizer_steps\":-1", {"optimizer_steps", "-1", "6"}},
                   {"\"optimizer_steps\":-1", "\"optimizer_steps\":7", {"optimizer_steps", "7", "6"}},
                   {"\"optimizer_steps\":7", "\"optimizer_steps\":6", {NULL}},
                   {"\"loss_scale\":0", "\"loss_scale\":4000000000", {"loss_scale", "4000000000"}},
                   {"\"loss_scale\":4000000000", "\"loss_scale\":0", {NULL}},
                   {"\"seed\":4", "\"seed\":\"4\"", {"seed"}}};
  assert_string_equal(train((job){0}), "");
  for (size_t i = 0; i < sizeof forgeries / sizeof *forgeries; i++) {
    forge(in_folder("checkpoints/step-6/index.json"), forgeries[i].from, forgeries[i].to);
    const char *message = train((job){.loads = 1});
    if (forgeries[i].facts[0])
      assert_says_in(forgeries[i].to, message, forgeries[i].facts);
    else
      assert_string_equal(message, "");
  }
}

static void a_fingerprint_without_a_key_is_of_another_run(void **state) {
  const char *index = "checkpoints/step-6/index.json";
  assert_string_equal(train((job){0}), "");
  forge(in_folder(index), "\"train.steps\":\"6\",", "");  // the number of steps may differ
  assert_string_equal(train((job){.loads = 1}), "");
  forge(in_folder(index), "\"model.heads\":\"2\",", "");
  assert_text_says(train((job){.loads = 1}), "model.heads", "2");
  forge(in_folder(index), "\"model.layers\":", "\"model.heads\":\"2\",\"model.layers\":");
  assert_string_equal(train((job){.loads = 1}), "");
  forge(in_folder(index), "\"facts\":{", "\"facts\":{},\"other\":{");
  assert_text_says(train((job){.loads = 1}), "model.kind", "model.layers");
}

/* A key that an earlier version did not write has its default, and old words for a value have their meaning. */
static void a_fingerprint_of_an_earlier_version_is_of_the_same_run(void **state) {
  const char *index = "checkpoints/step-6/index.json";
  assert_string_equal(train((job){0}), "");
  forge(in_folder(index), "\"model.norm_epsilon\":\"1e-05\",", "");
  forge(in_folder(index), "\"model.rotary_scaling\":\"[]\",", "");
  forge(in_folder(index), "\"model.bias\":\"none\"", "\"model.bias\":\"false\"");
  assert_string_equal(train((job){.loads = 1}), "");
  forge(in_folder(index), "\"model.bias\":\"false\"", "\"model.bias\":\"true\"");
  assert_text_says(train((job){.loads = 1}), "model.bias");
}

static void an_interrupted_training_leaves_a_checkpoint(void **state) {
  assert_text_says(train((job){.first = 1}), "step 0", "6");
  assert_true(is_there("checkpoints/step-1/index.json"));
  must(ad_folder_remove(in_folder("checkpoints/step-1")));
}

/* ---- the longest names ---- */

enum { NAMES = 2 }; /* parameters, and states, whose names differ in the last of 191 bytes */

static const char *longest_name(size_t i) {
  static char name[NAMES][AD_PROGRAM_NAME_SIZE];
  memset(name[i], 'n', sizeof name[i]);
  snprintf(name[i] + AD_PROGRAM_NAME_SIZE - sizeof "named.0", 2, "%zu", i);
  return name[i];
}

static ad_status named_phase(void *own, ad_phase_run *at) { return AD_OK; }
static ad_status named_read(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  return AD_OK;
}

static ad_status named_create(const void *options, ad_program *to, void **own) {
  const ad_mesh *mesh = ad_program_mesh(to, 0);
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_param_spec params[NAMES];
  ad_state_spec states[NAMES];
  for (size_t i = 0; i < NAMES; i++) {
    params[i] = (ad_param_spec){.size = sizeof *params,
                                .name = longest_name(i),
                                .shape = {1, {3}},
                                .layout = layout,
                                .storage = layout,
                                .deviation = 1};
    states[i] = (ad_state_spec){
        .size = sizeof *states, .name = params[i].name, .dtype = AD_F32, .shape = {1, {3}}, .layout = layout};
  }
  ad_module_spec modules[] = {
      {.size = sizeof *modules, .name = "named", .mesh = mesh, .params = params, .param_count = NAMES},
      {.size = sizeof *modules,
       .name = "state",
       .mesh = ad_program_mesh(to, 1),
       .states = states,
       .state_count = NAMES}};
  AD_TRY(ad_program_add_module(to, &modules[0]));
  AD_TRY(ad_program_add_module(to, &modules[1]));
  AD_TRY(ad_program_add_count(to, &(ad_count_spec){sizeof(ad_count_spec), "rows", layout}));
  AD_TRY(ad_program_add_loss(to, &(ad_loss_spec){.size = sizeof(ad_loss_spec), .name = "loss"}));
  return ad_program_add_phase(to, &(ad_phase){.size = sizeof(ad_phase), .name = "none", .run = named_phase});
}

/* How many elements of the parameters, moments and states are not what they were set to; `sets`: sets them first. */
static int others(ad_run *run, int sets) {
  int count = 0;
  for (size_t i = 0; i < NAMES; i++) {
    const ad_array *arrays[] = {ad_run_part(run, i, AD_PART_VALUE), ad_run_part(run, i, AD_PART_STATE),
                                ad_run_part(run, i, AD_PART_STATE + 1), ad_run_state(run, 1, i)};
    for (size_t a = 0; a < 4; a++) {
      for (size_t k = 0; k < 3; k++) {
        double wanted = (double)(1 + i + 10 * a + 100 * k);
        if (sets) ad_array_set(arrays[a], k, wanted);
        count += ad_array_get(arrays[a], k) != wanted;
      }
    }
  }
  return count;
}

static void names_that_differ_in_their_last_byte_are_two_in_a_checkpoint(void **state) {
  static const char *const modules[] = {"named", "state", NULL};
  static const ad_program_kind named = {
      .size = sizeof named, .name = "named", .modules = modules, .create = named_create, .read = named_read};
  ad_recipe *recipe = NULL;
  ad_comm *comm;
  must(ad_program_register(&named));
  if (ad_recipe_parse("model: {kind: named}\nmesh: {named: dp=1, state: dp=1}\n"
                      "train: {global_batch: 1, steps: 1, lr: 1}\n",
                      "named.yaml", NULL, 0, &recipe))
    fail_msg("%s", ad_last_error());
  must(ad_comm_open_alone(&comm));
  for (int loads = 0; loads < 2; loads++) {
    ad_run *run;
    int64_t steps;
    if (ad_run_create(comm, recipe, NULL, &run)) fail_msg("%s", ad_last_error());
    assert_int_not_equal(others(run, 0), 0);
    if (loads ? ad_run_load(run, folder, &steps) : (others(run, 1), save(run, STOP))) fail_msg("%s", ad_last_error());
    assert_int_equal(others(run, 0), 0);
    ad_run_destroy(run);
  }
  ad_comm_close(comm);
  ad_recipe_destroy(recipe);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_run_that_was_stopped_takes_the_same_steps_bit_for_bit, make_folder,
                                      remove_folder),
      cmocka_unit_test_setup_teardown(every_other_mesh_loads_the_same_values, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(every_policy_and_sharding_resumes_bit_for_bit, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(every_optimizer_resumes_bit_for_bit, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(muon_resumes_on_other_ranks_in_another_way_to_the_same_bits, make_folder,
                                      remove_folder),
      cmocka_unit_test_setup_teardown(a_checkpoint_of_another_optimizer_is_of_another_run, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(every_policy_loads_under_another_sharding, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(weights_written_on_one_mesh_are_read_on_another, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(training_leaves_checkpoints_and_resumes_from_them, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(resuming_a_finished_run_writes_what_is_missing, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(numbers_that_no_run_has_are_refused, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(a_fingerprint_without_a_key_is_of_another_run, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(a_fingerprint_of_an_earlier_version_is_of_the_same_run, make_folder,
                                      remove_folder),
      cmocka_unit_test_setup_teardown(an_interrupted_training_leaves_a_checkpoint, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(names_that_differ_in_their_last_byte_are_two_in_a_checkpoint, make_folder,
                                      remove_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
