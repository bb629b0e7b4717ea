/* Tests the sentences that follow from counting the addends of a wrong step: in trials of mutants, and in a
 * check without any. */
#include "alone.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "check/account.h"
#include "check/no_axis.h"
#include "says.h"

static ad_recipe *parsed(const char *text) {
  ad_recipe *recipe = NULL;
  must(ad_recipe_parse(text, "account.yaml", NULL, 0, &recipe));
  return recipe;
}

/* A recipe with two pools and the bridge `images` between them, sharded along an axis of 3. */
static ad_recipe *two_pools(void) {
  return parsed(
      "name: pictures\nmodel: {kind: ocr, encoder_layers: 1, encoder_d_model: 16, encoder_heads: 2,"
      " patch: 8, layers: 1, d_model: 16, heads: 2}\n"
      "data: {text: [/usr/share/common-licenses],"
      " fonts: [/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf], chars: 6, height: 16, width: 48,"
      " sizes: [9, 11]}\n"
      "mesh: {encoder: \"dp=2 tp=1\", model: \"dp=1 cp=3\"}\nplacement: disjoint\n"
      "train: {global_batch: 8, microbatches: 2, steps: 3, lr: 1e-3}\n");
}

typedef struct saying {
  const char *begins, *has; /* the mistake's name begins with and contains */
  int causes;
  ad_cause_kind kind; /* one of the causes has this kind, these axes, this place and these facts in its text */
  ad_axes axes;
  const char *place, *facts[4];
} saying;

/* Tries the mistake; the sentence of its cause is in the list of the test. */
static ad_mutant says(const char *test, const ad_recipe *recipe, const saying *s) {
  ad_check_result *result;
  must(ad_check_result_create(recipe, &result));
  ad_mutant tried = try_alone(recipe, s->begins, s->has, result);
  const ad_cause *reported = NULL;
  if (tried.killed_by != AD_KILLED_BY_NUMBER)
    fail_msg("%s: %s %s", tried.name, ad_killed_by_name(tried.killed_by), tried.message);
  for (int i = 0; i < tried.causes.count; i++) {
    const ad_cause *cause = &tried.causes.list[i];
    if (!reported && cause->kind == s->kind && cause->axes == s->axes && !strcmp(cause->place, s->place))
      reported = cause;
  }
  if (!reported || tried.causes.count != s->causes)
    fail_msg("%s: %s: %d causes, %s", tried.name, tried.param, tried.causes.count, tried.causes.list[0].text);
  assert_says_in(test, reported->text, s->facts);
  ad_check_result_destroy(result);
  return tried;
}
#define SAYS(recipe, ...) says(__func__, (recipe), &(saying){__VA_ARGS__})

static ad_no_axis why_no_axis(const ad_mutant *tried) {
  ad_no_axis why;
  assert_int_equal(ad_mutant_axes(tried, &why), 0);
  return why;
}

/* Tries several mistakes of one recipe, which it takes. */
static void says_each(const char *test, ad_recipe *recipe, const saying *list, size_t count) {
  for (size_t i = 0; i < count; i++) says(test, recipe, &list[i]);
  ad_recipe_destroy(recipe);
}
#define SAYS_EACH(recipe, ...) \
  says_each(__func__, (recipe), (const saying[]){__VA_ARGS__}, sizeof(const saying[]){__VA_ARGS__} / sizeof(saying))

static void a_bridges_sum_is_reported_with_the_bridge(void **state) {
  SAYS_EACH(
      two_pools(),
      {"averaged: images", "all_reduce over cp", 2, AD_CAUSE_AVERAGED, AD_AXES(AD_CP), "images", {"images", "cp"}},
      {"first_microbatch_only: images",
       "all_reduce over cp",
       2,
       AD_CAUSE_UNKNOWN,
       AD_AXES(AD_CP),
       "images",
       {"images", "cp"}});
}

/* A group of ranks that is one axis in the experts' view and two in the tokens' view is named by the experts' axis. */
static void a_parameter_of_experts_is_reported_in_its_own_view(void **state) {
  SAYS_EACH(parsed("name: spread\nmodel: {kind: moe, layers: 1, d_model: 8, heads: 2, experts: 7, top_k: 2,"
                   " expert_hidden: 6}\n"
                   "data: {text: [/usr/share/common-licenses], seq: 5}\n"
                   "mesh: \"dp_shard=3 tp=2\"\nviews: {sparse: \"efsdp=1 ep=6 etp=1\"}\n"
                   "train: {global_batch: 5, microbatches: 2, steps: 3, lr: 1e-3}\n"),
            {"experts-divided-by-own-group", "", 1, AD_CAUSE_DOUBLED, AD_AXES(AD_EP), "", {"ep"}});
}

/* A wrong group that consists of an axis of the experts' view and one of the tokens' view is named in the experts'
 * view. */
static void a_group_of_two_views_is_reported_in_one(void **state) {
  SAYS_EACH(parsed("name: mixed\nmodel: {kind: moe, layers: 1, d_model: 8, heads: 2, experts: 4, top_k: 2,"
                   " expert_hidden: 6}\n"
                   "data: {text: [/usr/share/common-licenses], seq: 5}\n"
                   "mesh: \"dp_shard=4 tp=2\"\nviews: {sparse: \"efsdp=2 ep=2 etp=2\"}\n"
                   "train: {global_batch: 8, steps: 3, lr: 1e-3}\n"),
            {"more_axes:etp: ",
             "all_reduce over efsdp",
             1,
             AD_CAUSE_WRONG_GROUP,
             AD_AXES(AD_EFSDP) | AD_AXES(AD_ETP),
             "",
             {"efsdp,etp"}});
}

/* A wrong count of tokens is named by the axes of the tokens' view, since the experts' view has none for it. */
static void the_count_is_reported_in_the_view_of_tokens(void **state) {
  ad_recipe *recipe = parsed(
      "name: counted\nmodel: {kind: moe, layers: 2, d_model: 24, heads: 6, experts: 5, top_k: 2,"
      " expert_hidden: 10, score_before_experts: true}\n"
      "data: {text: [/usr/share/common-licenses], seq: 12, valid: [1, 0.5, 0.25, 1, 0, 0]}\n"
      "mesh: \"dp_shard=2 cp=2\"\nviews: {sparse: \"ep=4 etp=1\"}\n"
      "train: {global_batch: 5, microbatches: 2, steps: 3, lr: 1e-3, seed: 1}\n");
  ad_mutant count = SAYS(recipe, "left_out: count", "", 1, AD_CAUSE_AVERAGED, AD_AXES(AD_DP_SHARD) | AD_AXES(AD_CP), "",
                         {"dp_shard,cp"});
  assert_true(count.loss_err > 0.01);  // a wrong count makes the loss wrong too
  ad_recipe_destroy(recipe);
}

/* One rank reads the batch of another step. Its count is summed with the others' of its group, so the ranks of a group
 * have one count, and those beside them along tp have another: no sum of counts was left out. */
static void a_count_that_differs_beside_its_sum_is_no_sum_left_out(void **state) {
  SAYS_EACH(parsed("name: beside\nmodel: {kind: ocr, encoder_layers: 1, encoder_d_model: 16, encoder_heads: 2,"
                   " patch: 8, layers: 1, d_model: 16, heads: 2}\n"
                   "data: {text: [/usr/share/common-licenses],"
                   " fonts: [/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf], chars: 6, height: 16, width: 48,"
                   " sizes: [9, 11]}\n"
                   "mesh: {encoder: \"dp=4\", model: \"dp=2 tp=2\"}\nplacement: colocated\n"
                   "train: {global_batch: 8, microbatches: 2, steps: 3, lr: 1e-3}\n"),
            {"shifted-slice", "", 1, AD_CAUSE_UNKNOWN, AD_AXES(AD_TP), "", {"tp"}},
            {"left_out: count", "", 1, AD_CAUSE_AVERAGED, AD_AXES(AD_DP_SHARD), "", {"dp_shard"}});
}

/* Each rank has one element of a norm's weight, or none, and any factor gives one element. */
static void shards_of_one_element_that_were_summed_are_no_factor(void **state) {
  SAYS_EACH(parsed("name: uneven\nmodel: {kind: gpt, layers: 1, d_model: 6, heads: 1, d_hidden: 10, tied: false}\n"
                   "data: {text: [/usr/share/common-licenses], seq: 12" UNEQUAL "}\n"
                   "mesh: \"dp_replicate=1 dp_shard=7\"\nshard: {zero: 3}\n"
                   "train: {global_batch: 12, microbatches: 2, steps: 3, lr: 1e-3, seed: 1}\n"),
            {"more_axes:dp_shard: blocks.0.norm.mlp",
             "all_reduce over dp_replicate",
             1,
             AD_CAUSE_WRONG_GROUP,
             AD_AXES(AD_DP_SHARD),
             "",
             {"dp_shard"}},
            {"fewer_axes:dp_shard: norm", "all_reduce", 2, AD_CAUSE_PARTIAL, AD_AXES(AD_DP_SHARD), "", {"dp_shard"}});
}

static void what_was_counted_is_reported_by_microbatches(void **state) {
  ad_recipe *recipe = small_recipe("dp_replicate=3 dp_shard=2", UNEQUAL, ", microbatches: 2}\nshard: {zero: 2");
  SAYS(recipe, "first_microbatch_only: ", "reduce_scatter over dp_shard", 1, AD_CAUSE_PARTIAL, AD_AXES(AD_DP_SHARD),
       "microbatches", {"dp_shard"});
  ad_mutant last = SAYS(recipe, "last-microbatch-only", "", 1, AD_CAUSE_MISSING, 0, "", {NULL});
  assert_true(last.loss_err < 1e-12);  // gradients are wrong, but the loss is right
  assert_int_equal(why_no_axis(&last), AD_NO_AXIS_MICROBATCHES);
  ad_mutant zero = SAYS(recipe, "factor-wrong-width", "", 1, AD_CAUSE_MISSING, 0, "", {NULL});
  assert_int_equal(why_no_axis(&zero), AD_NO_AXIS_EVERY_ADDEND);
  SAYS(recipe, "fewer_axes:dp_shard: count", "", 1, AD_CAUSE_AVERAGED, AD_AXES(AD_DP_REPLICATE) | AD_AXES(AD_DP_SHARD),
       "", {"dp_replicate,dp_shard"});
  SAYS(recipe, "more_axes:dp_shard: embedding.weight", "all_reduce", 1, AD_CAUSE_WRONG_GROUP, AD_AXES(AD_DP_SHARD), "",
       {"dp_shard"});
  ad_recipe_destroy(recipe);
}

/* Each microbatch's gradient is the reference's but for its divisor: the numbers show that much, so no transition of
 * the forward pass is listed as a cause; a wrong count and a wrong formula remain possible. */
static void a_mean_of_means_is_found_by_microbatches(void **state) {
  ad_recipe *recipe = small_recipe("dp_replicate=1 dp_shard=3 tp=2", UNEQUAL, ", microbatches: 3}\nshard: {zero: 2");
  ad_mutant means = SAYS(recipe, "mean-of-microbatch-means", "", 3, AD_CAUSE_AVERAGED, 0, "microbatches", {NULL});
  assert_int_equal(why_no_axis(&means), AD_NO_AXIS_SEVERAL);
  assert_int_equal(ad_cause_no_axis(&means.causes.list[0]), AD_NO_AXIS_MICROBATCHES);
  assert_int_equal(ad_cause_no_axis(&means.causes.list[2]), AD_NO_AXIS_FORMULA);
  assert_int_equal(means.causes.list[1].kind, AD_CAUSE_UNKNOWN);
  assert_text_says(means.causes.list[1].text, "dp_shard");
  assert_int_equal(means.causes.list[2].kind, AD_CAUSE_UNKNOWN);
  assert_says_in(__func__, means.causes.list[2].text, SAYS_FACTS(NULL));
  ad_recipe_destroy(recipe);
}

/* ---- accounts that killed processes left ---- */

/* Makes an account of process `pid`, last written `age` seconds ago. */
static void leave_account(pid_t pid, int age, char path[64]) {
  struct timespec times[2] = {{.tv_sec = time(NULL) - age}, {.tv_sec = time(NULL) - age}};
  snprintf(path, 64, "/dev/shm/account-%d-XXXXXX", (int)pid);
  assert_non_null(mkdtemp(path));
  assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* An account stays while its process lives, however old, and for ten minutes after that; this process's own are always
 * removed. */
static void accounts_of_living_processes_stay(void **state) {
  enum { LIVING, DEAD_OLD, DEAD_YOUNG, OWN, OTHERS, ACCOUNTS };
  static const int stays[ACCOUNTS] = {1, 0, 1, 0, 1}, age[ACCOUNTS] = {100000, 660, 540, 0, 100000};
  char path[ACCOUNTS][64];
  pid_t living = fork();
  if (!living) pause();
  pid_t dead = fork();
  if (!dead) _exit(0);
  waitpid(dead, NULL, 0);
  const pid_t of[] = {living, dead, dead, getpid()};
  for (int i = 0; i < OTHERS; i++) leave_account(of[i], age[i], path[i]);
  snprintf(path[OTHERS], 64, "/dev/shm/counts-%d-XXXXXX", (int)dead);
  assert_non_null(mkdtemp(path[OTHERS]));
  ad_account_remove_left();
  for (int i = 0; i < ACCOUNTS; i++) {
    int found = !access(path[i], F_OK);
    if (found) rmdir(path[i]);
    if (found != stays[i]) print_error("account %d\n", i);
    if (i == LIVING) kill(living, SIGKILL), waitpid(living, NULL, 0);
    assert_int_equal(found, stays[i]);
  }
}

/* ---- checks with a mutation from the beginning ---- */

typedef struct mutant_job {
  ad_check_job job;
  ad_mutant *mutant;
} mutant_job;

static int check(ad_comm *comm, void *context) {
  const mutant_job *p = context;
  ad_mutation_begin(&p->mutant->mutation);
  ad_status status = ad_check_rank(comm, &p->job);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  return status != AD_OK;
}

static void a_check_that_fails_is_made_again_with_an_account(void **state) {
  ad_recipe *recipe = small_recipe("dp_replicate=3", UNEQUAL, ", microbatches: 2");
  ad_check_options options = {.size = sizeof options, .steps = 1};
  ad_mutants *listed;
  ad_check_result *result;
  ad_launch_result launched = {.size = sizeof launched};
  must(ad_check_result_create(recipe, &result));
  must(ad_mutants_create(recipe, 0, 0, &listed));
  ad_mutant left_out = *find(listed, "left_out: embedding.weight", "", 0);
  mutant_job job = {{.recipe = recipe, .options = &options, .steps = 1, .result = result}, &left_out};
  ad_launch_options launch = {.size = sizeof launch, .ranks = 3, .function = check, .context = &job};
  must(ad_launch(&launch, &launched));
  assert_false(ad_check_result_passes(result, 0));
  for (size_t i = 0; i < result->param_count; i++) {
    const ad_causes *causes = &result->params[i].causes;
    if (strcmp(result->params[i].name, "embedding.weight") != 0) {
      assert_int_equal(causes->count, 0);
      continue;
    }
    assert_int_equal(causes->count, 1);
    assert_int_equal(causes->list[0].axes, AD_AXES(AD_DP_REPLICATE));
    assert_text_says(causes->list[0].text, "dp_replicate");
  }
  ad_mutants_destroy(listed);
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_bridges_sum_is_reported_with_the_bridge),
      cmocka_unit_test(a_parameter_of_experts_is_reported_in_its_own_view),
      cmocka_unit_test(a_group_of_two_views_is_reported_in_one),
      cmocka_unit_test(the_count_is_reported_in_the_view_of_tokens),
      cmocka_unit_test(a_count_that_differs_beside_its_sum_is_no_sum_left_out),
      cmocka_unit_test(shards_of_one_element_that_were_summed_are_no_factor),
      cmocka_unit_test(what_was_counted_is_reported_by_microbatches),
      cmocka_unit_test(a_mean_of_means_is_found_by_microbatches),
      cmocka_unit_test(accounts_of_living_processes_stay),
      cmocka_unit_test(a_check_that_fails_is_made_again_with_an_account),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
