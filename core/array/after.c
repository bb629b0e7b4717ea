/* Describes the result of a transition of law 2: the array's layout, shape and local part. transit.c executes the
 * transition; layout/ lists the transitions that exist. */
#include "array/array.h"
#include "array/packed.h"
#include "base/error.h"
#include "layout/nest.h"
#include "mesh/mesh.h"

static int64_t ranks_sharding(const ad_layout *layout, ad_axes axes, int dim) {
  return ad_mesh_ranks_over(layout->mesh, axes & ad_layout_axes_sharding(layout, dim));
}

/* Returns the shape of the full value after a declaration, which leaves every local part as it is. If parts are uneven,
 * no rank knows the full shape; the function then returns what it would be if all parts were as large as this
 * rank's. */
static ad_shape declared_shape(const ad_array *in, const ad_layout *after, ad_axes axes) {
  ad_shape shape = in->shape;
  for (int dim = 0; dim < shape.ndim; dim++) {
    int changes = ranks_sharding(&in->layout, axes, dim) > 1 || ranks_sharding(after, axes, dim) > 1;
    if (changes) shape.dim[dim] = in->local.dim[dim] * ranks_sharding(after, AD_AXES_ALL, dim);
  }
  return shape;
}

static ad_status check_known(const ad_array *in, ad_move move, ad_type to, const ad_layout *after, const char *site) {
  if (move == AD_MOVE_ALL_TO_ALL && to == AD_V) {
    return ad_fail(AD_INVALID,
                   "%s: `all_to_all` from V to V needs the number of rows that go to each rank, which the types do not "
                   "show; call ad_array_exchange, which takes these numbers",
                   site);
  }
  int declares_sharded =
      move == AD_MOVE_DECLARE && ad_layout_sharded_axes(&in->layout) != ad_layout_sharded_axes(after);
  if (!declares_sharded || !ad_array_is_packed(in)) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: `declare` cannot shard or gather an array that packs several values, because the number of rows "
                 "of each full value is not known; put each value into an array of its own",
                 site);
}

ad_status ad_array_after_at(const ad_comm *comm, const ad_array *in, ad_move move, ad_axes axes, ad_type to,
                            ad_array *out, const char *site) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(comm, in, out);
  AD_NEED(in->layout.mesh);
  ad_layout layout;
  AD_TRY(ad_layout_after_at(&in->layout, move, axes, to, in->shape.ndim, &layout, site));
  AD_TRY(check_known(in, move, to, &layout, site));
  ad_array after = *in;
  after.data = NULL;
  after.layout = layout;
  if (move == AD_MOVE_DECLARE) after.shape = declared_shape(in, &layout, axes);
  after.local = ad_array_local_shape(comm, &after);
  if (ad_array_is_packed(&after)) AD_TRY(ad_packed_check(&after, ad_move_name(move), site));
  *out = after;
  return AD_OK;
}
