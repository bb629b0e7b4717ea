/* A pipeline of two stages on two ranks, executed from a table of actions. The model is y = gelu(gelu(x A) B); the loss
 * is the sum of y squared; rank 0 has A and rank 1 has B. The table is the complete schedule: each rank executes its
 * list of actions in order. Then each rank compares its gradient with that of the whole batch in one process.
 *   example_pipeline [gpipe | 1f1b | interleaved | zb | leads] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "addend/schedule.h"
#include "addend/tensor.h"

enum { STAGES = 2, MICROBATCHES = 4, ROWS = 11, WEIGHTS_MAX = 15 }; /* a microbatch has 2 or 3 of the 11 rows */
static const int64_t width[STAGES + 1] = {3, 5, 2};                 /* columns of x, of the activation that is sent,
                                                                     * and of y */

/* One microbatch on one stage. Several microbatches are in flight at the same time, so each has a tape and memory of
 * its own. */
typedef struct cell {
  ad_tape *tape;
  ad_tensor *in, *out;             // input and output of the stage; on the last stage `out` is the loss
  ad_array value, value_gradient;  // what the stage receives: its input, and the gradient of its output
  ad_request request[AD_ACTION_COUNT];
} cell;

/* A rank: the microbatches of its stage, both matrices, and the sums of their gradients over microbatches. */
typedef struct rank {
  // `alone` is a comm of this rank only, for values without replicas or shards on other ranks.
  ad_comm *world, *alone;
  int stage;
  cell cells[MICROBATCHES];
  ad_array matrix[STAGES];
  const ad_array *values[STAGES];
  ad_parameters parameters;
  double gradient[STAGES][WEIGHTS_MAX];
} rank;

/* Backward calls this with the gradient of a stage's matrix; adds the gradient to the sum over microbatches. */
static void add_gradient(void *of, size_t stage, const ad_array *gradient) {
  double *sum = ((rank *)of)->gradient[stage];
  for (size_t i = 0; i < ad_array_numel(gradient); i++) sum[i] += ((const double *)gradient->data)[i];
}

static ad_tensor *layer(rank *r, ad_tape *t, ad_tensor *x, int stage) {
  ad_tensor *y = ad_gelu(t, ad_linear(t, x, ad_parameter(t, &r->parameters, (size_t)stage)));
  // The loss is a sum, not a mean, so the losses of microbatches add up.
  return stage < STAGES - 1 ? y : ad_sum(t, ad_multiply(t, y, y));
}

/* Creates a matrix whose element i is sin(first + i). */
static ad_status create_matrix(rank *r, int64_t rows, int64_t columns, int64_t first, ad_array *out) {
  ad_layout own = ad_layout_all(ad_comm_mesh(r->alone), AD_I);
  AD_TRY(ad_array_create(r->alone, AD_F64, &(ad_shape){2, {rows, columns}}, &own, out));
  for (size_t i = 0; i < ad_array_numel(out); i++) ((double *)out->data)[i] = sin((double)first + (double)i);
  return AD_OK;
}

/* Makes the matrices and, for each microbatch, its tape and the buffers into which values are received. */
static ad_status create_rank(rank *r) {
  ad_tape_options f64 = {.size = sizeof f64, .dtype = AD_F64};
  AD_TRY(ad_comm_open_alone(&r->alone));
  for (int s = 0; s < STAGES; s++) AD_TRY(create_matrix(r, width[s], width[s + 1], s, &r->matrix[s]));
  for (int m = 0; m < MICROBATCHES; m++) {
    cell *c = &r->cells[m];
    ad_span rows = ad_cut(ROWS, m, MICROBATCHES);
    AD_TRY(create_matrix(r, rows.count, width[r->stage], rows.first * width[0],
                         &c->value));  // on the first stage `value` is x, which is not received
    AD_TRY(create_matrix(r, rows.count, width[r->stage + 1], 0, &c->value_gradient));
    AD_TRY(ad_tape_create(r->alone, ad_comm_mesh(r->alone), &f64, &c->tape));
  }
  return AD_OK;
}

/* ---- executing the actions of the table ---- */

static ad_status forward(rank *r, cell *c) {
  // Returns immediately on the first stage, which receives nothing.
  AD_TRY(ad_comm_wait(r->world, &c->request[AD_ACTION_RECV_F]));
  c->in = r->stage ? ad_input(c->tape, &c->value) : ad_constant(c->tape, &c->value);
  c->out = layer(r, c->tape, c->in, r->stage);
  return ad_tape_status(c->tape);
}

static ad_status backward(rank *r, cell *c, ad_start start) {
  const ad_array *arrived = r->stage < STAGES - 1 ? &c->value_gradient : NULL;  // NULL: `out` is the loss
  AD_TRY(ad_comm_wait(r->world, &c->request[AD_ACTION_RECV_B]));
  return ad_backward_from(c->tape, &c->out, &arrived, 1, start);
}

/* Starts a send or a receive without waiting; the action that needs the values waits for them. The tag is the
 * microbatch's number. */
static ad_status post(rank *r, const ad_action *a, const ad_array *send, const ad_array *receive) {
  ad_transfer t = {.size = sizeof t, .peer = 1 - r->stage, .tag = a->microbatch, .dtype = AD_F64};
  t.count = ad_array_numel(send ? send : receive);
  t.send = send ? send->data : NULL;
  t.receive = receive ? receive->data : NULL;
  return ad_comm_post_transfer(r->world, &t, &r->cells[a->microbatch].request[a->kind]);
}

static ad_status execute(rank *r, const ad_action *a) {
  cell *c = &r->cells[a->microbatch];
  if (a->kind == AD_ACTION_F) return forward(r, c);
  if (a->kind == AD_ACTION_B) return backward(r, c, AD_LAST_START);
  if (a->kind == AD_ACTION_I) return backward(r, c, AD_INPUTS_START);
  if (a->kind == AD_ACTION_W) return ad_backward_weights(c->tape);
  if (a->kind == AD_ACTION_SEND_F) return post(r, a, ad_tensor_array(c->out), NULL);
  if (a->kind == AD_ACTION_SEND_B) return post(r, a, ad_grad(c->in), NULL);
  return post(r, a, NULL, a->kind == AD_ACTION_RECV_F ? &c->value : &c->value_gradient);
}

/* Executes this rank's actions in the order of the table. */
static ad_status execute_all(rank *r, const ad_table *table) {
  for (size_t i = 0; i < ad_table_action_count(table, r->stage); i++)
    AD_TRY(execute(r, ad_table_action(table, r->stage, i)));
  // Waits for all sends, because their buffers must live until then.
  for (int i = 0; i < MICROBATCHES * AD_ACTION_COUNT; i++)
    AD_TRY(ad_comm_wait(r->world, &r->cells[i / AD_ACTION_COUNT].request[i % AD_ACTION_COUNT]));
  return AD_OK;
}

/* ---- the check: the pipeline's gradient minus that of the whole batch on one tape must be zero ---- */

/* Runs backward of -loss on the whole batch, then the pipeline with its loss. Each adds to r->gradient, which must be
 * zero in the end. */
static ad_status subtract(rank *r, const ad_table *table) {
  ad_array x;
  AD_TRY(create_rank(r));
  ad_tape *t = r->cells[0].tape;
  AD_TRY(create_matrix(r, ROWS, width[0], 0, &x));
  AD_TRY(ad_backward(t, ad_scale(t, layer(r, t, layer(r, t, ad_constant(t, &x), 0), 1), -1)));
  ad_tape_reset(t);
  return execute_all(r, table);
}

static int on_each_rank(ad_comm *world, void *table) {
  rank r = {.world = world, .stage = (int)ad_comm_rank(world), .values = {&r.matrix[0], &r.matrix[1]}};
  double apart = 0;
  r.parameters = (ad_parameters){sizeof r.parameters, r.values, STAGES, .gradient = add_gradient};
  r.parameters.gradient_context = &r;
  ad_status status = subtract(&r, table);
  if (status) ad_comm_fail(world, status, ad_last_error());
  for (int i = 0; i < WEIGHTS_MAX; i++) apart += fabs(r.gradient[r.stage][i]);  // fabs keeps a NaN
  if (!status)
    printf("stage %d: %s, %.1e apart\n", r.stage, apart < 1e-12 ? "matches one process" : "DOES NOT MATCH one process",
           apart);
  for (int m = 0; m < MICROBATCHES; m++) ad_tape_destroy(r.cells[m].tape);
  ad_comm_close(r.alone);  // also frees the arrays
  return status || !(apart < 1e-12);
}

int main(int argc, char **argv) {
  ad_table_shape shape = {.size = sizeof shape, .stages = STAGES, .microbatches = MICROBATCHES, .ranks = STAGES};
  ad_table_lowering transfers = {.size = sizeof transfers, .parts = AD_TABLE_TRANSFERS};
  ad_launch_options options = {.size = sizeof options, .ranks = STAGES, .function = on_each_rank};
  ad_launch_result result = {.size = sizeof result};
  ad_table *table = NULL;
  char *drawn = NULL;
  ad_status status = ad_table_make(argc > 1 ? argv[1] : "1f1b", &shape, &table);
  if (!status) status = ad_table_lower(table, &transfers);  // adds sends and receives to the table, and checks it
  if (!status) status = ad_table_text(table, NULL, AD_PLAIN_TEXT, 0, &(int){0}, &drawn);
  options.context = table;
  if (!status) status = (fputs(drawn, stdout), fflush(stdout), ad_launch(&options, &result));
  if (status) fprintf(stderr, "pipeline: %s\n", ad_last_error());
  free(drawn);
  ad_table_destroy(table);
  return status != AD_OK;
}
