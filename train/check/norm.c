/* Finds which parameters a run's norm counts more or less than once, and which replicas or shards may be the reason. */
#include "check/norm.h"

#include <math.h>
#include <stdio.h>

#include "base/memory.h"
#include "kernels/kernels.h"
#include "program/program.h"
#include "recipe/recipe.h"
#include "reduce/plan.h"
#include "step/run.h"
#include "layout/type.h"
#include "mesh/mesh.h"

/* How one parameter is counted in the gradient norm; on the first rank. */
typedef struct part {
  double squares; /* sum of squares of the parameter's full gradient */
  double times;   /* the sum of its squares in the run's norm, divided by `squares`; 1 if the gradient is 0 */
  ad_run_param at;
} part;

typedef struct parts {
  const ad_checker *checker;
  part *list;   /* one for each parameter of the program; a mirror's parameters are in no norm and have squares 0 */
  size_t worst; /* index of the parameter that changes the norm most */
} parts;

static int is_times(double times, double expected) { return fabs(times - expected) <= 1e-6 * fmax(1, expected); }

/* ---- measuring ---- */

static double squares_of(ad_checker *checker, const ad_array *gradient) {
  size_t numel = ad_array_numel(gradient);
  ad_cast(checker->scratch.data, AD_F64, gradient->data, gradient->dtype, numel);
  double norm = ad_norm_of(checker->scratch.data, numel);
  return norm * norm;
}

static void count_in_norm(ad_checker *checker, parts *out) {
  size_t place[AD_NORM_GROUPS_MAX] = {0};
  double worst = 0;
  for (size_t i = 0; i < checker->param_count; i++) {
    part *own = &out->list[i];
    *own = (part){.times = 1, .at = ad_run_param_at(checker->run, i)};
    if (ad_program_module(ad_run_program(checker->run), own->at.module)->is_mirror) continue;
    size_t group = ad_run_norm_group_of(checker->run, own->at.module);
    double sum = checker->run->norms.groups[group].sums[place[group]++];
    if (!checker->full_gradients[i]) continue;
    own->squares = squares_of(checker, &checker->gradients[i]);
    if (own->squares > 0) own->times = sum / own->squares;
    double off = fabs(own->times - 1) * own->squares;
    if (is_times(own->times, 1) || !(off > worst)) continue;
    worst = off;
    out->worst = i;
  }
}

/* Returns how many parameters have gradients on the same ranks as `of`, with `of` itself; 0 if they are not all counted
 * equally often. */
static int count_identical(const parts *p, const part *of) {
  int count = 0;
  for (size_t i = 0; i < p->checker->param_count; i++) {
    const part *other = &p->list[i];
    if (!(other->squares > 0) || !ad_mesh_same_ranks(other->at.spec->storage.mesh, of->at.spec->storage.mesh)) continue;
    if (!is_times(other->times, of->times)) return 0;
    count++;
  }
  return count;
}

static int has_first_rank(const parts *p, const part *of) {
  return ad_mesh_has_rank(of->at.spec->storage.mesh, ad_comm_rank(p->checker->comm));
}

/* ---- naming causes ---- */

static const char *axes_text(ad_axes axes) {
  static _Thread_local char names[80];
  return ad_axes_print(axes, names, sizeof names);
}

/* Adds a cause for each set of axes, out of `from`, with this number of ranks. The cause's text has the axes between
 * `before` and `after`. Returns how many causes it added. */
static int add_sets(const ad_mesh *mesh, ad_axes from, double ranks, ad_cause cause, const char *before,
                    const char *after, ad_causes *causes) {
  int added = 0;
  for (ad_axes axes = 1; axes <= from; axes++) {
    if (axes & ~from || !is_times((double)ad_mesh_ranks_over(mesh, axes), ranks)) continue;
    ad_causes_add(causes, cause.kind, axes, cause.factor, "in the norm: %s%s%s", before, axes_text(axes), after);
    added++;
  }
  return added;
}

static ad_axes stages(const parts *p) { return ad_recipe_is_disjoint(p->checker->job->recipe) ? 0 : AD_AXES(AD_PP); }

/* Adds the cause that a sum over all ranks is wrong. If only some ranks have these parameters, their squares are summed
 * over those ranks first, then over all ranks: the second sum may be wrong, or both. Returns 1 if this explains the
 * factor, else 0. */
static int add_sums_of_all(const parts *p, const part *of, double factor, ad_cause cause, const char *did,
                           ad_causes *causes) {
  const ad_mesh *mesh = of->at.spec->storage.mesh;
  double own = (double)ad_mesh_size(mesh), all = (double)ad_group_size(&p->checker->everyone);
  int is_second = is_times(factor, all), is_both = is_times(factor, own * all);
  if (own == all || !(is_second || is_both)) return 0;
  ad_causes_add(causes, cause.kind, ad_mesh_large(mesh) | stages(p), cause.factor,
                "in the norm: the sum of squares over all ranks%s %s",
                is_second ? "" : ", and the one before it over the ranks of each stage or pool,", did)
      ->no_axis = AD_NO_AXIS_POOLS;
  return 1;
}

/* For parameters on the same ranks that are all counted equally often: adds the causes that explain this by a mistake
 * in their common sum. */
static void report_common(const parts *p, const part *of, ad_causes *causes) {
  const ad_mesh *mesh = of->at.spec->storage.mesh;
  int doubled = of->times > 1;
  double factor = doubled ? of->times : 1 / of->times;
  ad_cause cause = {doubled ? AD_CAUSE_DOUBLED : AD_CAUSE_AVERAGED, .factor = of->times};
  int added = add_sets(mesh, ad_mesh_large(mesh), factor, cause, "the sum of squares over ",
                       doubled ? " was made twice, or the replica of each rank was counted" : " was averaged", causes);
  added += add_sums_of_all(p, of, factor, cause, doubled ? "was made twice" : "was averaged", causes);
  if (!added)
    ad_causes_add(causes, AD_CAUSE_UNKNOWN, 0, of->times,
                  "in the norm: the sum of squares is %.6g times what it should be", of->times)
        ->no_axis = AD_NO_AXIS_NO_GROUP;
}

/* Adds the causes for a parameter that is counted more than once. */
static void report_more(const parts *p, const part *of, const char *name, ad_causes *causes) {
  const ad_layout *update = ad_param_update(of->at.spec);
  ad_axes replicated = ad_layout_same_axes(update) & ad_mesh_large(update->mesh);
  char text[120];
  snprintf(text, sizeof text, "replicas of `%.80s` along ", name);
  int added = add_sets(update->mesh, replicated, of->times, (ad_cause){AD_CAUSE_DOUBLED, .factor = of->times}, text,
                       " were each counted", causes);
  size_t given = ad_program_gives_param(ad_run_program(p->checker->run), of->at.spec->name);
  if (given && is_times(of->times, 1 + (double)given))
    ad_causes_add(causes, AD_CAUSE_DOUBLED, stages(p), of->times,
                  "in the norm: `%.80s` was counted %.0f times, also where another stage or pool has a copy", name,
                  of->times)
        ->no_axis = AD_NO_AXIS_POOLS;
  else if (!added)
    ad_causes_add(causes, AD_CAUSE_UNKNOWN, replicated, of->times, "in the norm: `%.80s` was counted %.6g times%s%s",
                  name, of->times, replicated ? ": not once for each of its replicas along " : "",
                  replicated ? axes_text(replicated) : "")
        ->no_axis = AD_NO_AXIS_NO_REPLICAS;
}

/* Adds the causes for a parameter that is counted in part. */
static void report_less(const part *of, const char *name, ad_causes *causes) {
  const ad_layout *update = ad_param_update(of->at.spec);
  ad_axes large = ad_mesh_large(update->mesh), replicated = ad_layout_same_axes(update) & large,
          shards = large & ~replicated;
  if (shards)
    ad_causes_add(causes, AD_CAUSE_PARTIAL, shards, of->times,
                  "in the norm: shards of `%.80s` along %s were left out; %.3g of its squares are counted", name,
                  axes_text(shards), of->times);
  if (replicated)
    ad_causes_add(
        causes, AD_CAUSE_UNKNOWN, replicated, of->times,
        "in the norm: not exactly one replica of `%.80s` along %s was counted; %.3g of its squares are counted", name,
        axes_text(replicated), of->times);
}

/* Adds the causes for a parameter that is not counted although the first rank has it: the parameter is missing, or the
 * shards of other ranks are. */
static void report_none(const part *of, const char *name, ad_causes *causes) {
  report_less(of, name, causes);
  ad_causes_add(causes, AD_CAUSE_MISSING, 0, 0, "in the norm: `%.80s` was not counted", name);
}

/* Adds the cause for a parameter that is not counted and that the first rank does not have: the sum over stages or
 * pools is missing. */
static void report_elsewhere(const parts *p, const char *name, ad_causes *causes) {
  ad_causes_add(causes, AD_CAUSE_MISSING, stages(p), 0,
                "in the norm of the first rank: `%.80s` and all other parameters of other ranks are not counted, since "
                "the sum over %s was left out",
                name, stages(p) ? "the stages (pp)" : "the pools")
      ->no_axis = AD_NO_AXIS_POOLS;
}

static ad_status explain(ad_checker *checker, parts *p) {
  ad_check_result *result = checker->job->result;
  count_in_norm(checker, p);
  const part *of = &p->list[p->worst];
  const char *name = result->params[p->worst].name;
  if (is_times(of->times, 1) || !isfinite(of->times)) return AD_OK;
  for (size_t i = 0; i < checker->param_count; i++) result->params[i].counted = p->list[i].times;
  snprintf(result->norm_param, sizeof result->norm_param, "%s", name);
  result->norm_causes.count = 0;
  int identical = count_identical(p, of);
  if (of->times == 0 && !has_first_rank(p, of))
    report_elsewhere(p, name, &result->norm_causes);
  else if (of->times == 0)
    report_none(of, name, &result->norm_causes);
  else if (identical < 2 && of->times > 1)
    report_more(p, of, name, &result->norm_causes);
  else if (identical < 2)
    report_less(of, name, &result->norm_causes);
  if (of->times != 0 && identical)
    /* with one parameter, the parameter's own count or the common sum may be wrong: causes of both are added */
    report_common(p, of, &result->norm_causes);
  return AD_OK;
}

/* Returns 1 if the replicas of every gradient are equal. The norm has the squares of one replica of each gradient; if
 * replicas differ, nothing follows from these squares. */
static int replicas_are_equal(const ad_checker *checker) {
  for (size_t i = 0; i < checker->param_count; i++)
    if (!checker->replicas[AD_PART_GRADIENT][i].equal) return 0;
  return 1;
}

ad_status ad_norm_explain(ad_checker *checker) {
  parts p = {.checker = checker};
  if (!replicas_are_equal(checker)) return AD_OK;
  AD_TRY(ad_new(checker->param_count, &p.list));
  ad_status status = explain(checker, &p);
  ad_release(p.list);
  return status;
}
