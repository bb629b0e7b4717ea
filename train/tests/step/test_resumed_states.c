/* Tests optimizer states when a run resumes: a parameter with another optimizer than before is refused by its name, and
 * states that begin anew are those of a first step. */
#include "says.h"
#include "world.h"
#include "forge.h"

#include "base/error.h"
#include "base/memory.h"
#include "files/file.h"
#include "module/module.h"
#include "step/run.h"

enum { STOP = 3 };
#define TRAINING ", global_batch: 6, steps: 8, lr: 1e-2, warmup: 2, weight_decay: 0.1"
#define SGD "optimizer: {kind: sgd, momentum: 0.9}\n"
#define ADAMW "optimizer: {kind: adamw}\n"

static char folder[64];

static const char *in_folder(const char *name) {
  static char path[160];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static int make_folder(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-states-XXXXXX");
  return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
  static const char *const names[] = {"step-3", "step-4", ""};
  remove(in_folder("w"));
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) must(ad_folder_remove(in_folder(names[i])));
  return 0;
}

static char warning[2048];
static int warnings;

static void keep_warning(void *context, ad_log_level level, const char *text) {
  if (level != AD_LOG_WARNING) return;
  warnings++;
  snprintf(warning, sizeof warning, "%s", text);
}

/* ---- runs of one process ---- */

typedef struct alone {
  ad_recipe *recipe;
  ad_comm *comm;
  ad_run *run;
} alone;

static ad_recipe *recipe_of(const char *mesh, const char *sections, int layers) {
  char text[1024];
  snprintf(text, sizeof text,
           "name: tiny\nmodel: {kind: gpt, layers: %d, d_model: 16, heads: 2}\n"
           "data: {text: [/usr/share/common-licenses], seq: 12}\nmesh: \"%s\"\ntrain: {seed: 4%s}\n%s",
           layers, mesh, TRAINING, sections);
  ad_recipe *recipe = NULL;
  if (ad_recipe_parse(text, "tiny.yaml", NULL, 0, &recipe)) fail_msg("%s", ad_last_error());
  return recipe;
}

/* Opens a run; `pattern`: the states whose parameters match it begin anew; NULL: none. */
static alone open_with(ad_recipe *recipe, const char *pattern, int any_recipe) {
  static const char *patterns[16];
  static size_t opened;
  const char **own = &patterns[opened++ % 16];
  alone made = {.recipe = recipe};
  *own = pattern;
  ad_run_options options = {
      .size = sizeof options, .any_recipe = any_recipe, .fresh_states = own, .fresh_state_count = pattern != NULL};
  must(ad_comm_open_alone(&made.comm));
  if (ad_run_create(made.comm, made.recipe, &options, &made.run)) fail_msg("%s", ad_last_error());
  return made;
}

static alone open_alone(const char *sections, const char *pattern) {
  return open_with(recipe_of("dp=1", sections, 1), pattern, 0);
}

static void close_alone(alone *of) {
  ad_run_destroy(of->run);
  ad_comm_close(of->comm);
  ad_recipe_destroy(of->recipe);
}

static void load(alone *of, int64_t wanted) {
  int64_t steps = 0;
  if (ad_run_load(of->run, folder, &steps)) fail_msg("%s", ad_last_error());
  assert_int_equal(steps, wanted);
}

static void take_step(alone *of, int64_t step) {
  ad_step_report report;
  if (ad_run_step(of->run, step, &report)) fail_msg("%s", ad_last_error());
}

static ad_status save_run(ad_run *run, int64_t steps) {
  ad_checkpointer *c;
  AD_TRY(ad_checkpointer_create(ad_run_comm(run), ad_run_everyone(run).mesh, folder, 9, &c));
  ad_status status = ad_run_save(run, c, steps);
  if (!status) status = ad_checkpointer_finish(c);
  ad_checkpointer_destroy(c);
  return status;
}

/* Takes STOP steps and saves a checkpoint, and the weights as the file "w". */
static alone trained(const char *sections) {
  alone made = open_alone(sections, NULL);
  for (int64_t step = 0; step < STOP; step++) take_step(&made, step);
  must(save_run(made.run, STOP));
  must(ad_run_write_weights(made.run, in_folder("w")));
  return made;
}

static const char *name_of(const alone *of, size_t i) { return ad_run_param_at(of->run, i).spec->name; }

static int is_zero(const ad_array *array) {
  for (size_t i = 0; i < ad_array_bytes(array); i++)
    if (((const char *)array->data)[i]) return 0;
  return 1;
}

/* Returns 1 if both runs have the same bits of this part of a parameter, or both have no such part. */
static int same_part(const alone *a, const alone *b, size_t i, int part) {
  const ad_array *one = ad_run_part(a->run, i, (ad_param_part)part),
                 *other = ad_run_part(b->run, i, (ad_param_part)part);
  return one && other ? !memcmp(one->data, other->data, ad_array_bytes(one)) : one == other;
}

static void same_runs(const alone *a, const alone *b) {
  for (size_t i = 0; i < ad_run_param_count(a->run); i++)
    for (int part = 0; part < AD_PART_KEPT; part++)
      if (!same_part(a, b, i, part)) fail_msg("%s, part %d", name_of(a, i), part);
}

/* ---- what begins anew, and what is kept ---- */

/* The first step after states began anew is the first step of another run with the same values: bias corrections begin
 * anew, too, and still do when the run resumes once more. */
static void states_that_begin_anew_are_those_of_a_first_step(void **state) {
  alone before = trained(SGD), fresh = open_alone(ADAMW, "*"), first = open_alone(ADAMW, NULL);
  load(&fresh, STOP);
  must(ad_run_read_weights(first.run, in_folder("w")));
  for (size_t i = 0; i < ad_run_param_count(fresh.run); i++) {
    assert_true(same_part(&before, &fresh, i, AD_PART_VALUE));
    assert_true(is_zero(ad_run_part(fresh.run, i, AD_PART_STATE)));
    assert_true(is_zero(ad_run_part(fresh.run, i, AD_PART_STATE + 1)));
  }
  take_step(&fresh, STOP);
  take_step(&first, STOP);
  same_runs(&first, &fresh);
  must(save_run(fresh.run, STOP + 1));
  alone later = open_alone(ADAMW, NULL);
  load(&later, STOP + 1);
  same_runs(&fresh, &later);
  for (int64_t step = STOP + 1; step < STOP + 3; step++) {
    take_step(&fresh, step);
    take_step(&later, step);
  }
  same_runs(&fresh, &later);
  alone *const all[] = {&before, &fresh, &first, &later};
  for (size_t i = 0; i < 4; i++) close_alone(all[i]);
}

static void states_that_no_pattern_matches_are_kept(void **state) {
  alone before = trained(ADAMW), fresh = open_alone(ADAMW, "*mlp*");
  load(&fresh, STOP);
  size_t matching = 0;
  for (size_t i = 0; i < ad_run_param_count(fresh.run); i++) {
    int begins = strstr(name_of(&fresh, i), "mlp") != NULL;
    matching += (size_t)begins;
    assert_true(same_part(&before, &fresh, i, AD_PART_VALUE));
    assert_int_equal(is_zero(ad_run_part(fresh.run, i, AD_PART_STATE)), begins);
    assert_int_equal(same_part(&before, &fresh, i, AD_PART_STATE), !begins);
    assert_int_equal(fresh.run->began[i], begins ? STOP : 0);
  }
  assert_in_range(matching, 1, ad_run_param_count(fresh.run) - 1);
  take_step(&before, STOP);
  take_step(&fresh, STOP);
  for (size_t i = 0; i < ad_run_param_count(fresh.run); i++)
    assert_int_equal(same_part(&before, &fresh, i, AD_PART_VALUE), !strstr(name_of(&fresh, i), "mlp"));
  close_alone(&before);
  close_alone(&fresh);
}

/* A run that never began states anew has no fact about it. */
static void other_checkpoints_have_no_facts_about_states(void **state) {
  alone before = trained(ADAMW), again = open_alone(ADAMW, NULL);
  char *text;
  int64_t size;
  load(&again, STOP);
  assert_null(again.run->began);
  must(ad_file_read(in_folder("step-3/index.json"), 1 << 24, &text, &size));
  assert_non_null(strstr(text, "\"optimizer.kind\":\"adamw\""));
  assert_null(strstr(text, "\"optimizers\""));
  assert_null(strstr(text, "states_began"));
  ad_release(text);
  close_alone(&before);
  close_alone(&again);
}

/* Returns what loading the checkpoint into the run says, and closes the run. */
static ad_status refused(alone of) {
  int64_t steps;
  ad_status status = ad_run_load(of.run, folder, &steps);
  close_alone(&of);
  return status;
}

/* ---- groups, and frozen parameters ---- */

#define GROUP(words) "groups: [{match: \"embedding.*\", " words "}]\n"

static int is_embedding(const alone *of, size_t i) { return !strcmp(name_of(of, i), "embedding.weight"); }

/* A parameter's own group decides by which name its states are stored, and whose states must be there. */
static void a_group_of_another_optimizer_resumes(void **state) {
  static const char groups[] = "optimizer: {momentum: 0.9}\n" GROUP("kind: sgd");
  alone before = trained(groups), again = open_alone(groups, NULL), other = open_alone(ADAMW, "embedding.*");
  load(&again, STOP);
  same_runs(&before, &again);
  for (size_t i = 0; i < ad_run_param_count(again.run); i++)
    assert_int_equal(ad_run_part(again.run, i, AD_PART_STATE + 1) == NULL, is_embedding(&again, i));
  assert_int_equal(refused(open_alone(ADAMW, NULL)), AD_INVALID);
  assert_says("embedding.weight", "--fresh-states");
  assert_null(strstr(ad_last_error(), "blocks."));
  load(&other, STOP);
  for (size_t i = 0; i < ad_run_param_count(other.run); i++)
    assert_int_equal(same_part(&before, &other, i, AD_PART_STATE), !is_embedding(&other, i));
  take_step(&before, STOP);
  take_step(&again, STOP);
  same_runs(&before, &again);
  alone *const all[] = {&before, &again, &other};
  for (size_t i = 0; i < 3; i++) close_alone(all[i]);
}

/* A parameter that was frozen has a value alone: its master is made of that, and only its states begin anew. */
static void frozen_parameters_begin_to_learn_and_stop(void **state) {
  static const char bf16[] = "precision: {param: bf16}\n",
                    frozen[] = "precision: {param: bf16}\n" GROUP("frozen: true");
  alone before = trained(frozen), fresh = open_alone(bf16, "embedding.*");
  assert_int_equal(refused(open_alone(bf16, NULL)), AD_INVALID);
  assert_says("embedding.weight", "--fresh-states");
  load(&fresh, STOP);
  for (size_t i = 0; i < ad_run_param_count(fresh.run); i++) {
    const ad_array *value = ad_run_part(fresh.run, i, AD_PART_VALUE),
                   *master = ad_run_part(fresh.run, i, AD_PART_MASTER);
    assert_true(same_part(&before, &fresh, i, AD_PART_VALUE));
    assert_int_equal(fresh.run->began[i], is_embedding(&fresh, i) ? STOP : 0);
    assert_int_equal(same_part(&before, &fresh, i, AD_PART_STATE), !is_embedding(&fresh, i));
    for (size_t k = 0; is_embedding(&fresh, i) && k < ad_array_numel(value); k++)
      assert_true(ad_array_get(value, k) == ad_array_get(master, k));
  }
  take_step(&fresh, STOP);
  must(save_run(fresh.run, STOP + 1));
  assert_int_equal(refused(open_alone(frozen, NULL)), AD_INVALID);
  assert_says("embedding.weight", "--fresh-states");
  alone stopped = open_alone(frozen, "embedding.*");
  load(&stopped, STOP + 1);
  for (size_t i = 0; i < ad_run_param_count(fresh.run); i++) {
    assert_true(same_part(&fresh, &stopped, i, AD_PART_VALUE));
    assert_int_equal(same_part(&fresh, &stopped, i, AD_PART_STATE), !is_embedding(&fresh, i));
  }
  must(save_run(stopped.run, STOP + 1));
  assert_int_equal(refused(open_alone(frozen, "embedding.*")), AD_INVALID);
  assert_says("--fresh-states", "embedding.*");
  alone *const all[] = {&before, &fresh, &stopped};
  for (size_t i = 0; i < 3; i++) close_alone(all[i]);
}

/* ---- refusals ---- */

static void another_optimizer_is_refused_by_the_names_of_parameters(void **state) {
  alone before = trained(SGD);
  assert_int_equal(refused(open_alone(ADAMW, NULL)), AD_INVALID);
  assert_says("embedding.weight", "--fresh-states");
  assert_int_equal(refused(open_with(recipe_of("dp=1", ADAMW, 1), NULL, 1)), AD_INVALID);  // --force
  assert_says("embedding.weight", "--fresh-states");
  assert_int_equal(refused(open_alone(ADAMW, "blocks.*")), AD_INVALID);
  assert_says("embedding.weight", "--fresh-states");
  assert_null(strstr(ad_last_error(), "blocks."));
  close_alone(&before);
}

/* A momentum of 0 keeps no state, so that a checkpoint without the state cannot be read into a run with it, nor the
 * other way about, whatever is forced; states that begin anew can. */
static void other_states_of_the_same_optimizer_are_refused_likewise(void **state) {
  static const char plain[] = "optimizer: {kind: sgd, momentum: 0}\n";
  static const char muon[] = "optimizer: {muon: {momentum: %s}}\ngroups: [{match: \"*.mlp.*\", kind: muon}]\n";
  char average[128], no_average[128];
  snprintf(average, sizeof average, muon, "0.9");
  snprintf(no_average, sizeof no_average, muon, "0");
  const struct {
    const char *before, *now, *key, *name, *other_name;
  } cases[] = {{plain, SGD, "optimizer.momentum", "embedding.weight", NULL},
               {SGD, plain, "optimizer.momentum", "embedding.weight", NULL},
               {no_average, average, "optimizer.muon.momentum", "blocks.0.mlp.gate", "embedding.weight"},
               {average, no_average, "optimizer.muon.momentum", "blocks.0.mlp.gate", "embedding.weight"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    alone before = trained(cases[i].before);
    for (int forced = 0; forced < 2; forced++) {
      assert_int_equal(refused(open_with(recipe_of("dp=1", cases[i].now, 1), NULL, forced)), AD_INVALID);
      assert_says(cases[i].name, cases[i].key, "--fresh-states");
      assert_true(!cases[i].other_name || !strstr(ad_last_error(), cases[i].other_name));
    }
    assert_int_equal(refused(open_alone(cases[i].now, cases[i].name)), AD_INVALID);
    assert_says("blocks.0.", cases[i].key, "--fresh-states");
    assert_null(strstr(ad_last_error(), cases[i].name));
    alone fresh = open_alone(cases[i].now, cases[i].other_name ? "*.mlp.*" : "*");
    load(&fresh, STOP);
    for (size_t k = 0; k < ad_run_param_count(fresh.run); k++) {
      const ad_array *kept = ad_run_part(fresh.run, k, AD_PART_STATE);
      assert_true(same_part(&before, &fresh, k, AD_PART_VALUE));
      if (fresh.run->began[k] == STOP)
        assert_true(!kept || is_zero(kept));
      else
        assert_true(same_part(&before, &fresh, k, AD_PART_STATE));
    }
    take_step(&fresh, STOP);
    close_alone(&before);
    close_alone(&fresh);
  }
}

static void a_pattern_that_matches_nothing_is_refused(void **state) {
  alone before = trained(ADAMW);
  assert_int_equal(refused(open_alone(ADAMW, "blokcs.*")), AD_INVALID);
  assert_says("--fresh-states", "blokcs.*", "embedding.weight", "final.norm.weight");
  close_alone(&before);
}

/* Keys of optimizers may change if states begin anew, but no other key, and no other value may be left over. */
static void fresh_states_excuse_nothing_else(void **state) {
  alone before = trained(ADAMW);
  assert_int_equal(refused(open_alone("optimizer: {kind: adamw}\nprecision: {param: bf16}\n", "*")), AD_INVALID);
  assert_says("precision.param", "--force");
  close_alone(&before);
  before = open_with(recipe_of("dp=1", ADAMW, 2), NULL, 0);
  must(save_run(before.run, STOP));
  assert_int_equal(refused(open_with(recipe_of("dp=1", SGD, 1), "*", 1)), AD_INVALID);
  assert_non_null(strstr(ad_last_error(), "value.blocks.1."));
  assert_null(strstr(ad_last_error(), "moment.blocks.1."));
  close_alone(&before);
}

/* ---- resuming again ---- */

static void states_that_begin_anew_a_second_time_are_warned_of(void **state) {
  alone before = trained(SGD), fresh = open_alone(ADAMW, "*");
  load(&fresh, STOP);
  take_step(&fresh, STOP);
  must(save_run(fresh.run, STOP + 1));
  close_alone(&before);
  close_alone(&fresh);
  ad_set_log(keep_warning, NULL);
  alone again = open_alone(ADAMW, "embedding.*");
  warnings = 0;
  load(&again, STOP + 1);
  ad_set_log(NULL, NULL);
  assert_int_equal(warnings, 1);
  assert_text_says(warning, "1 parameter", "embedding.weight", "--fresh-states");
  for (size_t i = 0; i < ad_run_param_count(again.run); i++)
    assert_int_equal(again.run->began[i], strcmp(name_of(&again, i), "embedding.weight") ? STOP : STOP + 1);
  close_alone(&again);
}

static void numbers_that_no_run_has_are_refused(void **state) {
  static const char *const forgeries[][2] = {{"\\\"embedding.weight\\\":3", "\\\"embedding.weight\\\":5"},
                                             {"\\\"embedding.weight\\\":5", "\\\"embedding.weight\\\":-2"},
                                             {"\"states_began\":\"{", "\"states_began\":\"[{"}};
  alone before = trained(SGD), fresh = open_alone(ADAMW, "*");
  load(&fresh, STOP);
  must(save_run(fresh.run, STOP));
  for (size_t i = 0; i < sizeof forgeries / sizeof *forgeries; i++) {
    forge(in_folder("step-3/index.json"), forgeries[i][0], forgeries[i][1]);
    assert_int_equal(refused(open_alone(ADAMW, NULL)), AD_IO);
    assert_says(i == 2 ? "states_began" : "embedding.weight");
  }
  close_alone(&before);
  close_alone(&fresh);
}

/* ---- ranks with different modules ---- */

typedef struct job {
  ad_recipe *recipe;
  const char *pattern;
  int saves;
  int64_t began; /* when the states of all parameters began */
} job;

static int on_rank(ad_comm *comm, void *context) {
  const job *j = context;
  ad_run_options options = {
      .size = sizeof options, .fresh_states = &j->pattern, .fresh_state_count = j->pattern != NULL};
  ad_run *run;
  ad_step_report report;
  int64_t steps;
  RANK_MUST(comm, ad_run_create(comm, j->recipe, &options, &run));
  RANK_MUST(comm, ad_run_load(run, folder, &steps));
  for (size_t i = 0; i < ad_run_param_count(run); i++)
    if (run->began[i] != j->began) return ad_comm_fail(comm, AD_INVALID, "states began at another step"), 1;
  RANK_MUST(comm, ad_run_step(run, steps, &report));
  if (j->saves) RANK_MUST(comm, save_run(run, steps + 1));
  ad_run_destroy(run);
  return 0;
}

static void on_ranks(const char *mesh, int64_t ranks, const char *sections, job j) {
  ad_launch_result result = {.size = sizeof result};
  j.recipe = recipe_of(mesh, sections, 2);
  if (launch(ranks, on_rank, &j, &result)) fail_msg("%s", result.message);
  ad_recipe_destroy(j.recipe);
}

static void every_mesh_knows_when_states_began(void **state) {
  alone before = open_with(recipe_of("dp=1", SGD, 2), NULL, 0);
  for (int64_t step = 0; step < STOP; step++) take_step(&before, step);
  must(save_run(before.run, STOP));
  close_alone(&before);
  on_ranks("pp=2", 2, ADAMW, (job){.pattern = "*", .saves = 1, .began = STOP});
  on_ranks("dp_shard=3", 3, ADAMW "shard: {zero: 3}\n", (job){.began = STOP});
  on_ranks("pp=2", 2, ADAMW, (job){.began = STOP});
}

static void patterns_are_for_runs_that_resume(void **state) {
  static const char *const patterns[] = {"*"};
  ad_train_options options = {
      .size = sizeof options, .folder = folder, .fresh_states = patterns, .fresh_state_count = 1};
  alone of = open_alone(ADAMW, NULL);
  assert_int_equal(ad_train(of.comm, of.recipe, &options), AD_INVALID);
  assert_says("fresh_states", "resume");
  close_alone(&of);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(states_that_begin_anew_are_those_of_a_first_step, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(states_that_no_pattern_matches_are_kept, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(other_checkpoints_have_no_facts_about_states, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(a_group_of_another_optimizer_resumes, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(frozen_parameters_begin_to_learn_and_stop, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(another_optimizer_is_refused_by_the_names_of_parameters, make_folder,
                                      remove_folder),
      cmocka_unit_test_setup_teardown(other_states_of_the_same_optimizer_are_refused_likewise, make_folder,
                                      remove_folder),
      cmocka_unit_test_setup_teardown(a_pattern_that_matches_nothing_is_refused, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(fresh_states_excuse_nothing_else, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(states_that_begin_anew_a_second_time_are_warned_of, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(numbers_that_no_run_has_are_refused, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(every_mesh_knows_when_states_began, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(patterns_are_for_runs_that_resume, make_folder, remove_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
