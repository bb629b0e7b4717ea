/* Tests what a training writes of its prompts: how each continues and ends, as numbers and as text; which prompts are
 * refused; and the memory that they take. train/tests/cli tests that the tokens are those of `addend sample`. */
#include "says.h"
#include "world.h"

#include <jansson.h>
#include <unistd.h>
#include "base/memory.h"
#include "module/module.h"
#include "program/program.h"
#include "step/prompts.h"

static char folder[64], path[128];

static const char *in_folder(const char *name) {
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static int make_folder(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-prompts-XXXXXX");
  return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
  static const char *const names[] = {"samples.jsonl", "config.json", "tokenizer.json", "tokens.npy"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) unlink(in_folder(names[i]));
  return rmdir(folder);
}

static void write_file(const char *name, const char *text) {
  FILE *file = fopen(in_folder(name), "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

/* A recipe with prompts, each continued by 5 tokens; `data` and `model` end their sections. */
static ad_recipe *recipe_of(const char *model, const char *data, const char *mesh, const char *prompts) {
  char text[1024];
  ad_recipe *recipe;
  snprintf(text, sizeof text,
           "name: tiny\nmodel: {%s}\ndata: {%s, seq: 12, validation: 0.2}\nmesh: %s\n"
           "train: {seed: 4, global_batch: 4, steps: 3, lr: 1}\nevaluate: {every: 2, samples: 0%s%s}\n",
           model, data, mesh, *prompts ? ", prompt_tokens: 5, prompts: " : "", prompts);
  if (ad_recipe_parse(text, "tiny.yaml", NULL, 0, &recipe)) fail_msg("%s", ad_last_error());
  return recipe;
}

#define GPT "kind: gpt, layers: 2, d_model: 16, heads: 2"
#define BYTES "text: [/usr/share/common-licenses]"

/* ---- continuing prompts ---- */

typedef struct heard {
  int64_t done, of;
} heard;

static void hear(void *context, const char *what, int64_t done, int64_t of) {
  heard *h = context;
  h->done = !strcmp(what, "prompts") && done == h->done + 1 ? done : -100;
  h->of = of;
}

/* A run alone, and its prompts. */
typedef struct sampling {
  ad_recipe *recipe;
  ad_train_options options;
  ad_comm *comm;
  ad_run *run;
  ad_prompts prompts;
  heard heard;
} sampling;

static void begin(sampling *s, ad_recipe *recipe, int64_t first_step) {
  s->recipe = recipe;
  s->options.size = sizeof s->options;
  s->options.folder = folder;
  must(ad_comm_open_alone(&s->comm));
  if (ad_run_create(s->comm, recipe, NULL, &s->run)) fail_msg("%s", ad_last_error());
  s->run->listener.report_progress = hear;
  s->run->listener.context = &s->heard;
  if (ad_prompts_open(recipe, &s->options, first_step, &s->prompts)) fail_msg("%s", ad_last_error());
}

static void end(sampling *s) {
  must(ad_prompts_close(&s->prompts));
  ad_prompts_destroy(&s->prompts);
  ad_run_destroy(s->run);
  ad_comm_close(s->comm);
  ad_recipe_destroy(s->recipe);
}

/* Line `number` of samples.jsonl. */
static json_t *line_at(int number) {
  char text[1024];
  json_t *line = NULL;
  FILE *file = fopen(in_folder("samples.jsonl"), "r");
  assert_non_null(file);
  for (int i = 0; fgets(text, sizeof text, file); i++)
    if (i == number) line = json_loads(text, 0, NULL);
  fclose(file);
  return line;
}

static void line_says(int number, int64_t step, const char *prompt) {
  json_t *line = line_at(number);
  assert_non_null(line);
  assert_int_equal(json_integer_value(json_object_get(line, "step")), step);
  assert_string_equal(json_string_value(json_object_get(line, "prompt")), prompt);
  json_decref(line);
}

static int64_t token_of(int number, size_t i) {
  json_t *line = line_at(number);
  int64_t token = json_integer_value(json_array_get(json_object_get(line, "tokens"), i));
  json_decref(line);
  return token;
}

static void has_tokens(int number, size_t count) {
  json_t *line = line_at(number);
  assert_int_equal(json_array_size(json_object_get(line, "tokens")), count);
  json_decref(line);
}

/* Makes the run's model answer with `token` always: its output norm, embedding and head are not the model's any more. */
static void answer_with(ad_run *run, int64_t token) {
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    ad_run_param at = ad_run_param_at(run, i);
    ad_array *value = ad_run_part(run, i, AD_PART_VALUE);
    int is_norm = value->shape.ndim == 1,
        is_table = !is_norm && (value->shape.dim[0] == 256 || value->shape.dim[1] == 256);
    for (size_t k = 0; k < ad_array_numel(value); k++) ((float *)value->data)[k] = is_norm ? 1 : 0;
    if (!is_table) continue;
    int by_rows = value->shape.dim[0] == 256;
    int64_t columns = value->shape.dim[1];
    for (int64_t row = 0; row < 256; row++)  // every token has the same embedding; the one has the largest logit
      for (int64_t d = 0; d < 16; d++)
        ((float *)value->data)[by_rows ? row * columns + d : d * columns + row] =
            !strcmp(at.spec->name, "embedding.weight") || row == token ? 1 : 0;
  }
  must(ad_run_refresh(run, AD_VALUES_WRITTEN));
}

static void each_prompt_has_a_line_for_each_evaluation(void **state) {
  sampling s = {0};
  begin(&s, recipe_of(GPT, BYTES, "dp=1", "[the, \"17 4\", a]"), 0);
  for (int64_t step = 1; step < 4; step += 2) {
    s.heard = (heard){0};
    must(ad_prompts_sample(&s.prompts, s.run, step));
    assert_true(s.heard.done == 3 && s.heard.of == 3);
  }
  for (int i = 0; i < 6; i++) {
    static const char *const prompts[] = {"the", "17 4", "a"};
    line_says(i, i < 3 ? 1 : 3, prompts[i % 3]);
    has_tokens(i, 5);
    for (size_t k = 0; k < 5; k++) assert_int_equal(token_of(i, k), token_of((i + 3) % 6, k));
  }
  assert_null(line_at(6));
  end(&s);
  s = (sampling){0};
  begin(&s, recipe_of(GPT, BYTES, "dp=1", "[b]"), 2);  // keeps what was written of steps before 2
  must(ad_prompts_sample(&s.prompts, s.run, 3));
  line_says(2, 1, "a");
  line_says(3, 3, "b");
  assert_null(line_at(4));
  end(&s);
}

/* Bytes are text: what is no character is replaced, one that is cut off at the end is left out. */
static void tokens_that_are_bytes_are_text(void **state) {
  static const struct {
    int64_t token;
    const char *text;
  } cases[] = {{'x', "xxxxx"}, {1, "\x01\x01\x01\x01\x01"}, {0x7f, "\x7f\x7f\x7f\x7f\x7f"}, {0, "?????"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    sampling s = {0};
    begin(&s, recipe_of(GPT ", tied: false", BYTES, "dp=1", "[the]"), 0);
    answer_with(s.run, cases[i].token);
    must(ad_prompts_sample(&s.prompts, s.run, 0));
    has_tokens(0, 5);
    for (size_t k = 0; k < 5; k++) assert_int_equal(token_of(0, k), cases[i].token);
    json_t *line = line_at(0);
    assert_string_equal(json_string_value(json_object_get(line, "text")), cases[i].text);
    json_decref(line);
    end(&s);
  }
}

/* A character that is cut off at the end is left out, at most three bytes; what is no character at all is replaced. */
static void a_character_that_is_cut_off_is_left_out(void **state) {
  static const struct {
    int64_t token, count;
    const char *text;
  } cases[] = {{0xe2, 1, ""}, {0xe2, 2, ""}, {0xe2, 3, ""}, {0xe2, 4, "????"}, {'x', 1, "x"}, {'x', 4, "xxxx"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    sampling s = {0};
    ad_recipe *recipe = recipe_of(GPT ", tied: false", BYTES, "dp=1", "[the]");
    recipe->evaluate.prompt_tokens = cases[i].count;
    begin(&s, recipe, 0);
    answer_with(s.run, cases[i].token);
    must(ad_prompts_sample(&s.prompts, s.run, 0));
    has_tokens(0, (size_t)cases[i].count);
    json_t *line = line_at(0);
    const char *text = json_string_value(json_object_get(line, "text"));
    assert_true(strncmp(text, cases[i].text, strlen(cases[i].text)) == 0 && !*text == !*cases[i].text);
    json_decref(line);
    end(&s);
  }
}

/* A text ends with the first token that ends one, which is written too. */
static void a_token_that_ends_a_text_is_its_last(void **state) {
  for (int ends = 0; ends < 2; ends++) {
    sampling s = {0};
    write_file("config.json", ends ? "{\"eos_token_id\": [7, 120]}" : "{\"eos_token_id\": 121}");
    begin(&s, recipe_of(GPT ", tied: false", BYTES, "dp=1", "[the, a]"), 0);
    answer_with(s.run, 'x');
    must(ad_prompts_sample(&s.prompts, s.run, 0));
    for (int i = 0; i < 2; i++) has_tokens(i, ends ? 1 : 5);
    end(&s);
  }
}

/* ---- prompts that a tokenizer reads ---- */

static ad_status encode(void *context, const char *tokenizer, const char *text, int32_t **tokens, int64_t *count) {
  *count = (int64_t)strlen(text);
  *tokens = malloc((size_t)*count * sizeof **tokens);
  for (int64_t i = 0; i < *count; i++) (*tokens)[i] = text[i] - 'a' + (strstr(tokenizer, "/tokenizer.json") ? 0 : 1000);
  return AD_OK;
}

static char *decode(void *context, const char *tokenizer, const int32_t *tokens, int64_t count) {
  char *text = malloc(64);
  snprintf(text, 64, "%d of %d", (int)count, (int)tokens[0]);
  return text;
}

static void write_tokens(void) {
  static const char header[] = "{'descr': '<u2', 'fortran_order': False, 'shape': (200,), }\n";
  FILE *file = fopen(in_folder("tokens.npy"), "w");
  assert_non_null(file);
  fwrite("\x93NUMPY\1\0", 1, 8, file);
  fputc(sizeof header - 1, file), fputc(0, file);
  fputs(header, file);
  for (int i = 0; i < 200; i++) fputc(i % 40, file), fputc(0, file);
  fclose(file);
}

static ad_recipe *token_recipe(const char *prompts) {
  char data[160];
  snprintf(data, sizeof data, "tokens: [%s]", in_folder("tokens.npy"));
  return recipe_of(GPT ", vocabulary: 40", data, "dp=1", prompts);
}

static void text_is_encoded_and_numbers_are_not(void **state) {
  write_tokens();
  write_file("tokenizer.json", "{}");
  sampling s = {.options = {.encode = encode, .decode = decode}};
  begin(&s, token_recipe("[abz, \"3 1, 4\"]"), 0);
  static const int32_t tokens[] = {0, 1, 25, 3, 1, 4};
  assert_int_equal(s.prompts.count, 2);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(s.prompts.list[i].count, 3);
    for (int k = 0; k < 3; k++) assert_int_equal(s.prompts.list[i].tokens[k], tokens[3 * i + k]);
  }
  must(ad_prompts_sample(&s.prompts, s.run, 0));
  char expected[32];
  json_t *line = line_at(1);
  snprintf(expected, sizeof expected, "5 of %d", (int)token_of(1, 0));
  assert_string_equal(json_string_value(json_object_get(line, "text")), expected);
  json_decref(line);
  end(&s);
  for (int decodes = 0; decodes < 2; decodes++) {  // without a decoder, or a tokenizer, there is no text
    sampling none = {.options = {.decode = decodes ? decode : NULL}};
    if (decodes) assert_int_equal(unlink(in_folder("tokenizer.json")), 0);
    begin(&none, token_recipe("[\"3 1, 4\"]"), 0);
    must(ad_prompts_sample(&none.prompts, none.run, 0));
    line = line_at(0);
    assert_null(json_object_get(line, "text"));
    assert_int_equal(json_object_size(line), 3);
    json_decref(line);
    end(&none);
  }
}

/* Prompts are refused by their place, on either side of each bound. */
static void a_prompt_that_cannot_be_continued_is_named(void **state) {
  write_tokens();
  write_file("tokenizer.json", "{}");
  ad_train_options options = {.size = sizeof options, .folder = folder, .encode = encode};
  ad_recipe *recipe = token_recipe("[\"3\", abc]");
  must(ad_prompts_try(recipe, &options));
  recipe->window = 8;  // 3 tokens, and 5 that follow
  must(ad_prompts_try(recipe, &options));
  recipe->window = 7;
  assert_int_equal(ad_prompts_try(recipe, &options), AD_INVALID);
  assert_says("evaluate.prompts[1]", "3", "5", "7");
  recipe->window = 5;
  assert_int_equal(ad_prompts_try(recipe, &options), AD_INVALID);
  assert_says("evaluate.prompts[0]", "1", "5", "5");
  recipe->window = 0;
  options.encode = NULL;
  assert_int_equal(ad_prompts_try(recipe, &options), AD_INVALID);
  assert_says("evaluate.prompts[1]", "tokenizer.json");
  options.encode = encode;
  assert_int_equal(unlink(in_folder("tokenizer.json")), 0);
  assert_int_equal(ad_prompts_try(recipe, &options), AD_INVALID);
  assert_says("evaluate.prompts[1]", "tokenizer.json");
  ad_recipe_destroy(recipe);
  recipe = token_recipe("[\"39\"]");
  must(ad_prompts_try(recipe, &options));
  ad_recipe_destroy(recipe);
  write_file("tokenizer.json", "{}");
  recipe = token_recipe("[\"3\", \"a|\"]");  // token 27, and none that follows 'z' is beyond 39 but this: '|' is 27
  must(ad_prompts_try(recipe, &options));
  ad_recipe_destroy(recipe);
  recipe = token_recipe("[\"3\", \"a^\"]");  // before 'a': below 0
  assert_int_equal(ad_prompts_try(recipe, &options), AD_INVALID);
  assert_says("evaluate.prompts[1]", "1", "-3", "40", "0", "39");
  ad_recipe_destroy(recipe);
}

/* ---- the memory that prompts take ---- */

/* On rank 0 a copy of all values in f32 and of all states, and of the largest value one more. */
static void memory_is_of_a_copy_and_of_the_largest_value(void **state) {
#define MOE "kind: moe, layers: 2, d_model: 16, heads: 2, experts: 4, top_k: 2, expert_hidden: 16"
  static const struct {
    const char *model, *mesh, *prompts;
    int64_t ranks, rank;
  } cases[] = {{GPT, "dp=2", "[a]", 2, 0},
               {GPT, "dp=2", "[a]", 2, 1},
               {GPT, "dp=2", "", 2, 0},
               {GPT, "pp=2", "[a]", 2, 0},
               {GPT ", tied: true", "pp=2", "[a]", 2, 0},
               {MOE, "dp=1\nviews: {sparse: \"efsdp=1 ep=1 etp=1\"}", "[a]", 1, 0},
               {MOE ", balance_rate: 0.1", "dp=1\nviews: {sparse: \"efsdp=1 ep=1 etp=1\"}", "[a]", 1, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_recipe *recipe = recipe_of(cases[i].model, BYTES, cases[i].mesh, cases[i].prompts);
    ad_comm *comm;
    ad_run *run;
    must(ad_comm_open_dry(cases[i].rank, cases[i].ranks, &comm));
    if (ad_run_create(comm, recipe, NULL, &run)) fail_msg("%s", ad_last_error());
    int64_t elements = 0, largest = 0, states = 0;
    const ad_program *program = ad_run_program(run);
    for (size_t m = 0; m < ad_program_module_count(program); m++) {
      const ad_module_spec *spec = ad_program_module(program, m);
      if (spec->is_mirror) continue;
      for (size_t p = 0; p < spec->param_count; p++) {
        int64_t numel = ad_shape_numel(&spec->params[p].shape);
        elements += numel;
        if (numel > largest) largest = numel;
      }
      for (size_t k = 0; k < spec->state_count; k++)
        states += ad_shape_numel(&spec->states[k].shape) * (int64_t)ad_dtype_size(spec->states[k].dtype);
    }
    int64_t expected = *cases[i].prompts && !cases[i].rank ? 4 * (elements + largest) + states : 0;
    if (strstr(cases[i].model, "balance_rate")) assert_true(states > 0);
    assert_int_equal(ad_prompts_bytes(run), expected);
    ad_run_destroy(run);
    ad_comm_close(comm);
    ad_recipe_destroy(recipe);
  }
}

int main(void) {
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
  const struct CMUnitTest tests[] = {
      IN_FOLDER(each_prompt_has_a_line_for_each_evaluation),
      IN_FOLDER(tokens_that_are_bytes_are_text),
      IN_FOLDER(a_character_that_is_cut_off_is_left_out),
      IN_FOLDER(a_token_that_ends_a_text_is_its_last),
      IN_FOLDER(text_is_encoded_and_numbers_are_not),
      IN_FOLDER(a_prompt_that_cannot_be_continued_is_named),
      cmocka_unit_test(memory_is_of_a_copy_and_of_the_largest_value),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
