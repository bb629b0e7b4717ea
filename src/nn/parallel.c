/* Entering and leaving tensor parallelism: the four conjugate operations of Megatron-LM (Shoeybi et al. 2019;
 * Korthikanti et al. 2022) as entries of law 2's table. */
#include "nn/parallel.h"

static int has_tp(const ad_tensor *x) {
  const ad_array *array = ad_tensor_array(x);
  return array && (ad_mesh_named(array->layout.mesh) & AD_AXES(AD_TP));
}

ad_tensor *ad_tp_enter(ad_tape *t, ad_tensor *x, int sequence) {
  if (!has_tp(x)) return x;
  return sequence ? ad_all_gather(t, x, "tp", AD_R) : ad_convert(t, x, "tp", AD_R);
}

ad_tensor *ad_tp_leave(ad_tape *t, ad_tensor *x, int sequence) {
  if (!has_tp(x)) return x;
  return sequence ? ad_reduce_scatter(t, x, "tp", AD_S(1)) : ad_all_reduce(t, x, "tp", AD_I);
}

ad_tensor *ad_tp_use(ad_tape *t, ad_tensor *weight) {
  return has_tp(weight) ? ad_convert(t, weight, "tp", AD_R) : weight;
}

ad_tensor *ad_tp_once(ad_tape *t, ad_tensor *bias) { return has_tp(bias) ? ad_once(t, bias, "tp") : bias; }

void ad_tp_type(ad_layout *layout, ad_type type) {
  ad_layout_set(layout, ad_mesh_named(layout->mesh) & AD_AXES(AD_TP), type);
}
