/* The known bugs around a step, which act at injection points. Nothing in this file is part of what a step does. */
#include "step/known_bugs.h"

#include <math.h>
#include <string.h>
#include "array/transit.h"
#include "kernels/kernels.h"
#include "module/module.h"
#include "program/program.h"
#include "step/run.h"
#include "layout/type.h"
#include "mesh/mesh.h"

enum { SPOILED_RANK = 1 }; /* the rank that has the bug */

static int is_spoiled(const ad_known_bug_scene *scene) { return scene->rank == SPOILED_RANK; }

/* The bug: rank 0 reads its slice from the batch of another step: step 0 reads that of step 1 and the reverse, as do
 * steps 2 and 3, and so on. So the program is asked only for batches that the right run reads, too. It is rank 0
 * because, if matrices are sharded, the parts of the vocabulary on other ranks may not contain any character of the
 * text, so that the bug would have no effect there. */
static void shift_slice(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  if (scene->rank) return;
  *(int64_t *)passing ^= 1;
  scene->fired = 1;
}

/* Returns the rank that changes its gradients: the usual one or, if all its parameters are frozen, another. */
static int64_t perturbed_rank(const ad_run *run) {
  int64_t other = SPOILED_RANK;
  for (size_t i = ad_run_param_count(run); i-- > 0;) {
    const ad_param_spec *spec = ad_run_param_at(run, i).spec;
    if (spec->frozen) continue;
    if (ad_mesh_has_rank(spec->layout.mesh, SPOILED_RANK)) return SPOILED_RANK;
    other = ad_mesh_first_rank(spec->layout.mesh);
  }
  return other;
}

/* The bug: changes, after the reduction, one rank's replica of the last gradient that has elements on this rank. */
static void perturb(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  const ad_run *run = passing;
  if (scene->rank != perturbed_rank(run)) return;
  for (size_t i = ad_run_param_count(run); i-- > 0;) {
    const ad_array *gradient = ad_run_part(run, i, AD_PART_GRADIENT);
    double amount = 1e-3;
    if (!gradient || !gradient->data || !ad_array_numel(gradient)) continue;
    ad_accumulate(gradient->data, gradient->dtype, &amount, AD_F64, 1, 1);
    scene->fired = 1;
    return;
  }
}

/* The bug: averages each gradient over the ranks from whose tokens it is computed, but gradients of experts only over
 * the replicas of the expert. */
static void divide_by_own_group(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  const ad_run *run = passing;
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    const ad_layout *layout = &ad_run_param_at(run, i).spec->layout;
    const ad_array *gradient = ad_run_part(run, i, AD_PART_GRADIENT);
    if (!ad_type_is_sharded(layout->type[AD_EP])) continue;
    scene->ratio = (double)ad_mesh_axis_size(layout->mesh, AD_EP);
    if (!gradient || !gradient->data) continue;
    ad_cast_scaled(gradient->data, gradient->dtype, gradient->data, gradient->dtype, scene->ratio,
                   ad_array_numel(gradient));
    scene->fired = 1;
  }
}

/* ---- known bug: counting a module's norm on another module's mesh ---- */

/* Returns the mesh of another module on the same ranks as `own`, or NULL if there is none or `own` is only a view of a
 * module's mesh. */
static const ad_mesh *other_mesh(const ad_run *run, const ad_mesh *own) {
  const ad_mesh *other = NULL;
  int is_a_modules = 0;
  for (size_t m = 0; m < ad_program_module_count(run->program); m++) {
    const ad_mesh *mesh = ad_program_module(run->program, m)->mesh;
    if (ad_mesh_equal(mesh, own))
      is_a_modules = 1;
    else if (ad_mesh_same_ranks(mesh, own))
      other = mesh;
  }
  return is_a_modules ? other : NULL;
}

static int is_first(const ad_mesh *mesh, ad_axes axes, int64_t rank) {
  ad_group group = ad_mesh_group(mesh, axes, rank);
  return ad_group_rank(&group, 0) == rank;
}

/* Returns 1 if the bug changes how often the elements of `rank` count: of the ranks with the same elements, none or
 * several, instead of one, are first by their positions on the other mesh. */
static int counts_otherwise(const ad_mesh *own, const ad_mesh *other, ad_axes replicas, int64_t rank) {
  ad_group same = ad_mesh_group(own, replicas, rank);
  int counted = 0;
  for (int64_t i = 0; i < ad_group_size(&same); i++) counted += is_first(other, replicas, ad_group_rank(&same, i));
  return counted != 1;
}

int ad_replicas_differ_on_other_mesh(const ad_run *run) {
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    const ad_array *gradient = ad_run_part(run, i, AD_PART_GRADIENT);
    if (!gradient) continue;
    const ad_mesh *own = gradient->layout.mesh, *other = other_mesh(run, own);
    ad_axes replicas = ad_layout_same_axes(&gradient->layout);
    int64_t first = ad_mesh_first_rank(own);
    for (int64_t rank = first; other && rank < first + ad_mesh_size(own); rank++)
      if (counts_otherwise(own, other, replicas, rank)) return 1;
  }
  return 0;
}

static void keep_run(void *context, void *passing) { ((ad_known_bug_scene *)context)->kept = passing; }

/* Returns 1 if this transition selects, among the replicas of a parameter's sum of squares, the one that counts for the
 * norm. Such a sum is one f64 and is on no tape. */
static int counts_for_the_norm(const ad_transit_passing *pass) {
  const ad_array *in = pass->in;
  return pass->transit->move == AD_MOVE_ONCE && pass->transit->what && strcmp(pass->transit->what, "norm") != 0 &&
         in->dtype == AD_F64 && in->shape.ndim == 1 && in->shape.dim[0] == 1;
}

/* The bug: selects the replica that counts for the norm by positions on the mesh of another module. */
static void count_on_other_mesh(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  ad_transit_passing *pass = passing;
  int64_t rank = ad_comm_rank(pass->comm);
  if (!scene->kept || !counts_for_the_norm(pass)) return;
  const ad_mesh *own = pass->in->layout.mesh, *other = other_mesh(scene->kept, own);
  if (!other) return;
  if (!is_first(other, pass->transit->axes, rank)) *(double *)pass->out->data = 0;
  if (is_first(own, pass->transit->axes, rank) != is_first(other, pass->transit->axes, rank)) scene->fired = 1;
  pass->handled = 1;
}

/* The bug: makes the norm infinite on one rank, which then decides alone to skip the step. */
static void overflow(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  if (!is_spoiled(scene)) return;
  *(double *)passing = INFINITY;
  scene->fired = 1;
}

/* The bug: rounds the master weights to bf16, so that each update starts from rounded values. */
static void round_master(void *context, void *passing) {
  const ad_array *master = passing;
  if (!master->data) return;
  ad_round_to_bf16(master->data, master->dtype, ad_array_numel(master));
  ((ad_known_bug_scene *)context)->fired = 1;
}

/* ---- frozen parameters ---- */

int ad_gives_frozen(const ad_run *run, const ad_transfer_spec *spec) {
  size_t length = strlen(spec->value);
  int frozen = !ad_program_phase_learns(run->program, ad_program_giver(run->program, spec->value));
  for (size_t i = 0; i < ad_run_param_count(run) && spec->is_parameter; i++) {
    const char *name = ad_run_param_at(run, i).spec->name;
    if (strncmp(name, spec->value, length) != 0 || name[length] != '.') continue;
    if (ad_run_trains(run, i)) return 0;
    frozen = 1;
  }
  return frozen;
}

/* The bug: adds to a frozen parameter, as weight decay or a stale state of an optimizer that still has it would. */
static void move_frozen(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  const ad_array *value = passing;
  double amount = 1e-3;
  if (!value->data || !ad_array_numel(value)) return;
  ad_accumulate(value->data, value->dtype, &amount, AD_F64, 1, 1);
  scene->fired = 1;
}

static const ad_known_bug bugs[] = {
    {.name = "shifted-slice",
     .words = "one rank reads its slice from the batch of another step",
     .needs = AD_NEED_TOKENS | AD_NEED_RANKS,
     .no_effect = "rank 0 reads the batch of another step, but every compared number has the same bits: its slice is "
                  "the same in both batches, or no token of its slice counts",
     .at = {{AD_INJECT_READ, shift_slice}}},
    {.name = "perturbed-replica",
     .words = "one replica of a parameter is changed",
     .needs = AD_NEED_RANKS,
     .at = {{AD_INJECT_GRADIENTS, perturb}}},
    {.name = "experts-divided-by-own-group",
     .catalogue = 12,
     .words = "the gradients of experts are divided by the number of ranks with a replica, not of those with tokens",
     .needs = AD_NEED_TOKENS | AD_NEED_SPREAD_EXPERTS,
     .at = {{AD_INJECT_GRADIENTS, divide_by_own_group}}},
    {.name = "norm-over-other-mesh",
     .words = "the norm counts those replicas of a module's gradients that it would count on another module's mesh",
     .needs = AD_NEED_TOKENS | AD_NEED_OTHER_REPLICAS,
     .at = {{AD_INJECT_GRADIENTS, keep_run}, {AD_INJECT_TRANSIT, count_on_other_mesh}}},
    {.name = "overflow-per-rank",
     .words = "a rank that sees an overflow skips the step alone",
     .needs = AD_NEED_F16 | AD_NEED_RANKS,
     .of_dtype = 1,
     .at = {{AD_INJECT_NORM, overflow}}},
    {.name = "master-in-bf16",
     .words = "a master is rounded to bf16 after every step",
     .needs = AD_NEED_TOKENS,
     .at = {{AD_INJECT_UPDATED, round_master}}},
    {.name = "frozen-moves",
     .words = "a frozen parameter is changed",
     .needs = AD_NEED_FROZEN,
     .at = {{AD_INJECT_FROZEN, move_frozen}}},
};

const ad_known_bug *ad_train_known_bugs(size_t *count) {
  *count = sizeof bugs / sizeof *bugs;
  return bugs;
}
