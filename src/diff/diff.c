/* `addend diff`: a dump, parameter by parameter. */
#include "addend/diff.h"

#include <stdlib.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "diff/document.h"

typedef struct ad_diff_run {
  const ad_diff_options *options;
  ad_dump dump;
  json_t *document, *params, *messages;
  unsigned char *ranks;
  int holds;
} ad_diff_run;

/* ---- one parameter ---- */

static ad_status judge_parts(ad_diff_run *run, const ad_parts *parts) {
  ad_judged *list;
  ad_verdict verdict;
  if (!parts->count && parts->param->numel) {
    run->holds = 0;
    json_array_append_new(run->params, ad_diff_without_sum(&run->dump, parts->param));
    return AD_OK;
  }
  AD_TRY(ad_new(parts->count, &list));
  ad_status status = ad_judge_parts(parts, list);
  if (!status) {
    ad_verdict_find(parts, list, run->ranks, &verdict);
    run->holds &= verdict.kind == AD_VERDICT_RIGHT;
    json_array_append_new(run->params, ad_diff_param(parts, list, &verdict));
  }
  ad_judged_clear(parts, list);
  ad_release(list);
  return status;
}

static ad_status judge_param(ad_diff_run *run, const ad_dump_param *param) {
  ad_parts parts;
  AD_TRY(ad_parts_create(&run->dump, param, &parts));
  ad_status status = judge_parts(run, &parts);
  ad_parts_destroy(&parts);
  return status;
}

static ad_status judge_params(ad_diff_run *run) {
  const ad_diff_options *options = run->options;
  for (size_t p = 0; p < run->dump.param_count; p++) {
    AD_TRY(judge_param(run, &run->dump.params[p]));
    if (options->progress)
      options->progress(options->context, "parameters", (int64_t)p + 1, (int64_t)run->dump.param_count);
  }
  return AD_OK;
}

/* ---- all of it ---- */

static ad_status print(ad_diff_run *run, int *holds, char **json) {
  json_object_set(run->document, "params", run->params);
  json_object_set_new(run->document, "norm", json_null());
  json_object_set(run->document, "messages", run->messages);
  json_object_set_new(run->document, "pass", json_boolean(run->holds));
  *json = json_dumps(run->document, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17));
  if (!*json) return ad_fail(AD_MEMORY, "no memory for the document of the dump");
  *holds = run->holds;
  return AD_OK;
}

static ad_status diff_dump(ad_diff_run *run, int *holds, char **json) {
  run->document = ad_diff_head(&run->dump);
  run->params = json_array();
  run->messages = json_array();
  AD_TRY(ad_new((size_t)run->dump.mesh.world, &run->ranks));
  AD_TRY(judge_params(run));
  return print(run, holds, json);
}

ad_status ad_diff(const char *const *files, size_t count, const ad_diff_options *options, int *holds, char **json) {
  AD_NEED(files, holds, json);
  ad_diff_options taken;
  AD_TRY(ad_options_take(&taken, sizeof taken, options, "ad_diff_options"));
  ad_diff_run run = {.options = &taken, .holds = 1};
  AD_TRY(ad_dump_open(files, count, taken.progress, taken.context, &run.dump));
  ad_status status = diff_dump(&run, holds, json);
  json_decref(run.document);
  json_decref(run.params);
  json_decref(run.messages);
  ad_release(run.ranks);
  ad_dump_close(&run.dump);
  return status;
}
