/* Tests recipes of a user's program with several modules and its own keys: its keys are read together with those of
 * every recipe, each module has its mesh, and no other program accepts its keys. */
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
#include "addend/data.h"
#include "gpt/gpt.h"
#include "moe/moe.h"
#include "ocr/ocr.h"
#include "decompose/model.h"
#include "addend/recipe.h"
#include "architecture/architecture.h"
#include "base/memory.h"
#include "program/program.h"
#include "recipe/recipe.h"
#include "recipe/schema.h"
#include "parsing.h"
#include "says.h"

/* ---- a user's program ---- */

typedef struct pair_options {
  int64_t width, doubled; /* doubled: derived from width */
  char *teacher;
  double *weights;
  size_t weight_count;
  char **files;
  size_t file_count;
  int64_t balance;
  char *sparse;
} pair_options;

#define AT(field) offsetof(pair_options, field)

static const ad_key pair_keys[] = {
    {"train.balance", AD_KEY_INTEGER, .offset = AT(balance), .most = 9, .fallback = "0", .help = "of both"},
    {"losses.weights", AD_KEY_NUMBER, .list = 1, .offset = AT(weights), .second = AT(weight_count), .most = 2,
     .fallback = "", .help = "of the two losses"},
    {"losses.teacher", AD_KEY_TEXT, .offset = AT(teacher), .fallback = "", .help = "a file"},
    {"model.width", AD_KEY_INTEGER, .offset = AT(width), .least = 2, .most = 64, .help = "of both"},
    {"views.sparse", AD_KEY_VIEW, .offset = AT(sparse), .fallback = "", .help = "of the encoder's ranks"},
    {"images", AD_KEY_TEXT, .list = 1, .offset = AT(files), .second = AT(file_count), .help = "files"},
};

static void complete_pair(void *options) {
  pair_options *pair = options;
  pair->doubled = 2 * pair->width;
}

static void check_pair(const void *options, const ad_program_setting *setting, const ad_mesh *const *meshes,
                       const ad_complaints *to) {
  const pair_options *pair = options;
  if (ad_mesh_axis_size(meshes[1], AD_TP) > 1) ad_complain(to, "mesh.model", "has tp");
  if (pair->width % 2) ad_complain(to, "model.width", "must be even, is %lld", (long long)pair->width);
  if (!pair->width) ad_complain(to, "model.width", "a key that could not be read is reported once");
  if (pair->balance > setting->microbatches) ad_complain(to, "train.balance", "is more than microbatches");
}

static void check_pair_files(const void *options, const ad_complaints *to) {
  const pair_options *pair = options;
  char key[32];
  for (size_t i = 0; i < pair->file_count; i++) {
    snprintf(key, sizeof key, "images[%zu]", i);
    if (access(pair->files[i], R_OK)) to->add(to->context, key, AD_IO, pair->files[i]);
  }
}

static ad_status no_phase(void *own, ad_phase_run *at) { return AD_OK; }

static ad_status create_pair(const void *options, ad_program *to, void **own) {
  static const char *const names[] = {"encoder", "model"};
  for (size_t m = 0; m < 2; m++) {
    const ad_mesh *mesh = ad_program_mesh(to, m);
    ad_layout full = ad_layout_all(mesh, AD_R);
    ad_param_spec param = {.size = sizeof param,
                           .name = "w",
                           .shape = {1, {((const pair_options *)options)->doubled}},
                           .layout = full,
                           .storage = full,
                           .sharded = AD_AXES(AD_DP_SHARD)};
    ad_module_spec spec = {.size = sizeof spec, .name = names[m], .mesh = mesh, .params = &param, .param_count = 1};
    ad_status status = ad_program_add_module(to, &spec);
    if (status) return status;
  }
  ad_count_spec count = {
      .size = sizeof count, .name = "samples", .layout = ad_layout_all(ad_program_mesh(to, 1), AD_R)};
  ad_status status = ad_program_add_count(to, &count);
  if (!status) status = ad_program_add_loss(to, &(ad_loss_spec){.size = sizeof(ad_loss_spec), .name = "loss"});
  return status ? status
                : ad_program_add_phase(
                      to, &(ad_phase){.size = sizeof(ad_phase), .name = "both", .module = 1, .run = no_phase});
}

static ad_status read_nothing(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  return AD_OK;
}

static const char *const pair_modules[] = {"encoder", "model", NULL};
static const ad_program_kind pair = {
    .size = sizeof pair,
    .name = "pair",
    .help = "two modules",
    .modules = pair_modules,
    .keys = pair_keys,
    .key_count = sizeof pair_keys / sizeof *pair_keys,
    .options_size = sizeof(pair_options),
    .create = create_pair,
    .read = read_nothing,
    .rules = {.complete = complete_pair, .check = check_pair, .check_files = check_pair_files}};

static int register_pair(void **state) { return ad_program_register(&pair); }

/* ---- recipes of this program ---- */

#define MODEL "model: {kind: pair, width: 4}\n"
#define IMAGES "images: [a, b]\n"
#define MESH "mesh: {encoder: tp=4, model: dp=2 cp=2}\n"
#define TRAIN "train: {global_batch: 6, steps: 10, lr: 1e-3}\n"
#define GOOD MODEL IMAGES MESH TRAIN /* lines 1 to 4 */
#define DECOMPOSE                                                                        \
  "model: {kind: decompose, layers: 1, d_model: 8, heads: 2}\ndata: {text: a, seq: 4}\n" \
  "importance: {layers: 1, d_model: 8, heads: 2}\nmesh: {ci: dp=1, blocks: dp=1, adv: dp=1}\n" TRAIN
#define OCR                                                                                                         \
  "model: {kind: ocr, encoder_layers: 1, encoder_d_model: 16, encoder_heads: 4, patch: 8, layers: 1, d_model: 24, " \
  "heads: 4}\ndata: {text: a, fonts: a, chars: 8, height: 16, width: 64, sizes: [9, 11]}\n" TRAIN
#define EXPERTS                                                                                     \
  "model: {kind: moe, layers: 2, d_model: 24, heads: 6, experts: 5, top_k: 2, expert_hidden: 10}\n" \
  "data: {text: a, seq: 8}\n" TRAIN
#define GPT "model: {kind: gpt, layers: 2, d_model: 32, heads: 4}\ndata: {text: a, seq: 16}\nmesh: dp=2\n" TRAIN

static const pair_options *pair_of(const ad_recipe *recipe) { return recipe->options; }

static void a_view_enumerates_the_ranks_of_its_mesh(void **state) {
  ad_recipe *recipe = READ(GOOD "views: {sparse: efsdp=2 ep=2}\n", NULL);
  assert_string_equal(pair_of(recipe)->sparse, "efsdp=2 ep=2");
  char *printed;
  assert_int_equal(ad_recipe_print(recipe, &printed), AD_OK);
  assert_text_says(printed, "efsdp=2 ep=2");
  free(printed);
  ad_recipe_destroy(recipe);
  SAYS(("r.yaml:5: views.sparse", "efsdp=2 ep=3", "6", "tp=4", "4"), GOOD "views: {sparse: efsdp=2 ep=3}\n");
}

static void assert_view(const char *mesh, const char *text, const char *wanted) {
  ad_mesh *of, *view;
  assert_int_equal(ad_mesh_create(mesh, &of), AD_OK);
  assert_int_equal(ad_key_view(of, text, &view), AD_OK);
  assert_string_equal(ad_mesh_text(view), wanted);
  ad_mesh_destroy(view);
  ad_mesh_destroy(of);
}

static void efsdp_has_the_ranks_that_a_view_leaves(void **state) {
  assert_view("dp=8", "ep=2 etp=1", "efsdp=4 ep=2 etp=1");
  assert_view("dp=4 tp=2", "dp_replicate=2 ep=2 etp=2", "dp_replicate=2 efsdp=1 ep=2 etp=2");
  assert_view("dp=8", "efsdp=2 ep=4", "efsdp=2 ep=4");
}

static void kinds_are_found_by_their_name(void **state) {
  assert_ptr_equal(ad_program_kinds()[0], ad_gpt());
  assert_ptr_equal(ad_program_kinds()[1], ad_moe());
  assert_ptr_equal(ad_program_kinds()[2], ad_ocr());
  assert_ptr_equal(ad_program_kinds()[3], ad_decompose());
  assert_ptr_equal(ad_program_kinds()[4], &pair);
  assert_null(ad_program_kinds()[5]);
  assert_ptr_equal(ad_program_kind_find("pair"), &pair);
  assert_ptr_equal(ad_program_kind_find("gpt"), ad_gpt());
  assert_null(ad_program_kind_find("diffuse"));
  assert_null(ad_program_kind_find(NULL));
}

static void a_kind_that_cannot_be_told_apart_is_not_registered(void **state) {
  static const char *const none[] = {NULL};
  ad_program_kind other = pair;
  assert_int_equal(ad_program_register(&pair), AD_INVALID);
  assert_says("pair");
  other.name = "gpt";
  assert_int_equal(ad_program_register(&other), AD_INVALID);
  other.name = "empty";
  other.modules = none;
  assert_int_equal(ad_program_register(&other), AD_INVALID);
  assert_says("empty");
  assert_null(ad_program_kind_find("empty"));
}

static void the_keys_of_a_program_are_among_those_of_every_recipe(void **state) {
  ad_recipe *r = READ(GOOD, "losses.weights=[1, 0.5]", "train.balance=1", "losses.teacher=t");
  char *text;
  assert_int_equal(pair_of(r)->width, 4);
  assert_int_equal(pair_of(r)->doubled, 8);
  assert_int_equal(pair_of(r)->weight_count, 2);
  assert_int_equal(pair_of(r)->file_count, 2);
  assert_int_equal(ad_recipe_print(r, &text), AD_OK);
  assert_string_equal(
      text,
      "name: \"r\"\n"
      "model:\n  kind: \"pair\"\n  width: 4\n"
      "losses:\n  weights: [1, 0.5]\n  teacher: \"t\"\n"
      "images: [\"a\", \"b\"]\n"
      "mesh:\n  encoder: \"tp=4\"\n  model: \"dp=2 cp=2\"\nplacement: \"colocated\"\n"
      "precision:\n  param: f32\n  grad: param\n  reduce: grad\n  accumulate: auto\n  compute: f32\n  residual: auto\n"
      "  loss_scale: 10\n  overrides: {}\n"
      "shard:\n  zero: 0\n  outer_zero: 0\n  bucket_mib: 25\n  window: 0\n  prefetch: 1\n  groups: []\n"
      "train:\n  global_batch: 6\n  microbatches: 1\n  leaves: 0\n  recompute: []\n  steps: 10\n  lr: 0.001\n  warmup: "
      "0\n"
      "  final_lr_fraction: 0.1\n  clip: 1\n  beta1: 0.9\n  beta2: 0.95\n  epsilon: 1e-08\n"
      "  weight_decay: 0\n  seed: 1\n  sync: [all]\n  balance: 1\n"
      "optimizer:\n  kind: adamw\n  momentum: 0\n  nesterov: false\n"
      "  muon:\n    momentum: 0.95\n    nesterov: true\n    a: 3.4445\n    b: -4.775\n    c: 2.0315\n    steps: 5\n"
      "    epsilon: 1e-07\n    adjust_lr: original\n    dtype: auto\n    way: cheapest\n    blockwise: false\n"
      "groups: []\n"
      "evaluate:\n  samples: 256\n  every: 0\n"
      "checkpoint:\n  every: 0\n  keep: 2\n");
  ad_recipe *again = READ(text, NULL);
  char *twice;
  assert_int_equal(ad_recipe_print(again, &twice), AD_OK);
  assert_string_equal(text, twice);
  free(text);
  free(twice);
  ad_recipe_destroy(again);
  ad_recipe_destroy(r);
}

/* A list of maps is given as one list for each key, and is one list in the recipe. */
static void a_list_of_maps_is_printed_once_and_reads_back_as_the_same(void **state) {
  ad_recipe *r = READ(
      DECOMPOSE
      "sites:\n  - {match: \"blocks.*.attn.wq\", components: 3}\n  - {components: 5, match: \"blocks.*.mlp.up\"}\n",
      NULL);
  char *once, *twice;
  assert_int_equal(ad_recipe_print(r, &once), AD_OK);
  const char *sites = strstr(once, "sites:");
  assert_non_null(sites);
  assert_null(strstr(sites + 1, "sites:"));
  assert_text_says(sites, "blocks.*.attn.wq", "3", "blocks.*.mlp.up", "5");
  ad_recipe *again = READ(once, NULL);
  assert_int_equal(ad_recipe_print(again, &twice), AD_OK);
  assert_string_equal(once, twice);
  free(once);
  free(twice);
  ad_recipe_destroy(again);
  ad_recipe_destroy(r);
}

/* A number that does not fit is answered with the nearest ones that do; where the lower one would be below 1, with the
 * two above. */
static void the_nearest_values_that_fit_are_reported(void **state) {
  static const struct {
    const char *meshes, *set, *other, *facts[9]; /* other: a second value that is set, NULL: none */
  } cases[] = {
      {"encoder: dp=1, model: cp=2", "data.chars=9", NULL, {"data.chars", "cp=2", "4", "8", "9", "8", "12"}},
      {"encoder: dp=1, model: cp=3", "data.chars=2", NULL, {"data.chars", "cp=3", "6", "8", "2", "4", "10"}},
      {"encoder: dp=1, model: cp=5",
       "data.chars=4",
       "data.width=72",
       {"data.chars", "cp=5", "10", "9", "4", "1", "11"}},
      {"encoder: dp=1, model: cp=5",
       "data.chars=3",
       "data.width=72",
       {"data.chars", "cp=5", "10", "9", "3", "1", "11"}},
      {"encoder: dp=1, model: cp=5",
       "data.chars=2",
       "data.width=72",
       {"data.chars", "cp=5", "10", "9", "2", "1", "11"}},
      {"encoder: tp=3, model: dp=1", "model.encoder_heads=4", NULL, {"model.encoder_heads", "tp=3", "4", "6"}},
      {"encoder: tp=3, model: dp=1", "model.encoder_heads=2", NULL, {"model.encoder_heads", "tp=3", "2", "3"}},
      {"encoder: dp=1, model: dp=1", "model.encoder_heads=3", NULL, {"model.encoder_heads", "16", "3", "5.333"}},
      {"encoder: dp=1, model: dp=1", "model.encoder_heads=16", NULL, {"model.encoder_heads", "16", "16", "1"}},
      {"encoder: cp=9, model: dp=1", "model.patch=8", NULL, {"model.patch", "cp=9", "8", "9"}},
      {"encoder: dp=1, model: dp=1", "model.patch=7", NULL, {"model.patch", "data.width", "64", "7", "63", "70"}},
      {"encoder: dp=1, model: dp=1", "model.patch=65", NULL, {"model.patch", "data.width", "64", "65", "65", "130"}},
      {"encoder: dp=2, model: dp=4",
       "train.global_batch=6",
       NULL,
       {"train.global_batch", "6", "1", "1", "6", "4", "4", "8"}},
      {"encoder: dp=2, model: dp=4",
       "train.global_batch=3",
       NULL,
       {"train.global_batch", "3", "1", "1", "3", "4", "4", "8"}},
      {"encoder: dp=2, model: dp=4",
       "train.global_batch=13",
       "train.microbatches=3",
       {"train.global_batch", "13", "3", "3", "5", "4", "12", "24"}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[1024];
    const char *const sets[] = {cases[i].set, cases[i].other};
    ad_recipe *recipe = NULL;
    snprintf(text, sizeof text, "%smesh: {%s}\nplacement: disjoint\n", OCR, cases[i].meshes);
    if (!ad_recipe_parse(text, "r.yaml", sets, sets[1] ? 2 : 1, &recipe)) fail_msg("%s: taken", sets[0]);
    assert_says_in(cases[i].facts[0], ad_last_error(), cases[i].facts);
  }
}

/* The decoder that is decomposed is trained first: by the keys that both have, and by those of `target` in the place of
 * `train`, on all ranks. Its end is kept, if no key says how often checkpoints are written. */
static void a_pretraining_is_the_recipe_that_its_keys_say(void **state) {
  static const char sites[] = "sites: [{match: \"blocks.*\", components: 3}]\n",
                    gpt[] =
                        "model: {kind: gpt, layers: 1, d_model: 8, heads: 2, d_hidden: 48}\n"
                        "data: {text: a, seq: 4, validation: 0.25}\n"
                        "train: {steps: 70, lr: 0.02, warmup: 3, global_batch: 24, seed: 7}\n";
  static const char *const
      steps[] = {"70", "70", "0"},
      *const made[] = {
          "name: r-target\nmesh: dp_replicate=1\ncheckpoint: {every: 70, keep: 2}\n",
          "name: r-target\nmesh: dp_replicate=4\ncheckpoint: {every: 5, keep: 4}\nevaluate: {samples: 8, every: 6}\n",
          NULL};
  for (int i = 0; i < 3; i++) {
    static const char *const more[] = {"checkpoint.every=5", "checkpoint.keep=4", "evaluate.samples=8",
                                       "evaluate.every=6",   "mesh.ci=dp=2",      "placement=disjoint"};
    char text[1024], wanted[1024], *found, *expected;
    ad_recipe *recipe = NULL, *first = NULL, *same = NULL;
    snprintf(text, sizeof text, "%s%starget: {steps: %s, lr: 0.02, warmup: 3, global_batch: 24}\n", DECOMPOSE, sites,
             steps[i]);
    const char *sets[12] = {"model.d_hidden=48", "data.validation=0.25", "train.seed=7"};
    for (size_t k = 0; i == 1 && k < 6; k++) sets[3 + k] = more[k];
    if (ad_recipe_parse(text, "dir/r.yaml", sets, i == 1 ? 9 : 3, &recipe)) fail_msg("%s", ad_last_error());
    assert_int_equal(ad_recipe_pretraining(recipe, &first), AD_OK);
    ad_recipe_destroy(recipe);
    assert_int_equal(first != NULL, made[i] != NULL);
    if (!first) continue;
    snprintf(wanted, sizeof wanted, "%s%s", gpt, made[i]);
    if (ad_recipe_parse(wanted, "w.yaml", NULL, 0, &same)) fail_msg("%s", ad_last_error());
    assert_int_equal(ad_recipe_print(first, &found), AD_OK);
    assert_int_equal(ad_recipe_print(same, &expected), AD_OK);
    assert_string_equal(found, expected);
    free(found);
    free(expected);
    ad_recipe_destroy(first);
    ad_recipe_destroy(same);
  }
}

static void no_other_program_knows_its_keys(void **state) {
  SAYS(("r.yaml:5: losses"), GPT "losses: {weights: [1]}\n");
  SET_SAYS(("--set losses.weights", "--set mesh.encoder", "--set train.balance"), GPT, "losses.weights=[1]",
           "mesh.encoder=dp=2", "train.balance=1");
  SAYS(("r.yaml:5: data"), GOOD "data: {seq: 3}\n");
}

static void kinds_are_listed_where_none_is_named(void **state) {
  SAYS(("r.yaml:1: model.kind", "--program", "FILE"),
       "model: {kind: diffuse, experts: 8, heads: 0, width: 1}\nlosses: {weights: x}\nimages: 3\n" MESH TRAIN);
  SAYS(("r.yaml:1: model.kind"), "model: {width: 4}\n" IMAGES MESH TRAIN);
}

static void each_module_has_its_mesh(void **state) {
  ad_recipe *r = READ(GOOD, "mesh.encoder=dp=2 tp=2");
  char text[64];
  int64_t ranks;
  assert_int_equal(r->mesh_count, 2);
  assert_string_equal(r->meshes[0].module, "encoder");
  assert_string_equal(r->meshes[1].module, "model");
  assert_string_equal(ad_recipe_mesh_text(r, text, sizeof text), "{encoder: dp=2 tp=2, model: dp=2 cp=2}");
  assert_int_equal(ad_recipe_world(r, &ranks), AD_OK);
  assert_int_equal(ranks, 4);
  ad_recipe_destroy(r);
  r = READ(MODEL IMAGES TRAIN, "mesh.model=dp=3", "mesh={model: dp=1, encoder: tp=2}", "mesh.model=dp=2");
  assert_string_equal(ad_recipe_mesh_text(r, text, sizeof text), "{encoder: tp=2, model: dp=2}");
  ad_recipe_destroy(r);
}

static void a_mesh_that_is_missing_or_of_no_module_is_reported_with_its_line(void **state) {
  SAYS(("r.yaml:4: mesh.model", "r.yaml:5: mesh.encodr", "mesh.encoder", "r.yaml:6: mesh.encoder", "dq=2",
        "r.yaml:7: mesh.colour"),
       MODEL IMAGES TRAIN "mesh:\n  encodr: dp=2\n  encoder: dq=2\n  colour: dp=4\n");
  SAYS(("r.yaml:3: mesh", "dp=4"), MODEL IMAGES "mesh: dp=4\n" TRAIN);
  SAYS(("r.yaml: mesh.encoder", "r.yaml: mesh.model"), MODEL IMAGES TRAIN);
  SET_SAYS(("--set mesh.decoder", "mesh.encoder", "--set mesh.model"), GOOD, "mesh.decoder=dp=4",
           "mesh.model=dp=2 tp=2");
}

static void modules_have_as_many_ranks_as_each_other(void **state) {
  SET_SAYS(("r.yaml:3: mesh", "tp=4", "4", "dp=6", "6"), GOOD, "mesh.model=dp=6");
  SET_SAYS(("--set placement"), GOOD, "placement=apart");
  ad_recipe *r = READ(GOOD, "mesh.model=dp=6", "placement=disjoint");
  int64_t ranks = 7;
  assert_int_equal(ad_recipe_world(r, &ranks), AD_OK);
  assert_int_equal(ranks, 10);
  ad_recipe_destroy(r);
  ranks = 7;
  r = READ(GOOD, NULL);
  memcpy(r->meshes[0].text, "tp=3", 4);
  assert_int_equal(ad_recipe_world(r, &ranks), AD_INVALID);
  assert_int_equal(ranks, 7);
  ad_recipe_destroy(r);
}

static void what_keys_say_together_is_reported_once_and_at_its_place(void **state) {
  SAYS(("r.yaml:1: model.width", "5", "r.yaml:4: train.balance"),
       "model: {kind: pair, width: 5}\n" IMAGES MESH
       "train: {global_batch: 6, steps: 10, lr: 1e-3, balance: 2, microbatches: 1}\n");
  SAYS(("r.yaml:1: model.width", "2", "1"), "model: {kind: pair, width: 1}\n" IMAGES MESH TRAIN);
  SAYS(("r.yaml:4: mesh.model"), MODEL IMAGES "mesh: {encoder: dp=2,\n  model: tp=2}\n" TRAIN);
}

static void a_list_with_a_mistake_is_left_empty(void **state) {
  SAYS(("r.yaml:5: losses.weights", "2", "3"), GOOD "losses: {weights: [1, 3]}\n");
  SET_SAYS(("--set images"), GOOD, "images=[a, [b]]");
}

static void a_file_that_is_missing_is_reported_at_its_element(void **state) {
  char path[64], expected[256];
  snprintf(path, sizeof path, "/tmp/addend-kinds-%ld.yaml", (long)getpid());
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fprintf(file, MODEL MESH TRAIN "images:\n  - /etc/passwd\n  - /nowhere\n");
  fclose(file);
  ad_recipe *recipe = NULL;
  snprintf(expected, sizeof expected, "%s:6", path);
  assert_int_equal(ad_recipe_read(path, NULL, 0, &recipe), AD_IO);
  assert_says(expected, "images", "/nowhere");
  remove(path);
}

static void policies_and_storage_are_reported_of_the_parameters_of_all_modules(void **state) {
  ad_recipe *r =
      READ(GOOD, "precision.overrides={encoder.*: {param: f64}}", "shard.zero=1", "mesh.encoder=dp_shard=2 tp=2");
  ad_comm *comm;
  ad_program *program;
  assert_int_equal(ad_comm_open_dry(0, 4, &comm), AD_OK);
  if (ad_recipe_program(r, comm, 0, &program)) fail_msg("%s", ad_last_error());
  assert_int_equal(ad_program_module_count(program), 2);
  assert_string_equal(ad_mesh_text(ad_program_mesh(program, 0)), "dp_shard=2 tp=2");
  assert_string_equal(ad_mesh_text(ad_program_mesh(program, 1)), "dp_shard=2 cp=2");
  for (size_t m = 0; m < 2; m++) {
    const ad_param_spec *spec = ad_program_module(program, m)->params;
    assert_int_equal(spec->policy.param, m ? AD_F32 : AD_F64);
    assert_int_equal(spec->shape.dim[0], 8);
    assert_int_equal(spec->storage.type[AD_DP_SHARD], AD_S(0));
  }
  ad_program_destroy(program);
  ad_comm_close(comm);
  ad_recipe_destroy(r);
  SET_SAYS(("--set precision.overrides", "decoder.*", "encoder.w", "model.w"), GOOD,
           "precision.overrides={decoder.*: {param: f64}}");
}

static void a_key_that_is_there_already_is_refused(void **state) {
  static const ad_key taken[] = {{"train.lr", AD_KEY_NUMBER, .offset = AT(weights), .help = "again"}};
  static ad_program_kind clash;
  clash = pair;
  clash.name = "clash";
  clash.keys = taken;
  clash.key_count = 1;
  assert_int_equal(ad_program_register(&clash), AD_OK);
  ad_recipe *recipe = NULL;
  assert_int_equal(ad_recipe_parse("model: {kind: clash}\n", "r.yaml", NULL, 0, &recipe), AD_INVALID);
  assert_says("clash", "train.lr");
}

static void a_failing_allocation_leaves_nothing_behind(void **state) {
  const char *sets[] = {"losses.weights=[1, 2]", "mesh.encoder=dp=4", "losses.teacher=t",
                        "precision.overrides={model.*: {param: f64}}"};
  assert_true(fails_with_each_allocation(GOOD, sets, 4, AD_OK) > 50);
}

/* What a kind makes to check its options may find no memory either: nothing is then accepted or refused unchecked. */
static void every_kind_of_addends_says_that_memory_ran_out(void **state) {
  static const struct {
    const char *text;
    ad_status wanted;
  } table[] = {{DECOMPOSE "sites: [{match: blocks.*.attn.wq, components: 3}]\n", AD_OK},
               {DECOMPOSE "sites: [{match: no.such.matrix, components: 3}]\n", AD_INVALID},
               {OCR "mesh: {encoder: dp=2, model: cp=2}\n", AD_OK},
               {OCR "mesh: {encoder: pp=2, model: cp=2}\n", AD_INVALID},
               {EXPERTS "mesh: dp_shard=4\nviews: {sparse: ep=2}\n", AD_OK},
               {EXPERTS "mesh: dp_shard=2 tp=2\nviews: {sparse: ep=3}\n", AD_INVALID}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++)
    assert_true(fails_with_each_allocation(table[i].text, NULL, 0, table[i].wanted) > 50);
}

/* A program that is made without a recipe refuses options with the same message as a recipe. */
static void a_program_made_without_a_recipe_is_refused_in_the_same_words(void **state) {
  const char *const meshes[] = {"dp=2 ep=2"};
  char *text = "a";
  ad_gpt_options options = {.decoder = {.layers = 0,
                                        .d_model = 32,
                                        .heads = 3,
                                        .rotary_base = 1,
                                        .norm_epsilon = 1e-5,
                                        .vocabulary = 256,
                                        .data = {.text = &text, .text_count = 1, .seq = -4}}};
  ad_comm *comm;
  ad_program *program = NULL;
  assert_int_equal(ad_comm_open_dry(0, 4, &comm), AD_OK);
  ad_program_setting setting = {.comm = comm, .meshes = meshes, .global_batch = 4, .microbatches = 1};
  assert_int_equal(ad_program_create(ad_gpt(), &options, &setting, &program), AD_INVALID);
  assert_null(program);
  assert_says("model.layers", "1", "0", "model.rotary_base", "data.seq", "-4", "model.heads", "d_model", "32", "3", "2",
              "4", "ep=2", "dp_replicate", "dp_shard", "cp", "tp");
  ad_comm_close(comm);
  SAYS(("r.yaml:1: model.layers", "1", "0", "r.yaml:2: model.rotary_base", "r.yaml:3: model.heads", "d_model", "32",
        "3", "2", "4", "r.yaml:4: data.seq", "-4", "r.yaml:5: mesh", "ep=2"),
       "model: {kind: gpt, layers: 0,\n  rotary_base: 1, d_model: 32,\n  heads: 3}\ndata: {text: a, seq: -4}\n"
       "mesh: dp=2 ep=2\n" TRAIN);
}

/* ---- the ranges of numbers ---- */

/* Prints "[1, 4096]", with a parenthesis where the limit itself is not allowed. */
static void print_range(const ad_key *key, char *buffer, size_t size) {
  snprintf(buffer, size, "%s%.16g, %.16g%s", key->open_least ? "(" : "[", key->least, key->most,
           key->open_most ? ")" : "]");
}

/* The range of every number in recipes of the shipped kinds, which is the same in each kind that has the key. */
static void a_number_has_its_range_in_every_kind(void **state) {
  static const struct {
    const char *range, *keys; /* keys: with a space before and after each */
  } rows[] = {
      {"[1, 4096]",
       " model.layers evaluate.prompt_tokens model.encoder_layers model.patch data.chars "
       "data.height data.sizes importance.layers "},
      {"[1, 1048576]",
       " model.d_model model.heads model.experts model.top_k model.encoder_d_model "
       "model.encoder_heads importance.d_model importance.heads sites[].components "},
      {"(1, 1000000000000]", " model.rotary_base "},
      {"[0, 1048576]", " model.kv_heads model.head_dim evaluate.samples evaluate.lines "},
      {"(0, 1]", " model.norm_epsilon train.epsilon losses.sparsity.epsilon ascent.eps optimizer.muon.epsilon "},
      {"(0, 1000000000000]", " model.rotary_scaling "},
      {"[1, 16777216]", " model.vocabulary data.seq train.global_batch target.global_batch "},
      {"[0, 4194304]", " model.d_hidden model.shared_experts "},
      {"[0, 1]",
       " shard.outer_zero data.valid train.final_lr_fraction model.balance_rate data.noise "
       "losses.sparsity.anneal_from losses.sparsity.anneal_to ascent.lr "},
      {"[0, 1)", " data.validation train.beta1 train.beta2 optimizer.momentum optimizer.muon.momentum "},
      {"[-24, 24]", " precision.loss_scale "},
      {"[0, 3]", " shard.zero "},
      {"(0, 65536]", " shard.bucket_mib "},
      {"[0, 4096]", " shard.window shard.prefetch schedule.layers "},
      {"[0, 2048]", " schedule.stages "},
      {"[1, 1024]", " train.microbatches "},
      {"[0, 1024]", " train.leaves "},
      {"[1, 4294967296]", " train.steps "},
      {"[0, 1000000]", " train.lr model.balance_loss target.lr losses.sparsity.beta "},
      {"[0, 4294967296]", " train.warmup evaluate.every checkpoint.every target.steps target.warmup "},
      {"[0, 1e+300]", " train.clip "},
      {"[0, 1000]", " train.weight_decay target.weight_decay ascent.steps "},
      {"[0, 9007199254740992]", " train.seed "},
      {"[1, 50]", " checkpoint.keep "},
      {"[1, 99]", " optimizer.muon.steps "},
      {"[-100, 100]", " optimizer.muon.a optimizer.muon.b optimizer.muon.c "},
      {"[1, 4194304]", " model.expert_hidden "},
      {"(0, 1000000000]", " model.capacity "},
      {"[1, 65536]", " data.width "},
      {"[-1, 1]", " data.weights "},
      {"[0, 45]", " data.rotation "},
      {"[0, 1000000000000]",
       " losses.faithfulness.coefficient losses.stochastic.coefficient losses.sparsity.coefficient "
       "losses.adversarial.coefficient "},
      {"(0, 16]", " losses.sparsity.power losses.sparsity.last_power "},
  };
  const ad_program_kind *const kinds[] = {ad_gpt(), ad_moe(), ad_ocr(), ad_decompose()};
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    ad_schema schema;
    assert_int_equal(ad_schema_create(kinds[k], &schema), AD_OK);
    for (size_t i = 0; i < schema.count; i++) {
      const ad_key *key = &schema.entries[i].key;
      char range[64], word[64];
      size_t at = 0;
      if (key->kind != AD_KEY_INTEGER && key->kind != AD_KEY_NUMBER && key->kind != AD_KEY_COUNT) continue;
      print_range(key, range, sizeof range);
      snprintf(word, sizeof word, " %s ", key->path);
      while (at < sizeof rows / sizeof *rows && strcmp(rows[at].range, range) != 0) at++;
      if (at == sizeof rows / sizeof *rows || !strstr(rows[at].keys, word))
        fail_msg("%s: %s has the range %s, and no such row has the key", kinds[k]->name, key->path, range);
    }
    ad_schema_release(&schema);
  }
}

static void each_architecture_has_the_program_that_computes_it(void **state) {
  static const char *const rows[][2] = {{"LlamaForCausalLM", "gpt"},   {"Qwen2ForCausalLM", "gpt"},
                                        {"Qwen3ForCausalLM", "gpt"},   {"MistralForCausalLM", "gpt"},
                                        {"MixtralForCausalLM", "moe"}, {"Qwen3MoeForCausalLM", "moe"}};
  size_t count = 0;
  char known[64];
  for (; ad_architectures()[count]; count++) {
    assert_string_equal(ad_architectures()[count]->name, rows[count][0]);
    assert_string_equal(ad_program_kind_computing(rows[count][0])->name, rows[count][1]);
    assert_true(ad_program_kind_computes(ad_moe(), rows[count][0]) == !strcmp(rows[count][1], "moe"));
  }
  assert_int_equal(count, sizeof rows / sizeof *rows);
  assert_null(ad_program_kind_computing("Llama"));
  assert_false(ad_program_kind_computes(ad_ocr(), "LlamaForCausalLM"));
  assert_string_equal(ad_program_kinds_exported(known, sizeof known), "gpt and moe");
  assert_string_equal(ad_program_kinds_sampled(known, sizeof known), "gpt, moe");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_architecture_has_the_program_that_computes_it),
      cmocka_unit_test(kinds_are_found_by_their_name),
      cmocka_unit_test(a_view_enumerates_the_ranks_of_its_mesh),
      cmocka_unit_test(efsdp_has_the_ranks_that_a_view_leaves),
      cmocka_unit_test(a_kind_that_cannot_be_told_apart_is_not_registered),
      cmocka_unit_test(the_keys_of_a_program_are_among_those_of_every_recipe),
      cmocka_unit_test(a_list_of_maps_is_printed_once_and_reads_back_as_the_same),
      cmocka_unit_test(the_nearest_values_that_fit_are_reported),
      cmocka_unit_test(a_pretraining_is_the_recipe_that_its_keys_say),
      cmocka_unit_test(no_other_program_knows_its_keys),
      cmocka_unit_test(kinds_are_listed_where_none_is_named),
      cmocka_unit_test(each_module_has_its_mesh),
      cmocka_unit_test(a_mesh_that_is_missing_or_of_no_module_is_reported_with_its_line),
      cmocka_unit_test(modules_have_as_many_ranks_as_each_other),
      cmocka_unit_test(what_keys_say_together_is_reported_once_and_at_its_place),
      cmocka_unit_test(a_list_with_a_mistake_is_left_empty),
      cmocka_unit_test(a_file_that_is_missing_is_reported_at_its_element),
      cmocka_unit_test(policies_and_storage_are_reported_of_the_parameters_of_all_modules),
      cmocka_unit_test(a_failing_allocation_leaves_nothing_behind),
      cmocka_unit_test(every_kind_of_addends_says_that_memory_ran_out),
      cmocka_unit_test(a_program_made_without_a_recipe_is_refused_in_the_same_words),
      cmocka_unit_test(a_number_has_its_range_in_every_kind),
      cmocka_unit_test(a_key_that_is_there_already_is_refused),  // must be last: the kind that it registers stays
  };
  return cmocka_run_group_tests(tests, register_pair, NULL);
}
