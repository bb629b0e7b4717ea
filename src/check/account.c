/* The account of a step: its dump, in a folder for each module that is gone afterwards. */
#include "check/account.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include "addend/diff.h"
#include "base/memory.h"
#include "check/computed.h"
#include "check/sabotage.h"
#include "comm/agree.h"
#include "io/file.h"
#include "train/run.h"

static size_t modules(const ad_prover *prover) { return ad_program_module_count(ad_run_program(prover->run)); }

static void name_folder(const ad_prover *prover, size_t module, char *out, size_t size) {
  snprintf(out, size, "%s-%zu", prover->account, module);
}

/* ---- before the step ---- */

static const char memory[] = "/dev/shm";
enum { STALE_SECONDS = 600 };

static int is_stale(const char *path, const char *name) {
  int pid;
  struct stat status;
  if (sscanf(name, "account-%d-", &pid) != 1 || lstat(path, &status) || status.st_uid != geteuid()) return 0;
  return kill(pid, 0) && errno == ESRCH && time(NULL) - status.st_mtime > STALE_SECONDS;
}

/* Those of processes that were killed. */
static void remove_stale(void) {
  DIR *folder = opendir(memory);
  for (struct dirent *entry; folder && (entry = readdir(folder));) {
    char path[AD_ACCOUNT_PATH + 256];
    snprintf(path, sizeof path, "%s/%s", memory, entry->d_name);
    if (is_stale(path, entry->d_name) && ad_folder_remove(path)) continue; /* it stays, and harms nobody */
  }
  if (folder) closedir(folder);
}

/* Every rank's gradients of every microbatch, and their sums, at most twice as wide as f32. */
static int has_room(const ad_prover *prover) {
  struct statvfs room;
  double bytes = 0;
  for (size_t i = 0; i < prover->param_count; i++)
    bytes += (double)ad_shape_numel(&ad_run_param_at(prover->run, i).spec->shape) * sizeof(double);
  bytes *= (double)(prover->job->recipe->train.microbatches + 1) * (double)ad_comm_size(prover->comm);
  return !statvfs(memory, &room) && bytes < (double)room.f_bavail * (double)room.f_frsize / 2;
}

/* In memory: what is written is read at once and gone. */
static ad_status make_folders(ad_prover *prover) {
  remove_stale();
  snprintf(prover->account, sizeof prover->account, "%s/account-%d-XXXXXX", memory, (int)getpid());
  if (!has_room(prover) || !mkdtemp(prover->account)) {
    *prover->account = 0;
    return AD_OK;
  }
  for (size_t m = 0; m < modules(prover); m++) {
    char folder[AD_ACCOUNT_PATH + 24];
    name_folder(prover, m, folder, sizeof folder);
    AD_TRY(ad_folder_make(folder));
  }
  return AD_OK;
}

/* On another machine it is not there. */
static ad_status share_folder(ad_prover *prover) {
  int64_t words[AD_ACCOUNT_PATH / sizeof(int64_t)];
  memcpy(words, prover->account, sizeof words);
  AD_TRY(ad_share_first(prover->comm, &prover->everyone, words, sizeof words / sizeof *words, AD_HERE));
  memcpy(prover->account, words, sizeof words);
  int32_t lacks = !*prover->account || access(prover->account, R_OK | W_OK | X_OK) != 0;
  ad_collective call = {.op = AD_ALL_REDUCE, .group = prover->everyone, .in = &lacks, .out = &lacks, .count = 1};
  call.dtype = AD_I32;
  call.reduction = AD_MAX;
  call.site = AD_HERE;
  AD_TRY(ad_comm_run(prover->comm, &call));
  prover->has_account = !lacks;
  return AD_OK;
}

/* AD_INVALID: no mesh has the axes of all its parameters. */
static ad_status ask(ad_prover *prover, size_t m, int64_t step) {
  ad_module *module = ad_run_module(prover->run, m);
  char folder[AD_ACCOUNT_PATH + 24];
  if (!module) return AD_OK;
  name_folder(prover, m, folder, sizeof folder);
  ad_status status = ad_reducer_dump(ad_module_reducer(module), folder, 0, step);
  return status == AD_INVALID ? AD_OK : status;
}

ad_status ad_account_begin(ad_prover *prover, int64_t step) {
  ad_status status = prover->reference ? make_folders(prover) : AD_OK;
  AD_TRY(ad_agree(prover->comm, &prover->everyone, status, AD_HERE));
  AD_TRY(share_folder(prover));
  for (size_t m = 0; m < modules(prover) && prover->has_account; m++) AD_TRY(ask(prover, m, step));
  return AD_OK;
}

/* ---- after it ---- */

/* Kinds of an account that are not a proof's own. */
static const struct {
  const char *name;
  ad_cause_kind kind;
} kinds[] = {{"own_only", AD_CAUSE_PARTIAL},
             {"last_microbatch", AD_CAUSE_MISSING},
             {"earlier_microbatches_divided", AD_CAUSE_AVERAGED},
             {"divided_by_own_count", AD_CAUSE_AVERAGED}};

static ad_cause_kind kind_of(const char *name) {
  for (int kind = 0; kind <= AD_CAUSE_UNKNOWN; kind++)
    if (!strcmp(name, ad_cause_name((ad_cause_kind)kind))) return (ad_cause_kind)kind;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (!strcmp(name, kinds[i].name)) return kinds[i].kind;
  return AD_CAUSE_UNKNOWN;
}

static void add_cause(const json_t *document, ad_causes *out) {
  const char *kind, *axes, *text, *place = NULL;
  double factor = NAN;
  ad_axes over = 0;
  if (json_unpack((json_t *)(uintptr_t)document, "{s:s, s:s, s:s, s?:s}", "kind", &kind, "axes", &axes, "text", &text,
                  "place", &place))
    json_unpack((json_t *)(uintptr_t)document, "{s:s, s:s, s:s}", "kind", &kind, "axes", &axes, "text", &text);
  const json_t *number = json_object_get(document, "factor");
  if (json_is_number(number)) factor = json_number_value(number);
  if (!*axes || ad_axes_parse(axes, &over)) over = 0;
  ad_cause *cause = ad_causes_add(out, kind_of(kind), over, factor, "%s", text);
  snprintf(cause->place, sizeof cause->place, "%s", place ? place : "");
}

/* Quotients by each rank's own count: what was not done is the sum of these. */
static void add_axes_of_count(const ad_prover *prover, ad_causes *causes) {
  for (size_t i = 0; i < prover->places.count; i++) {
    const ad_place *place = &prover->places.list[i];
    if (ad_place_is_count(place) && !causes->list[0].axes) causes->list[0].axes = place->axes & place->large;
  }
}

/* What the sum holds instead of what its types say; none: that, or something that no counts explain. */
static void take_causes(const json_t *judged, ad_causes *out) {
  const json_t *cause = json_object_get(judged, "cause"), *several = json_object_get(judged, "possible_causes");
  size_t i;
  const json_t *one;
  out->count = 0;
  if (json_is_object(cause)) add_cause(cause, out);
  json_array_foreach(several, i, one) add_cause(one, out);
}

static int is_kind(const json_t *judged, const char *kind) {
  const char *own = json_string_value(json_object_get(judged, "kind"));
  return own && !strcmp(own, kind);
}

static const json_t *find(const json_t *document, const char *name) {
  const json_t *params = json_object_get(document, "params"), *param;
  size_t i;
  json_array_foreach(params, i, param) {
    const char *own = json_string_value(json_object_get(param, "name"));
    if (own && !strcmp(own, name)) return param;
  }
  return NULL;
}

/* Copies along axes over which nothing is summed differ where what ranks handed in does. */
static int is_sum_of_addends(const json_t *judged, const ad_run_param *at, ad_axes differs) {
  ad_axes reduced = ad_proof_reduced_axes(&at->spec->layout);
  if (is_kind(judged, "right") || is_kind(judged, "identical_addends")) return 1;
  return (is_kind(judged, "own_only") || is_kind(judged, "replicas_differ")) && differs && !(differs & reduced);
}

static void judge_param(const ad_prover *prover, const json_t *document, const ad_run_param *at, ad_axes differs,
                        ad_proof_param *param) {
  const json_t *judged = find(document, param->name);
  ad_causes causes;
  if (!judged || (param->replicas_equal && ad_param_share(param) <= 1)) return;
  if (param->causes.count && param->causes.list[0].kind == AD_CAUSE_ROUNDING) return;
  param->accounted = is_sum_of_addends(judged, at, differs);
  if (param->accounted || is_kind(judged, "unexplained") || is_kind(judged, "rounding")) return;
  if (is_kind(judged, "replicas_differ") && param->causes.list[0].kind != AD_CAUSE_REPLICAS_DIFFER) return;
  take_causes(judged, &causes);
  if (is_kind(judged, "divided_by_own_count")) add_axes_of_count(prover, &causes);
  if (causes.count) ad_causes_copy(&param->causes, &causes);
}

static ad_status read_module(ad_prover *prover, size_t m) {
  char folder[AD_ACCOUNT_PATH + 24], *json = NULL;
  const char *const files[] = {folder};
  ad_diff_options options = {.size = sizeof options, .allow_identical = 1};
  ad_proof *proof = prover->job->proof;
  int holds;
  name_folder(prover, m, folder, sizeof folder);
  if (ad_diff(files, 1, &options, &holds, &json)) return AD_OK; /* there is no dump of this module */
  json_t *document = json_loads(json, 0, NULL);
  free(json);
  for (size_t i = 0; i < proof->param_count; i++) {
    ad_run_param at = ad_run_param_at(prover->run, i);
    const ad_replicas *copies = &prover->replicas[AD_PART_GRADIENT][i];
    if (at.module == m) judge_param(prover, document, &at, copies->equal ? 0 : copies->differs, &proof->params[i]);
  }
  json_decref(document);
  return AD_OK;
}

static ad_status read_modules(ad_prover *prover) {
  if (!prover->places.count) AD_TRY(ad_derived_places(prover->job->recipe, &prover->places));
  for (size_t m = 0; m < modules(prover); m++) AD_TRY(read_module(prover, m));
  ad_computed_explain(&prover->places, prover->job->proof);
  return AD_OK;
}

static ad_status remove_folders(ad_prover *prover) {
  for (size_t m = 0; m < modules(prover); m++) {
    char folder[AD_ACCOUNT_PATH + 24];
    name_folder(prover, m, folder, sizeof folder);
    AD_TRY(ad_folder_remove(folder));
  }
  return ad_folder_remove(prover->account);
}

ad_status ad_account_end(ad_prover *prover, int reads) {
  ad_status status = AD_OK;
  if (prover->reference && *prover->account) {
    if (reads && prover->has_account) status = read_modules(prover);
    ad_status removed = remove_folders(prover);
    if (!status) status = removed;
  }
  prover->has_account = 0;
  return ad_agree(prover->comm, &prover->everyone, status, AD_HERE);
}
