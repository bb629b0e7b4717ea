/* Entering and leaving tensor parallelism: the four conjugate operations of Megatron-LM (Shoeybi et al. 2019;
 * Korthikanti et al. 2022) as transitions of law 2. */
#include "nn/parallel.h"

int ad_tp_is_named(const ad_tensor *x) {
  const ad_array *array = ad_tensor_array(x);
  return array && (ad_mesh_named(array->layout.mesh) & AD_AXES(AD_TP));
}

static ad_tensor *move(ad_tape *t, ad_tensor *x, ad_move how, ad_type to, const char *site) {
  return ad_tp_is_named(x) ? ad_move_at(t, x, how, "tp", to, site) : x;
}

ad_tensor *ad_tp_enter_at(ad_tape *t, ad_tensor *x, ad_parallel parallel, const char *site) {
  return move(t, x, parallel.sequence ? AD_MOVE_ALL_GATHER : AD_MOVE_CONVERT, AD_R, site);
}

ad_tensor *ad_tp_leave_at(ad_tape *t, ad_tensor *x, ad_parallel parallel, const char *site) {
  return parallel.sequence ? move(t, x, AD_MOVE_REDUCE_SCATTER, AD_S(1), site)
                           : move(t, x, AD_MOVE_ALL_REDUCE, AD_I, site);
}

ad_tensor *ad_tp_use_at(ad_tape *t, ad_tensor *weight, const char *site) {
  return move(t, weight, AD_MOVE_CONVERT, AD_R, site);
}

ad_tensor *ad_tp_once_at(ad_tape *t, ad_tensor *bias, const char *site) {
  return move(t, bias, AD_MOVE_ONCE, AD_P, site);
}

void ad_tp_type(ad_layout *layout, ad_type type) {
  ad_layout_set(layout, ad_mesh_named(layout->mesh) & AD_AXES(AD_TP), type);
}
