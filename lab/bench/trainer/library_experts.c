/* The task "experts": forward and backward of a mixture-of-experts layer on one rank (router, choice, experts, and the
 * sum of their results), without a model around it and without an optimizer. */
#include <stdlib.h>

#include "measured.h"
#include "addend/experts.h"
#include "bench/routes.h"

enum { HIDDEN = 1024, TOP_K = 2, PARAMS_MAX = 4 };

struct bench_experts {
  ad_mesh *mesh, *view;
  ad_tape *tape;
  ad_declarations params;
  ad_experts_layer layer;
  ad_array x, dy; /* [1, tokens, width] */
  ad_array values[PARAMS_MAX];
  const ad_array *value_of[PARAMS_MAX];
  ad_parameters from;
};

/* Fills an array with different numbers of about the size `deviation`, without a pattern that would bias the router. */
static ad_status make_value(ad_comm *comm, const ad_shape *shape, const ad_layout *layout, double deviation,
                            ad_array *out) {
  *out = ad_array_describe(comm, AD_F32, shape, layout);
  float *memory = malloc(ad_array_bytes(out));
  unsigned state = 1;
  if (!memory) return AD_MEMORY;
  for (size_t i = 0; i < ad_array_numel(out); i++) {
    state = state * 1664525u + 1013904223u;
    memory[i] = (float)(deviation * ((double)(state >> 8) / (1 << 23) - 1));
  }
  out->data = memory;
  return AD_OK;
}

static ad_status declare(bench_experts *experts) {
  ad_experts_shape shape = {.size = sizeof shape,
                            .d_model = BENCH_WIDTH,
                            .experts = BENCH_EXPERTS,
                            .hidden = HIDDEN,
                            .top_k = TOP_K,
                            .output_factor = 1,
                            .view = experts->view};
  experts->params = ad_declarations_on(experts->mesh);
  experts->layer = ad_experts_declare(&experts->params, "moe", &shape);
  return experts->params.status;
}

static ad_status make_params(bench_experts *experts, ad_comm *comm) {
  for (size_t i = 0; i < experts->params.count; i++) {
    const ad_param_spec *spec = &experts->params.list[i];
    AD_TRY(make_value(comm, &spec->shape, &spec->layout, spec->deviation, &experts->values[i]));
    experts->value_of[i] = &experts->values[i];
  }
  experts->from =
      (ad_parameters){.size = sizeof(ad_parameters), .values = experts->value_of, .count = experts->params.count};
  return AD_OK;
}

static ad_status make(bench_experts *experts, ad_comm *comm, int64_t tokens) {
  ad_shape shape = {3, {1, tokens, BENCH_WIDTH}};
  AD_TRY(ad_mesh_create("dp_shard=1", &experts->mesh));
  AD_TRY(ad_mesh_create_view(experts->mesh, "efsdp=1 ep=1 etp=1", &experts->view));
  AD_TRY(ad_tape_create(comm, experts->mesh, NULL, &experts->tape));
  AD_TRY(declare(experts));
  AD_TRY(make_params(experts, comm));
  ad_layout layout = ad_layout_all(experts->mesh, AD_R), dual;
  ad_layout_set(&layout, AD_AXES_DP, AD_S(0));
  dual = ad_layout_dual(&layout);
  AD_TRY(make_value(comm, &shape, &layout, 1, &experts->x));
  return make_value(comm, &shape, &dual, 1, &experts->dy);
}

ad_status bench_experts_create(ad_comm *comm, const bench_task *task, bench_experts **out) {
  bench_experts *experts = calloc(1, sizeof *experts);
  if (!experts) return AD_MEMORY;
  ad_status status = make(experts, comm, (int64_t)(task->bytes / BENCH_ROW_BYTES));
  if (status) return bench_experts_destroy(experts), status;
  *out = experts;
  return AD_OK;
}

void bench_experts_destroy(bench_experts *experts) {
  if (!experts) return;
  if (experts->tape) ad_tape_destroy(experts->tape);
  for (int i = 0; i < PARAMS_MAX; i++) free(experts->values[i].data);
  free(experts->x.data);
  free(experts->dy.data);
  ad_declarations_release(&experts->params);
  if (experts->view) ad_mesh_destroy(experts->view);
  if (experts->mesh) ad_mesh_destroy(experts->mesh);
  free(experts);
}

ad_status bench_experts_run(bench_experts *experts) {
  ad_tape *t = experts->tape;
  ad_tensor *params[PARAMS_MAX];
  ad_experts_notes notes;
  ad_tape_reset(t);
  for (size_t i = 0; i < experts->from.count; i++) params[i] = ad_parameter(t, &experts->from, i);
  ad_tensor *y =
      ad_experts_forward(t, params, &experts->layer, ad_input(t, &experts->x), NULL, (ad_decisions){0}, &notes);
  return ad_backward_from(t, &y, (const ad_array *[]){&experts->dy}, 1, AD_LAST_START);
}
