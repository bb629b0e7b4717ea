/* Models of any kind: the common part and the dispatch to a kind's own functions. */
#include "model/model.h"

#include "base/memory.h"

struct ad_model {
  const ad_model_kind *kind;
  void *own;
  ad_declarations params;
  ad_layout batch_layout;
  ad_tensor **leaves;  // of the present microbatch, one for each parameter
};

static ad_layout batch_layout_on(const ad_mesh *mesh) {
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_layout_set(&layout, ad_mesh_named(mesh), AD_I);
  ad_layout_set(&layout, AD_AXES(AD_DP_REPLICATE), AD_S(0));
  ad_layout_set(&layout, AD_AXES(AD_DP_SHARD), AD_S(0));
  return layout;
}

static ad_status create(const ad_mesh *mesh, const ad_declarations *params, ad_model **out) {
  AD_TRY(params->status);
  ad_model *model;
  AD_TRY(ad_new(1, &model));
  ad_status status = ad_new(params->count, &model->leaves);
  if (status) {
    ad_release(model);
    return status;
  }
  model->params = *params;
  model->batch_layout = batch_layout_on(mesh);
  *out = model;
  return AD_OK;
}

ad_status ad_model_create(const ad_model_kind *kind, const ad_mesh *mesh, ad_declarations *params, void *own,
                          ad_model **out) {
  ad_model *model;
  ad_status status = create(mesh, params, &model);
  if (status) {
    ad_declarations_release(params);
    kind->destroy(own);
    return status;
  }
  model->kind = kind;
  model->own = own;
  *out = model;
  return AD_OK;
}

void ad_model_destroy(ad_model *model) {
  if (!model) return;
  model->kind->destroy(model->own);
  ad_declarations_release(&model->params);
  ad_release(model->leaves);
  ad_release(model);
}

size_t ad_model_param_count(const ad_model *model) { return model->params.count; }

const ad_param_spec *ad_model_param(const ad_model *model, size_t index) { return &model->params.list[index]; }

const ad_layout *ad_model_batch_layout(const ad_model *model) { return &model->batch_layout; }

ad_tensor *ad_model_loss(ad_model *model, ad_tape *tape, const ad_array *const *values, const ad_array *tokens,
                         const ad_array *targets) {
  for (size_t i = 0; i < model->params.count; i++) model->leaves[i] = ad_parameter(tape, values[i], i);
  return model->kind->loss(model->own, tape, model->leaves, ad_constant(tape, tokens), ad_constant(tape, targets));
}

double ad_model_flops(const ad_model *model, int64_t rows) {
  return (double)rows * model->kind->flops(model->own, &model->params);
}
