/* The program moe: a decoder whose second branch is a mixture of experts. keys.c has its recipe keys. */
#include <math.h>
#include <stdio.h>
#include "moe/moe.h"
#include "addend/helpers.h"
#include "addend/experts.h"
#include "moe/keys.h"
#include "moe/load.h"
#include "decoder/text_decoder.h"

typedef struct moe {
  ad_text_decoder text; /* must be first: functions of AD_TEXT_DECODER_MEMBERS take a moe as an ad_text_decoder */
  const ad_moe_options *options;
  int64_t microbatches;
  ad_mesh **views; /* [stages]: the view of a stage's mesh on which the stage's experts lie */
  size_t view_count;
  ad_experts_layer *layers; /* [blocks]: the experts of each block; the bias of block i is state i */
  ad_tensor *balance;      /* sum of the balancing losses of the blocks that ran in this microbatch; NULL if none ran */
  ad_moe_load load;        /* how often each expert was chosen in this step */
  int32_t *decisions;      /* [blocks, tokens of the step, top_k]: chosen experts; NULL if neither recorded nor given */
  int decisions_are_given; /* 1: routing uses the experts in `decisions`; 0: routing writes its choices to
                            * `decisions` */
} moe;

/* ---- declaring the experts ---- */

static int has_bias(const ad_moe_options *options) { return options->balance_rate > 0; }

static void declare_bias(ad_declarations *to, const char *path, const ad_moe_options *options) {
  ad_state_spec bias = {
      .size = sizeof bias, .dtype = AD_F32, .shape = {1, {options->experts}}, .layout = to->replicated};
  ad_declare_state(to, path, "bias", bias);
}

static const ad_mesh *view_of(const moe *model, const ad_mesh *mesh) {
  size_t i = 0;
  while (i + 1 < model->view_count && !ad_mesh_same_ranks(model->views[i], mesh)) i++;
  return model->views[i];
}

static void declare_experts(void *own, const ad_decoder *decoder, ad_declarations *to, int64_t block) {
  moe *model = own;
  const ad_moe_options *options = model->options;
  ad_experts_shape shape = {.size = sizeof shape,
                            .d_model = decoder->options->d_model,
                            .experts = options->experts,
                            .hidden = options->expert_hidden,
                            .top_k = options->top_k,
                            .shared_hidden = options->shared_experts,
                            .uses_sigmoid = options->sigmoid,
                            .scores_first = options->score_before_experts,
                            .gate_is_summed = options->summed_gate,
                            .capacity = options->capacity,
                            .has_balance_loss = options->balance_loss > 0,
                            .output_factor = decoder->output_factor,
                            .view = view_of(model, to->replicated.mesh),
                            .parallel = decoder->parallel,
                            .normalised_scores = options->normalised_scores};
  char path[64];
  snprintf(path, sizeof path, "blocks.%lld.moe", (long long)block);
  model->layers[block] = ad_experts_declare(to, path, &shape);
  if (has_bias(options)) declare_bias(to, path, options);
}

/* ---- reading and setting which experts were chosen ---- */

static size_t decisions_of_sample(const moe *model) {
  return (size_t)(model->options->decoder.data.seq * model->options->top_k);
}

static size_t decisions_of_block(const moe *model) {
  return (size_t)model->text.global_batch * decisions_of_sample(model);
}

static size_t decision_count(const moe *model) {
  return (size_t)model->options->decoder.layers * decisions_of_block(model);
}

/* Returns the part of `decisions` that belongs to one block and the present microbatch. */
static ad_decisions decisions_at(const moe *model, const ad_decoder *decoder, int64_t block) {
  if (!model->decisions) return (ad_decisions){0};
  int64_t first = ad_cut(model->text.global_batch, (int64_t)decoder->microbatch, model->microbatches).first;
  size_t at = (size_t)block * decisions_of_block(model) + (size_t)first * decisions_of_sample(model);
  return (ad_decisions){model->decisions + at, model->decisions_are_given};
}

static ad_status decisions(void *own, ad_deciding deciding, int32_t **out, size_t *count) {
  moe *model = own;
  model->decisions_are_given = deciding == AD_OBEYS;
  *count = decision_count(model);
  if (!model->decisions) AD_TRY(ad_new(*count, &model->decisions));
  *out = model->decisions;
  return AD_OK;
}

static void forget_decisions(moe *model) {
  for (size_t i = 0; model->decisions && !model->decisions_are_given && i < decision_count(model); i++)
    model->decisions[i] = -1;
}

/* ---- the experts' forward pass ---- */

static ad_tensor *experts_forward(void *own, const ad_decoder *decoder, ad_tape *t, int64_t block, ad_tensor *x) {
  moe *model = own;
  ad_experts_notes notes;
  const ad_array *bias = has_bias(model->options) ? decoder->states[block] : NULL;
  ad_tensor *y = ad_experts_forward(t, decoder->leaves, &model->layers[block], x, bias,
                                    decisions_at(model, decoder, block), &notes);
  if (!decoder->discards) ad_moe_load_add(&model->load, block, notes.routing);
  if (notes.balance)
    model->balance = block > decoder->stage->blocks.first ? ad_add(t, model->balance, notes.balance) : notes.balance;
  return y;
}

/* Submits the balancing loss, which is the mean over all blocks, so that the meaning of its coefficient does not depend
 * on depth. Each stage submits the part of its own blocks. */
static void end_microbatch(void *own, const ad_decoder *decoder, ad_phase_run *at) {
  const moe *model = own;
  double share = 1 / (double)decoder->options->layers;
  if (!(model->options->balance_loss > 0) || !decoder->stage->blocks.count) return;
  ad_phase_loss(at, 1, ad_scale(ad_phase_tape(at), model->balance, share));
}

static const ad_branch experts = {.declare = declare_experts, .forward = experts_forward, .end = end_microbatch};

/* ---- functions of the program's record ---- */

static ad_status add_balance_loss(const ad_moe_options *options, ad_program *to) {
  ad_loss_spec balance = {.size = sizeof balance,
                          .name = "balance",
                          .per_microbatch = 1,
                          .coefficient = options->balance_loss,
                          .is_auxiliary = 1};
  return options->balance_loss > 0 ? ad_program_add_loss(to, &balance) : AD_OK;
}

static ad_status create_views(moe *model, const ad_program *program) {
  size_t count = ad_program_stage_count(program);
  AD_TRY(ad_new(count, &model->views));
  for (; model->view_count < count; model->view_count++)
    AD_TRY(ad_moe_view(model->options, ad_program_mesh(program, model->view_count), &model->views[model->view_count]));
  return AD_OK;
}

/* Returns the mesh over which the experts' choices are counted. */
static const ad_mesh *counted_on(const ad_program *program) {
  return ad_program_setting_of(program)->leaves ? ad_program_full_mesh(program, 0) : ad_program_pool(program, 0);
}

static ad_status create_moe(const void *options, ad_program *to, void **own) {
  const ad_moe_options *moe_options = options;
  moe *model;
  AD_TRY(ad_new(1, &model));
  *own = model;
  model->options = moe_options;
  model->microbatches = ad_program_setting_of(to)->microbatches;
  AD_TRY(create_views(model, to));
  AD_TRY(ad_new((size_t)moe_options->decoder.layers, &model->layers));
  AD_TRY(
      ad_moe_load_create(&model->load, ad_program_setting_of(to)->comm, counted_on(to), model->views[0], moe_options));
  double share = (double)moe_options->top_k / (double)moe_options->experts;
  AD_TRY(ad_text_decoder_create(&model->text, &moe_options->decoder, &experts, model, share, to));
  return add_balance_loss(moe_options, to);
}

static void destroy_moe(void *own) {
  moe *model = own;
  ad_text_decoder_release(&model->text);
  ad_moe_load_release(&model->load);
  for (size_t i = 0; i < model->view_count; i++) ad_mesh_destroy(model->views[i]);
  ad_release(model->views);
  ad_release(model->layers);
  ad_release(model->decisions);
  ad_release(model);
}

static ad_status read(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  ad_moe_load_begin(&((moe *)own)->load);
  forget_decisions(own);
  return ad_text_decoder_read(own, step, validation, counted);
}

static ad_status after_step(void *own, ad_step_outcome outcome) {
  moe *model = own;
  AD_TRY(ad_moe_load_sum(&model->load));
  if (!has_bias(model->options) || outcome == AD_STEP_SKIPPED) return AD_OK;
  for (int64_t i = 0; i < model->options->decoder.layers; i++) {
    ad_array *bias = model->text.decoder.states[i];
    if (bias)
      // `bias` is NULL if the block is on other ranks
      ad_moe_load_correct(&model->load, i, model->options->balance_rate, bias);
  }
  return AD_OK;
}

/* Removes the experts' capacity, which is a limit for each microbatch: a sampled token must not depend on how many
 * tokens are read together, and an exported model has no such limit. */
static void drop_nothing(void *options) { ((ad_moe_options *)options)->capacity = 0; }

static double margin(const void *own) { return ((const moe *)own)->load.margin; }

static const double *measured(const void *own, size_t index, const char **name, size_t *count) {
  return ad_moe_load_measured(&((const moe *)own)->load, index, name, count);
}

static const char *const architectures[] = {"MixtralForCausalLM", "Qwen3MoeForCausalLM", NULL};

const ad_program_kind *ad_moe(void) {
  static const ad_program_kind kind = {.size = sizeof kind,
                                       .name = "moe",
                                       .help = "a decoder of text with mixtures of experts",
                                       .keys = ad_moe_keys,
                                       .key_count = AD_MOE_KEY_COUNT,
                                       .options_size = sizeof(ad_moe_options),
                                       .create = create_moe,
                                       .destroy = destroy_moe,
                                       .read = read,
                                       .rules.check = ad_moe_check,
                                       .rules.usual = ad_decoder_usual,
                                       .sampling.prepare = drop_nothing,
                                       .choices = {.margin = margin, .decisions = decisions},
                                       .account.measured = measured,
                                       .course.after_step = after_step,
                                       .architectures = architectures,
                                       .sums_leaves = 1,
                                       AD_TEXT_DECODER_MEMBERS};
  return &kind;
}
