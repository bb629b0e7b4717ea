/* Making and unmaking a rank's share of a run. What a step does with it is in step.c. */
#include "train/run.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"

static ad_status check_world(const ad_run *run) {
  int64_t ranks = ad_mesh_size(run->mesh), world = ad_comm_size(run->comm);
  if (ranks == world) return AD_OK;
  return ad_fail(AD_INVALID, "the mesh \"%s\" of %s has %lld ranks, this world has %lld; start as many as the mesh has",
                 ad_mesh_text(run->mesh), run->recipe->path ? run->recipe->path : run->recipe->name, (long long)ranks,
                 (long long)world);
}

static ad_status open_text(ad_run *run) {
  const ad_recipe *recipe = run->recipe;
  return ad_text_data_open((const char *const *)recipe->data.text, recipe->data.text_count, recipe->data.seq,
                           recipe->data.held_out, &run->text);
}

ad_dtype ad_run_compute_dtype(const ad_run *run) {
  if (run->options.dtype) return run->options.dtype;
  return run->recipe->precision.compute ? run->recipe->precision.compute : AD_F32;
}

static ad_status contract_of(const ad_run *run, const char *param, ad_contract *out) {
  ad_dtype forced = run->options.dtype;
  if (!forced) return ad_recipe_contract(run->recipe, param, out);
  *out = (ad_contract){.param = forced, .grad = forced, .reduce = forced, .accumulate = forced};
  return AD_OK;
}

static ad_status specify(ad_run *run, size_t i) {
  ad_param_spec *spec = &run->specs[i];
  *spec = *ad_model_param(run->model, i);
  spec->storage = ad_recipe_storage(run->recipe, spec);
  run->units[i] = spec->unit;
  AD_TRY(contract_of(run, spec->name, &spec->contract));
  int is_f16 = (spec->contract.grad == AD_F16 && !spec->contract.raw) || spec->contract.reduce == AD_F16;
  run->loss_scale.enabled |= is_f16;
  return AD_OK;
}

static ad_status create_store(ad_run *run) {
  ad_store_options options = {.size = sizeof options,
                              .compute = ad_run_compute_dtype(run),
                              .releases = run->recipe->shard.zero == 3,
                              .prefetch = (int)run->recipe->shard.prefetch,
                              .units = run->units};
  return ad_store_create(run->comm, run->specs, run->param_count, &options, &run->store);
}

/* Masters are drawn, so that updates start from all digits; values are what they round to. */
static ad_status initialise(ad_run *run) {
  for (size_t i = 0; i < run->param_count; i++) {
    run->masters[i] = ad_store_master(run->store, i);
    run->computed[i] = ad_store_compute(run->store, i);
    AD_TRY(ad_param_initialise(ad_model_param(run->model, i), (uint64_t)run->recipe->train.seed,
                               ad_comm_rank(run->comm), run->masters[i]));
  }
  return ad_run_refresh(run, 1);
}

static ad_status create_values(ad_run *run) {
  run->param_count = ad_model_param_count(run->model);
  AD_TRY(ad_new(run->param_count, &run->specs));
  AD_TRY(ad_new(run->param_count, &run->units));
  AD_TRY(ad_new(run->param_count, &run->masters));
  AD_TRY(ad_new(run->param_count, &run->computed));
  AD_TRY(ad_new(run->param_count, &run->gradient_list));
  for (size_t i = 0; i < run->param_count; i++) AD_TRY(specify(run, i));
  run->loss_scale.exponent = run->loss_scale.enabled ? (int)run->recipe->precision.loss_scale : 0;
  AD_TRY(create_store(run));
  AD_TRY(initialise(run));
  return run->recipe->model.weights ? ad_run_read_weights(run, run->recipe->model.weights) : AD_OK;
}

static ad_status create_reducer(ad_run *run) {
  ad_reducer_options options = {.size = sizeof options,
                                .bucket_bytes = (size_t)(run->recipe->shard.bucket_mib * 1024 * 1024),
                                .trace = ad_trace_bucket,
                                .trace_context = &run->trace};
  return ad_reducer_create(run->comm, run->specs, run->param_count, &options, &run->reducer);
}

static ad_status create_optimizer(ad_run *run) {
  ad_adamw_options options = {.size = sizeof options,
                              .beta1 = run->recipe->train.beta1,
                              .beta2 = run->recipe->train.beta2,
                              .epsilon = run->recipe->train.epsilon,
                              .weight_decay = run->recipe->train.weight_decay};
  int *decays;
  AD_TRY(ad_new(run->param_count, &decays));
  for (size_t i = 0; i < run->param_count; i++) decays[i] = ad_model_param(run->model, i)->decays;
  ad_status status =
      ad_adamw_create((const ad_array *const *)run->masters, decays, run->param_count, &options, &run->optimizer);
  ad_release(decays);
  return status;
}

static ad_status acquire(void *context, size_t param) { return ad_store_acquire(context, param); }

static void release(void *context, size_t param) { ad_store_release(context, param); }

ad_status ad_run_open_tape(ad_run *run, ad_reducer *reducer, ad_addend_visitor visit, void *context, ad_tape **out) {
  ad_tape_options options = {.size = sizeof options,
                             .dtype = ad_run_compute_dtype(run),
                             .reducer = reducer,
                             .acquire = acquire,
                             .release = release,
                             .parameter_context = run->store,
                             .gradient = visit,
                             .gradient_context = context};
  return ad_tape_create(run->comm, run->mesh, &options, out);
}

static ad_status create_mesh(ad_run *run) {
  AD_TRY(ad_recipe_mesh(run->recipe, &run->mesh));
  AD_TRY(check_world(run));
  run->everyone = ad_mesh_group(run->mesh, AD_AXES_ALL, ad_comm_rank(run->comm));
  return AD_OK;
}

// What was made before a failure is given back by ad_run_destroy.
static ad_status create_parts(ad_run *run, const ad_run_options *options) {
  AD_TRY(ad_options_take(&run->options, sizeof run->options, options, "ad_run_options"));
  AD_TRY(create_mesh(run));
  AD_TRY(ad_recipe_model(run->recipe, run->mesh, &run->model));
  AD_TRY(open_text(run));
  AD_TRY(ad_batch_create(run->comm, ad_model_batch_layout(run->model), run->recipe, &run->batch));
  AD_TRY(ad_trace_create(&run->trace));
  AD_TRY(create_values(run));
  AD_TRY(create_reducer(run));
  AD_TRY(ad_count_create(run->comm, &run->count));
  AD_TRY(create_optimizer(run));
  AD_TRY(ad_run_open_tape(run, run->reducer, NULL, NULL, &run->tape));
  void *sums;
  AD_TRY(ad_comm_alloc(run->comm, AD_RUN_SUMS * sizeof *run->sums, &sums));
  run->sums = sums;
  return AD_OK;
}

ad_status ad_run_create(ad_comm *comm, const ad_recipe *recipe, const ad_run_options *options, ad_run **out) {
  AD_NEED(comm, recipe, out);
  ad_run *run;
  AD_TRY(ad_new(1, &run));
  run->comm = comm;
  run->recipe = recipe;
  ad_status status = ad_run_tell(run, create_parts(run, options));
  if (status) {
    run->options.trace = NULL;
    ad_run_destroy(run);
    return status;
  }
  *out = run;
  return AD_OK;
}

static void destroy_values(ad_run *run) {
  ad_store_destroy(run->store);
  ad_release(run->specs);
  ad_release(run->units);
  ad_release(run->masters);
  ad_release(run->computed);
  ad_release(run->gradient_list);
}

static void write_trace(const ad_run *run) {
  if (!run->options.trace) return;
  if (ad_trace_write(&run->trace, ad_comm_rank(run->comm), run->options.trace)) {
    ad_log(AD_LOG_WARNING, "%s", ad_last_error());
  }
}

void ad_run_destroy(ad_run *run) {
  if (!run) return;
  write_trace(run);
  ad_comm_free(run->comm, run->sums);
  ad_tape_destroy(run->tape);
  ad_adamw_destroy(run->optimizer);
  ad_reducer_destroy(run->reducer);
  ad_count_destroy(run->count);
  destroy_values(run);
  ad_trace_destroy(&run->trace);
  ad_batch_destroy(&run->batch);
  ad_text_data_close(run->text);
  ad_model_destroy(run->model);
  ad_mesh_destroy(run->mesh);
  ad_release(run);
}

// The other statuses are already known to every rank, or are the same on all of them.
static int only_here(ad_status status) {
  return status == AD_INVALID || status == AD_TYPE || status == AD_MEMORY || status == AD_IO || status == AD_SYSTEM;
}

ad_status ad_run_tell(ad_run *run, ad_status status) {
  if (only_here(status)) ad_comm_fail(run->comm, status, ad_last_error());
  return status;
}

int ad_run_warns(const ad_run *run) { return ad_run_is_first(run) && !run->options.quiet; }

int ad_run_is_first(const ad_run *run) { return ad_group_index(&run->everyone, ad_comm_rank(run->comm)) == 0; }

size_t ad_run_param_count(const ad_run *run) { return run->param_count; }
const ad_param_spec *ad_run_param(const ad_run *run, size_t index) { return &run->specs[index]; }
ad_array *ad_run_value(ad_run *run, size_t index) { return ad_store_value(run->store, index); }
ad_array *ad_run_master(ad_run *run, size_t index) { return ad_store_master(run->store, index); }
ad_status ad_run_refresh(ad_run *run, int from_master) {
  AD_NEED(run);
  return ad_store_refresh(run->store, from_master);
}
const ad_array *ad_run_gradient(const ad_run *run, size_t index) { return ad_reducer_gradient(run->reducer, index); }
const ad_mesh *ad_run_mesh(const ad_run *run) { return run->mesh; }
ad_model *ad_run_model(ad_run *run) { return run->model; }
ad_adamw *ad_run_optimizer(ad_run *run) { return run->optimizer; }
ad_reducer *ad_run_reducer(ad_run *run) { return run->reducer; }
ad_store *ad_run_store(ad_run *run) { return run->store; }
ad_loss_scale *ad_run_loss_scale(ad_run *run) { return &run->loss_scale; }
ad_tape *ad_run_tape(ad_run *run) { return run->tape; }
ad_comm *ad_run_comm(ad_run *run) { return run->comm; }
const ad_recipe *ad_run_recipe(const ad_run *run) { return run->recipe; }

size_t ad_run_data_bytes(const ad_run *run) {
  size_t bytes = (size_t)ad_text_data_bytes(run->text);
  for (size_t m = 0; m < run->batch.count; m++) {
    const ad_microbatch *microbatch = &run->batch.microbatches[m];
    bytes += ad_array_bytes(&microbatch->tokens) + ad_array_bytes(&microbatch->targets);
  }
  return bytes;
}
