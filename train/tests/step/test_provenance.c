/* Tests what run.json says of a run on paper (backend dry), and what becomes of files that belong to the run: their
 * copies in its folder, which run.json lists. */
#include "two_modules.h"
#include "says.h"
#include "world.h"

#include <jansson.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>
#include "addend/safetensors.h"
#include "base/memory.h"
#include "kernels/kernels.h"
#include "step/companions.h"
#include "step/provenance.h"

static char folder[64];

static const char *in_folder(const char *name) {
  static char path[640];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static int make_folder(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-provenance-XXXXXX");
  return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
  char command[96];
  snprintf(command, sizeof command, "rm -r %s", folder);
  return system(command);
}

static void write_file(const char *name, const char *text) {
  FILE *file = fopen(in_folder(name), "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

/* A run on backend dry, of the first of `ranks` ranks. */
typedef struct on_paper {
  ad_recipe *recipe;
  ad_comm *comm;
  ad_run *run;
} on_paper;

static on_paper open_on_paper(ad_recipe *recipe, int64_t ranks) {
  on_paper made = {.recipe = recipe};
  must(ad_comm_open_dry(0, ranks, &made.comm));
  if (ad_run_create(made.comm, recipe, NULL, &made.run)) fail_msg("%s", ad_last_error());
  return made;
}

static void close_on_paper(on_paper *of) {
  ad_run_destroy(of->run);
  ad_comm_close(of->comm);
  ad_recipe_destroy(of->recipe);
}

static json_t *document_of(const on_paper *of, int earlier) {
  json_t *document;
  if (ad_provenance_create(of->run, folder, earlier, &document)) fail_msg("%s", ad_last_error());
  return document;
}

/* The document has all members of this JSON text; a null there means a member that is missing. */
static void has(const json_t *document, const char *expected) {
  json_t *wanted = json_loads(expected, 0, NULL), *value;
  const char *key;
  assert_non_null(wanted);
  json_object_foreach(wanted, key, value) {
    const json_t *found = json_object_get(document, key);
    if (json_is_null(value) ? !found : json_equal((json_t *)(uintptr_t)found, value)) continue;
    char *text = json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT);
    fail_msg("%s is %s, not in %s", key, text ? text : "missing", expected);
  }
  json_decref(wanted);
}

/* ---- what a run is ---- */

static void a_run_is_distinguished_by_its_numbers(void **state) {
  setenv("ADDEND_BLAS_THREADS", "3", 1);
  on_paper paper = open_on_paper(two_recipe(MESHES_OF_SIX, "", ", global_batch: 10, lr: 1", ""), 6);
  json_t *document = document_of(&paper, 0);
  has(document,
      "{\"name\": \"two\", \"kind\": \"two\", \"backend\": \"dry\", \"ranks\": 6, \"mesh\": {\"front\": "
      "\"dp_replicate=2 dp_shard=3\", \"back\": \"dp_shard=2 tp=3\"},"
      " \"placement\": \"colocated\", \"pools\": null, \"steps\": 10, \"parameters\": 3, \"elements\": 52,"
      " \"flops_per_step\": 2880.0, \"uniform_loss\": null, \"counted\": \"weight\", \"facts\": [],"
      " \"copied\": [], \"starts\": [], \"from\": null, \"finished\": null}");
  assert_string_equal(json_string_value(json_object_get(document, "version")), ad_version());
  assert_string_equal(json_string_value(json_object_get(document, "kernels")), ad_kernels_name(ad_kernels_variant()));
  assert_int_equal(json_integer_value(json_object_get(document, "product_threads")), 3);
  json_decref(document);
  close_on_paper(&paper);
  unsetenv("ADDEND_BLAS_THREADS");

  on_paper text = open_on_paper(tiny_recipe("dp=3", "", ", global_batch: 4, steps: 7, lr: 1e-2, warmup: 2"), 3);
  document = document_of(&text, 0);
  has(document,
      "{\"name\": \"tiny\", \"kind\": \"gpt\", \"ranks\": 3, \"mesh\": \"dp=3\", \"steps\": 7,"
      " \"counted\": \"tokens\", \"placement\": null, \"pools\": null}");
  assert_true(fabs(json_real_value(json_object_get(document, "uniform_loss")) - log(256)) < 1e-12);
  int64_t elements = 0;
  for (size_t i = 0; i < ad_run_param_count(text.run); i++)
    elements += ad_shape_numel(&ad_run_param_at(text.run, i).spec->shape);
  assert_int_equal(json_integer_value(json_object_get(document, "elements")), elements);
  assert_true(json_array_size(json_object_get(document, "facts")) > 0);
  json_decref(document);
  close_on_paper(&text);
}

static void pools_are_reported_where_modules_have_ranks_of_their_own(void **state) {
  static const struct {
    const char *placement, *expected;
    int64_t ranks;
  } cases[] = {{"disjoint",
                "{\"placement\": \"disjoint\", \"mesh\": {\"encoder\": \"dp=2\", \"model\": \"dp=4\"}, \"ranks\": 6,"
                " \"pools\": [{\"module\": \"encoder\", \"first_rank\": 0, \"ranks\": 2},"
                " {\"module\": \"model\", \"first_rank\": 2, \"ranks\": 4}]}",
                6},
               {"colocated", "{\"placement\": \"colocated\", \"ranks\": 2, \"pools\": null}", 2}};
  for (int i = 0; i < 2; i++) {
    char text[1024];
    ad_recipe *recipe;
    snprintf(
        text, sizeof text,
        "model: {kind: ocr, encoder_layers: 1, encoder_d_model: 16, encoder_heads: 2, patch: 4, layers: 1, d_model: 16,"
        " heads: 2}\ndata: {text: [/usr/share/common-licenses], chars: 4, height: 12, width: 32, sizes: [9, 9],"
        " fonts: [/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf]}\n"
        "mesh: {encoder: dp=2, model: dp=%d}\nplacement: %s\ntrain: {global_batch: 8, steps: 1, lr: 1}\n",
        i ? 2 : 4, cases[i].placement);
    if (ad_recipe_parse(text, "ocr.yaml", NULL, 0, &recipe)) fail_msg("%s", ad_last_error());
    on_paper made = open_on_paper(recipe, cases[i].ranks);
    json_t *document = document_of(&made, 0);
    has(document, cases[i].expected);
    json_decref(document);
    close_on_paper(&made);
  }
}

/* Keys that differ from their defaults are listed with both values; a key without a default has null in its place. */
static void changed_keys_are_beside_their_defaults(void **state) {
  on_paper paper =
      open_on_paper(two_recipe(MESHES_OF_SIX, ", apart: true", ", global_batch: 10, lr: 1, clip: 1", ""), 6);
  json_t *document = document_of(&paper, 0), *changed = json_object_get(document, "changed"), *each;
  static const struct {
    const char *key, *value, *fallback;
  } expected[] = {{"model.apart", "true", "false"}, {"train.seed", "4", "1"}, {"train.lr", "1", NULL}};
  int found = 0;
  size_t i;
  json_array_foreach(changed, i, each) {
    const char *key = json_string_value(json_object_get(each, "key"));
    assert_string_not_equal(key, "model.divides");
    for (size_t k = 0; k < sizeof expected / sizeof *expected; k++) {
      if (strcmp(key, expected[k].key) != 0) continue;
      found++;
      assert_string_equal(json_string_value(json_object_get(each, "value")), expected[k].value);
      const char *fallback = json_string_value(json_object_get(each, "default"));
      assert_string_equal(fallback ? fallback : "none", expected[k].fallback ? expected[k].fallback : "none");
      assert_non_null(json_object_get(each, "default"));
    }
  }
  assert_int_equal(found, 3);
  json_decref(document);
  close_on_paper(&paper);
}

/* ---- starts and ends ---- */

static json_t *start_at(const json_t *document, size_t i) {
  return json_array_get(json_object_get(document, "starts"), i);
}

static void starts_of_earlier_trainings_are_kept(void **state) {
  on_paper paper = open_on_paper(two_recipe(MESHES_OF_ONE, "", ", global_batch: 10, lr: 1", ""), 1);
  json_t *document = document_of(&paper, 1);  // the folder has no run.json
  assert_int_equal(json_array_size(json_object_get(document, "starts")), 0);
  must(ad_provenance_end(document, 0));  // nothing began
  must(ad_provenance_start(document, 0));
  must(ad_provenance_end(document, 0));
  has(document, "{\"finished\": null}");
  must(ad_provenance_write(document, folder));
  json_decref(document);
  document = document_of(&paper, 1);
  must(ad_provenance_start(document, 4));
  assert_int_equal(json_array_size(json_object_get(document, "starts")), 2);
  for (size_t i = 0; i < 2; i++) {
    assert_int_equal(json_integer_value(json_object_get(start_at(document, i), "first_step")), 4 * i);
    assert_true(json_is_string(json_object_get(start_at(document, i), "date")));
    assert_true(json_array_size(json_object_get(start_at(document, i), "command")) > 0);
    assert_int_equal(json_is_string(json_object_get(start_at(document, i), "ended")), i == 0);
  }
  must(ad_provenance_end(document, 1));
  assert_true(json_is_string(json_object_get(start_at(document, 1), "ended")));
  assert_true(json_is_string(json_object_get(document, "finished")));
  json_decref(document);
  document = document_of(&paper, 0);  // a training that replaces it
  assert_int_equal(json_array_size(json_object_get(document, "starts")), 0);
  json_decref(document);
  write_file("run.json", "{\"starts\": 5}");
  document = document_of(&paper, 1);
  assert_int_equal(json_array_size(json_object_get(document, "starts")), 0);
  json_decref(document);
  close_on_paper(&paper);
}

static void a_kind_that_is_missing_in_this_process_is_named(void **state) {
  json_t *document = json_pack("{s:s}", "kind", "classifier");
  assert_string_equal(ad_provenance_foreign_kind(document), "classifier");
  json_object_set_new(document, "kind", json_string("gpt"));
  assert_null(ad_provenance_foreign_kind(document));
  json_object_del(document, "kind");
  assert_null(ad_provenance_foreign_kind(document));
  json_decref(document);
}

/* ---- the model that a run begins with ---- */

#define MODEL AD_TEST_SOURCE "/train/tests/architecture/models/llama"
enum { OTHERS = 2 };

/* Writes the committed model into the folder "model", its tensors in f32, the first OTHERS of them in bf16. */
static void write_model(char *names) {
  ad_safetensors *file;
  ad_safetensors_writer *writer;
  must(ad_safetensors_open(MODEL "/model.safetensors", &file));
  size_t count = ad_safetensors_count(file);
  ad_safetensor *list = calloc(count, sizeof *list);
  for (size_t i = 0; i < count; i++) {
    list[i] = *ad_safetensors_at(file, i);
    list[i].dtype = i < OTHERS ? AD_BF16 : AD_F32;
    if (i < OTHERS) sprintf(strchr(names, 0), "%s\"%s\": \"bf16\"", i ? ", " : "", list[i].name);
  }
  must(ad_safetensors_create(in_folder("model/model.safetensors"), list, count, NULL, &writer));
  void *zeros = calloc(1 << 16, 8);
  for (size_t i = 0; i < count; i++) must(ad_safetensors_add(writer, zeros));
  must(ad_safetensors_finish(writer, NULL, NULL));
  ad_safetensors_writer_destroy(writer);
  ad_safetensors_close(file);
  free(zeros);
  free(list);
}

static char *contents(const char *path) {
  FILE *file = fopen(path, "r");
  char *text = calloc(1, 1 << 16);
  assert_non_null(file);
  assert_true(fread(text, 1, (1 << 16) - 1, file) > 0);
  fclose(file);
  return text;
}

static on_paper open_model(void) {
  char text[1024], *config = contents(MODEL "/config.json");
  ad_recipe *recipe;
  write_file("model/config.json", config);
  write_file("model/generation_config.json", "{\"eos_token_id\": 2}");
  free(config);
  snprintf(text, sizeof text,
           "name: tuned\nmodel: {kind: gpt, from: %s/model}\ndata: {text: [/usr/share/common-licenses], seq: 12}\n"
           "mesh: dp=1\ntrain: {global_batch: 4, steps: 2, lr: 1}\n",
           folder);
  write_file("tuned.yaml", text);
  if (ad_recipe_read(in_folder("tuned.yaml"), NULL, 0, &recipe)) fail_msg("%s", ad_last_error());
  return open_on_paper(recipe, 1);
}

static void dtypes_of_the_model_that_was_read_are_reported(void **state) {
  char names[512] = "", expected[1024];
  assert_int_equal(mkdir(in_folder("model"), 0777), 0);
  write_model(names);
  on_paper model = open_model();
  json_t *document = document_of(&model, 0);
  snprintf(expected, sizeof expected, "{\"folder\": \"%s/model\", \"dtype\": \"f32\", \"other_dtypes\": {%s}}", folder,
           names);
  has(json_object_get(document, "from"), expected);
  json_decref(document);
  close_on_paper(&model);
}

static int warned;
static char last_warning[1024];
static void count_warnings(void *context, ad_log_level level, const char *message) {
  warned += level == AD_LOG_WARNING;
  snprintf(last_warning, sizeof last_warning, "%s", message);
}

/* Copies are listed as long as they are copies: a file that somebody changed is neither listed nor written over, and the
 * model's own folder has no copy. */
static void files_of_the_model_are_copied_once_and_listed_while_identically(void **state) {
  char names[512] = "", path[128];
  assert_int_equal(mkdir(in_folder("model"), 0777), 0);
  assert_int_equal(mkdir(in_folder("run"), 0777), 0);
  write_model(names);
  on_paper model = open_model();
  snprintf(path, sizeof path, "%s/run", folder);
  json_t *none = ad_companions_list(model.run, path);
  assert_int_equal(json_array_size(none), 0);
  ad_set_log(count_warnings, NULL);
  must(ad_companions_copy(model.run, path));
  must(ad_companions_copy(model.run, path));  // they are copies
  assert_int_equal(warned, 0);
  json_t *both = ad_companions_list(model.run, path),
         *expected = json_pack("[s, s]", "config.json", "generation_config.json");
  assert_true(json_equal(both, expected));
  char *config = contents(in_folder("model/config.json")), *copied = contents(in_folder("run/config.json"));
  assert_string_equal(config, copied);
  copied[5] ^= 1;  // of the same size
  write_file("run/config.json", copied);
  write_file("run/generation_config.json", "shorter");
  must(ad_companions_copy(model.run, path));
  assert_int_equal(warned, 2);
  assert_facts(last_warning, in_folder("run/generation_config.json"), "generation_config.json");
  json_t *changed = ad_companions_list(model.run, path);
  assert_int_equal(json_array_size(changed), 0);
  char *kept = contents(in_folder("run/config.json"));
  assert_string_equal(kept, copied);
  snprintf(path, sizeof path, "%s/model", folder);
  must(ad_companions_copy(model.run, path));
  json_t *own = ad_companions_list(model.run, path);
  assert_int_equal(json_array_size(own), 0);
  assert_int_equal(warned, 2);
  ad_set_log(NULL, NULL);
  json_t *lists[] = {none, both, expected, changed, own};
  for (int i = 0; i < 5; i++) json_decref(lists[i]);
  free(config), free(copied), free(kept);
  close_on_paper(&model);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_run_is_distinguished_by_its_numbers, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(pools_are_reported_where_modules_have_ranks_of_their_own, make_folder,
                                      remove_folder),
      cmocka_unit_test_setup_teardown(changed_keys_are_beside_their_defaults, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(starts_of_earlier_trainings_are_kept, make_folder, remove_folder),
      cmocka_unit_test(a_kind_that_is_missing_in_this_process_is_named),
      cmocka_unit_test_setup_teardown(dtypes_of_the_model_that_was_read_are_reported, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(files_of_the_model_are_copied_once_and_listed_while_identically, make_folder,
                                      remove_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
