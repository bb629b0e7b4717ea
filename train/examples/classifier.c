/* A custom model in one file: two dense layers classify the rows of a CSV file. The last column is the class, and every
 * fifth row is for validation. Built as a program, this file is a command: `classifier check classifier.yaml --mutate`.
 * Built as a shared object, it is loaded by the addend command:
 * `addend check --program ./classifier.so classifier.yaml`. train/docs/own-program.md explains it step by step. */
#include <stdio.h>
#include <stdlib.h>
#include "addend/addend.h"

/* ---- a custom operation: the margin loss of Crammer and Singer 2001 ---- */

/* Returns the row's loss, max(0, 1 + largest logit of another class - logit of the label), or 0 if the label is -1
 * (padding). Sets *other to that other class. */
static double margin_of(const ad_array *logits, size_t row, double label, size_t *other) {
  size_t classes = (size_t)logits->local.dim[1], first = row * classes, own = label > 0 ? (size_t)label : 0;
  *other = own ? 0 : 1;
  for (size_t c = 0; c < classes; c++)
    if (c != own && ad_array_get(logits, first + c) > ad_array_get(logits, first + *other)) *other = c;
  double over = 1 + ad_array_get(logits, first + *other) - ad_array_get(logits, first + own);
  return label >= 0 && over > 0 ? over : 0;
}

static ad_status margin_forward(ad_tape *t, ad_tensor *out) {
  const ad_array *y = ad_tensor_array(out), *labels = ad_operand(out, 1);
  for (size_t row = 0, other; row < ad_array_numel(y); row++)
    ad_array_set(y, row, margin_of(ad_operand(out, 0), row, ad_array_get(labels, row), &other));
  return AD_OK;
}

static ad_status margin_backward(ad_tape *t, ad_tensor *out, const ad_gradient_slot *slot) {
  const ad_array *logits = ad_operand(out, 0), *labels = ad_operand(out, 1), *gradient = ad_result_grad(out);
  size_t classes = (size_t)logits->local.dim[1], other;
  for (size_t row = 0; row < ad_array_numel(gradient); row++) {
    double label = ad_array_get(labels, row);
    double g = margin_of(logits, row, label, &other) > 0 ? ad_array_get(gradient, row) : 0;
    for (size_t c = 0; c < classes; c++)
      ad_slot_put(&slot[0], row * classes + c, (double)c == label ? -g : c == other ? g : 0);
  }
  return AD_OK;
}

/* The record of the operation. Rows (n) may be sharded, classes (c) may not. Operand 1 holds integers, so backward
 * fills the gradient of operand 0 only. */
static const ad_operation margin = {.size = sizeof margin,
                                    .name = "margin",
                                    .dims = "nc,n->n",
                                    .linearity = AD_NONLINEAR,
                                    .full = "c",
                                    .forward = margin_forward,
                                    .backward = margin_backward,
                                    .fills = 1 << 0,
                                    .indices = 1 << 1,
                                    .dtypes = AD_IN_ANY_FLOAT,
                                    .result = AD_LIKE_WIDE};

/* ---- the model ---- */

typedef struct settings { /* the values that the recipe sets; the table `keys` below lists the key of each member */
  int64_t features, hidden, classes;
  char *rows;
} settings;

typedef struct classifier {
  const settings *options;
  ad_linear_layer in, out;
  ad_batch_field fields[3];
  ad_batch *batch;
  double *table;   /* all numbers of the CSV file, row by row, without the line of column names */
  int64_t numbers; /* how many numbers `table` has */
} classifier;
enum { X, LABELS, HITS, FIELDS, MOST = 1 << 24 };

/* Counts a hit for each row whose largest logit is that of its label. Under `addend plan` (backend dry) arrays have no
 * data. */
static void count_hits(const ad_array *logits, const ad_array *labels, const ad_array *hits) {
  for (size_t row = 0, other; logits && logits->data && row < ad_array_numel(hits); row++) {
    double label = ad_array_get(labels, row);
    ad_array_set(hits, row, label >= 0 && margin_of(logits, row, label, &other) < 1);
  }
}

static ad_status run_phase(void *own, ad_phase_run *at) {
  classifier *model = (classifier *)own;
  const ad_array *of[FIELDS];
  for (size_t i = 0; i < FIELDS; i++) of[i] = ad_batch_array(model->batch, i, ad_phase_microbatch(at));
  const ad_parallel plain = {0};
  ad_tape *t = ad_phase_tape(at);
  ad_tensor *params[4];
  for (size_t i = 0; i < 4; i++) params[i] = ad_parameter(t, ad_phase_parameters(at), i);
  ad_tensor *x = ad_tp_enter(t, ad_constant(t, of[X]), plain);
  ad_tensor *h = ad_gelu(t, ad_linear_forward(t, params, &model->in, x));  // the columns of h are sharded over tp
  ad_tensor *logits = ad_tp_leave(t, ad_linear_forward(t, params, &model->out, h), plain);  // an all-reduce over tp
  ad_tensor *labels = ad_constant(t, of[LABELS]), *operands[2] = {logits, labels};
  ad_tensor *close = ad_scale(t, ad_sum(t, ad_operation_apply(t, &margin, operands, 2, NULL)), 0.1);
  ad_phase_loss(at, 0, ad_add(t, ad_cross_entropy(t, logits, labels), close));
  count_hits(ad_tensor_array(logits), of[LABELS], of[HITS]);
  ad_phase_loss(at, 1, ad_sum(t, ad_constant(t, of[HITS])));
  return AD_OK;
}

static ad_status create_classifier(const void *given, ad_program *to, void **own) {
  const settings *o = (const settings *)given;
  classifier *model = (classifier *)calloc(1, sizeof *model);
  if (!model) return ad_fail(AD_MEMORY, "no memory for the classifier");
  *own = model;
  model->options = o;
  ad_declarations list = ad_declarations_on(ad_program_mesh(to, 0));
  ad_linear_shape in = {o->features, o->hidden, AD_SHARD_COLUMNS, 1, ad_deviation_keeping_size(o->features)};
  ad_linear_shape out = {o->hidden, o->classes, AD_SHARD_ROWS, 1, ad_deviation_keeping_size(o->hidden)};
  model->in = ad_linear_declare(&list, "dense", "in", &in);
  model->out = ad_linear_declare(&list, "dense", "out", &out);
  ad_layout rows = list.replicated, counted = rows;
  ad_layout_set(&rows, AD_AXES_DP, AD_S(0));
  ad_layout_set(&counted, AD_AXES_DP, AD_P);  // each rank counts its own rows
  AD_TRY(ad_program_add_declared(to, "model", NULL, &list));
  model->fields[X] = (ad_batch_field){"x", ad_program_setting_of(to)->compute, {1, {o->features}}};
  model->fields[LABELS] = (ad_batch_field){"labels", AD_I32, {0}};
  model->fields[HITS] = (ad_batch_field){"hits", ad_dtype_wide(ad_program_setting_of(to)->compute), {0}};
  AD_TRY(ad_program_add_batch(to, &rows, model->fields, FIELDS, &model->batch));
  ad_count_spec count = {.size = sizeof count, .name = "rows", .layout = counted};
  ad_loss_spec loss = {.size = sizeof loss, .name = "loss"};
  ad_loss_spec accuracy = {.size = sizeof accuracy, .name = "accuracy", .is_metric = 1};
  ad_phase phase = {.size = sizeof phase, .name = "model", .run = run_phase};
  AD_TRY(ad_program_add_count(to, &count));
  AD_TRY(ad_program_add_loss(to, &loss));
  AD_TRY(ad_program_add_loss(to, &accuracy));
  return ad_program_add_phase(to, &phase);
}

static void destroy_classifier(void *own) {
  free(((classifier *)own)->table);
  free(own);
}

/* ---- reading the CSV file ---- */

static int64_t width_of(const classifier *model) { return model->options->features + 1; }
static int64_t rows_of(const classifier *model) { return model->numbers / width_of(model); }

static int read_number(classifier *model, FILE *file) {
  double *to = &model->table[model->numbers];
  if (model->numbers == MOST || fscanf(file, "%*[, \r\n]%lf", to) != 1) return 0;
  return ++model->numbers % width_of(model) || (*to >= 0 && *to < (double)model->options->classes);
}

static ad_status open_rows(void *own) {
  classifier *model = (classifier *)own;
  FILE *file = fopen(model->options->rows, "r");
  if (!file) return ad_fail(AD_IO, "the file %s cannot be opened; name a file of rows", model->options->rows);
  model->table = (double *)malloc(MOST * sizeof *model->table);
  int is_read = model->table && fscanf(file, "%*[^\n]") != EOF;  // skips the line of column names
  while (is_read && read_number(model, file)) continue;
  is_read = is_read && feof(file) && model->numbers % width_of(model) == 0 && rows_of(model) >= 10;
  fclose(file);
  if (is_read) return AD_OK;
  return ad_fail(AD_IO,
                 "%s: row %lld (from 0) must be %lld numbers and a class, and the file must have at least 10 such rows",
                 model->options->rows, (long long)rows_of(model), (long long)model->options->features);
}

static int has_validation(const void *own) { return 1; }
static int64_t validation_samples(const void *own) { return (rows_of((const classifier *)own) + 4) / 5; }

/* Reads the sample with index to->sample. Every fifth row of the table is for validation. Multiplying the index by the
 * golden ratio shuffles the other rows, so that a batch has all classes. */
static ad_status read_row(void *own, ad_batch_row *to) {
  const classifier *model = (const classifier *)own;
  int64_t width = width_of(model), held = validation_samples(own);
  int64_t spread = (int64_t)(((uint64_t)to->sample * 0x9E3779B97F4A7C15u) >> 33);
  int64_t i = to->validation ? to->sample % held : spread % (rows_of(model) - held);
  const double *row = model->table + (to->validation ? 5 * i : i + i / 4 + 1) * width;
  for (int64_t k = 0; k < width - 1; k++)
    ad_array_set(&to->fields[X], to->row * (size_t)(width - 1) + (size_t)k, row[k]);
  ad_array_set(&to->fields[LABELS], to->row, to->counts ? row[width - 1] : -1);
  return AD_OK;
}

static ad_status read_batch(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  ad_row_reader reader = {read_row, own};
  return ad_batch_read(((classifier *)own)->batch, step, validation, &reader, counted[0]);
}

/* ---- the record that describes this program to addend ---- */

static const ad_key keys[] = {
    AD_INTEGER_KEY("model.features", settings, features, 1, 8192, NULL, "columns before the class"),
    AD_INTEGER_KEY("model.hidden", settings, hidden, 1, 1 << 20, "16", "width of the hidden layer"),
    AD_INTEGER_KEY("model.classes", settings, classes, 2, 8192, NULL, "number of classes; a class is 0 to this less 1"),
    AD_WORDS_KEY("data.rows", settings, rows, NULL, "a CSV whose last column is the class")};

static const ad_program_kind kind = {
    .size = sizeof kind,
    .name = "classifier",
    .help = "two dense layers that classify the rows of a CSV file",
    .keys = keys,
    .key_count = 4,
    .options_size = sizeof(settings),
    .create = create_classifier,
    .destroy = destroy_classifier,
    .open = open_rows,
    .read = read_batch,
    .data = {.has_validation = has_validation, .validation_samples = validation_samples}};

static const ad_program_kind *const kinds[] = {&kind, NULL};
AD_PROGRAM_OBJECT(kinds);
int main(int argc, char **argv) { return ad_main(argc, argv, kinds); }
