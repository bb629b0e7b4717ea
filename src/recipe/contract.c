/* What a recipe says of one parameter, and the mesh and the model that it names. */
#include "recipe/contract.h"

#include <fnmatch.h>
#include <string.h>
#include "addend/recipe.h"
#include "base/error.h"

ad_contract ad_contract_merge(ad_contract base, ad_contract over) {
  if (over.param) base.param = over.param;
  if (over.grad || over.raw) {
    base.grad = over.grad;
    base.raw = over.raw;
  }
  if (over.reduce) base.reduce = over.reduce;
  if (over.accumulate) base.accumulate = over.accumulate;
  return base;
}

ad_status ad_recipe_complete(const ad_recipe *recipe, ad_contract *contract) {
  ad_contract full = *contract;
  if (full.raw && !full.grad) full.grad = recipe->precision.compute ? recipe->precision.compute : AD_F32;
  AD_TRY(ad_contract_complete(&full));
  *contract = full;
  return AD_OK;
}

ad_status ad_recipe_contract(const ad_recipe *recipe, const char *param, ad_contract *out) {
  AD_NEED(recipe, param, out);
  ad_contract contract = recipe->precision.contract;
  for (size_t i = 0; i < recipe->precision.override_count; i++) {
    const ad_recipe_override *override = &recipe->precision.overrides[i];
    if (!fnmatch(override->pattern, param, 0)) contract = ad_contract_merge(contract, override->contract);
  }
  ad_status status = ad_recipe_complete(recipe, &contract);
  if (status) return ad_fail_in(status, "%s: contract of %s", recipe->path, param);
  *out = contract;
  return AD_OK;
}

ad_layout ad_recipe_storage(const ad_recipe *recipe, const ad_param_spec *spec) {
  ad_layout storage = spec->layout;
  if (recipe->shard.zero && spec->shape.ndim) ad_layout_set(&storage, spec->sharded, AD_S(0));
  return storage;
}

ad_status ad_recipe_mesh(const ad_recipe *recipe, ad_mesh **out) {
  AD_NEED(recipe, out);
  return ad_mesh_create(recipe->mesh, out);
}

ad_status ad_recipe_model(const ad_recipe *recipe, const ad_mesh *mesh, ad_model **out) {
  AD_NEED(recipe, mesh, out);
  if (strcmp(recipe->model.kind, "gpt") != 0)
    return ad_fail(AD_INVALID, "%s: model.kind: must be gpt, is %s", recipe->path, recipe->model.kind);
  ad_gpt_options options = {.size = sizeof options,
                            .layers = recipe->model.layers,
                            .d_model = recipe->model.d_model,
                            .heads = recipe->model.heads,
                            .d_hidden = recipe->model.d_hidden,
                            .vocabulary = 256, /* bytes */
                            .seq = recipe->data.seq,
                            .tied = recipe->model.tied,
                            .rotary_base = recipe->model.rotary_base};
  return ad_gpt_create(mesh, &options, out);
}
