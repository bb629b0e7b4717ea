/* A program that ends its own process in one of its functions, in one of several ways: model.where and model.how say
 * which. model.rank: the rank that does so; -1: all. model.really: 1 alone where values move, so that plans go well. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "addend/addend.h"

enum { WIDTH = 4 };

typedef struct settings {
  char *where, *how;
  int64_t rank, really;
} settings;

typedef struct program {
  const settings *options;
  const ad_comm *comm;
  ad_batch_field field;
  ad_batch *batch;
} program;

static void end(const char *how) {
  if (!strcmp(how, "exit")) exit(0);
  if (!strcmp(how, "exit5")) exit(5);
  if (!strcmp(how, "_exit")) _exit(0);
  if (!strcmp(how, "abort")) abort();
  if (!strcmp(how, "null")) raise(SIGSEGV);
  if (!strcmp(how, "divide")) raise(SIGFPE);
}

static void maybe_end(const program *p, const char *where) {
  const settings *o = p->options;
  int is_rank = o->rank < 0 || o->rank == ad_comm_rank(p->comm);
  if (!strcmp(o->where, where) && is_rank && (!o->really || !ad_comm_is_dry(p->comm))) end(o->how);
}

static ad_status double_it(ad_tape *t, ad_tensor *out) {
  const ad_array *from = ad_operand(out, 0), *to = ad_tensor_array(out);
  for (size_t i = 0; i < ad_array_numel(to); i++) ad_array_set(to, i, 2 * ad_array_get(from, i));
  return AD_OK;
}

static const program *running; /* for the operation's backward, which gets no object of the program's */

static ad_status double_back(ad_tape *t, ad_tensor *out, const ad_gradient_slot *slot) {
  maybe_end(running, "backward");
  for (size_t i = 0; i < ad_array_numel(ad_result_grad(out)); i++)
    ad_slot_put(&slot[0], i, 2 * ad_array_get(ad_result_grad(out), i));
  return AD_OK;
}

static const ad_operation doubled = {.size = sizeof doubled,
                                     .name = "doubled",
                                     .dims = "...->...",
                                     .linearity = AD_NONLINEAR,
                                     .forward = double_it,
                                     .backward = double_back,
                                     .fills = 1};

static ad_status run(void *own, ad_phase_run *at) {
  program *p = own;
  ad_tape *t = ad_phase_tape(at);
  maybe_end(p, "run");
  running = p;
  ad_tensor *x = ad_constant(t, ad_batch_array(p->batch, 0, ad_phase_microbatch(at)));
  ad_tensor *y = ad_linear(t, x, ad_parameter(t, ad_phase_parameters(at), 0));
  y = ad_operation_apply(t, &doubled, &y, 1, NULL);
  ad_phase_loss(at, 0, ad_sum(t, ad_multiply(t, y, y)));
  return AD_OK;
}

static ad_status after(void *own, ad_phase_run *at) {
  maybe_end(own, "after");
  return AD_OK;
}

static ad_status create(const void *options, ad_program *to, void **own) {
  program *p = calloc(1, sizeof *p);
  if (!p) return ad_fail(AD_MEMORY, "no memory");
  *own = p;
  p->options = options;
  p->comm = ad_program_setting_of(to)->comm;
  maybe_end(p, "create");
  ad_declarations list = ad_declarations_on(ad_program_mesh(to, 0));
  ad_layout rows = list.replicated, counted = rows;
  ad_layout_set(&rows, AD_AXES_DP, AD_S(0));
  ad_layout_set(&counted, AD_AXES_DP, AD_P);
  ad_param_spec w = {.size = sizeof w, .shape = {2, {WIDTH, 2}}, .layout = list.replicated, .deviation = 0.5};
  ad_declare_param(&list, "only", "w", w);
  AD_TRY(ad_program_add_declared(to, "model", NULL, &list));
  p->field = (ad_batch_field){"x", ad_program_setting_of(to)->compute, {1, {WIDTH}}};
  AD_TRY(ad_program_add_batch(to, &rows, &p->field, 1, &p->batch));
  ad_count_spec count = {.size = sizeof count, .name = "rows", .layout = counted};
  ad_loss_spec loss = {.size = sizeof loss, .name = "loss"};
  ad_phase phase = {.size = sizeof phase, .name = "squares", .run = run, .after = after};
  AD_TRY(ad_program_add_count(to, &count));
  AD_TRY(ad_program_add_loss(to, &loss));
  return ad_program_add_phase(to, &phase);
}

static ad_status open_data(void *own) {
  maybe_end(own, "open");
  return AD_OK;
}

static ad_status read_row(void *own, ad_batch_row *to) {
  for (size_t k = 0; k < WIDTH; k++)
    ad_array_set(&to->fields[0], to->row * WIDTH + k, (double)((to->sample + (int64_t)k) % 5) - 1.5);
  return AD_OK;
}

static ad_status read_batch(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  ad_row_reader reader = {read_row, own};
  maybe_end(own, "read");
  return ad_batch_read(((program *)own)->batch, step, validation, &reader, counted[0]);
}

static void complete(void *options) {
  const settings *o = options;
  if (o->where && !strcmp(o->where, "complete")) end(o->how);
}

static const ad_key keys[] = {AD_WORDS_KEY("model.where", settings, where, "nowhere", "function that ends the process"),
                              AD_WORDS_KEY("model.how", settings, how, "exit", "how it does"),
                              AD_INTEGER_KEY("model.rank", settings, rank, -1, 64, "-1", "rank that does"),
                              AD_INTEGER_KEY("model.really", settings, really, 0, 1, "0", "1: not on paper")};
static const ad_program_kind kind = {.size = sizeof kind,
                                     .name = "ends",
                                     .keys = keys,
                                     .key_count = 4,
                                     .options_size = sizeof(settings),
                                     .create = create,
                                     .open = open_data,
                                     .read = read_batch,
                                     .rules = {.complete = complete}};
static const ad_program_kind *const kinds[] = {&kind, NULL};
AD_PROGRAM_OBJECT(kinds);

int main(int argc, char **argv) { return ad_main(argc, argv, kinds); }
