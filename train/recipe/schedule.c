/* Checks the section `schedule` of a recipe against its mesh. The program checks how layers are divided among
 * stages. */
#include "recipe/schedule.h"

#include <string.h>
#include "addend/schedule.h"
#include "program/program.h"
#include "mesh/mesh.h"

/* The schedules that training can execute. */
static const char *const kinds[] = {"gpipe", "1f1b", "interleaved", "zb"};

static int is_known(const char *kind) {
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (!strcmp(kinds[i], kind)) return 1;
  return 0;
}

/* Returns the recipe's schedule or, if it has none, the usual one for these stages. */
static const char *kind_of(const ad_recipe *recipe, int64_t pp) {
  if (recipe->schedule.kind) return recipe->schedule.kind;
  return recipe->schedule.stages > pp ? "interleaved" : "1f1b";
}

const char *ad_recipe_schedule(const ad_recipe *recipe) {
  ad_mesh *mesh;
  int64_t pp = 1;
  if (!recipe->schedule.kind && !ad_mesh_create(recipe->meshes[0].text, &mesh)) {
    pp = ad_mesh_axis_size(mesh, AD_PP);
    ad_mesh_destroy(mesh);
  }
  return kind_of(recipe, pp);
}

/* Complains if stages, ranks and schedule do not fit together, which is found out by making the schedule's table. */
static void check_fit(const ad_recipe *recipe, int64_t pp, int64_t stages, const ad_complaints *to) {
  ad_table *table;
  ad_table_shape shape = {sizeof shape, (int32_t)stages, (int32_t)recipe->train.microbatches, (int32_t)pp};
  if (stages > AD_STAGES_MAX) {
    ad_complain(to, "mesh", "pp=%lld or schedule.stages makes more than %d pipeline stages, the most that are allowed",
                (long long)pp, AD_STAGES_MAX);
    return;
  }
  ad_status status = ad_table_make(kind_of(recipe, pp), &shape, &table);
  if (status)
    ad_complain_of(to, recipe->schedule.kind ? "schedule.kind" : "schedule.stages", status);
  else
    ad_table_destroy(table);
}

static void check_mesh(const ad_mesh *mesh, const ad_complaints *to) {
  ad_mesh *stage;
  ad_status status = ad_mesh_create_stage(mesh, 0, &stage);
  if (status)
    ad_complain_of(to, "mesh", status);
  else
    ad_mesh_destroy(stage);
}

void ad_recipe_check_schedule(const ad_recipe *recipe, const ad_mesh *mesh, const ad_complaints *to, int64_t *stages) {
  const char *kind = recipe->schedule.kind;
  ad_program_setting setting = {.stages = recipe->schedule.stages};
  *stages = 0;
  check_mesh(mesh, to);
  ad_status status = ad_program_find_stages(&setting, mesh, stages);
  if (status) ad_complain_of(to, "schedule.stages", status);
  if (kind && !is_known(kind))
    ad_complain(to, "schedule.kind", "must be gpipe, 1f1b, interleaved or zb, but is '%s'", kind);
  else if (!status && recipe->train.microbatches >= 1)
    check_fit(recipe, ad_mesh_axis_size(mesh, AD_PP), *stages, to);
}
