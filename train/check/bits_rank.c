/* One rank's part of a run for the check for bits: takes the steps, and in each notes which leaves ran and the hashes
 * of their gradients, of the sums and of the updated values. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "array/part.h"
#include "base/error.h"
#include "check/bits.h"
#include "module/module.h"
#include "program/program.h"
#include "recipe/leaves.h"
#include "reduce/watch.h"
#include "step/run.h"

typedef struct rank_notes {
  const ad_bits_job *job;
  ad_run *run;
  int64_t rank, step;
  int64_t shard;       /* position on dp_shard */
  ad_injection before; /* the mutation that was installed at AD_INJECT_PHASE before */
  size_t phases;       /* number of phases that have run forward so far */
  ad_sum_watch watch;
  ad_status status; /* status of the first note that could not be stored */
} rank_notes;

static void add(rank_notes *r, ad_bits_note note) {
  note.step = r->step;
  note.shard = r->shard + 1;
  if (!r->status) r->status = ad_bits_add(r->job->notes, r->rank, &note);
}

/* ---- hashes ---- */

static uint64_t mixed(uint64_t x) { /* a bijection: if one bit of x changes, about half of the result's bits change */
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

typedef struct hashing {
  const char *at;
  size_t size;
  int64_t passed, begin, end; /* elements that were passed; of them, begin .. end - 1 are hashed */
  uint64_t sum;
} hashing;

static void hash_run(void *context, int64_t first, int64_t count) {
  hashing *h = context;
  for (int64_t i = 0; i < count; i++, h->at += h->size, h->passed++) {
    uint64_t bits = 0;
    if (h->passed < h->begin || h->passed >= h->end) continue;
    memcpy(&bits, h->at, h->size);
    h->sum += mixed(bits + mixed((uint64_t)(first + i) + 1));
  }
}

/* Hashes elements `begin` .. `end` - 1 of those that this rank has, each together with its index in the full value. So
 * the sum of all shards' hashes does not depend on the sharding. */
static void hash_elements(const ad_array *array, int64_t rank, int64_t begin, int64_t end, ad_bits_note *note) {
  ad_part part;
  hashing h = {.at = array->data, .size = ad_dtype_size(array->dtype), .begin = begin, .end = end};
  ad_part_of(&array->layout, &array->shape, rank, &part);
  ad_part_visit(&part, &array->shape, hash_run, &h);
  note->hash = h.sum;
  note->numel = end - begin;
}

/* Notes the array and, in a reference, each shard that the run may have of it: some of its rows. */
static void note_array(rank_notes *r, const ad_array *array, ad_bits_note note) {
  int64_t numel = (int64_t)ad_array_numel(array), rows = array->shape.ndim ? array->local.dim[0] : 0;
  if (!numel) return;
  hash_elements(array, r->rank, 0, numel, &note);
  add(r, note);
  for (int64_t i = 0; i < r->job->shards && rows; i++) {
    ad_span shard = ad_cut(rows, i, r->job->shards);
    note.of_shard = i + 1;
    hash_elements(array, r->rank, shard.first * (numel / rows), (shard.first + shard.count) * (numel / rows), &note);
    if (note.numel) add(r, note);
  }
}

static void note_number(rank_notes *r, ad_bits_kind kind, size_t of, double value) {
  ad_bits_note note = {.kind = kind, .of = (int64_t)of, .numel = 1};
  memcpy(&note.hash, &value, sizeof value);
  add(r, note);
}

/* ---- notes that are made during a step ---- */

/* Called before each forward phase. Notes that a leaf ran when the first of the leaf's phases begins. */
static void see_phase(void *context, void *passing) {
  rank_notes *r = context;
  if (r->before.function) r->before.function(r->before.context, passing);
  if (r->phases++ % ad_run_own_phases(r->run)) return;
  add(r, (ad_bits_note){.kind = AD_BITS_RAN, .node = {(int64_t) * (const size_t *)passing, 1}, .numel = 1});
}

static void see_sum(void *context, const ad_watched_sum *sum) {
  rank_notes *r = context;
  ad_bits_note note = {
      .kind = AD_BITS_SUM, .of = (int64_t)sum->param, .node = sum->node, .over = sum->over, .beyond = sum->beyond};
  note_array(r, &sum->values, note);
}

/* ---- notes that are made after a step ---- */

static ad_status note_report(rank_notes *r, const ad_step_report *report) {
  for (size_t i = 0; i < ad_program_loss_count(r->run->program); i++)
    note_number(r, AD_BITS_LOSS, i, report->losses[i]);
  const ad_norm_group *group = &r->run->norms.groups[0]; /* with leaves there is one module, and so one group */
  for (size_t i = 0; i < group->sum_count; i++) note_number(r, AD_BITS_SQUARES, i, group->sums[i]);
  for (size_t i = 0; i < ad_run_norm_group_count(r->run); i++) {
    double clip = 0;
    note_number(r, AD_BITS_NORM, i, report->norms[i]);
    if (!report->skipped) AD_TRY(ad_clip_factor(report->norms[i], r->run->recipe->train.clip, &clip));
    note_number(r, AD_BITS_CLIP, i, clip);
  }
  return AD_OK;
}

static void note_values(rank_notes *r) {
  for (size_t i = 0; i < ad_run_param_count(r->run); i++)
    for (int part = 0; part < AD_PART_KEPT; part++) {
      const ad_array *array = ad_run_part(r->run, i, (ad_param_part)part);
      ad_bits_note note = {.kind = AD_BITS_VALUE, .of = (int64_t)i, .part = part};
      if (array) note_array(r, array, note);
    }
}

static void note_states(rank_notes *r) {
  ad_module *module = ad_run_module(r->run, 0);
  for (size_t i = 0; i < ad_module_state_count(module); i++) {
    note_array(r, ad_module_state(module, i), (ad_bits_note){.kind = AD_BITS_STATE, .of = (int64_t)i});
  }
}

static ad_status take_steps(rank_notes *r) {
  for (r->step = 0; r->step < r->job->steps; r->step++) {
    ad_step_report report;
    AD_TRY(ad_run_step(r->run, r->step, &report));
    AD_TRY(note_report(r, &report));
    note_values(r);
    note_states(r);
  }
  return r->status;
}

/* ---- running one rank ---- */

static void install(rank_notes *r, ad_known_bug_scene *scene) {
  if (r->job->bug) ad_known_bug_inject(r->job->bug, scene);
  r->before = ad_injection_set(AD_INJECT_PHASE, (ad_injection){see_phase, r});
  r->watch = (ad_sum_watch){.visit = see_sum, .context = r};
  ad_sums_watch(&r->watch);
}

ad_status ad_bits_take_steps(ad_comm *comm, const ad_bits_job *job) {
  rank_notes r = {.job = job, .rank = ad_comm_rank(comm)};
  ad_run_options options = {.size = sizeof options, .quiet = 1, .is_part = job->is_part};
  ad_known_bug_scene scene = {.rank = r.rank, .microbatches = ad_recipe_parts(job->recipe)};
  AD_TRY(ad_run_create(comm, job->recipe, &options, &r.run));
  r.shard = ad_mesh_position(ad_program_full_mesh(r.run->program, 0), r.rank, AD_DP_SHARD);
  ad_group beside = ad_mesh_group(ad_program_full_mesh(r.run->program, 0), AD_AXES_ALL & ~AD_AXES_DP, r.rank);
  ad_bits_begin(job->notes, r.rank, ad_group_index(&beside, r.rank));
  install(&r, &scene);
  ad_status status = take_steps(&r);
  ad_injections_clear();
  if (job->fired && scene.fired) atomic_store(job->fired, 1);
  ad_run_destroy(r.run);
  return status;
}

static int run_rank(ad_comm *comm, void *context) {
  ad_status status = ad_bits_take_steps(comm, context);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  return status != AD_OK;
}

ad_status ad_bits_run(const ad_bits_job *job, ad_launch_result *launched) {
  ad_launch_options options = {
      .size = sizeof options, .function = run_rank, .context = (void *)(uintptr_t)job, .ranks = job->notes->ranks};
  return ad_launch(&options, launched);
}
