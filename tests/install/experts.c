/* A user's own mixture of experts, in C and C++17, on the installed headers alone: it reads rows of numbers, learns
 * their squares, and takes its expert choices from the check when the check gives them. It makes its own layer, view
 * and choices. */
#include <math.h>
#include <stdlib.h>
#include <addend/addend.h>

enum { SEQ = 4, WIDTH = 8, TOP_K = 2, NUMBERS = SEQ * WIDTH, PARAMS = 7 };

typedef struct settings {
  int64_t experts;
  char *sparse;
} settings;

typedef struct mixture {
  const settings *options;
  const ad_program_setting *setting;
  ad_mesh *view;
  ad_experts_layer layer;
  ad_batch_field fields[2];
  ad_batch *batch;
  double margin;
  int32_t *kept; /* [global_batch * SEQ, TOP_K] choices; NULL: nobody asked for choices */
  int are_given;
} mixture;

static ad_decisions decisions_in(const mixture *model, size_t microbatch) {
  ad_decisions at = {NULL, model->are_given};
  int64_t first = ad_cut(model->setting->global_batch, (int64_t)microbatch, model->setting->microbatches).first;
  if (model->kept) at.of = model->kept + first * SEQ * TOP_K;
  return at;
}

static ad_status run(void *own, ad_phase_run *at) {
  mixture *model = (mixture *)own;
  ad_tape *t = ad_phase_tape(at);
  size_t m = ad_phase_microbatch(at);
  ad_tensor *params[PARAMS];
  for (size_t i = 0; i < PARAMS; i++) params[i] = ad_parameter(t, ad_phase_parameters(at), i);
  ad_tensor *x = ad_constant(t, ad_batch_array(model->batch, 0, m));
  ad_experts_notes notes;
  ad_tensor *y = ad_experts_forward(t, params, &model->layer, x, NULL, decisions_in(model, m), &notes);
  model->margin = fmin(model->margin, ad_routing_margin(notes.routing));
  ad_phase_loss(at, 0, ad_squared_error(t, y, ad_constant(t, ad_batch_array(model->batch, 1, m))));
  ad_phase_loss(at, 1, notes.balance);
  return AD_OK;
}

static ad_status declare(mixture *model, ad_program *to, ad_declarations *list) {
  const char *view = model->options->sparse ? model->options->sparse : "ep=1 etp=1";
  AD_TRY(ad_key_view(ad_program_mesh(to, 0), view, &model->view));
  ad_experts_shape shape = {.size = sizeof shape,
                            .d_model = WIDTH,
                            .experts = model->options->experts,
                            .hidden = 6,
                            .top_k = TOP_K,
                            .shared_hidden = 4,
                            .capacity = 1.5,
                            .has_balance_loss = 1,
                            .output_factor = 1,
                            .view = model->view};
  *list = ad_declarations_on(ad_program_mesh(to, 0));
  model->layer = ad_experts_declare(list, "moe", &shape);
  return AD_OK;
}

static ad_status create(const void *given, ad_program *to, void **own) {
  mixture *model = (mixture *)calloc(1, sizeof *model);
  if (!model) return ad_fail(AD_MEMORY, "no memory for the mixture");
  *own = model;
  model->options = (const settings *)given;
  model->setting = ad_program_setting_of(to);
  ad_declarations list;
  AD_TRY(declare(model, to, &list));
  ad_layout rows = list.replicated, counted = rows;
  ad_layout_set(&rows, AD_AXES_DP, AD_S(0));
  ad_layout_set(&counted, AD_AXES_DP, AD_P);
  AD_TRY(ad_program_add_declared(to, "model", NULL, &list));
  model->fields[0] = (ad_batch_field){"x", model->setting->compute, {2, {SEQ, WIDTH}}};
  model->fields[1] = (ad_batch_field){"squares", model->setting->compute, {2, {SEQ, WIDTH}}};
  AD_TRY(ad_program_add_batch(to, &rows, model->fields, 2, &model->batch));
  ad_count_spec count = {.size = sizeof count, .name = "rows", .layout = counted};
  ad_loss_spec loss = {.size = sizeof loss, .name = "loss"};
  ad_loss_spec balance = {
      .size = sizeof balance, .name = "balance", .coefficient = 0.1, .is_auxiliary = 1, .per_microbatch = 1};
  ad_phase phase = {.size = sizeof phase, .name = "model", .run = run};
  AD_TRY(ad_program_add_count(to, &count));
  AD_TRY(ad_program_add_loss(to, &loss));
  AD_TRY(ad_program_add_loss(to, &balance));
  return ad_program_add_phase(to, &phase);
}

static void destroy(void *own) {
  ad_mesh_destroy(((mixture *)own)->view);
  free(((mixture *)own)->kept);
  free(own);
}

static ad_status read_row(void *own, ad_batch_row *to) {
  for (size_t k = 0; k < NUMBERS; k++) {
    double value = sin((double)to->sample * 1.7 + (double)k * 2.3);
    ad_array_set(&to->fields[0], to->row * NUMBERS + k, value);
    ad_array_set(&to->fields[1], to->row * NUMBERS + k, value * value);
  }
  return AD_OK;
}

static size_t choices_of(const mixture *model) { return (size_t)model->setting->global_batch * SEQ * TOP_K; }

static ad_status read_batch(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  mixture *model = (mixture *)own;
  ad_row_reader reader = {read_row, own};
  model->margin = INFINITY;
  for (size_t i = 0; model->kept && !model->are_given && i < choices_of(model); i++) model->kept[i] = -1;
  return ad_batch_read(model->batch, step, validation, &reader, counted[0]);
}

static double margin_of(const void *own) { return ((const mixture *)own)->margin; }

static ad_status decisions(void *own, ad_deciding deciding, int32_t **out, size_t *count) {
  mixture *model = (mixture *)own;
  *count = choices_of(model);
  if (!model->kept) model->kept = (int32_t *)calloc(*count, sizeof *model->kept);
  if (!model->kept) return ad_fail(AD_MEMORY, "no memory for choices");
  model->are_given = deciding == AD_OBEYS;
  *out = model->kept;
  return AD_OK;
}

static const ad_key keys[] = {AD_INTEGER_KEY("model.experts", settings, experts, 1, 64, "4", "experts"),
                              {"views.sparse", AD_KEY_VIEW, 0, offsetof(settings, sparse), 0, 0, 0, 0, 0, "", NULL,
                               "the mesh of the experts", 0, NULL}};

static const ad_program_kind kind = {.size = sizeof kind,
                                     .name = "mixture",
                                     .keys = keys,
                                     .key_count = 2,
                                     .options_size = sizeof(settings),
                                     .create = create,
                                     .destroy = destroy,
                                     .read = read_batch,
                                     .choices = {.margin = margin_of, .decisions = decisions}};

static const ad_program_kind *const kinds[] = {&kind, NULL};
AD_PROGRAM_OBJECT(kinds);
