/* Continues prompts: gathers the full parameters on the first rank, and samples there. */
#include "step/prompts.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "array/part.h"
#include "base/error.h"
#include "base/memory.h"
#include "comm/agree.h"
#include "files/file.h"
#include "files/json.h"
#include "kernels/kernels.h"
#include "program/program.h"
#include "sample/sampler.h"
#include "step/lines.h"

/* ---- prompts as tokens ---- */

static ad_status encode(const ad_recipe *recipe, const ad_train_options *options, const char *tokenizer,
                        const char *text, ad_prompt *out) {
  int32_t *tokens = NULL;
  if (!options->encode || !tokenizer)
    return ad_fail(AD_INVALID,
                   "the prompt is text, but there is no tokenizer; put a tokenizer.json beside the files of "
                   "data.tokens, or write token numbers, such as \"17 4 250\"");
  AD_TRY(options->encode(options->context, tokenizer, text, &tokens, &out->count));
  ad_status status = ad_new((size_t)out->count, &out->tokens);
  if (!status) memcpy(out->tokens, tokens, (size_t)out->count * sizeof *tokens);
  free(tokens);
  return status ? status : ad_prompt_check(recipe, out);
}

static ad_status read_prompt(const ad_recipe *recipe, const ad_train_options *options, const char *tokenizer,
                             size_t index, ad_prompt *out) {
  int is_bytes = ad_prompts_are_bytes(recipe, tokenizer);
  if (is_bytes || !ad_prompt_needs_tokenizer(recipe, index)) return ad_prompt_read(recipe, index, out);
  return encode(recipe, options, tokenizer, recipe->evaluate.prompts[index], out);
}

/* Checks that a prompt and its continuation fit in the model's sliding window. */
static ad_status check_window(const ad_recipe *recipe, const ad_prompt *prompt) {
  int64_t tokens = prompt->count + recipe->evaluate.prompt_tokens;
  if (!recipe->window || tokens <= recipe->window) return AD_OK;
  return ad_fail(AD_INVALID,
                 "the prompt has %lld tokens and evaluate.prompt_tokens is %lld, but addend does not compute the "
                 "model's sliding window of %lld tokens, the most that both may have together; shorten the prompt, or "
                 "set a smaller evaluate.prompt_tokens",
                 (long long)prompt->count, (long long)recipe->evaluate.prompt_tokens, (long long)recipe->window);
}

static ad_status read_prompts(const ad_recipe *recipe, const ad_train_options *options, ad_prompts *out) {
  AD_TRY(ad_prompts_tokenizer(recipe, options->folder, &out->tokenizer));
  AD_TRY(ad_new(recipe->evaluate.prompt_count, &out->list));
  while (out->count < recipe->evaluate.prompt_count) {
    size_t i = out->count++;
    ad_status status = read_prompt(recipe, options, out->tokenizer, i, &out->list[i]);
    if (!status) status = check_window(recipe, &out->list[i]);
    if (status == AD_INVALID)
      return ad_fail_in(status, "%s: evaluate.prompts[%zu]", recipe->path ? recipe->path : "recipe", i);
    if (status) return status;
  }
  return AD_OK;
}

ad_status ad_prompts_try(const ad_recipe *recipe, const ad_train_options *options) {
  ad_prompts prompts = {0};
  if (!recipe->evaluate.prompt_count) return AD_OK;
  ad_status status = read_prompts(recipe, options, &prompts);
  ad_prompts_destroy(&prompts);
  return status;
}

/* ---- opening and closing the file of samples ---- */

static ad_status open_file(const char *folder, int64_t first_step, ad_prompts *out) {
  AD_TRY(ad_path_in(folder, "samples.jsonl", &out->path));
  if (!out->count && access(out->path, F_OK)) return AD_OK;
  return ad_lines_open(out->path, first_step, &out->file);
}

static ad_status open_parts(const ad_recipe *recipe, const ad_train_options *options, int64_t first_step,
                            ad_prompts *out) {
  out->options = options;
  if (recipe->evaluate.prompt_count) {
    AD_TRY(read_prompts(recipe, options, out));
    AD_TRY(ad_sampler_create(recipe, NULL, &out->sampler));
    AD_TRY(ad_ends_read(options->folder, &out->sampler->ends));
    out->sampler->are_bytes = ad_prompts_are_bytes(recipe, out->tokenizer);
  }
  return open_file(options->folder, first_step, out);
}

ad_status ad_prompts_open(const ad_recipe *recipe, const ad_train_options *options, int64_t first_step,
                          ad_prompts *out) {
  ad_prompts prompts = {0};
  ad_status status = open_parts(recipe, options, first_step, &prompts);
  if (status)
    ad_prompts_destroy(&prompts);
  else
    *out = prompts;
  return status;
}

ad_status ad_prompts_close(ad_prompts *prompts) {
  FILE *file = prompts->file;
  prompts->file = NULL;
  return file && fclose(file) ? ad_cannot_write(prompts->path, errno) : AD_OK;
}

void ad_prompts_destroy(ad_prompts *prompts) {
  if (prompts->file) fclose(prompts->file);
  for (size_t i = 0; i < prompts->count; i++) ad_release(prompts->list[i].tokens);
  ad_release(prompts->list);
  ad_release(prompts->tokenizer);
  ad_release(prompts->path);
  ad_sampler_close(prompts->sampler);
  *prompts = (ad_prompts){0};
}

/* ---- gathering parameters and states ---- */

static void cast_value(ad_array *to, const ad_array *full) {
  ad_cast(to->data, to->dtype, full->data, full->dtype, ad_array_numel(to));
}

typedef struct taking {
  const ad_run *run;
  const ad_sample_model *model;
} taking;

static void take_param(void *context, size_t index, const ad_array *full) {
  const taking *t = context;
  ad_run_param at = ad_run_param_at(t->run, index);
  char name[AD_PROGRAM_NAME_SIZE];
  ad_program_param_name(t->run->program, at.module, at.param, name, sizeof name);
  for (size_t i = 0; i < t->model->params.count; i++)
    if (!strcmp(t->model->params.list[i].name, name)) cast_value(&t->model->arrays[i], full);
}

static void take_state(const ad_sample_model *model, const char *name, const ad_array *full) {
  const ad_module_spec *module = ad_program_module(model->program, 0);
  for (size_t i = 0; i < model->state_count; i++)
    if (!strcmp(module->states[i].name, name)) cast_value(&model->states[i], full);
}

static ad_status gather_state(ad_run *run, size_t module, size_t i, const ad_sampler *sampler) {
  const ad_state_spec *spec = &ad_program_module(run->program, module)->states[i];
  ad_array full = {0};
  char *memory = NULL;
  ad_status status = ad_new((size_t)ad_shape_numel(&spec->shape) * ad_dtype_size(spec->dtype), &memory);
  status = ad_agree(run->comm, &run->everyone, status, AD_HERE);
  full.data = memory;
  if (!status) status = ad_run_full(run, ad_run_state(run, module, i), &full);
  if (!status && sampler) take_state(&sampler->model, spec->name, &full);
  ad_release(memory);
  return status;
}

/* Gathers the parameters and states of all modules. In a pipeline each stage is a module, but states have the names
 * that they have in the model without stages. */
static ad_status gather(ad_run *run, const ad_sampler *sampler) {
  taking t = {run, sampler ? &sampler->model : NULL};
  AD_TRY(ad_run_visit_full(run, sampler ? take_param : NULL, &t));
  for (size_t m = 0; m < ad_program_module_count(run->program); m++)
    for (size_t i = 0; i < ad_program_module(run->program, m)->state_count; i++)
      AD_TRY(gather_state(run, m, i, sampler));
  return AD_OK;
}

/* ---- counting the memory that prompts take ---- */

/* Adds the bytes of the module's values to *all, and returns the bytes of the largest value. */
static size_t add_module(const ad_module_spec *module, size_t *all) {
  size_t largest = 0;
  for (size_t i = 0; i < module->param_count; i++) {
    size_t bytes = (size_t)ad_shape_numel(&module->params[i].shape) * sizeof(float);
    *all += bytes;
    if (bytes > largest) largest = bytes;
  }
  for (size_t i = 0; i < module->state_count; i++)
    *all += (size_t)ad_shape_numel(&module->states[i].shape) * ad_dtype_size(module->states[i].dtype);
  return largest;
}

size_t ad_prompts_bytes(const ad_run *run) {
  size_t all = 0, largest = 0;
  if (!run->recipe->evaluate.prompt_count || ad_comm_rank(run->comm)) return 0;
  for (size_t m = 0; m < ad_program_module_count(run->program); m++) {
    const ad_module_spec *module = ad_program_module(run->program, m);
    size_t bytes = module->is_mirror ? 0 : add_module(module, &all);
    if (bytes > largest) largest = bytes;
  }
  return all + largest;
}

/* ---- writing a sample as a line of the file ---- */

static json_t *list(const int32_t *tokens, int64_t count) {
  json_t *out = json_array();
  for (int64_t i = 0; i < count; i++) json_array_append_new(out, json_integer(tokens[i]));
  return out;
}

/* Returns the bytes as text. If a character is cut off at the end, it is left out; bytes that are no UTF-8 are
 * replaced. */
static json_t *text_of_bytes(const int32_t *tokens, int64_t count) {
  char *text;
  json_t *out = NULL;
  if (ad_new((size_t)count + 1, &text)) return NULL;
  for (int64_t i = 0; i < count; i++) text[i] = (char)(tokens[i] > 0 && tokens[i] <= UINT8_MAX ? tokens[i] : '?');
  for (int64_t cut = 0; cut < 4 && cut <= count && !out; cut++) out = json_stringn(text, (size_t)(count - cut));
  if (!out) out = ad_json_text(text);
  ad_release(text);
  return out;
}

static json_t *text_of(const ad_prompts *prompts, const int32_t *tokens, int64_t count) {
  const ad_train_options *options = prompts->options;
  if (ad_sampler_tokens_are_bytes(prompts->sampler)) return text_of_bytes(tokens, count);
  char *text = options->decode && prompts->tokenizer
                   ? options->decode(options->context, prompts->tokenizer, tokens, count)
                   : NULL;
  json_t *out = text ? json_string(text) : NULL;
  free(text);
  return out;
}

static ad_status write_line(const ad_prompts *prompts, int64_t step, const char *prompt, const int32_t *tokens,
                            int64_t count) {
  json_t *line = json_pack("{s:I, s:o, s:o, s:o*}", "step", (json_int_t)step, "prompt", ad_json_text(prompt), "tokens",
                           list(tokens, count), "text", text_of(prompts, tokens, count));
  int failed = !line || json_dumpf(line, prompts->file, JSON_COMPACT | JSON_PRESERVE_ORDER);
  json_decref(line);
  if (!line) return ad_fail(AD_MEMORY, "no memory for a line of %s", prompts->path);
  fputc('\n', prompts->file);
  return failed || fflush(prompts->file) || ferror(prompts->file) ? ad_cannot_write(prompts->path, errno) : AD_OK;
}

/* ---- continuing the prompts ---- */

/* Continues the prompt greedily, by at most `most` tokens, and stops at a token that ends the text. */
static ad_status go_on(ad_sampler *sampler, const ad_prompt *prompt, int64_t most, int32_t *tokens, int64_t *count) {
  ad_sampler_begin(sampler);
  AD_TRY(ad_sampler_read(sampler, prompt->tokens, prompt->count));
  for (*count = 0; *count < most; (*count)++) {
    if (*count && ad_sampler_ends(sampler, tokens[*count - 1])) return AD_OK;
    if (*count) AD_TRY(ad_sampler_read(sampler, &tokens[*count - 1], 1));
    AD_TRY(ad_sampler_choose(sampler, &tokens[*count]));
  }
  return AD_OK;
}

static ad_status sample(const ad_prompts *prompts, const ad_run *run, int64_t step) {
  const ad_recipe *recipe = run->recipe;
  int64_t count;
  int32_t tokens[AD_PROMPT_TOKENS_MAX];
  for (size_t i = 0; i < prompts->count; i++) {
    AD_TRY(go_on(prompts->sampler, &prompts->list[i], recipe->evaluate.prompt_tokens, tokens, &count));
    AD_TRY(write_line(prompts, step, recipe->evaluate.prompts[i], tokens, count));
    if (run->listener.report_progress)
      run->listener.report_progress(run->listener.context, "prompts", (int64_t)i + 1, (int64_t)prompts->count);
  }
  ad_sampler_begin(prompts->sampler);
  return AD_OK;
}

/* Samples on the first rank; the other ranks wait in ad_agree. */
ad_status ad_prompts_sample(ad_prompts *prompts, ad_run *run, int64_t step) {
  AD_TRY(gather(run, prompts->sampler));
  ad_status status = prompts->sampler ? sample(prompts, run, step) : AD_OK;
  return ad_agree(run->comm, &run->everyone, status, AD_HERE);
}
