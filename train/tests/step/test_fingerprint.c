/* Tests what a run reports when it resumes from a checkpoint whose facts differ from its own, with and without leaves. */
#include "says.h"
#include "world.h"

#include "base/error.h"
#include "base/memory.h"
#include "step/fingerprint.h"

/* ---- two runs on backend dry: that of a checkpoint, and one that resumes from it ---- */

typedef struct on_paper {
  ad_recipe *recipe;
  ad_comm *comm;
  ad_run *run;
  ad_fingerprint fingerprint;
} on_paper;

static on_paper open_on_paper(const char *mesh, const char *train) {
  on_paper made = {.recipe = tiny_recipe(mesh, "", train)};
  int64_t ranks;
  must(ad_recipe_world(made.recipe, &ranks));
  must(ad_comm_open_dry(0, ranks, &made.comm));
  if (ad_run_create(made.comm, made.recipe, NULL, &made.run)) fail_msg("%s", ad_last_error());
  must(ad_fingerprint_create(made.run, &made.fingerprint));
  return made;
}

static void close_on_paper(on_paper *of) {
  ad_fingerprint_release(&of->fingerprint);
  ad_run_destroy(of->run);
  ad_comm_close(of->comm);
  ad_recipe_destroy(of->recipe);
}

static ad_checkpoint_fact *find(const on_paper *of, const char *key) {
  for (size_t i = 0; i < of->fingerprint.count; i++)
    if (!strcmp(of->fingerprint.facts[i].key, key)) return &of->fingerprint.facts[i];
  return NULL;
}

/* Doctors a fact of the checkpoint's run. */
static void set(on_paper *of, const char *key, const char *value) {
  ad_checkpoint_fact *fact = find(of, key);
  assert_non_null(fact);
  char *before = (char *)(uintptr_t)fact->value, *copy;
  must(ad_copy_string(value, &copy));
  ad_release(before);
  fact->value = copy;
}

static char warning[2048], notice[2048];
static int warnings;

static void keep_warning(void *context, ad_log_level level, const char *text) {
  if (level == AD_LOG_INFO) snprintf(notice, sizeof notice, "%s", text);
  if (level != AD_LOG_WARNING) return;
  warnings++;
  snprintf(warning, sizeof warning, "%s", text);
}

/* Resumes `now` from a checkpoint of `before`, and closes both. */
static ad_status resume(on_paper before, on_paper now) {
  warnings = 0;
  ad_set_log(keep_warning, NULL);
  ad_status status =
      ad_fingerprint_judge(now.run, &now.fingerprint, before.fingerprint.facts, before.fingerprint.count);
  ad_set_log(NULL, NULL);
  close_on_paper(&before);
  close_on_paper(&now);
  return status;
}

/* Returns how many differences the warning lists. */
static int differences(void) {
  int count = 0;
  for (const char *at = warning; (at = strstr(at, "(before: ")); at++) count++;
  return count;
}

#define BATCH ", global_batch: 12, steps: 6, lr: 1e-2, warmup: 2"
#define LEAVES BATCH ", leaves: 8"

/* ---- with leaves ---- */

static void each_fact_of_products_that_differs_is_named(void **state) {
  static const struct {
    const char *key, *value, *facts[5];
  } cases[] = {
      {"leaf.products", "OpenRUN", {"OpenRUN"}},
      {"leaf.instructions", "avx7", {"avx7"}},
      {"leaf.openblas", "OpenBLAS 0.2.7 Katmai", {"OpenBLAS", "0.2.7", "Katmai"}},
      {"leaf.onednn", "oneDNN 1.7.0", {"oneDNN", "1.7.0"}},
      {"leaf.threads", "17", {"ADDEND_BLAS_THREADS", "1", "17"}},
      {"leaf.processor", "CyrixInstead family 6 model 2", {"CyrixInstead", "6", "2"}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    on_paper before = open_on_paper("dp=2", LEAVES);
    set(&before, cases[i].key, cases[i].value);
    must(resume(before, open_on_paper("dp=2", LEAVES)));
    assert_int_equal(warnings, 1);
    assert_int_equal(differences(), 1);
    says_or_fail(says_missing(warning, cases[i].facts), __FILE__, __LINE__);
  }
}

static void other_axes_within_a_leaf_are_named(void **state) {
  must(resume(open_on_paper("dp_shard=2 tp=2", LEAVES), open_on_paper("dp_shard=4", LEAVES)));
  assert_int_equal(warnings, 1);
  assert_says_in("tp", warning, SAYS_FACTS("tp", "1", "2"));
  assert_int_equal(differences(), 1);
  must(resume(open_on_paper("dp_shard=2", LEAVES), open_on_paper("dp_shard=2 cp=2 tp=2", LEAVES)));
  assert_int_equal(warnings, 1);
  assert_says_in("tp and cp", warning, SAYS_FACTS("tp", "2", "1", "cp", "2", "1"));
}

static void all_differences_are_in_one_warning(void **state) {
  on_paper before = open_on_paper("dp_shard=2 tp=2", LEAVES);
  set(&before, "leaf.threads", "17");
  set(&before, "leaf.instructions", "avx7");
  must(resume(before, open_on_paper("dp_shard=2", LEAVES)));
  assert_int_equal(warnings, 1);
  assert_int_equal(differences(), 3);
  assert_facts(warning, "avx7", "ADDEND_BLAS_THREADS", "1", "17", "tp", "1", "2");
}

static void who_computes_which_leaf_may_change_without_a_word(void **state) {
  must(resume(open_on_paper("dp_replicate=2 dp_shard=2", LEAVES "}\nshard: {zero: 1, bucket_mib: 0.01"),
              open_on_paper("dp_replicate=1 dp_shard=1", LEAVES ", microbatches: 2, sync: [none, all]")));
  assert_int_equal(warnings, 0);
}

static void the_number_of_leaves_may_not_change(void **state) {
  assert_int_equal(resume(open_on_paper("dp=2", LEAVES), open_on_paper("dp=2", BATCH ", leaves: 4")), AD_INVALID);
  assert_facts(ad_last_error(), "train.leaves", "8", "4", "--force");
  assert_int_equal(resume(open_on_paper("dp=2", LEAVES), open_on_paper("dp=2", BATCH)), AD_INVALID);
  assert_facts(ad_last_error(), "train.leaves", "8", "0", "--force");
}

/* ---- without leaves ---- */

static void without_leaves_products_are_one_fact(void **state) {
  on_paper before = open_on_paper("dp=2", BATCH);
  assert_null(find(&before, "leaf.threads"));
  set(&before, "products", "by hand; avx7; OpenBLAS 0.2.7 Katmai");
  must(resume(before, open_on_paper("dp_shard=2 tp=2", BATCH)));
  assert_int_equal(warnings, 1);
  assert_facts(warning, "avx7", "OpenBLAS", "0.2.7", "Katmai");
  must(resume(open_on_paper("dp=2", BATCH), open_on_paper("dp_shard=2 tp=2", BATCH)));
  assert_int_equal(warnings, 0);
}

/* ---- values that differ ---- */

/* Sets the run's name to `count` digits, of which the first `same` are those of every such name. */
static void set_digits(on_paper *of, size_t same, size_t count, char digit, char text[512]) {
  for (size_t i = 0; i < count; i++) text[i] = i < same ? (char)('0' + i % 10) : digit;
  text[count] = 0;
  set(of, "name", text);
}

static void long_values_are_shown_around_their_first_difference(void **state) {
  static const char groups[] =
      "[{match: blocks.0.attn.wq, lr: 0.001}, {match: blocks.0.attn.wk, lr: 0.001}, {match: "
      "blocks.0.attn.wv, lr: 0.001}, {match: blocks.0.attn.wo, lr: 0.001}, {match: "
      "embedding.weight, lr: %s}, {match: \"*.mlp.*\", lr: 0.001}, {match: \"*norm*\", "
      "decay: 0.5}, {match: blocks.1.attn.wq, lr: 0.001}, {match: head.weight, lr: 0.0625}]";
  char first[512], second[512];
  on_paper before = open_on_paper("dp=2", BATCH), now = open_on_paper("dp=2", BATCH);
  snprintf(first, sizeof first, groups, "0.125");
  snprintf(second, sizeof second, groups, "0.25");
  set(&before, "groups", first);
  set(&now, "groups", second);
  assert_int_equal(resume(before, now), AD_INVALID);
  assert_says("embedding.weight", "0.125", "embedding.weight", "0.25", "--force");
  assert_null(strstr(ad_last_error(), "0.0625"));
}

/* The name of a run may change, so that both values are in the notice. */
static void values_are_cut_only_where_they_are_too_long(void **state) {
  static const struct {
    size_t same, count;
    int start, shown;
  } cases[] = {{100, 120, 0, 120},   {0, 400, 0, 120},     {60, 400, 0, 120},   {61, 400, 1, 120},
               {200, 400, 140, 120}, {340, 400, 280, 120}, {341, 400, 281, 119}};
  char one[512], other[512], wanted[512];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    on_paper before = open_on_paper("dp=2", BATCH), now = open_on_paper("dp=2", BATCH);
    int start = cases[i].start, shown = cases[i].shown;
    const char *dots = start ? "..." : "", *more = (size_t)(start + shown) < cases[i].count ? "..." : "";
    set_digits(&before, cases[i].same, cases[i].count, 'x', one);
    set_digits(&now, cases[i].same, cases[i].count, 'y', other);
    must(resume(before, now));
    snprintf(wanted, sizeof wanted, "name (checkpoint: %s%.*s%s, recipe: %s%.*s%s)", dots, shown, one + start, more,
             dots, shown, other + start, more);
    if (!strstr(notice, wanted)) fail_msg("\"%s\" does not say \"%s\"", notice, wanted);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_fact_of_products_that_differs_is_named),
      cmocka_unit_test(other_axes_within_a_leaf_are_named),
      cmocka_unit_test(all_differences_are_in_one_warning),
      cmocka_unit_test(who_computes_which_leaf_may_change_without_a_word),
      cmocka_unit_test(the_number_of_leaves_may_not_change),
      cmocka_unit_test(without_leaves_products_are_one_fact),
      cmocka_unit_test(long_values_are_shown_around_their_first_difference),
      cmocka_unit_test(values_are_cut_only_where_they_are_too_long),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
