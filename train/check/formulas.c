/* Finds out whether ranks compute formulas in pieces, from the axes of the mesh and from the types of values on
 * tapes. */
#include "check/formulas.h"

#include "base/injection.h"
#include "check/lifted_injections.h"
#include "comm/dry.h"
#include "tensor/tape.h"
#include "mesh/mesh.h"

static int mesh_shards(const ad_run *run) {
  ad_axes sharded = 0;
  for (size_t i = 0; i < ad_run_param_count(run); i++)
    sharded |= ad_mesh_large(ad_run_param_at(run, i).spec->layout.mesh) & ~(AD_AXES_DP | AD_AXES(AD_EFSDP));
  return sharded != 0;
}

static int is_narrow(ad_dtype dtype) { return ad_dtype_wide(dtype) != dtype; }

static int is_on_several_ranks(const ad_layout *layout, ad_type type) {
  return (ad_layout_axes_of(layout, type) & ad_mesh_large(layout->mesh)) != 0;
}

/* Sets the context to 1 if the ranks' parts of a sum are rounded to 16 bits before they are added. These are an operand
 * that is P, or the gradient of an operand that is R. The gradient of a parameter does not count, because it is wider;
 * sums that are rounded only after the parts were added do not count either. */
static void see_operands(void *context, void *passing) {
  const ad_operation_passing *pass = passing;
  for (int i = 0; i < pass->count; i++) {
    const ad_tensor *operand = pass->operands[i];
    if (!operand || !operand->carries || !operand->array.layout.mesh) continue;
    const ad_layout *layout = &operand->array.layout;
    if ((is_narrow(operand->array.dtype) && is_on_several_ranks(layout, AD_P)) ||
        (is_narrow(operand->grad_dtype) && is_on_several_ranks(layout, AD_R)))
      *(int *)context = 1;
  }
}

/* Takes the first step in the recipe's own dtypes, as this rank, on backend dry. Sets *out to 1 if parts of a sum are
 * rounded to 16 bits (see_operands). */
static ad_status tape_shards(const ad_run *run, int *out) {
  ad_comm *dry;
  ad_run *again = NULL;
  ad_step_report report;
  const ad_run_options options = {.size = sizeof options, .quiet = 1};
  AD_TRY(ad_comm_open_dry_like(run->comm, &dry));
  ad_lifted_injections lifted = ad_injections_lift();
  ad_status status = ad_run_create(dry, run->recipe, &options, &again);
  ad_injection_set(AD_INJECT_OPERANDS, (ad_injection){see_operands, out});
  if (!status) status = ad_run_step(again, 0, &report);
  ad_run_destroy(again);
  ad_injections_restore(&lifted);
  ad_comm_close(dry);
  return status;
}

ad_status ad_formulas_sharded(const ad_run *run, int *out) {
  int sharded = mesh_shards(run);
  *out = sharded;
  if (sharded || ad_comm_size(run->comm) == 1 || !is_narrow(run->recipe->precision.compute)) return AD_OK;
  AD_TRY(tape_shards(run, &sharded));
  int32_t some = sharded;
  ad_collective call = {.size = sizeof call, .op = AD_ALL_REDUCE, .in = &some, .out = &some, .count = 1};
  call.group = ad_run_everyone(run);
  call.dtype = AD_I32;
  call.reduction = AD_MAX;
  call.site = AD_HERE;
  AD_TRY(ad_comm_run(run->comm, &call));
  *out = some;
  return AD_OK;
}
