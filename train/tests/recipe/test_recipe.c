/* Tests recipes: the message of each mistake, defaults, --set, precision policies, and that a printed recipe reads back
 * as the same. */
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "addend/comm.h"
#include "gpt/gpt.h"
#include "addend/recipe.h"
#include "base/memory.h"
#include "optim/record.h"
#include "program/program.h"
#include "parsing.h"
#include "recipe/changes.h"
#include "recipe/recipe.h"
#include "recipe/schema.h"
#include "says.h"
#include "recipe/schedule.h"

#define MODEL "model: {kind: gpt, layers: 2, d_model: 32, heads: 4}\n"
#define DATA "data: {text: [a, b], seq: 16}\n"
#define MESH "mesh: \"dp_replicate=2 dp_shard=2\"\n"
#define TRAIN "train: {global_batch: 6, steps: 10, lr: 1e-3}\n"
#define GOOD MODEL DATA MESH TRAIN /* lines 1 to 4 */
#define MUON                  \
  "optimizer: {kind: muon}\n" \
  "groups: [{match: \"embedding.*\", kind: adamw}, {match: \"*norm*\", kind: adamw}]\n"

static const ad_gpt_options *gpt_of(const ad_recipe *recipe) { return recipe->options; }

static void what_is_left_out_has_its_default(void **state) {
  ad_recipe *r = READ(GOOD, NULL);
  assert_string_equal(r->path, "dir/r.yaml");
  assert_string_equal(r->name, "r");
  assert_string_equal(r->kind, "gpt");
  assert_ptr_equal(r->program, ad_gpt());
  assert_null(r->weights);
  assert_int_equal(r->mesh_count, 1);
  assert_null(r->meshes[0].module);
  assert_int_equal(gpt_of(r)->d_hidden, 0);
  assert_true(gpt_of(r)->decoder.rotary_base == 10000);
  assert_int_equal(gpt_of(r)->decoder.data.text_count, 2);
  assert_string_equal(gpt_of(r)->decoder.data.text[1], "b");
  assert_int_equal(gpt_of(r)->decoder.data.valid_count, 0);
  assert_null(gpt_of(r)->decoder.data.valid);
  assert_int_equal(r->precision.compute, AD_F32);
  assert_int_equal(r->precision.policy.param, AD_F32);
  assert_int_equal(r->precision.policy.grad, 0);
  assert_int_equal(r->shard.zero, 0);
  assert_true(r->shard.bucket_mib == 25);
  assert_int_equal(r->shard.window, 0);
  assert_int_equal(r->train.microbatches, 1);
  assert_true(r->optimizer.beta2 == 0.95);
  assert_int_equal(r->train.seed, 1);
  assert_int_equal(r->train.sync_count, 1);
  assert_int_equal(r->train.sync[0], AD_SYNC_ALL);
  ad_recipe_destroy(r);
}

static void every_kind_of_value_is_read(void **state) {
  ad_recipe *r = READ(
      "name: x\n"
      "model: {kind: gpt, layers: 2, d_model: 32, heads: 4, d_hidden: 48, tied: false, rotary_base: 500.5}\n"
      "data:\n  text: one\n  seq: 16\n  valid: [1, 0.5, 0]\n  validation: .25\n" MESH
      "precision: {param: f64, grad: raw, reduce: f64, accumulate: f64, compute: f64, overrides: {\"*norm*\": {param: "
      "f32}}}\n"
      "shard: {bucket_mib: 0.5, window: 3, prefetch: 0}\n"
      "train: {global_batch: 6, microbatches: 3, steps: 10, lr: 1e-3, warmup: 2, sync: [none, shard, all], seed: 9}\n",
      NULL);
  assert_string_equal(r->name, "x");
  assert_int_equal(gpt_of(r)->decoder.tied, 0);
  assert_true(gpt_of(r)->decoder.rotary_base == 500.5);
  assert_int_equal(gpt_of(r)->decoder.data.text_count, 1);
  assert_int_equal(gpt_of(r)->decoder.data.valid_count, 3);
  assert_true(gpt_of(r)->decoder.data.valid[1] == 0.5 && gpt_of(r)->decoder.data.validation == 0.25);
  assert_int_equal(r->precision.policy.raw, 1);
  assert_int_equal(r->precision.override_count, 1);
  assert_string_equal(r->precision.overrides[0].pattern, "*norm*");
  assert_int_equal(r->precision.overrides[0].policy.param, AD_F32);
  assert_int_equal(r->train.sync_count, 3);
  assert_int_equal(r->train.sync[0], AD_SYNC_NONE);
  assert_int_equal(r->train.warmup, 2);
  ad_recipe_destroy(r);
}

static void microbatches_before_the_last_reduce_as_the_storage_of_gradients_asks(void **state) {
  static const ad_sync usual[] = {AD_SYNC_NONE, AD_SYNC_NONE, AD_SYNC_SHARD, AD_SYNC_SHARD};
  for (int zero = 0; zero < 4; zero++) {
    char set[32];
    snprintf(set, sizeof set, "shard.zero=%d", zero);
    ad_recipe *r = READ(GOOD, "train.microbatches=3", set);
    assert_int_equal(r->train.sync_count, 3);
    assert_int_equal(r->train.sync[0], usual[zero]);
    assert_int_equal(r->train.sync[1], usual[zero]);
    assert_int_equal(r->train.sync[2], AD_SYNC_ALL);
    ad_recipe_destroy(r);
  }
}

static void what_is_reported_of_reductions_holds(void **state) {
  ad_recipe *r = READ(GOOD, "train.microbatches=3", "shard.zero=3", "train.sync=[all, none, all]");
  assert_int_equal(r->train.sync[0], AD_SYNC_ALL);
  assert_int_equal(r->train.sync[1], AD_SYNC_NONE);
  ad_recipe_destroy(r);
}

static void a_beta_of_zero_is_a_beta(void **state) {
  const char *const sets[] = {"train.beta1=0", "train.beta2=0"};
  ad_recipe *r;
  assert_int_equal(ad_recipe_parse(GOOD, "r.yaml", sets, 2, &r), AD_OK);
  assert_true(r->optimizer.beta1 == 0 && r->optimizer.beta2 == 0);
  ad_recipe_destroy(r);
}

static void all_errors_are_reported_together_in_the_order_of_their_lines(void **state) {
  SAYS(("r.yaml:2: model.layers", "1", "0", "r.yaml:2: model.heads", "d_model", "32", "3", "2", "4",
        "r.yaml:5: data.seq", "16", "r.yaml:6: data.valid", "r.yaml:7: data.valid", "r.yaml:8: mesh", "ep=2",
        "r.yaml:9: train.setps", "train.steps", "r.yaml:9: train.steps", "r.yaml:9: train.beta1", "r.yaml:10: shard"),
       "name: x\n"
       "model: {kind: gpt, layers: 0, d_model: 32, heads: 3}\n"
       "data:\n"
       "  text: [a]\n"
       "  seq: \"16\"\n"
       "  valid: [2,\n"
       "    half]\n"
       "mesh: dp=2 ep=2\n"
       "train: {global_batch: 6, setps: 10, lr: 1e-3, beta1: 1}\n"
       "shard: [0]\n");
}

static void missing_keys_are_named_with_what_they_are(void **state) {
  SAYS(("r.yaml: data.seq", "r.yaml: mesh", "r.yaml: data.text", "data.tokens", ".npy", "r.yaml:1: model.heads",
        "head_dim", "d_model"),
       "model: {kind: gpt, layers: 2, d_model: 32}\n" TRAIN);
}

static void without_a_program_only_the_keys_of_every_recipe_are_judged(void **state) {
  SAYS(("r.yaml:1: model.kind"), "model: {layers: 2, d_model: 32}\n" MESH TRAIN);
  SAYS(("r.yaml:1: model.kind", "--program", "FILE"),
       "model: {kind: diffuse, experts: 8, heads: none}\ndata: {images: [a]}\nlosses: {a: 1}\nsites: 3\n"
       "mesh: {encoder: dp=4, model: dp=2}\n" TRAIN);
  SAYS(("r.yaml:1: model.kind", "--program", "FILE", "r.yaml:2: mesh", "dq=2", "r.yaml:3: modle",
        "r.yaml:4: shard.colour", "r.yaml:5: train.setps", "train.steps", "r.yaml:5: train.steps"),
       "model: {kind: diffuse, experts: 8}\nmesh: dq=2\nmodle: 3\nshard: {colour: 3}\n"
       "train: {global_batch: 6, setps: 10, lr: 1e-3}\n");
  SET_SAYS(("--set model.kind", "--program", "FILE"), GOOD, "model.experts=8", "data.images=[a]", "model.kind=diffuse");
}

static void the_program_may_be_named_by_a_set_anywhere(void **state) {
  ad_recipe *r = READ("data: {text: [a, b], seq: 16}\n" MESH TRAIN, "model.layers=2", "data.validation=0.5",
                      "model={layers: 3, d_model: 32, heads: 4}", "model.heads=2", "model.kind=gpt");
  assert_int_equal(gpt_of(r)->decoder.layers, 3);
  assert_int_equal(gpt_of(r)->decoder.heads, 2);
  assert_true(gpt_of(r)->decoder.data.validation == 0.5);
  ad_recipe_destroy(r);
  SET_SAYS(("--set model.kind", "--program", "FILE"), GOOD, "model.kind=gpt", "model.kind=diffuse");
}

static void unknown_keys_get_the_nearest_name(void **state) {
  SAYS(("r.yaml:5: modle"), GOOD "modle: {}\n");
  SAYS(("r.yaml:5: steps", "train.steps"), GOOD "steps: 3\n");
  SAYS(("r.yaml:5: shard.seq", "data.seq"), GOOD "shard: {seq: 3}\n");
  SAYS(("r.yaml:5: shard.colour"), GOOD "shard: {colour: 3}\n");
  SAYS(("r.yaml:5: colour"), GOOD "colour: 3\n");
  SAYS(("r.yaml:5: \"train.steps\""), GOOD "train.steps: 3\n");
}

static void wrong_types_are_reported_with_what_was_written(void **state) {
  SAYS(("r.yaml:1: model"), "model: gpt\n" DATA MESH TRAIN);
  SAYS(("r.yaml:5: shard.zero", "0.5"), GOOD "shard: {zero: 0.5}\n");
  SAYS(("r.yaml:5: shard.zero"), GOOD "shard: {zero: }\n");
  SAYS(("r.yaml:5: shard.zero"), GOOD "shard: {zero: {a: 1}}\n");
  SAYS(("r.yaml:5: shard.zero", "99999999999999999999"), GOOD "shard: {zero: 99999999999999999999}\n");
  SAYS(("r.yaml:5: shard.bucket_mib", ".nan"), GOOD "shard: {bucket_mib: .nan}\n");
  SAYS(("r.yaml:5: shard.bucket_mib", "0x10"), GOOD "shard: {bucket_mib: 0x10}\n");
  SAYS(("r.yaml:5: shard.bucket_mib", "0"), GOOD "shard: {bucket_mib: 0}\n");
  SAYS(("r.yaml:5: name"), GOOD "name: [a]\n");
  SAYS(("r.yaml:3: mesh"), MODEL DATA "mesh: \"\"\n" TRAIN);
  SAYS(("r.yaml:5: name", "../x"), GOOD "name: ../x\n");
  SET_SAYS(("--set model.tied"), GOOD, "model.tied=yes");
  SET_SAYS(("--set model.bias"), GOOD, "model.bias=yes");
  SET_SAYS(("--set model.rotary_scaling", "0"), GOOD, "model.rotary_scaling=[8, 0, 4, 64]");
}

/* A printed recipe has every key that config.json gave, so the model need not exist when it is read back. */
static void a_model_that_is_named_in_a_text_is_not_looked_for(void **state) {
  char *printed;
  ad_recipe *r = READ(GOOD, "model.from=nowhere");
  assert_string_equal(r->from, "nowhere");
  assert_int_equal(ad_recipe_print(r, &printed), AD_OK);
  assert_text_says(printed, "nowhere");
  free(printed);
  ad_recipe_destroy(r);
  SET_SAYS(("--set model.weights", "model.from"), GOOD, "model.from=nowhere", "model.weights=w.safetensors");
}

static void the_text_must_be_named(void **state) {
  SET_SAYS(("--set data.text", "data.tokens", ".npy"), GOOD, "data.text=[]");
  SET_SAYS(("--set data.text"), GOOD, "data.text={a: b}");
  SET_SAYS(("--set data.text"), GOOD, "data.text=[a, ]", "data.text=");
}

static void an_optimizer_has_its_own_options(void **state) {
  ad_recipe *r = READ(GOOD, "optimizer.kind=sgd", "optimizer.momentum=0.9", "optimizer.nesterov=true",
                      "train.weight_decay=0.5", "train.beta1=0.9");
  assert_int_equal(r->optimizer.kind, AD_SGD);
  assert_true(r->optimizer.momentum == 0.9 && r->optimizer.nesterov && r->optimizer.weight_decay == 0.5);
  ad_recipe_destroy(r);
  r = READ(GOOD, NULL);
  assert_int_equal(r->optimizer.kind, AD_ADAMW);
  ad_recipe_destroy(r);
  SET_SAYS(("--set optimizer.kind"), GOOD, "optimizer.kind=adam");
  SET_SAYS(("--set optimizer.kind"), GOOD, "optimizer.kind=true");
  SET_SAYS(("--set optimizer.kind"), GOOD, "optimizer.kind=false");
  SET_SAYS(("--set train.beta1", "optimizer.kind", "sgd", "adamw"), GOOD, "optimizer.kind=sgd", "train.beta1=0.8");
  SET_SAYS(("--set train.beta2", "optimizer.kind", "sgd", "adamw"), GOOD, "optimizer.kind=sgd", "train.beta2=0.9");
  SET_SAYS(("--set train.epsilon", "optimizer.kind", "sgd", "adamw"), GOOD, "optimizer.kind=sgd", "train.epsilon=1e-6");
  SET_SAYS(("--set optimizer.momentum", "optimizer.kind", "adamw", "sgd"), GOOD, "optimizer.momentum=0.9");
  SET_SAYS(("--set optimizer.nesterov", "optimizer.kind", "adamw", "sgd"), GOOD, "optimizer.nesterov=true");
  SET_SAYS(("--set optimizer.nesterov", "optimizer.momentum", "0"), GOOD, "optimizer.kind=sgd",
           "optimizer.nesterov=true");
  SET_SAYS(("--set optimizer.momentum"), GOOD, "optimizer.kind=sgd", "optimizer.momentum=1", "optimizer.nesterov=true");
}

static void muon_has_its_own_options(void **state) {
  ad_recipe *r = READ(GOOD MUON, NULL);
  const ad_muon_options *muon = &r->optimizer.muon;
  assert_int_equal(r->optimizer.kind, AD_MUON);
  assert_true(muon->momentum == 0.95 && muon->nesterov == 1 && muon->a == 3.4445 && muon->b == -4.775);
  assert_true(muon->c == 2.0315 && muon->steps == 5 && muon->epsilon == 1e-7 && muon->rate == AD_MUON_ORIGINAL);
  assert_true(!muon->dtype && muon->way == AD_WAY_CHEAPEST && !muon->blockwise);
  ad_recipe_destroy(r);
  r = READ(GOOD MUON,
           "optimizer.muon={momentum: 0.5, nesterov: false, a: 1.5, b: -0.5, c: 0.25, steps: 99, epsilon: 1e-3, "
           "adjust_lr: match_rms_adamw, dtype: bf16, way: dealt}");
  muon = &r->optimizer.muon;
  assert_true(muon->momentum == 0.5 && muon->nesterov == 0 && muon->a == 1.5 && muon->b == -0.5 && muon->c == 0.25);
  assert_true(muon->steps == 99 && muon->epsilon == 1e-3 && muon->rate == AD_MUON_MATCH_RMS_ADAMW);
  assert_true(muon->dtype == AD_BF16 && muon->way == AD_WAY_DEALT && !muon->blockwise);
  ad_recipe_destroy(r);
  SET_SAYS(("--set optimizer.muon.momentum", "--set optimizer.muon.steps", "1", "0", "--set optimizer.muon.epsilon",
            "--set optimizer.muon.adjust_lr", "--set optimizer.muon.dtype", "f32", "--set optimizer.muon.way"),
           GOOD MUON, "optimizer.muon.momentum=1", "optimizer.muon.steps=0", "optimizer.muon.epsilon=0",
           "optimizer.muon.adjust_lr=rms", "optimizer.muon.dtype=f16", "optimizer.muon.way=any");
  SET_SAYS(("--set optimizer.muon.steps", "99", "100", "--set optimizer.muon.stepz", "optimizer.muon.steps"), GOOD MUON,
           "optimizer.muon.steps=100", "optimizer.muon.stepz=3");
  SET_SAYS(("--set optimizer.muon.steps"), GOOD MUON, "optimizer.muon.steps=2.5");
  SET_SAYS(("--set optimizer.muon.steps", "adamw", "muon"), GOOD, "optimizer.muon.steps=4");
  SET_SAYS(("--set optimizer.muon.b", "optimizer.kind", "muon"), GOOD, "groups=[{match: \"*norm*\", lr: 1}]",
           "optimizer.muon.b=0");
  SET_SAYS(("--set optimizer.momentum", "sgd"), GOOD MUON, "optimizer.momentum=0.5");
  SET_SAYS(("--set optimizer.muon.blockwise", "train.leaves"), GOOD MUON, "optimizer.muon.blockwise=true",
           "train.leaves=6");
  SET_SAYS(("--set optimizer.muon.way", "optimizer.muon.blockwise"), GOOD MUON, "optimizer.muon.blockwise=true",
           "optimizer.muon.way=gathered");
  r = READ(GOOD MUON, "optimizer.muon={way: cheapest, blockwise: true}");
  assert_true(r->optimizer.muon.blockwise == 1);
  ad_recipe_destroy(r);
}

/* The name of the key of an option: of options in a struct of their own the last part. */
static const char *key_of(const char *option) {
  const char *dot = strrchr(option, '.');
  if (!strcmp(option, "muon.rate")) return "adjust_lr";
  return dot ? dot + 1 : option;
}

/* Every option of every optimizer has a key, and every optimizer has its word. decays_all is set where a group has a
 * decay of its own. */
static void every_optimizer_can_be_written_in_a_recipe(void **state) {
  ad_schema schema;
  assert_int_equal(ad_schema_create(NULL, &schema), AD_OK);
  const ad_key *kind = &ad_schema_find(&schema, "optimizer.kind")->key;
  size_t words = 0;
  while (kind->words[words]) words++;
  assert_int_equal(words, AD_OPTIMIZER_COUNT);
  for (int k = 0; k < AD_OPTIMIZER_COUNT; k++) {
    const ad_optimizer_record *record = ad_optimizer_record_of((ad_optimizer_kind)k);
    for (const ad_option_record *option = record->options; option->name; option++) {
      int found = option->offset == offsetof(ad_optimizer_options, decays_all);
      for (size_t i = 0; i < schema.count; i++)
        found += schema.entries[i].home == AD_HOME_RECIPE &&
                 schema.entries[i].key.offset == offsetof(ad_recipe, optimizer) + option->offset &&
                 !strcmp(ad_key_name(&schema.entries[i].key), key_of(option->name));
      if (found != 1) fail_msg("%s of %s has %d keys", option->name, record->name, found);
    }
  }
  ad_schema_release(&schema);
}

/* Both bounds of a number are allowed, and nothing beyond them. */
static void a_number_is_taken_up_to_its_bounds(void **state) {
  static const char *const within[] = {"train.lr=1e6",    "train.lr=0",    "train.clip=0",
                                       "train.beta1=0",   "train.beta2=0", "train.final_lr_fraction=1",
                                       "train.warmup=10", "train.warmup=0"};
  static const char *const beyond[] = {"train.lr=1.000001e6", "train.lr=-1e-9", "train.clip=-1e-9",
                                       "train.beta1=1",       "train.beta2=1",  "train.final_lr_fraction=1.000001",
                                       "train.warmup=11",     "train.warmup=-1"};
  for (size_t i = 0; i < sizeof within / sizeof *within; i++) {
    ad_recipe *recipe = NULL;
    if (ad_recipe_parse(GOOD, "r.yaml", &within[i], 1, &recipe)) fail_msg("%s: %s", within[i], ad_last_error());
    ad_recipe_destroy(recipe);
  }
  for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
    ad_recipe *recipe = NULL;
    if (ad_recipe_parse(GOOD, "r.yaml", &beyond[i], 1, &recipe) != AD_INVALID) fail_msg("%s is taken", beyond[i]);
    char key[64];
    snprintf(key, sizeof key, "%.*s", (int)strcspn(beyond[i], "="), beyond[i]);
    assert_facts(ad_last_error(), key);
  }
}

/* `one`, `count` times over. */
static char *repeated(const char *one, size_t count) {
  size_t size = strlen(one);
  char *text = malloc(count * size + 1);
  assert_non_null(text);
  for (size_t i = 0; i < count; i++) memcpy(text + i * size, one, size);
  text[count * size] = 0;
  return text;
}

/* A prompt has 1 to 4096 bytes, and a recipe at most 64 prompts, of which each may be wrong. */
static void prompts_are_taken_up_to_their_bounds(void **state) {
  static const struct {
    size_t prompts, bytes;
    int is_taken;
  } cases[] = {{1, 1, 1}, {1, 4096, 1}, {1, 4097, 0}, {64, 1, 1}, {65, 1, 0}, {2, 0, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char *bytes = repeated("x", cases[i].bytes), *set = malloc(64 + cases[i].prompts * (cases[i].bytes + 4));
    assert_non_null(set);
    strcpy(set, "evaluate.prompts=[");
    for (size_t k = 0; k < cases[i].prompts; k++)
      sprintf(set + strlen(set), "%s\"%s\"", k ? "," : "", k + 1 < cases[i].prompts && !*bytes ? "x" : bytes);
    strcat(set, "]");
    const char *const sets[] = {"evaluate.every=1", "data.validation=0.1", set};
    ad_recipe *recipe = NULL;
    ad_status status = ad_recipe_parse(GOOD, "r.yaml", sets, 3, &recipe);
    if (status != (cases[i].is_taken ? AD_OK : AD_INVALID)) fail_msg("case %zu: %d %s", i, status, ad_last_error());
    if (!status) assert_int_equal(recipe->evaluate.prompt_count, cases[i].prompts);
    if (status) assert_facts(ad_last_error(), "--set evaluate.prompts");
    if (status) assert_null(strchr(ad_last_error(), '\n'));
    ad_recipe_destroy(recipe);
    free(bytes);
    free(set);
  }
}

/* Numbers are printed with as few digits as read back as the same. */
static void numbers_are_printed_with_the_digits_that_they_need(void **state) {
  static const char *const numbers[] = {
      "0", "1", "999999", "0.1", "0.3333333333333333", "0.12345678901234568", "1e-08", "1e-300", "123456.5", "2.5"};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    char set[64], line[64], *text;
    snprintf(set, sizeof set, "train.lr=%s", numbers[i]);
    snprintf(line, sizeof line, "  lr: %s\n", numbers[i]);
    ad_recipe *r = READ(GOOD, set);
    assert_int_equal(ad_recipe_print(r, &text), AD_OK);
    if (!strstr(text, line)) fail_msg("%s is printed otherwise", numbers[i]);
    free(text);
    ad_recipe_destroy(r);
  }
}

static void what_does_not_fit_together_is_reported(void **state) {
  SET_SAYS(("--set model.heads", "32", "1", "16"), GOOD, "model.heads=32");
  SET_SAYS(("--set train.sync", "2", "train.microbatches", "1"), GOOD, "train.sync=[none, all]");
  SET_SAYS(("--set train.warmup", "train.steps", "10", "11", "train.lr", "train.warmup"), GOOD, "train.warmup=11");
  ad_recipe_destroy(READ(GOOD, "train.warmup=10"));
  SET_SAYS(("--set train.sync"), GOOD, "train.sync=[shard]");
  SET_SAYS(("--set train.sync"), GOOD, "train.sync=[some]");
  ad_recipe *recipe;
  const char *set = "mesh=dp_replicate=0";
  assert_int_equal(ad_recipe_parse(GOOD, "r.yaml", &set, 1, &recipe), AD_INVALID);
  assert_says("--set mesh", "dp_replicate=0");
}

/* Under zb gradients of weights may come after their microbatch ended, so only the last one may sum over all ranks. */
static void no_early_microbatch_sums_over_all_ranks_under_zb(void **state) {
  static const struct {
    const char *kind, *sync;
    int is_taken;
  } table[] = {{"zb", "[shard, shard, all]", 1},  {"zb", "[none, shard, all]", 1},
               {"zb", "[all, shard, all]", 0},    {"zb", "[shard, all, all]", 0},
               {"zb", "[all, all, all]", 0},      {"1f1b", "[shard, all, all]", 1},
               {"gpipe", "[all, shard, all]", 1}, {"interleaved", "[all, all, all]", 1}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    char kind[64], sync[64];
    snprintf(kind, sizeof kind, "schedule.kind=%s", table[i].kind);
    snprintf(sync, sizeof sync, "train.sync=%s", table[i].sync);
    const char *const sets[] = {"mesh=pp=2", "train.microbatches=3", kind, sync};
    ad_recipe *recipe = NULL;
    ad_status status = ad_recipe_parse(GOOD, "r.yaml", sets, 4, &recipe);
    if (status != (table[i].is_taken ? AD_OK : AD_INVALID)) fail_msg("%s, %s: %d", kind, sync, status);
    if (status)
      assert_says_in("an all before the last", ad_last_error(), SAYS_FACTS("--set train.sync", "schedule.kind"));
    ad_recipe_destroy(recipe);
  }
}

static void a_name_that_is_no_folder_of_its_own_is_refused(void **state) {
  char set[128] = "name=";
  SET_SAYS(("--set name", ".."), GOOD, "name=..");
  SET_SAYS(("--set name", ".hidden"), GOOD, "name=.hidden");
  SET_SAYS(("--set name", "a/b"), GOOD, "name=a/b");
  SET_SAYS(("--set name"), GOOD, "name=-x");
  SET_SAYS(("--set name"), GOOD, "name=a b");
  SET_SAYS(("--set name", "a\\x1bb"), GOOD, "name=\"a\\x1bb\"");
  SET_SAYS(("--set name", "a\\x7fb"), GOOD, "name=\"a\\x7fb\"");
  SET_SAYS(("--set name", "a\\xe2\\x80\\xaeb"), GOOD, "name=\"a\\u202eb\""); /* U+202E reverses the text that follows */
  SET_SAYS(("--set name", "a\\xc2\\x9bb"), GOOD, "name=\"a\\x9bb\"");        /* byte 9b begins a terminal command */
  SET_SAYS(("--set name"), GOOD, "name=\"\\ufeffa\"");
  SET_SAYS(("--set name"), GOOD, "name=");
  memset(set + 5, 'X', 101);
  SET_SAYS(("--set name", set + 5), GOOD, set);
  set[5 + 100] = 0;
  ad_recipe_destroy(READ(GOOD, set));
  static const char *const good[] = {"name=_",      "name=a-.b",      "name=7", "name=\u65e5\u672c",
                                     "name=\u0416", "name=\U0001d7d9"};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) ad_recipe_destroy(READ(GOOD, good[i]));
}

static void precision_is_checked(void **state) {
  SAYS(("r.yaml:5: precision.param", "f64", "f32", "bf16", "f16", "i32"), GOOD "precision: {param: i32}\n");
  SAYS(("r.yaml:5: precision.param", "f64", "f32", "bf16", "f16", "u8"), GOOD "precision: {param: u8}\n");
  SAYS(("r.yaml:5: precision.grad"), GOOD "precision: {grad: same}\n");
  SAYS(("r.yaml:5: precision.compute", "f64", "f32", "bf16", "f16"), GOOD "precision: {compute: f16}\n");
  SAYS(("r.yaml:5: precision.residual", "f32", "precision.compute", "bf16"), GOOD "precision: {residual: bf16}\n");
  SAYS(("r.yaml:5: precision.residual", "f32", "bf16", "precision.compute", "f64"),
       GOOD "precision: {compute: bf16, residual: f64}\n");
  SAYS(("r.yaml:5: precision.accumulate", "f64", "f32", "bf16"), GOOD "precision: {param: bf16, accumulate: bf16}\n");
  SAYS(("r.yaml:5: precision.accumulate", "f32", "f64"), GOOD "precision: {reduce: f64, accumulate: f32}\n");
}

/* A refused dtype is answered with the list of the dtypes that this key takes. */
static void a_list_of_dtypes_is_of_those_that_are_taken_there(void **state) {
  SAYS(("r.yaml:5: precision.accumulate", "f64", "f32", "int8"), GOOD "precision: {accumulate: int8}\n");
  SAYS(("r.yaml:5: precision.compute", "f64", "f32", "bf16", "int8"), GOOD "precision: {compute: int8}\n");
  SAYS(("r.yaml:5: precision.residual", "f64", "f32", "bf16", "int8"), GOOD "precision: {residual: int8}\n");
  SAYS(("r.yaml:5: precision.overrides.head.accumulate", "f64", "f32", "f16"),
       GOOD "precision: {overrides: {head: {accumulate: f16}}}\n");
  for (int dtype = AD_F64; dtype <= AD_F32; dtype++) {
    char set[64];
    snprintf(set, sizeof set, "precision.accumulate=%s", ad_dtype_name((ad_dtype)dtype));
    ad_recipe_destroy(READ(GOOD, set));
  }
}

static void every_policy_that_means_something_is_taken(void **state) {
  ad_precision_policy c;
  ad_recipe *r = READ(GOOD, "precision={param: bf16, reduce: f16, overrides: {\"*.norm.*\": {param: f32}}}");
  assert_int_equal(ad_recipe_precision_policy(r, "blocks.0.attn.wq", &c), AD_OK);
  assert_true(c.param == AD_BF16 && c.grad == AD_BF16 && c.reduce == AD_F16 && c.accumulate == AD_F32 && !c.raw);
  ad_recipe_destroy(r);
  r = READ(GOOD, "precision={param: f16, grad: raw, accumulate: f64, loss_scale: 3}");
  assert_int_equal(ad_recipe_precision_policy(r, "blocks.0.attn.wq", &c), AD_OK);
  assert_true(c.param == AD_F16 && c.raw && c.reduce == AD_F32 && c.accumulate == AD_F64);
  assert_int_equal(r->precision.loss_scale, 3);
  ad_recipe_destroy(r);
}

static void overrides_are_checked(void **state) {
  SAYS(("r.yaml:6: precision.overrides.\"*.norm.*\".parm", "r.yaml:7: precision.overrides.head",
        "r.yaml:8: precision.overrides.b.grad", "f64", "f32", "bf16", "f16"),
       GOOD "precision: {overrides: {\n \"*.norm.*\": {parm: f32},\n head: f64,\n b: {grad: param}}}\n");
  SAYS(("r.yaml:5: precision.overrides"), GOOD "precision: {overrides: 3}\n");
}

static void a_pattern_that_matches_nothing_is_a_mistake(void **state) {
  ad_recipe *recipe;
  const char *set = "precision.overrides={\"*.nrom.*\": {param: f64}}";
  assert_int_equal(ad_recipe_parse(GOOD, "r.yaml", &set, 1, &recipe), AD_INVALID);
  assert_says("precision.overrides");
}

static void a_pattern_that_is_never_the_first_is_a_mistake(void **state) {
  SAYS(("r.yaml:8: precision.overrides", "blocks.1.*", "blocks.*"),
       GOOD "precision:\n overrides:\n  \"blocks.*\": {param: f64}\n  \"blocks.1.*\": {reduce: f64}\n");
  SET_SAYS(("--set precision.overrides", "blocks.*", "blocks.1.*"), GOOD,
           "precision.overrides={\"blocks.0.*\": {param: f64}, \"blocks.1.*\": {}, \"blocks.*\": {reduce: f64}}");
  ad_recipe_destroy(READ(GOOD, "precision.overrides={\"blocks.0.*\": {param: f64}, \"blocks.*\": {param: f64}}"));
}

static void what_this_version_cannot_do_is_reported(void **state) {
  SAYS(("r.yaml:1: model.kind", "--program", "FILE"),
       "model: {kind: diffuse, layers: 2, d_model: 32, heads: 4}\n" DATA MESH TRAIN);
  SAYS(("r.yaml:3: mesh"), MODEL DATA "mesh: {encoder: dp=4, model: dp=2}\n" TRAIN);
  SET_SAYS(("--set shard.zero", "3", "4"), GOOD, "shard.zero=4");
  SET_SAYS(("--set shard.bucket_mib", "0"), GOOD, "shard.bucket_mib=0");
  SET_SAYS(("--set shard.outer_zero", "1", "2"), GOOD, "shard.outer_zero=2");
  SET_SAYS(("--set shard.outer_zero", "1", "shard.zero", "0"), GOOD, "shard.outer_zero=1");
  SET_SAYS(("--set mesh", "block=2", "ep=3"), GOOD, "mesh=dp=2 block=2 ep=3");
}

static void a_schedule_follows_from_the_stages_unless_it_is_named(void **state) {
  static const struct {
    const char *mesh, *stages, *kind, *is;
  } table[] = {{"mesh=dp=2", "schedule.stages=0", NULL, "1f1b"},
               {"mesh=pp=2", "schedule.stages=0", NULL, "1f1b"},
               {"mesh=pp=2", "schedule.stages=2", NULL, "1f1b"},
               {"mesh=pp=2", "schedule.stages=2", "schedule.kind=zb", "zb"},
               {"mesh=pp=2", "schedule.stages=6", NULL, "interleaved"},
               {"mesh=pp=2", "schedule.stages=6", "schedule.kind=gpipe", "gpipe"}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    ad_recipe *recipe;
    const char *sets[] = {table[i].mesh, table[i].stages, table[i].kind};
    assert_int_equal(ad_recipe_parse(GOOD, "r.yaml", sets, table[i].kind ? 3 : 2, &recipe), AD_OK);
    assert_string_equal(ad_recipe_schedule(recipe), table[i].is);
    ad_recipe_destroy(recipe);
  }
}

static void a_pipeline_has_a_most_of_stages(void **state) {
  ad_recipe *recipe;
  const char *most[] = {"mesh=pp=2048"};
  if (ad_recipe_parse(GOOD, "r.yaml", most, 1, &recipe)) fail_msg("%s", ad_last_error());
  ad_recipe_destroy(recipe);
  SET_SAYS(("--set mesh", "pp=2049", "2048"), GOOD, "mesh=pp=2049");
}

/* Numbers of layers cannot be held to stages that are wrong themselves. */
static void layers_are_not_held_to_stages_that_are_refused(void **state) {
  static const struct {
    const char *stages, *layers, *refused, *not_refused;
  } table[] = {{"schedule.stages=2", "schedule.layers=[1, 1, 2]", "--set schedule.stages", "schedule.layers"},
               {"schedule.stages=3", "schedule.layers=[1, 1]", "--set schedule.layers", "schedule.stages"}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    ad_recipe *recipe = NULL;
    const char *const sets[] = {"mesh=pp=3", table[i].stages, table[i].layers};
    assert_int_equal(ad_recipe_parse(GOOD, "r.yaml", sets, 3, &recipe), AD_INVALID);
    assert_says_in(table[i].stages, ad_last_error(), SAYS_FACTS(table[i].refused));
    assert_null(strstr(ad_last_error(), table[i].not_refused));
  }
}

static void a_key_that_was_renamed_is_named(void **state) {
  SAYS(("r.yaml:3: data.held_out", "data.validation"), MODEL MESH "data: {text: [a], seq: 8, held_out: 0.1}\n" TRAIN);
}

static void keys_of_pools_are_unknown_to_a_text_model(void **state) {
  static const char *const names[] = {"views", "placement", "losses", "sites", "ascent", "comm_dtype"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char text[512], set[64], at_line[64], at_set[64];
    snprintf(text, sizeof text, GOOD "%s: {a: 1}\n", names[i]);
    snprintf(at_line, sizeof at_line, "r.yaml:5: %s", names[i]);
    SAYS((at_line), text);
    snprintf(set, sizeof set, "%s.a=1", names[i]);
    snprintf(at_set, sizeof at_set, "--set %s.a", names[i]);
    SET_SAYS((at_set), GOOD, set);
  }
}

static void what_is_no_yaml_is_reported_with_its_line(void **state) {
  SAYS(("r.yaml:3", "YAML"), "name: x\nmesh: a\n b: c\n");
  SAYS(("r.yaml:2", "YAML"), "train:\n\tsteps: 3\n");
  SAYS(("r.yaml:2", "YAML"), "name: x\nmesh: \x01\n");
  SAYS(("r.yaml:1"), "- a\n- b\n");
  SAYS(("r.yaml:5", "YAML"), GOOD "name: *nowhere\n");
  SAYS(("r.yaml:2"),
       "name:\n  [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]\n");
}

/* The document, the key's mapping, and 32 lists in it are read; one list more is refused, as a value and as a key. */
static void nesting_is_refused_past_its_bound(void **state) {
  static const char *const forms[] = {"name: %s%s\n", "? %s%s\n: 1\n"};
  for (size_t i = 0; i < 4; i++) {
    size_t count = i < 2 ? 32 : 33;
    char *open = repeated("[", count), *shut = repeated("]", count), text[512], list[64];
    ad_recipe *recipe = NULL;
    snprintf(text, sizeof text, GOOD);
    snprintf(text + strlen(text), sizeof text - strlen(text), forms[i % 2], open, shut);
    snprintf(list, sizeof list, "%zu lists as a %s", count, i % 2 ? "key" : "value");
    assert_int_equal(ad_recipe_parse(text, "r.yaml", NULL, 0, &recipe), AD_INVALID);
    assert_says_in(list, ad_last_error(), SAYS_FACTS("r.yaml:5"));
    assert_null(strchr(ad_last_error(), '\n'));
    free(open);
    free(shut);
  }
}

/* A tree of 4000 nodes is read: 14 beside the names of the texts. Of a larger one a single error is reported, however
 * much larger it is. */
static void a_tree_is_refused_past_its_bound(void **state) {
  for (size_t names = 3986; names < 5000; names += names < 3987 ? 1 : 1000) {
    char *list = repeated("a,", names), *text = malloc(strlen(list) + 256);
    ad_recipe *recipe = NULL;
    assert_non_null(text);
    sprintf(text, MODEL MESH TRAIN "data: {seq: 16, text: [%s]}\n", list);
    int is_taken = names == 3986;
    assert_int_equal(ad_recipe_parse(text, "r.yaml", NULL, 0, &recipe), is_taken ? AD_OK : AD_INVALID);
    if (is_taken)
      assert_int_equal(gpt_of(recipe)->decoder.data.text_count, names);
    else
      assert_says_in("more nodes", ad_last_error(), SAYS_FACTS("r.yaml:4"));
    if (!is_taken) assert_null(strchr(ad_last_error(), '\n'));
    ad_recipe_destroy(recipe);
    free(list);
    free(text);
  }
}

/* Nesting so deep that libyaml alone would work on it for a minute, longer than the test may take. */
static void any_depth_is_refused_at_once(void **state) {
  static const char *const opened[] = {"[", "{a: ", "- ", "[{a: [\n"};
  for (size_t i = 0; i < sizeof opened / sizeof *opened; i++) {
    ad_recipe *recipe = NULL;
    char *text = repeated(opened[i], 1000000 / strlen(opened[i]));
    assert_int_equal(ad_recipe_parse(text, "r.yaml", NULL, 0, &recipe), AD_INVALID);
    assert_listed();
    free(text);
  }
}

static void a_byte_order_mark_is_passed_over(void **state) {
  ad_recipe_destroy(READ("\xef\xbb\xbf" GOOD, NULL));
  SAYS(("r.yaml:5: colour"), "\xef\xbb\xbf" GOOD "colour: 3\n");
  SAYS(("r.yaml:1", "YAML", "UTF-8"), "\xff\xfen");
}

static void is_named(const char *path, const char *name) {
  ad_recipe *recipe = NULL;
  if (ad_recipe_parse(GOOD, path, NULL, 0, &recipe)) fail_msg("%s: %s", path, ad_last_error());
  assert_string_equal(recipe->name, name);
  ad_recipe_destroy(recipe);
}

static void every_file_gives_a_name(void **state) {
  char longest[300];
  is_named("a/b.yaml", "b");
  is_named("my recipe.yaml", "my-recipe");
  is_named("日本語.yaml", "日本語");
  is_named("/tmp/.hidden.yaml", "hidden");
  is_named(" (copy 2) a:b.yml", "copy-2-a-b");
  is_named("\xff\xfe.yaml", "recipe");
  is_named("caf\xe9.yaml", "caf-");
  is_named("a\u202eb\u3000c.yaml", "a-b-c");
  is_named(
      "\xc2\x9b"
      "1m-x.yaml",
      "1m-x");
  is_named("...", "recipe");
  memset(longest, 'x', sizeof longest);
  memcpy(longest + 99, "é", 2);
  longest[299] = 0;
  ad_recipe *recipe = NULL;
  assert_int_equal(ad_recipe_parse(GOOD, longest, NULL, 0, &recipe), AD_OK);
  assert_int_equal(strlen(recipe->name), 99);
  ad_recipe_destroy(recipe);
  recipe = READ(GOOD "name: 日本語\n", NULL);
  assert_string_equal(recipe->name, "日本語");
  ad_recipe_destroy(recipe);
}

static void odd_documents_are_refused(void **state) {
  SAYS(("r.yaml:5: train", "4", "r.yaml:6", "r.yaml:8", "YAML"), GOOD "train: {}\n[a, b]: 3\n---\na: 3\n");
  SAYS(("r.yaml:5"), GOOD "name: \"a\\0b\"\n");
  SAYS(("r.yaml:5: \"a\\x0ab.c\""), GOOD "\"a\\nb.c\": 3\n");
}

static void a_long_list_of_mistakes_is_cut_with_a_number(void **state) {
  char text[16384] = GOOD;
  for (int i = 0; i < 500; i++) snprintf(text + strlen(text), sizeof text - strlen(text), "colour_%d: %d\n", i, i);
  ad_recipe *recipe;
  assert_int_equal(ad_recipe_parse(text, "r.yaml", NULL, 0, &recipe), AD_INVALID);
  const char *message = ad_last_error();
  assert_text_says(message, "r.yaml:5: colour_0");
  int lines = 1, more = 0;
  for (const char *c = message; *c; c++) lines += *c == '\n';
  assert_int_equal(sscanf(strrchr(message, '\n'), "%*[^0-9]%d", &more), 1);
  assert_int_equal(lines - 1 + more, 500);
}

/* ---- --set ---- */

static void set_replaces_and_creates_nodes_in_order(void **state) {
  ad_recipe *r = READ(GOOD, "train.steps=5", "train.seed=7", "shard.bucket_mib=2", "mesh=dp_replicate=3 dp_shard=2",
                      "train.steps=6", "data.valid=[1, 0.5]", "name=other", "precision={compute: f64}");
  assert_int_equal(r->train.steps, 6);
  assert_int_equal(r->train.seed, 7);
  assert_true(r->shard.bucket_mib == 2);
  assert_string_equal(r->meshes[0].text, "dp_replicate=3 dp_shard=2");
  assert_int_equal(gpt_of(r)->decoder.data.valid_count, 2);
  assert_string_equal(r->name, "other");
  assert_int_equal(r->precision.compute, AD_F64);
  ad_recipe_destroy(r);
}

static void set_alone_can_say_everything(void **state) {
  ad_recipe *r = READ("", "model={kind: gpt, layers: 1, d_model: 8, heads: 2}", "data={text: a, seq: 4}", "mesh=dp=1",
                      "train.global_batch=2", "train.steps=1", "train.lr=1");
  assert_int_equal(r->train.global_batch, 2);
  ad_recipe_destroy(r);
}

static void keys_with_dots_are_quoted_in_a_path(void **state) {
  ad_recipe *r =
      READ(GOOD, "precision.overrides.\"*.norm.*\"={param: f64}", "precision.overrides.\"*.norm.*\".reduce=f64");
  assert_int_equal(r->precision.override_count, 1);
  assert_string_equal(r->precision.overrides[0].pattern, "*.norm.*");
  assert_int_equal(r->precision.overrides[0].policy.param, AD_F64);
  assert_int_equal(r->precision.overrides[0].policy.reduce, AD_F64);
  ad_recipe_destroy(r);
}

static void what_is_set_wrong_is_reported_by_its_path(void **state) {
  SET_SAYS(("--set train.setps", "train.steps", "--set mesh.encoder", "--set train.lr.x", "train.lr", "--set steps",
            "--set train.seed", "YAML", "--set train.steps", "1", "0", "--set shard", "shard.zreo", "shard.zero"),
           GOOD, "train.setps=4", "mesh.encoder=5", "train.lr.x=3", "steps=1", "train.seed=[1", "train.steps=0",
           "shard={zreo: 0}");
  const char *const malformed[] = {"train.steps",     "",           "=3", "train..steps=3", ".steps=1", "train.=3",
                                   "train.\"steps=3", "a.b.c.d.e=3"};
  for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
    ad_recipe *recipe;
    assert_int_equal(ad_recipe_parse(GOOD, "r.yaml", &malformed[i], 1, &recipe), AD_INVALID);
    assert_says("PATH=VALUE", "train.steps=100");
  }
}

static void a_set_below_what_is_no_mapping_is_reported(void **state) {
  SET_SAYS(("r.yaml:5: shard", "3", "--set shard.zero"), GOOD "shard: 3\n", "shard.zero=0");
}

static void sections_may_be_empty(void **state) {
  ad_recipe *r = READ(GOOD "shard:\nprecision:\n", "shard.prefetch=2");
  assert_int_equal(r->shard.prefetch, 2);
  ad_recipe_destroy(r);
}

/* ---- printing a recipe ---- */

static void prints_as_itself(const char *text, const char *const *sets, size_t count) {
  char *once, *twice;
  ad_recipe *first = read_good(text, sets, count);
  assert_int_equal(ad_recipe_print(first, &once), AD_OK);
  ad_recipe *second = read_good(once, NULL, 0);
  assert_int_equal(ad_recipe_print(second, &twice), AD_OK);
  assert_string_equal(once, twice);
  assert_true(first->train.lr == second->train.lr);
  assert_int_equal(first->train.sync_count, second->train.sync_count);
  assert_int_equal(first->precision.override_count, second->precision.override_count);
  free(once);
  free(twice);
  ad_recipe_destroy(first);
  ad_recipe_destroy(second);
}

static void what_is_printed_reads_back_as_the_same(void **state) {
  prints_as_itself(GOOD, NULL, 0);
  const char *const sets[] = {"train.lr=0.1234567890123456789", "train.microbatches=5", "data.valid=[0.1, 1, 0]",
                              "data.text=[\"a b\", \"c: d\", \"\\u0085 \\\"e\\\\\", \"\xc3\xa4\", '- x', 'null', '3']",
                              "precision.overrides={\"*norm*\": {param: f64, grad: raw}, embedding*: {reduce: f32}}"};
  prints_as_itself(GOOD, sets, sizeof sets / sizeof *sets);
}

static void a_word_between_no_and_yes_is_read_and_printed(void **state) {
  static const struct {
    const char *set, *printed;
    int bias;
  } words[] = {{"model.bias=false", "bias: none\n", AD_BIAS_NONE}, {"model.bias=true", "bias: all\n", AD_BIAS_ALL},
               {"model.bias=none", "bias: none\n", AD_BIAS_NONE},  {"model.bias=qkv", "bias: qkv\n", AD_BIAS_QKV},
               {"model.bias=mlp", "bias: mlp\n", AD_BIAS_MLP},     {"model.bias=all", "bias: all\n", AD_BIAS_ALL}};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    ad_recipe *r = READ(GOOD, words[i].set);
    char *text;
    assert_int_equal(gpt_of(r)->decoder.bias, words[i].bias);
    assert_int_equal(ad_recipe_print(r, &text), AD_OK);
    assert_non_null(strstr(text, words[i].printed));
    free(text);
    ad_recipe_destroy(r);
  }
}

static void every_key_is_printed(void **state) {
  ad_recipe *r = READ(GOOD, "data.valid=[1, 0.5]", "precision.overrides={\"*norm*\": {param: f64}}");
  char *text;
  assert_int_equal(ad_recipe_print(r, &text), AD_OK);
  assert_string_equal(
      text,
      "name: \"r\"\n"
      "model:\n  kind: \"gpt\"\n  layers: 2\n  d_model: 32\n  heads: 4\n  tied: true\n"
      "  rotary_base: 10000\n"
      "  kv_heads: 0\n"
      "  qk_norm: false\n"
      "  bias: none\n"
      "  sequence_parallel: false\n"
      "  convert_norms: false\n"
      "  gather_keys: false\n  norm_epsilon: 1e-05\n  head_dim: 0\n  rotary_scaling: []\n  vocabulary: 256\n"
      "  d_hidden: 0\n"
      "data:\n  text: [\"a\", \"b\"]\n  tokens: []\n  mask: []\n  seq: 16\n  valid: [1, 0.5]\n  validation: 0\n"
      "mesh: \"dp_replicate=2 dp_shard=2\"\n"
      "precision:\n  param: f32\n  grad: param\n  reduce: grad\n  accumulate: auto\n  compute: f32\n  residual: auto\n"
      "  loss_scale: 10\n  overrides:\n    \"*norm*\": {param: f64}\n"
      "shard:\n  zero: 0\n  outer_zero: 0\n  bucket_mib: 25\n  window: 0\n  prefetch: 1\n  groups: []\n"
      "schedule:\n  stages: 0\n  layers: []\n"
      "train:\n  global_batch: 6\n  microbatches: 1\n  leaves: 0\n  recompute: []\n  steps: 10\n  lr: 0.001\n  warmup: "
      "0\n"
      "  final_lr_fraction: 0.1\n  clip: 1\n  beta1: 0.9\n  beta2: 0.95\n  epsilon: 1e-08\n"
      "  weight_decay: 0\n  seed: 1\n  sync: [all]\n"
      "optimizer:\n  kind: adamw\n  momentum: 0\n  nesterov: false\n"
      "  muon:\n    momentum: 0.95\n    nesterov: true\n    a: 3.4445\n    b: -4.775\n    c: 2.0315\n    steps: 5\n"
      "    epsilon: 1e-07\n    adjust_lr: original\n    dtype: auto\n    way: cheapest\n    blockwise: false\n"
      "groups: []\n"
      "evaluate:\n  samples: 256\n  every: 0\n  prompts: []\n  prompt_tokens: 40\n"
      "checkpoint:\n  every: 0\n  keep: 2\n");
  free(text);
  ad_recipe_destroy(r);
}

static void the_decimal_point_is_a_point_in_every_locale(void **state) {
  if (!setlocale(LC_NUMERIC, "de_DE.UTF-8")) skip();
  prints_as_itself(GOOD, (const char *const[]){"train.lr=0.5"}, 1);
  setlocale(LC_NUMERIC, "C");
}

/* ---- what recipes give: precision policies, worlds, overrides ---- */

static void a_policy_is_precision_with_the_first_override_that_matches(void **state) {
  ad_recipe *r =
      READ(GOOD, "precision.overrides={\"blocks.1.*\": {grad: f32, reduce: f64}, \"blocks.*\": {param: f64}}");
  ad_precision_policy c;
  assert_int_equal(ad_recipe_precision_policy(r, "embedding.weight", &c), AD_OK);
  assert_int_equal(c.param, AD_F32);
  assert_int_equal(ad_recipe_precision_policy(r, "blocks.0.attn.wq", &c), AD_OK);
  assert_int_equal(c.param, AD_F64);
  assert_int_equal(c.grad, AD_F64);
  assert_int_equal(ad_recipe_precision_policy(r, "blocks.1.attn.wq", &c), AD_OK);
  assert_int_equal(c.param, AD_F32);
  assert_int_equal(c.grad, AD_F32);
  assert_int_equal(c.reduce, AD_F64);
  assert_int_equal(c.accumulate, AD_F64);
  ad_recipe_destroy(r);
}

static void a_raw_gradient_has_the_dtype_of_the_tape(void **state) {
  ad_recipe *r = READ(GOOD, "precision.compute=f64", "precision.grad=raw");
  ad_precision_policy c;
  assert_int_equal(ad_recipe_precision_policy(r, "embedding.weight", &c), AD_OK);
  assert_true(c.raw && c.param == AD_F32 && c.grad == AD_F64 && c.reduce == AD_F64 && c.accumulate == AD_F64);
  ad_recipe_destroy(r);
}

static char warned[1024];

static void keep_warning(void *context, ad_log_level level, const char *message) {
  if (level == AD_LOG_WARNING) snprintf(warned, sizeof warned, "%s", message);
}

static const char *warning_of(const char *text, const char *set) {
  *warned = 0;
  ad_set_log(keep_warning, NULL);
  ad_recipe *r = NULL;
  ad_status status = ad_recipe_parse(text, "r.yaml", &set, 1, &r);
  ad_set_log(NULL, NULL);
  assert_int_equal(status, AD_OK);
  ad_recipe_destroy(r);
  return warned;
}

/* Where all overrides that match were merged, the norms of blocks would have had both dtypes. */
static void a_parameter_whose_dtypes_change_because_the_first_override_counts_is_reported(void **state) {
  assert_text_says(warning_of(GOOD, "precision.overrides={\"blocks.*\": {param: f64}, \"*norm*\": {grad: f32}}"),
                   "r.yaml", "precision.overrides", "4", "blocks.0.norm.attn", "f64", "f32");
  assert_string_equal(warning_of(GOOD, "precision.overrides={\"*norm*\": {param: f64}, \"blocks.*\": {param: f64}}"),
                      "");
  /* Merged, these would have contradicted each other: earlier versions refused the recipe. */
  assert_string_equal(warning_of(GOOD,
                                 "precision.overrides={\"blocks.*\": {reduce: f64, accumulate: f64}, "
                                 "\"*norm*\": {accumulate: f32}}"),
                      "");
}

/* ---- the program that a recipe makes ---- */

static ad_program *make(const ad_recipe *recipe, ad_dtype dtype, ad_comm **comm) {
  ad_program *program;
  int64_t ranks;
  assert_int_equal(ad_recipe_world(recipe, &ranks), AD_OK);
  assert_int_equal(ad_comm_open_dry(0, ranks, comm), AD_OK);
  if (ad_recipe_program(recipe, *comm, dtype, &program)) fail_msg("%s", ad_last_error());
  return program;
}

static void the_program_is_made_as_the_recipe_says(void **state) {
  ad_recipe *r = READ(GOOD, "shard.zero=1", "train.microbatches=3", "train.seed=9",
                      "precision.overrides={\"*norm*\": {param: f64}}");
  char text[64];
  int64_t ranks;
  ad_comm *comm;
  assert_int_equal(ad_recipe_world(r, &ranks), AD_OK);
  assert_int_equal(ranks, 4);
  assert_string_equal(ad_recipe_mesh_text(r, text, sizeof text), "dp_replicate=2 dp_shard=2");
  ad_program *program = make(r, 0, &comm);
  const ad_program_setting *setting = ad_program_setting_of(program);
  assert_true(setting->global_batch == 6 && setting->microbatches == 3 && setting->seed == 9);
  assert_string_equal(ad_mesh_text(ad_program_mesh(program, 0)), "dp_replicate=2 dp_shard=2");
  const ad_module_spec *module = ad_program_module(program, 0);
  assert_true(module->param_count > 2);
  for (size_t i = 0; i < module->param_count; i++) {
    const ad_param_spec *spec = &module->params[i];
    ad_recipe_sharding sharding = ad_recipe_shard_of(r, spec->name);
    ad_layout storage = ad_recipe_storage(&sharding, spec);
    assert_true(ad_layout_equal(&spec->storage, &storage));
    assert_int_equal(spec->storage.type[AD_DP_SHARD], AD_S(0));
    assert_int_equal(spec->policy.param, strstr(spec->name, "norm") ? AD_F64 : AD_F32);
    assert_int_equal(spec->policy.accumulate, strstr(spec->name, "norm") ? AD_F64 : AD_F32);
  }
  ad_program_destroy(program);
  ad_comm_close(comm);
  ad_recipe_destroy(r);
}

/* What is sharded over dp_shard is updated in parts by the replicas, and nothing else. */
static void replicas_update_parts_of_what_is_sharded(void **state) {
  static const struct {
    const char *mesh, *zero, *outer, *groups, *storage, *update;
  } cases[] = {
      {"mesh=dp_replicate=2 dp_shard=2", "shard.zero=1", "shard.outer_zero=1", "groups=[]",
       "dp_replicate=R dp_shard=S0", "dp_shard=S0 dp_replicate=S0"},
      {"mesh=dp_shard=2 dp_replicate=2", "shard.zero=3", "shard.outer_zero=1", "groups=[]",
       "dp_shard=S0 dp_replicate=R", "dp_shard=S0 dp_replicate=S0"},
      {"mesh=dp_replicate=2 dp_shard=2", "shard.zero=3", "shard.outer_zero=0", "groups=[]",
       "dp_replicate=R dp_shard=S0", "dp_replicate=R dp_shard=S0"},
      {"mesh=dp_replicate=2 dp_shard=2", "shard.zero=3", "shard.outer_zero=1",
       "groups=[{match: \"*wq\", frozen: true}]", "dp_replicate=R dp_shard=S0", "dp_replicate=R dp_shard=S0"},
      {"mesh=dp_replicate=1 dp_shard=2", "shard.zero=3", "shard.outer_zero=1", "groups=[]",
       "dp_replicate=R dp_shard=S0", "dp_replicate=R dp_shard=S0"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char storage[96], update[96];
    ad_comm *comm;
    ad_recipe *r = READ(GOOD, cases[i].mesh, cases[i].zero, cases[i].outer, cases[i].groups);
    ad_program *program = make(r, 0, &comm);
    const ad_module_spec *module = ad_program_module(program, 0);
    size_t p = 0;
    while (strcmp(module->params[p].name, "blocks.0.attn.wq") != 0) p++;
    assert_string_equal(ad_layout_print(&module->params[p].storage, storage, sizeof storage), cases[i].storage);
    assert_string_equal(ad_layout_print(&module->params[p].update, update, sizeof update), cases[i].update);
    ad_program_destroy(program);
    ad_comm_close(comm);
    ad_recipe_destroy(r);
  }
}

static void a_recipe_of_any_size_is_read_without_the_memory_that_it_would_take(void **state) {
  ad_recipe *r = READ(GOOD, "train.global_batch=16777216", "data.seq=16777216", "model.layers=90",
                      "model.d_model=12288", "mesh=dp=3");
  ad_recipe_destroy(r);
}

static void a_dtype_that_is_asked_for_is_in_every_policy(void **state) {
  ad_recipe *r = READ(GOOD, "precision={param: bf16, reduce: f16, grad: raw}");
  ad_comm *comm;
  ad_program *program = make(r, AD_F64, &comm);
  const ad_module_spec *module = ad_program_module(program, 0);
  for (size_t i = 0; i < module->param_count; i++) {
    const ad_precision_policy *c = &module->params[i].policy;
    assert_true(c->param == AD_F64 && c->grad == AD_F64 && c->reduce == AD_F64 && c->accumulate == AD_F64 && !c->raw);
  }
  ad_program_destroy(program);
  ad_comm_close(comm);
  ad_recipe_destroy(r);
}

/* ---- recipes in files ---- */

static const char *write_recipe(const char *data) {
  static char path[64];
  snprintf(path, sizeof path, "/tmp/addend-recipe-%ld.yaml", (long)getpid());
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fprintf(file, MODEL MESH TRAIN "%s", data);
  fclose(file);
  return path;
}

static void the_text_is_looked_for_before_any_rank_starts(void **state) {
  ad_recipe *recipe = NULL;
  char first[256], second[256];
  const char *path = write_recipe("data:\n  text:\n    - /nowhere/a\n    - /etc/passwd\n    - /nowhere/b\n  seq: 4\n");
  snprintf(first, sizeof first, "%s:6: data.text", path);
  snprintf(second, sizeof second, "%s:8: data.text", path);
  assert_int_equal(ad_recipe_read(path, NULL, 0, &recipe), AD_IO);
  assert_says(first, "/nowhere/a", second, "/nowhere/b");
  assert_null(recipe);
  remove(path);
}

static void a_text_that_is_too_short_is_reported_at_seq(void **state) {
  ad_recipe *recipe;
  const char *path = write_recipe("data:\n  text: [/etc/passwd]\n  seq: 16000000\n");
  assert_int_equal(ad_recipe_read(path, NULL, 0, &recipe), AD_INVALID);
  assert_says("6", "data.seq");
  assert_says("16000000", "16000001");
  remove(path);
}

static void a_recipe_that_cannot_be_read_is_named(void **state) {
  ad_recipe *recipe;
  assert_int_equal(ad_recipe_read("/nowhere/x.yaml", NULL, 0, &recipe), AD_IO);
  assert_says("/nowhere/x.yaml");
  assert_int_equal(ad_recipe_read("/tmp", NULL, 0, &recipe), AD_IO);
  assert_says("/tmp");
}

static void a_failing_allocation_leaves_nothing_behind(void **state) {
  const char *sets[] = {"train.steps=5", "precision.overrides={\"*norm*\": {param: f64}}", "shard.prefetch=2"};
  assert_true(fails_with_each_allocation(GOOD, sets, 3, AD_OK) > 50);
  assert_true(fails_with_each_allocation("model: 3\nmesh: x=2\n", NULL, 0, AD_INVALID) > 3);
}

/* The mesh of a stage and the view of the experts are made to be checked: a check that cannot be made for want of
 * memory accepts nothing, and finds no mistake. */
static void what_cannot_be_checked_for_want_of_memory_is_not_judged(void **state) {
  static const char text[] =
      "model: {kind: moe, layers: 2, d_model: 24, heads: 6, experts: 5, top_k: 2, expert_hidden: 10}\n" DATA
      "mesh: \"dp_shard=2 tp=2\"\n" TRAIN;
  const char *const views[] = {"views.sparse=ep=2 etp=1", "views.sparse=ep=2", "views.sparse=efsdp=1 ep=4 etp=1",
                               "data.seq=16"};
  for (size_t i = 0; i < sizeof views / sizeof *views; i++)
    assert_true(fails_with_each_allocation(text, &views[i], 1, AD_OK) > 50);
}

static void changes_are(const char *expected, const char *text, const char *set) {
  ad_recipe *r = READ(text, set);
  ad_recipe_changes changes;
  char words[1024] = "";
  size_t used = 0;
  assert_int_equal(ad_recipe_changes_list(r, &changes), AD_OK);
  for (size_t i = 0; i < changes.count; i++) {
    const ad_recipe_change *at = &changes.list[i];
    used += (size_t)snprintf(words + used, sizeof words - used, "%s: %s, not %s\n", at->key, at->value,
                             at->fallback ? at->fallback : "-");
  }
  assert_string_equal(words, expected);
  ad_recipe_changes_release(&changes);
  ad_recipe_destroy(r);
}

#define REQUIRED_CHANGES                                                           \
  "model.kind: \"gpt\", not -\nmodel.layers: 2, not -\nmodel.d_model: 32, not -\n" \
  "model.heads: 4, not -\ndata.text: [\"a\", \"b\"], not -\ndata.seq: 16, not -\n" \
  "mesh: \"dp_replicate=2 dp_shard=2\", not -\n"
#define TRAIN_CHANGES "train.global_batch: 6, not -\ntrain.steps: 10, not -\ntrain.lr: 0.001, not -\n"

static void what_is_given_is_held_against_its_default(void **state) {
  changes_are(REQUIRED_CHANGES TRAIN_CHANGES, GOOD, NULL);
  changes_are(REQUIRED_CHANGES "shard.zero: 2, not 0\n" TRAIN_CHANGES, GOOD, "shard.zero=2");
  changes_are(REQUIRED_CHANGES "precision.reduce: bf16, not grad\n" TRAIN_CHANGES, GOOD, "precision={reduce: bf16}");
  changes_are(REQUIRED_CHANGES "precision.overrides: {\"*.norm.*\": {param: f64}}, not -\n" TRAIN_CHANGES, GOOD,
              "precision.overrides={\"*.norm.*\": {param: f64}}");
  // Keys that are given with their default value count as unchanged.
  changes_are(REQUIRED_CHANGES TRAIN_CHANGES, GOOD, "train.epsilon=1.0e-8");
  changes_are(REQUIRED_CHANGES TRAIN_CHANGES, GOOD, "precision.param=f32");
}

static void what_is_asked_of_a_validation_set_needs_one(void **state) {
  ad_recipe *r = READ(GOOD, "data.validation=0.5", "evaluate={samples: 10, every: 3}");
  assert_int_equal(r->evaluate.samples, 10);
  assert_int_equal(r->evaluate.every, 3);
  ad_recipe_destroy(r);
  SET_SAYS(("--set evaluate.every", "data.validation", "0", "--set evaluate.samples"), GOOD, "evaluate.every=3",
           "evaluate.samples=10");
  SET_SAYS(("--set evaluate.samples", "0", "-1"), GOOD, "evaluate.samples=-1");
  ad_recipe_destroy(READ(GOOD, "evaluate={samples: 0}"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_left_out_has_its_default),
      cmocka_unit_test(every_kind_of_value_is_read),
      cmocka_unit_test(microbatches_before_the_last_reduce_as_the_storage_of_gradients_asks),
      cmocka_unit_test(replicas_update_parts_of_what_is_sharded),
      cmocka_unit_test(what_is_reported_of_reductions_holds),
      cmocka_unit_test(a_beta_of_zero_is_a_beta),
      cmocka_unit_test(all_errors_are_reported_together_in_the_order_of_their_lines),
      cmocka_unit_test(missing_keys_are_named_with_what_they_are),
      cmocka_unit_test(without_a_program_only_the_keys_of_every_recipe_are_judged),
      cmocka_unit_test(the_program_may_be_named_by_a_set_anywhere),
      cmocka_unit_test(unknown_keys_get_the_nearest_name),
      cmocka_unit_test(wrong_types_are_reported_with_what_was_written),
      cmocka_unit_test(a_model_that_is_named_in_a_text_is_not_looked_for),
      cmocka_unit_test(the_text_must_be_named),
      cmocka_unit_test(an_optimizer_has_its_own_options),
      cmocka_unit_test(muon_has_its_own_options),
      cmocka_unit_test(every_optimizer_can_be_written_in_a_recipe),
      cmocka_unit_test(a_number_is_taken_up_to_its_bounds),
      cmocka_unit_test(prompts_are_taken_up_to_their_bounds),
      cmocka_unit_test(numbers_are_printed_with_the_digits_that_they_need),
      cmocka_unit_test(what_does_not_fit_together_is_reported),
      cmocka_unit_test(no_early_microbatch_sums_over_all_ranks_under_zb),
      cmocka_unit_test(a_name_that_is_no_folder_of_its_own_is_refused),
      cmocka_unit_test(precision_is_checked),
      cmocka_unit_test(a_list_of_dtypes_is_of_those_that_are_taken_there),
      cmocka_unit_test(every_policy_that_means_something_is_taken),
      cmocka_unit_test(overrides_are_checked),
      cmocka_unit_test(a_pattern_that_matches_nothing_is_a_mistake),
      cmocka_unit_test(a_pattern_that_is_never_the_first_is_a_mistake),
      cmocka_unit_test(what_this_version_cannot_do_is_reported),
      cmocka_unit_test(a_schedule_follows_from_the_stages_unless_it_is_named),
      cmocka_unit_test(a_pipeline_has_a_most_of_stages),
      cmocka_unit_test(layers_are_not_held_to_stages_that_are_refused),
      cmocka_unit_test(a_key_that_was_renamed_is_named),
      cmocka_unit_test(keys_of_pools_are_unknown_to_a_text_model),
      cmocka_unit_test(what_is_no_yaml_is_reported_with_its_line),
      cmocka_unit_test(nesting_is_refused_past_its_bound),
      cmocka_unit_test(a_tree_is_refused_past_its_bound),
      cmocka_unit_test(any_depth_is_refused_at_once),
      cmocka_unit_test(a_byte_order_mark_is_passed_over),
      cmocka_unit_test(every_file_gives_a_name),
      cmocka_unit_test(odd_documents_are_refused),
      cmocka_unit_test(a_long_list_of_mistakes_is_cut_with_a_number),
      cmocka_unit_test(set_replaces_and_creates_nodes_in_order),
      cmocka_unit_test(set_alone_can_say_everything),
      cmocka_unit_test(keys_with_dots_are_quoted_in_a_path),
      cmocka_unit_test(what_is_set_wrong_is_reported_by_its_path),
      cmocka_unit_test(a_set_below_what_is_no_mapping_is_reported),
      cmocka_unit_test(sections_may_be_empty),
      cmocka_unit_test(what_is_asked_of_a_validation_set_needs_one),
      cmocka_unit_test(what_is_printed_reads_back_as_the_same),
      cmocka_unit_test(a_word_between_no_and_yes_is_read_and_printed),
      cmocka_unit_test(every_key_is_printed),
      cmocka_unit_test(what_is_given_is_held_against_its_default),
      cmocka_unit_test(the_decimal_point_is_a_point_in_every_locale),
      cmocka_unit_test(a_raw_gradient_has_the_dtype_of_the_tape),
      cmocka_unit_test(a_policy_is_precision_with_the_first_override_that_matches),
      cmocka_unit_test(a_parameter_whose_dtypes_change_because_the_first_override_counts_is_reported),
      cmocka_unit_test(the_program_is_made_as_the_recipe_says),
      cmocka_unit_test(a_recipe_of_any_size_is_read_without_the_memory_that_it_would_take),
      cmocka_unit_test(a_dtype_that_is_asked_for_is_in_every_policy),
      cmocka_unit_test(the_text_is_looked_for_before_any_rank_starts),
      cmocka_unit_test(a_text_that_is_too_short_is_reported_at_seq),
      cmocka_unit_test(a_recipe_that_cannot_be_read_is_named),
      cmocka_unit_test(a_failing_allocation_leaves_nothing_behind),
      cmocka_unit_test(what_cannot_be_checked_for_want_of_memory_is_not_judged),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
