/* `addend diff`: judges a dump parameter by parameter and makes the JSON document of the findings. */
#include "addend/diff.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "read/backwards.h"
#include "say/calls.h"
#include "say/judge.h"
#include "read/modules.h"
#include "read/threads.h"
#include "files/json.h"

/* The state of one diff of one dump. */
typedef struct ad_diff_run {
  const ad_diff_options *options;
  const char *const *references; /* the path that --reference gives, or the reference's files for this module */
  size_t reference_count;        /* 0: no reference was given */
  ad_dump dump, other;           /* `other`: the dump or file that --reference names */
  const ad_dump *reference;      /* NULL: there is no reference */
  json_t *document, *params, *messages, *all_identical, *declarations;
  /* maps whose keys are axes, as text, and whose values are lists of parameters' names */
  json_t *untried, *unlike, *unequal, *retyped;
  json_t *unfitted;     /* names of parameters whose counts were not fitted */
  ad_norm_term *norms;  /* one for each parameter */
  ad_finding *findings; /* one for each parameter; cleared after add_finding */
  ad_known known;
  ad_judge judge;
  size_t read; /* bytes of the files read since release_pages last released their pages */
  ad_answer answer;
} ad_diff_run;

/* ---- messages about several parameters ---- */

/* Adds the parameter's name to `notes` under its axes, so that parameters with the same axes share one message. */
static void note(const ad_dump *dump, const char *name, uint32_t axes, json_t *notes) {
  char key[AD_DUMP_AXES * AD_DUMP_NAME];
  if (!axes) return;
  ad_dump_axes_print(&dump->mesh, axes, key, sizeof key);
  if (!json_object_get(notes, key)) json_object_set_new(notes, key, json_array());
  json_array_append_new(json_object_get(notes, key), ad_json_text(name));
}

static const char *first_of(const json_t *names) { return json_string_value(json_array_get(names, 0)); }

/* Prints " and 2 other parameters" for the names after the first; prints "" if there is only one name. */
static const char *print_others(const json_t *names, char *buffer, size_t size) {
  size_t others = json_array_size(names) - 1;
  *buffer = 0;
  if (others) snprintf(buffer, size, " and %zu other parameter%s", others, others > 1 ? "s" : "");
  return buffer;
}

/* Adds messages about sampled parameters: a sample does not show whether a sum goes over an axis on which the parameter
 * is sharded. */
static void report_untried(ad_diff_run *run) {
  const char *axes;
  json_t *names;
  json_object_foreach(run->untried, axes, names) {
    char others[48];
    json_array_append_new(
        run->messages,
        json_sprintf(
            "`%s`%s: sampled, and sharded over %s, so ranks there hold other elements: this dump cannot say whether "
            "the sum goes over %s; dump full tensors (without addend.sample; in addend.torch sample=None)",
            first_of(names), print_others(names, others, sizeof others), axes, axes));
  }
}

/* Adds messages about replicas that should do the same work but have different gradients: perhaps they had different
 * batches. */
static void report_unlike(ad_diff_run *run) {
  const char *axes;
  json_t *names;
  json_object_foreach(run->unlike, axes, names) {
    char others[48];
    json_array_append_new(
        run->messages,
        json_sprintf("`%s`%s: all ranks along %s should have the same gradient; if no sum over %s was left out, they "
                     "were fed different batches (gradients sharded over %s do not show that): give them the same",
                     first_of(names), print_others(names, others, sizeof others), axes, axes, axes));
  }
}

/* Adds messages about parameters whose sums are right only if axes that were assumed to have type I have type R: the
 * messages advise to state the type. */
static void report_retyped(ad_diff_run *run) {
  const char *axes;
  json_t *names;
  json_object_foreach(run->retyped, axes, names) {
    char others[48];
    json_array_append_new(
        run->messages,
        json_sprintf("`%s`%s: no type was given along %s; the addends differ there, and the sum has each once: give "
                     "type R along %s",
                     first_of(names), print_others(names, others, sizeof others), axes, axes));
  }
}

/* Adds messages about parameters whose sums are wrong and whose weights already differed between replicas before the
 * step. */
static void report_unequal(ad_diff_run *run) {
  const char *axes;
  json_t *names;
  json_object_foreach(run->unequal, axes, names) {
    char others[48];
    json_array_append_new(
        run->messages, json_sprintf("`%s`%s: replicas' values differ along %s before the step as well", first_of(names),
                                    print_others(names, others, sizeof others), axes));
  }
}

/* Adds a message about wrong parameters whose counts were not fitted because the limit on this work was reached. */
static void report_unfitted(ad_diff_run *run) {
  char others[48];
  if (!json_array_size(run->unfitted)) return;
  json_array_append_new(run->messages,
                        json_sprintf("`%s`%s: wrong, but how often each addend was counted was not looked for: other "
                                     "parameters came first; diff files of these parameters alone",
                                     first_of(run->unfitted), print_others(run->unfitted, others, sizeof others)));
}

/* Records the answer for a parameter or the norm: the dump's answer is the worst of all of them. */
static void answer(ad_diff_run *run, ad_answer own) {
  if (own > run->answer) run->answer = own;
}

/* ---- judging the parameters, one after the other ---- */

/* Numbers of bytes. Releasing the memory pages of many files takes long, and reading a page again brings 64 KiB of
 * its file into memory. So pages are released only after REMEMBERED bytes in all, and REMEMBERED_OF_FILE bytes a file,
 * were read. */
enum { REMEMBERED = 64 << 20, REMEMBERED_OF_FILE = 512 << 10 };

/* Releases the pages of files that were read: each parameter is judged only once, so its values are not needed
 * again. */
static void release_pages(ad_diff_run *run) {
  const ad_dump *dumps[] = {&run->dump, &run->other};
  if (run->read < REMEMBERED || run->read / REMEMBERED_OF_FILE < run->dump.count) return;
  run->read = 0;
  for (size_t d = 0; d < 2; d++)
    for (size_t i = 0; i < dumps[d]->count; i++) ad_safetensors_forget(dumps[d]->files[i].tensors);
}

/* Adds the finding of one parameter to the findings of earlier parameters, and clears it. */
static void add_finding(ad_diff_run *run, size_t index) {
  ad_finding *finding = &run->findings[index];
  const char *name = run->dump.params[index].name;
  run->norms[index] = finding->norm;
  answer(run, finding->answer);
  json_array_append(run->params, finding->document);
  if (finding->messages) json_array_extend(run->messages, finding->messages);
  if (finding->declared) json_array_extend(run->declarations, finding->declared);
  if (finding->identical) ad_identical_count(finding->identical, run->all_identical);
  note(&run->dump, name, finding->unequal, run->unequal);
  note(&run->dump, name, finding->untried, run->untried);
  note(&run->dump, name, finding->unlike, run->unlike);
  note(&run->dump, name, finding->retyped, run->retyped);
  if (finding->unfitted) json_array_append_new(run->unfitted, ad_json_text(name));
  run->read += finding->read;
  ad_finding_clear(finding);
}

/* Judges one parameter. Several threads may call this function at the same time. */
static ad_status judge_one(void *context, size_t index) {
  ad_diff_run *run = context;
  return ad_judge_param(&run->judge, index, &run->findings[index]);
}

/* Adds one parameter's finding to the results and reports progress. Called in the order of parameters. */
static void report_one(void *context, size_t index) {
  ad_diff_run *run = context;
  const ad_diff_options *options = run->options;
  add_finding(run, index);
  release_pages(run);
  if (options->progress)
    options->progress(options->context, run->dump.params[index].name, (int64_t)index + 1,
                      (int64_t)run->dump.param_count);
}

static ad_status judge_params(ad_diff_run *run) {
  /* with `finite`, the caller may fill the files only as values are needed, one parameter after the other */
  int threads = run->options->finite ? 1 : run->options->threads;
  run->judge = (ad_judge){&run->dump, run->reference, &run->known, run->options->allow_identical};
  return ad_work_do(&(ad_work){run->dump.param_count, judge_one, report_one, run}, threads);
}

/* ---- the dump's document and messages ---- */

/* Returns the factor between a parameter's sum and the expected sum if all its addends have the same factor, else
 * NaN. */
static double factor_of(const json_t *param) {
  const json_t *factor = json_object_get(param, "factor");
  ad_cause_kind kind = ad_cause_named(json_string_value(json_object_get(param, "kind")));
  int is_of_all =
      kind == AD_CAUSE_RIGHT || kind == AD_CAUSE_AVERAGED || kind == AD_CAUSE_DOUBLED || kind == AD_CAUSE_FACTOR;
  if (!is_of_all || !json_is_number(factor) || json_array_size(json_object_get(param, "ranks"))) return NAN;
  return json_number_value(factor);
}

/* Adds a message if parameters were scaled by different factors: the optimizer step then has another direction,
 * whatever the clipping does. */
static void report_factors(ad_diff_run *run) {
  const json_t *param, *first = NULL;
  size_t i;
  json_array_foreach(run->params, i, param) {
    double factor = factor_of(param), one = first ? factor_of(first) : NAN;
    if (isnan(factor)) continue;
    if (!first) first = param;
    if (isnan(one) || fabs(factor - one) <= 1e-4 * fabs(one)) continue;
    json_array_append_new(run->messages,
                          json_sprintf("the factor differs between parameters: %.6g for `%s`, %.6g for `%s`", one,
                                       json_string_value(json_object_get(first, "name")), factor,
                                       json_string_value(json_object_get(param, "name"))));
    return;
  }
}

/* Replaces the text of a parameter's document and of its cause. */
static void rewrite(json_t *param, const char *text) {
  json_object_set_new(param, "text", json_string(text));
  if (json_is_object(json_object_get(param, "cause")))
    json_object_set_new(json_object_get(param, "cause"), "text", json_string(text));
}

/* If all parameters have the same factor below 1, and no group has that size, gradient clipping is the likely reason;
 * their texts are changed to say so. */
static void report_clipped(ad_diff_run *run) {
  json_t *param;
  const json_t *first = json_array_get(run->params, 0);
  char reported[200];
  size_t i;
  if (json_array_size(run->params) < 2) return;
  json_array_foreach(run->params, i, param) {
    const char *text = json_string_value(json_object_get(param, "text"));
    double factor = factor_of(param), one = factor_of(first);
    if (!(factor < 1) || fabs(factor - one) > 1e-4 * one || !text || !strstr(text, "no group's size")) return;
  }
  snprintf(
      reported, sizeof reported,
      "%.6g times what is expected: a factor that is no group's size, and all parameters carry it: were they clipped "
      "before this point?",
      factor_of(first));
  json_array_foreach(run->params, i, param) rewrite(param, reported);
}

/* Completes the document with the norm, the messages and the verdict. */
static void finish(ad_diff_run *run) {
  int norm_holds;
  json_object_set(run->document, "params", run->params);
  json_object_set_new(run->document, "norm", ad_norm_document(&run->dump, run->norms, &norm_holds));
  json_object_set(run->document, "messages", run->messages);
  if (json_array_size(run->declarations)) json_object_set(run->document, "declarations", run->declarations);
  if (!norm_holds) answer(run, AD_ANSWER_WRONG);
  json_object_set_new(run->document, "pass", json_boolean(run->answer == AD_ANSWER_RIGHT));
  json_object_set_new(run->document, "verdict", json_string(ad_answer_name(run->answer)));
}

/* Opens the reference: the one that --reference names, else the dump's own file of kind reference, else none. */
static ad_status open_reference(ad_diff_run *run) {
  if (run->reference_count) {
    AD_TRY(ad_dump_open_reference(run->references, run->reference_count, run->options->threads, &run->other));
    run->reference = &run->other;
  } else if (run->dump.reference) {
    run->other.reference = run->dump.reference;
    run->reference = &run->other;
  }
  return AD_OK;
}

/* Judges an open dump and makes its document. */
static ad_status diff_dump(ad_diff_run *run) {
  AD_TRY(open_reference(run));
  run->document = ad_diff_head(&run->dump, run->reference != NULL);
  run->params = json_array();
  run->messages = json_array();
  run->declarations = json_array();
  run->all_identical = json_object();
  run->untried = json_object();
  run->unlike = json_object();
  run->retyped = json_object();
  run->unequal = json_object();
  run->unfitted = json_array();
  AD_TRY(ad_known_create(&run->dump, &run->known));
  run->known.alone = run->options->finite; /* other parameters' values may not be in the files yet, or not any more */
  AD_TRY(ad_new(run->dump.param_count, &run->norms));
  AD_TRY(ad_new(run->dump.param_count, &run->findings));
  AD_TRY(judge_params(run));
  ad_identical_report(run->all_identical, run->dump.param_count, run->options->allow_identical, run->messages);
  report_untried(run);
  report_unlike(run);
  report_retyped(run);
  AD_TRY(ad_calls_report(&run->dump, run->declarations, run->document, run->messages));
  ad_declared_report(run->declarations, run->messages);
  report_unequal(run);
  report_unfitted(run);
  AD_TRY(ad_backwards_report(&run->dump, run->messages));
  report_factors(run);
  report_clipped(run);
  finish(run);
  return AD_OK;
}

static void run_end(ad_diff_run *run) {
  json_decref(run->document);
  json_decref(run->params);
  json_decref(run->messages);
  json_decref(run->declarations);
  json_decref(run->all_identical);
  json_decref(run->untried);
  json_decref(run->unlike);
  json_decref(run->retyped);
  json_decref(run->unequal);
  json_decref(run->unfitted);
  for (size_t i = 0; i < run->dump.param_count && run->findings; i++) ad_finding_clear(&run->findings[i]);
  ad_release(run->findings);
  ad_known_destroy(&run->known);
  ad_release(run->norms);
  ad_dump_close(&run->other);
  ad_dump_close(&run->dump);
}

/* ---- dumps of several modules ---- */

/* The worst answer so far, and the document for it. */
typedef struct ad_diff_reported {
  ad_answer answer;
  json_t *document; /* owned by this struct */
} ad_diff_reported;

/* Opens a dump's files, judges the dump and closes it. The caller owns the document in `reported`. */
static ad_status judge_files(const char *const *files, size_t count, const ad_dump_opening *how, ad_diff_run *run,
                             ad_diff_reported *reported) {
  AD_TRY(ad_dump_open(files, count, run->reference_count > 0, how, &run->dump));
  ad_status status = diff_dump(run);
  reported->answer = run->answer;
  reported->document = json_incref(run->document);
  run_end(run);
  return status;
}

/* Called after a diff failed, perhaps because a value is not finite; then other values may not be finite either.
 * Opens the dump once more, which checks all values and fails with the names of all tensors that are not finite; if all
 * values are finite, returns the first failure. */
static ad_status name_values(const char *const *files, size_t count, const ad_diff_run *run, ad_status failed) {
  char message[AD_MESSAGE_MAX];
  ad_dump dump;
  snprintf(message, sizeof message, "%s", ad_last_error());
  AD_TRY(ad_dump_open(files, count, run->reference_count > 0, &(ad_dump_opening){.threads = run->options->threads},
                      &dump));
  ad_dump_close(&dump);
  return ad_fail(failed, "%s", message);
}

/* Judges files. Their values are checked for NaN and infinity when they are read for judging, not in a pass before. */
static ad_status diff_files(const char *const *files, size_t count, ad_diff_run *run, ad_diff_reported *reported) {
  const ad_diff_options *options = run->options;
  ad_dump_opening how = {options->progress, options->context, options->finite, 1, options->threads};
  ad_status status = judge_files(files, count, &how, run, reported);
  return !status || status == AD_MEMORY || options->finite ? status : name_values(files, count, run, status);
}

/* If the reference has several modules, chooses the files of the module that is judged. */
static ad_status choose_reference(const ad_dump_modules *references, const char *name, ad_diff_run *run) {
  const ad_dump_module *own = ad_dump_modules_find(references, name);
  if (!references->count) return AD_OK;
  if (!own)
    return ad_fail(AD_INVALID, "the reference %s has no parameters of module `%s`; name a module of the reference",
                   run->options->reference, name);
  run->references = own->files;
  run->reference_count = own->count;
  return AD_OK;
}

static ad_status diff_module(const ad_dump_module *module, const ad_dump_modules *references, ad_diff_run run,
                             ad_diff_reported *whole) {
  ad_diff_reported own = {0};
  ad_status status = choose_reference(references, module->name, &run);
  if (!status) status = diff_files(module->files, module->count, &run, &own);
  if (own.document) json_object_set_new(own.document, "module", ad_json_text(module->name));
  if (own.document) json_array_append_new(json_object_get(whole->document, "modules"), own.document);
  if (own.answer > whole->answer) whole->answer = own.answer;
  return status ? ad_fail_in(status, "module `%s`", module->name) : AD_OK;
}

/* Judges each module of a folder by itself; `modules` of the document has one document for each module. */
static ad_status diff_modules(const ad_dump_modules *modules, const ad_diff_run *run, ad_diff_reported *whole) {
  ad_dump_modules references = {0};
  AD_TRY(ad_dump_modules_list(run->references, run->reference_count, &references));
  whole->document = json_pack("{s:i, s:b, s:n, s:[]}", "format", 1, "pass", 0, "verdict", "modules");
  ad_status status = AD_OK;
  for (size_t i = 0; i < modules->count && !status; i++)
    status = diff_module(&modules->modules[i], &references, *run, whole);
  json_object_set_new(whole->document, "pass", json_boolean(whole->answer == AD_ANSWER_RIGHT));
  json_object_set_new(whole->document, "verdict", json_string(ad_answer_name(whole->answer)));
  ad_dump_modules_clear(&references);
  return status;
}

static ad_status diff_all(const char *const *files, size_t count, const ad_diff_options *options,
                          ad_diff_reported *reported) {
  ad_diff_run run = {.options = options, .references = &options->reference, .reference_count = !!options->reference};
  ad_dump_modules modules;
  AD_TRY(ad_dump_modules_list(files, count, &modules));
  ad_status status = modules.count ? diff_modules(&modules, &run, reported) : diff_files(files, count, &run, reported);
  ad_dump_modules_clear(&modules);
  return status;
}

ad_status ad_diff(const char *const *files, size_t count, const ad_diff_options *options, int *holds, char **json) {
  AD_NEED(files, holds, json);
  for (size_t i = 0; i < count; i++) AD_NEED(files[i]);
  ad_diff_options taken;
  ad_diff_reported reported = {0};
  AD_TRY(ad_options_take(&taken, sizeof taken, options, "ad_diff_options"));
  ad_status status = diff_all(files, count, &taken, &reported);
  char *text = status ? NULL : ad_json_dumps(reported.document);
  json_decref(reported.document);
  if (status) return status;
  if (!text) return ad_fail(AD_MEMORY, "no memory for the JSON document of the dump");
  *json = text;
  *holds = reported.answer == AD_ANSWER_RIGHT;
  return AD_OK;
}
