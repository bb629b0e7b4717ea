/* The loss: cross-entropy, summed over the counted positions; ad_divide divides the sum by the batch's count
 * (op_count.c). If the vocabulary is sharded, the ranks gather three statistics of each row (all_gather S->I): of each
 * rank's part of the row, the largest logit, the sum of exponentials relative to that logit, and the target's logit if
 * the part has it. So the loss is I on those axes, and no rank ever has a complete row. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "array/array.h"
#include "array/transit.h"
#include "base/injection.h"
#include "layout/nest.h"
#include "tensor/tape.h"
#include "mesh/mesh.h"

enum { LARGEST, SUM, TARGET, STATISTICS }; /* the statistics of one row, in one rank's part of the vocabulary */

/* The gather of statistics, as the operation was recorded. */
typedef struct loss_numbers {
  ad_axes over; /* the axes that shard the vocabulary; the statistics are gathered over them */
  int times;    /* how often the statistics are gathered: 1, unless a mutation changes it */
  int ordinal;  /* index of the gather among the transitions of its tape, from 0 */
} loss_numbers;

static const loss_numbers *numbers_of(const ad_tensor *out) { return out->own; }
static const int32_t *targets_of(const ad_tensor *out) { return out->operand[1]->array.data; }
static const void *logits_row(const ad_tensor *logits, size_t i) {
  return ad_at(logits, logits->array.data, i * ad_columns(logits));
}

static int last_dim(const ad_array *logits) { return logits->shape.ndim - 1; }

/* ---- the rows' statistics as an array ---- */

/* Describes this rank's statistics: [parts, STATISTICS, rows], sharded by parts of the vocabulary. On other axes they
 * have the types of the logits, but V in place of S. */
static ad_array statistics_of(const ad_tape *tape, const ad_tensor *out) {
  const ad_array *logits = &out->operand[0]->array;
  ad_layout layout = logits->layout;
  ad_axes vocabulary = ad_layout_axes_sharding(&layout, last_dim(logits));
  ad_layout_set(&layout, ad_layout_sharded_axes(&layout) & ~vocabulary, AD_V);
  ad_layout_set(&layout, vocabulary, AD_S(0));
  ad_shape shape = {3, {ad_mesh_ranks_over(layout.mesh, vocabulary), STATISTICS, (int64_t)ad_rows_of(out->operand[0])}};
  return ad_array_describe(tape->comm, ad_dtype_wide(logits->dtype), &shape, &layout);
}

static ad_transit gathering(const ad_tensor *out) {
  const loss_numbers *numbers = numbers_of(out);
  return (ad_transit){
      .move = AD_MOVE_ALL_GATHER, .axes = numbers->over, .to = AD_I, .site = out->site, .ordinal = numbers->ordinal};
}

/* Describes the gathered statistics by law 2; refuses a gather that leaves the vocabulary sharded. */
static ad_status describe_gathered(const ad_tape *tape, const ad_tensor *out, ad_array *gathered) {
  const loss_numbers *numbers = numbers_of(out);
  *gathered = statistics_of(tape, out);
  for (int i = 0; numbers->over && i < numbers->times; i++)
    AD_TRY(ad_array_after_at(tape->comm, gathered, AD_MOVE_ALL_GATHER, numbers->over, AD_I, gathered, out->site));
  if (!ad_layout_sharded_axes(&gathered->layout)) return AD_OK;
  char axes[96];
  return ad_fail(AD_TYPE,
                 "%s: the vocabulary of `cross_entropy` is sharded over %s, so the maxima and sums of its rows must be "
                 "gathered over these axes, but were not",
                 out->site, ad_axes_print(ad_layout_sharded_axes(&gathered->layout), axes, sizeof axes));
}

/* Describes the loss: on axes that shard the vocabulary it is I, because the ranks gather statistics and then compute
 * the same loss. */
static ad_status loss_describe(ad_tape *tape, ad_tensor *out) {
  const ad_array *logits = &out->operand[0]->array;
  if (!logits->shape.ndim) return ad_operation_describe(tape, out);
  ad_layout as_gathered = logits->layout;
  ad_layout_set(&as_gathered, ad_layout_axes_sharding(&logits->layout, last_dim(logits)), AD_I);
  const ad_layout *layouts[] = {&as_gathered, &out->operand[1]->array.layout};
  ad_array gathered;
  AD_TRY(ad_operation_describe_by(tape, out, layouts));
  return describe_gathered(tape, out, &gathered);
}

/* ---- which part of the vocabulary this rank holds ---- */

/* Returns the columns of the logits that this rank has. */
static ad_span own_columns(const ad_tape *tape, const ad_tensor *out, int *span_count) {
  const ad_array *logits = &out->operand[0]->array;
  ad_span span = {0, 0};
  *span_count = ad_layout_spans(&logits->layout, last_dim(logits), logits->shape.dim[last_dim(logits)],
                                ad_comm_rank(tape->comm), &span, 1);
  return span;
}

static ad_status loss_check(const ad_tape *tape, const ad_tensor *out) {
  int span_count;
  own_columns(tape, out, &span_count);
  if (span_count <= 1) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: the vocabulary of `cross_entropy` has %d separate pieces on this rank, but must be one piece; "
                 "shard the vocabulary in order of the ranks",
                 out->site, span_count);
}

static ad_status check_target(const ad_tensor *out, size_t position) {
  const ad_array *logits = &out->operand[0]->array;
  int64_t vocabulary = logits->shape.dim[last_dim(logits)];
  if (targets_of(out)[position] < vocabulary) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "%s: `cross_entropy` got target %d at position %zu (from 0), which is outside the vocabulary of %" PRId64
      " logits",
      out->site, targets_of(out)[position], position, vocabulary);
}

/* ---- sizes of saved and scratch memory ---- */

// Returns the bytes that forward saves: for each row the largest logit, and the sum of exponentials relative to it. The
// two are kept apart because their log-sum-exp would be rounded at the size of the logits.
static size_t loss_saved(const ad_tensor *out) {
  return 2 * ad_rows_of(out->operand[0]) * ad_dtype_size(out->array.dtype);
}

static size_t row_bytes(const ad_tensor *out) {
  return ad_padded(ad_columns(out->operand[0]) * ad_dtype_size(out->array.dtype));
}

/* Returns the bytes of one rank's statistics. */
static size_t statistics_bytes(const ad_tensor *out) {
  return ad_padded(STATISTICS * ad_rows_of(out->operand[0]) * ad_dtype_size(out->array.dtype));
}

// Returns the bytes of scratch memory: a row of exponentials, this rank's statistics and those of all ranks.
static size_t loss_scratch(const ad_tensor *out) {
  int64_t parts = ad_mesh_ranks_over(out->array.layout.mesh, numbers_of(out)->over);
  return row_bytes(out) + (size_t)(parts + 1) * statistics_bytes(out);
}

/* ---- cross-entropy's forward ---- */

/* Computes this rank's statistics of each row. */
static ad_status fill_statistics(ad_tape *tape, const ad_tensor *out, void *statistics) {
  const ad_tensor *logits = out->operand[0];
  const row_kernels *kernels = ad_rows(logits->array.dtype);
  ad_dtype dtype = out->array.dtype;
  size_t columns = ad_columns(logits), rows = ad_rows_of(logits);
  int span_count;
  ad_span own = own_columns(tape, out, &span_count);
  for (size_t i = 0; i < rows; i++) {
    AD_TRY(check_target(out, i));
    if (targets_of(out)[i] < 0) continue;
    const void *row = logits_row(logits, i);
    int64_t target = targets_of(out)[i] - own.first;
    double largest = kernels->max(row, columns);
    ad_set_element(dtype, statistics, LARGEST * rows + i, largest);
    ad_set_element(dtype, statistics, SUM * rows + i, kernels->exp_sum(out->scratch, row, largest, columns));
    ad_set_element(dtype, statistics, TARGET * rows + i,
                   target >= 0 && target < own.count ? ad_element(logits->array.dtype, row, (size_t)target) : 0);
  }
  return AD_OK;
}

static double statistic(const ad_tensor *out, const void *gathered, int64_t part, int which, size_t row) {
  size_t rows = ad_rows_of(out->operand[0]);
  return ad_element(out->array.dtype, gathered, ((size_t)part * STATISTICS + (size_t)which) * rows + row);
}

static double largest_of_row(const ad_tensor *out, const void *gathered, int64_t parts, size_t row) {
  double largest = -INFINITY;
  for (int64_t part = 0; part < parts; part++) largest = fmax(largest, statistic(out, gathered, part, LARGEST, row));
  return largest;
}

/* Returns the sum of a row's exponentials, over all ranks' parts of the row, relative to `largest`. An empty part adds
 * nothing; NaN stays NaN. */
static double sum_of_row(const ad_tensor *out, const void *gathered, int64_t parts, size_t row, double largest) {
  double sum = 0;
  for (int64_t part = 0; part < parts; part++) {
    double own = statistic(out, gathered, part, SUM, row);
    if (own != 0) sum += own * exp(statistic(out, gathered, part, LARGEST, row) - largest);
  }
  return sum;
}

static double target_of_row(const ad_tensor *out, const void *gathered, int64_t parts, size_t row) {
  double target = 0;
  for (int64_t part = 0; part < parts; part++) target += statistic(out, gathered, part, TARGET, row);
  return target;
}

/* Computes the loss of a row. The ranks' parts of the row are added in a fixed order, so all ranks get the same
 * bits. */
static double loss_of_row(const ad_tensor *out, const void *gathered, int64_t parts, size_t row) {
  double largest = largest_of_row(out, gathered, parts, row), sum = sum_of_row(out, gathered, parts, row, largest);
  ad_set_element(out->array.dtype, out->saved, 2 * row, largest);
  ad_set_element(out->array.dtype, out->saved, 2 * row + 1, sum);
  return largest - target_of_row(out, gathered, parts, row) + log(sum);
}

/* Returns the samples to which this rank's rows belong; {0, 0} if losses of samples are not wanted. */
static ad_span noted_samples(const ad_tape *tape, const ad_tensor *out) {
  const ad_array *targets = &out->operand[1]->array;
  ad_span span = {0, 0};
  if (!tape->samples || !targets->shape.ndim) return span;
  int pieces = ad_layout_spans(&targets->layout, 0, targets->shape.dim[0], ad_comm_rank(tape->comm), &span, 1);
  return pieces == 1 ? span : (ad_span){0, 0};
}

static void note(const ad_sample_losses *to, size_t sample, double loss) {
  if (to->first + sample >= to->size) return;
  to->sums[to->first + sample] += loss;
  to->counts[to->first + sample]++;
}

static void sum_rows(const ad_tape *tape, ad_tensor *out, const ad_array *gathered) {
  double total = 0;
  size_t rows = ad_rows_of(out->operand[0]);
  ad_span samples = noted_samples(tape, out);
  for (size_t i = 0; i < rows; i++) {
    if (targets_of(out)[i] < 0) continue;
    double loss = loss_of_row(out, gathered->data, gathered->shape.dim[0], i);
    total += loss;
    if (samples.count) note(tape->samples, (size_t)samples.first + i / (rows / (size_t)samples.count), loss);
  }
  ad_set_element(out->array.dtype, out->array.data, 0, total);
}

static ad_status gather(ad_tape *tape, const ad_tensor *out, const ad_array *own, ad_array *gathered) {
  ad_transit transit = gathering(out);
  return ad_transit_run(tape->comm, &transit, own, gathered);
}

static ad_status loss_forward(ad_tape *tape, ad_tensor *out) {
  ad_array own = statistics_of(tape, out), gathered;
  AD_TRY(describe_gathered(tape, out, &gathered));
  if (!tape->dry) {
    own.data = gathered.data = (char *)out->scratch + row_bytes(out);
    AD_TRY(fill_statistics(tape, out, own.data));
    if (numbers_of(out)->over) gathered.data = (char *)own.data + statistics_bytes(out);
  }
  if (numbers_of(out)->over) AD_TRY(gather(tape, out, &own, &gathered));
  if (!tape->dry) sum_rows(tape, out, &gathered);
  return AD_OK;
}

/* ---- cross-entropy's backward ---- */

/* Returns the gradient at a row's target, unrounded. In a narrow dtype, rounding the softmax before 1 is subtracted
 * would lose the gradient of a nearly right prediction. */
static double with_target(const ad_tensor *out, const ad_gradient_slot *slot, size_t row, size_t at) {
  const ad_tensor *logits = out->operand[0];
  ad_dtype wide = out->array.dtype;
  double largest = ad_element(wide, out->saved, 2 * row), sum = ad_element(wide, out->saved, 2 * row + 1);
  double softmax = exp(ad_element(logits->array.dtype, logits->array.data, at) - largest) / sum;
  double share = ad_element(wide, out->grad.data, 0) * (softmax - 1);
  return slot->adds ? ad_element(slot->dtype, slot->data, at) + share : share;
}

// Computes the gradient of each row's logits: (softmax - 1 at the target) times the gradient of the loss; zero at
// positions that do not count. Nothing is communicated, because forward saved the statistics of full rows.
static ad_status loss_backward(ad_tape *tape, ad_tensor *out, const ad_gradient_slot *slot) {
  if (tape->dry) return AD_OK;
  const ad_tensor *logits = out->operand[0];
  const row_kernels *rows = ad_rows(slot[0].dtype);
  ad_dtype dtype = out->array.dtype;
  size_t columns = ad_columns(logits), count = ad_rows_of(logits);
  double slope = ad_element(dtype, out->grad.data, 0);
  int span_count;
  ad_span own = own_columns(tape, out, &span_count);
  for (size_t i = 0; i < count; i++) {
    int64_t target = targets_of(out)[i] - own.first;
    void *row = ad_at(logits, slot[0].data, i * columns);
    if (targets_of(out)[i] < 0) {
      rows->fill(row, 0, columns, slot[0].adds);
      continue;
    }
    int is_here = target >= 0 && target < own.count;
    double at_target = is_here ? with_target(out, &slot[0], i, i * columns + (size_t)target) : 0;
    rows->put_exp(row, logits_row(logits, i), ad_element(dtype, out->saved, 2 * i),
                  slope / ad_element(dtype, out->saved, 2 * i + 1), columns, slot[0].adds);
    if (is_here) ad_set_element(slot[0].dtype, row, (size_t)target, at_target);
  }
  return AD_OK;
}

static const ad_operation cross_entropy = {.name = "cross_entropy",
                                           .dims = "...v,...->",
                                           .linearity = AD_NONLINEAR,
                                           .dtypes = AD_IN_ANY_FLOAT,
                                           .result = AD_LIKE_WIDE,
                                           .full = "v",
                                           .indices = 1u << 1,
                                           .own_size = sizeof(loss_numbers),
                                           .runs_dry = 1,
                                           .keeps = 1,
                                           .describe = loss_describe,
                                           .check = loss_check,
                                           .saved = loss_saved,
                                           .scratch = loss_scratch,
                                           .forward = loss_forward,
                                           .backward = loss_backward};

/* Finds the axes of the gather, and calls the functions at the injection point of transitions, so that mutations of
 * transitions apply to this gather, too. */
static loss_numbers numbers_for(ad_tape *tape, const ad_tensor *logits, const char *site) {
  loss_numbers numbers = {.times = 1};
  if (ad_tape_failed(tape) || !ad_tape_owns(tape, logits) || !logits->array.shape.ndim) return numbers;
  ad_axes over = ad_layout_axes_sharding(&logits->array.layout, last_dim(&logits->array));
  if (!over) return numbers;
  numbers.ordinal = tape->transitions++;
  ad_record_passing passing = {site, AD_MOVE_ALL_GATHER, numbers.ordinal, over, 1, logits->carries};
  ad_inject(AD_INJECT_RECORD, &passing);
  numbers.over = passing.times ? passing.axes : 0;
  numbers.times = passing.times;
  return numbers;
}

ad_tensor *ad_cross_entropy_at(ad_tape *tape, ad_tensor *logits, ad_tensor *targets, const char *site) {
  if (!site) site = AD_NO_SITE;
  if (!tape) return ad_tape_missing(site, cross_entropy.name);
  loss_numbers numbers = numbers_for(tape, logits, site);
  ad_tensor *loss = ad_tape_apply(tape, &cross_entropy, (ad_tensor *[]){logits, targets}, 2, &numbers, site);
  // other ranks may wait for this rank's statistics
  if (numbers.over && ad_tape_failed(tape)) ad_tape_report_error(tape);
  return loss;
}
