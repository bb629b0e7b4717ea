/* Tests programs without running them: what a program's `create` may add and in which order, the names of parameters,
 * and the list of kinds. Running programs is tested in train/tests/step. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "allocations.h"
#include "gpt/gpt.h"
#include "base/error.h"
#include "base/memory.h"
#include "program/program.h"
#include "says.h"
#include "tensor/operation.h"

#define must(call) assert_int_equal((call), AD_OK)

/* What the `create` of these tests' kind adds. */
typedef struct plan {
  size_t modules;
  const ad_phase *phases;
  size_t phase_count;
  const ad_loss_spec *losses;
  size_t loss_count;
  int without_count;
  int64_t width;             /* its key allows 1 to 8; the kind's `check` refuses 3 */
  const char *param, *state; /* names of each module's second parameter and of its state; NULL: b and s */
  int bare;                  /* 1: the first module has no parameters */
} plan;

static ad_status run_nothing(void *own, ad_phase_run *at) { return AD_OK; }

static ad_status add_module(const plan *p, ad_program *to, size_t index) {
  static const char *const names[] = {"first", "second"};
  ad_layout layout = ad_layout_all(ad_program_mesh(to, index), AD_R);
  char a[] = "a", b[256] = "b", s[256] = "s";  // the program copies these names
  if (p->param) snprintf(b, sizeof b, "%s", p->param);
  if (p->state) snprintf(s, sizeof s, "%s", p->state);
  ad_param_spec params[] = {
      {.size = sizeof(ad_param_spec), .name = a, .shape = {1, {4}}, .layout = layout, .storage = layout},
      {.size = sizeof(ad_param_spec), .name = b, .shape = {1, {5}}, .layout = layout, .storage = layout}};
  ad_state_spec state = {.size = sizeof state, .name = s, .dtype = AD_F32, .shape = {1, {2}}, .layout = layout};
  ad_module_spec spec = {.size = sizeof spec,
                         .name = names[index],
                         .mesh = ad_program_mesh(to, index),
                         .params = params,
                         .param_count = p->bare && !index ? 0 : 2,
                         .states = &state,
                         .state_count = 1};
  ad_status status = ad_program_add_module(to, &spec);
  a[0] = b[0] = s[0] = 'x';
  return status;
}

static ad_status create(const void *options, ad_program *to, void **own) {
  const plan *p = options;
  char *memory;
  AD_TRY(ad_new(8, &memory));
  *own = memory;
  for (size_t i = 0; i < p->modules; i++) AD_TRY(add_module(p, to, i));
  ad_count_spec count = {sizeof count, "tokens", ad_layout_all(ad_program_mesh(to, 0), AD_R)};
  if (!p->without_count) AD_TRY(ad_program_add_count(to, &count));
  for (size_t i = 0; i < p->loss_count; i++) AD_TRY(ad_program_add_loss(to, &p->losses[i]));
  for (size_t i = 0; i < p->phase_count; i++) AD_TRY(ad_program_add_phase(to, &p->phases[i]));
  return AD_OK;
}

static int destroyed;
static void destroy(void *own) {
  destroyed++;
  ad_release(own);
}

static void check(const void *options, const ad_program_setting *setting, const ad_mesh *const *meshes,
                  const ad_complaints *to) {
  const plan *p = options;
  if (p->width == 3) ad_complain(to, "model.width", "must not be %d on %s", 3, ad_mesh_text(meshes[1]));
  if (setting->microbatches == 13) ad_complain(to, "train.microbatches", "is unlucky");
}

static ad_status read_nothing(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  return AD_OK;
}

static const char *const module_names[] = {"first", "second", NULL};
static const ad_key keys[] = {
    {"model.width", AD_KEY_INTEGER, .offset = offsetof(plan, width), .least = 1, .most = 8, .help = "a width"}};
static const ad_program_kind kind = {.size = sizeof kind,
                                     .name = "of-tests",
                                     .modules = module_names,
                                     .keys = keys,
                                     .key_count = 1,
                                     .options_size = sizeof(plan),
                                     .create = create,
                                     .destroy = destroy,
                                     .read = read_nothing,
                                     .rules = {.check = check}};

static const char *const one_name[] = {"first", NULL};
static const ad_program_kind kind_of_one = {.size = sizeof kind_of_one,
                                            .name = "of-one",
                                            .modules = one_name,
                                            .options_size = sizeof(plan),
                                            .create = create,
                                            .destroy = destroy};

static const char *const h[] = {"h", NULL}, *const both[] = {"h", "z", NULL};
static const ad_loss_spec one_loss[] = {{.size = sizeof(ad_loss_spec), .name = "loss"}};
static const ad_phase right_order[] = {
    {.size = sizeof(ad_phase), .name = "maker", .gives = h, .run = run_nothing},
    {.size = sizeof(ad_phase), .name = "user", .module = 1, .needs = h, .run = run_nothing}};

static plan right(void) { return (plan){2, right_order, 2, one_loss, 1, 0, 4, NULL, NULL, 0}; }

static ad_status make_kind(const ad_program_kind *of, const char *first, const char *second, const plan *p,
                           int64_t microbatches, ad_program **out) {
  ad_comm *comm;
  must(ad_comm_open_dry(0, 6, &comm));
  ad_program_setting setting = {
      .comm = comm, .meshes = (const char *const[]){first, second}, .global_batch = 4, .microbatches = microbatches};
  ad_status status = ad_program_create(of, p, &setting, out);
  ad_comm_close(comm);  // a program on backend dry does not use the comm any more
  return status;
}

static ad_status make_on(const char *first, const char *second, const plan *p, int64_t microbatches, ad_program **out) {
  return make_kind(&kind, first, second, p, microbatches, out);
}

static ad_status make(const plan *p, ad_program **out) {
  return make_on("dp_replicate=2 dp_shard=3", "dp_shard=2 tp=3", p, 1, out);
}

/* The program is refused with these facts; the sentence is in the list of the case. */
static void refused(const char *name, const plan *p, const char *const *facts) {
  ad_program *program = NULL;
  assert_int_equal(make(p, &program), AD_INVALID);
  assert_null(program);
  assert_says_in(name, ad_last_error(), facts);
}

static void refused_phases(const char *name, const ad_phase *phases, size_t count, const char *const *facts) {
  plan p = right();
  p.phases = phases;
  p.phase_count = count;
  refused(name, &p, facts);
}

static void a_program_has_what_its_kind_added(void **state) {
  plan p = right();
  ad_program *program;
  must(make(&p, &program));
  assert_ptr_equal(ad_program_kind_of(program), &kind);
  assert_int_equal(ad_program_module_count(program), 2);
  assert_string_equal(ad_program_module(program, 1)->name, "second");
  assert_string_equal(ad_mesh_text(ad_program_mesh(program, 1)), "dp_shard=2 tp=3");
  assert_string_equal(ad_program_module(program, 0)->states[0].name, "s");
  assert_int_equal(ad_program_phase_count(program), 2);
  assert_string_equal(ad_program_phase(program, 1)->name, "user");
  assert_int_equal(ad_program_loss_count(program), 1);
  assert_string_equal(ad_program_loss(program, 0)->name, "loss");
  assert_int_equal(ad_program_count_count(program), 1);
  assert_string_equal(ad_program_count(program, 0)->name, "tokens");
  assert_int_equal(ad_program_setting_of(program)->global_batch, 4);
  assert_non_null(ad_program_own(program));
  ad_program_param(program, 0, 1)->policy.param = AD_BF16;
  assert_int_equal(ad_program_module(program, 0)->params[1].policy.param, AD_BF16);
  destroyed = 0;
  ad_program_destroy(program);
  assert_int_equal(destroyed, 1);
}

static void names_of_parameters_carry_their_module_where_there_are_several(void **state) {
  char name[64];
  for (size_t modules = 1; modules <= 2; modules++) {
    plan p = right();
    ad_program *program;
    p.modules = modules;
    p.phase_count = modules;
    must(make_kind(modules == 1 ? &kind_of_one : &kind, "dp_replicate=2 dp_shard=3", "dp_shard=2 tp=3", &p, 1,
                   &program));
    assert_string_equal(ad_program_param_name(program, 0, 1, name, sizeof name), modules == 1 ? "b" : "first.b");
    if (modules == 2) assert_string_equal(ad_program_param_name(program, 1, 0, name, sizeof name), "second.a");
    ad_program_destroy(program);
  }
}

/* A name in the program, such as `first.b`, has at most 191 bytes, so that no buffer cuts it. */
static void a_name_that_would_be_cut_is_refused(void **state) {
  char name[AD_PROGRAM_NAME_SIZE + 8], whole[AD_PROGRAM_NAME_SIZE];
  size_t least = AD_PROGRAM_NAME_SIZE - sizeof "second.";
  memset(name, 'x', sizeof name);
  for (int is_state = 0; is_state < 2; is_state++) {
    plan p = right();
    ad_program *program;
    *(is_state ? &p.state : &p.param) = name;
    name[least] = 0;
    if (make(&p, &program)) fail_msg("%s", ad_last_error());
    ad_program_param_name(program, 1, 1, whole, sizeof whole);
    if (!is_state) assert_int_equal(strlen(whole), AD_PROGRAM_NAME_SIZE - 1);
    if (!is_state) assert_string_equal(whole + strlen("second."), name);
    ad_program_destroy(program);
    name[least] = 'x';
    name[least + 1] = 0;
    refused(
        is_state ? "a state's long name" : "a parameter's long name", &p,
        is_state ? SAYS_FACTS("second", "state 0", "192", "191") : SAYS_FACTS("second", "parameter 1", "192", "191"));
    name[least + 1] = 'x';
  }
  plan p = right();
  p.param = "";
  refused("no name", &p, SAYS_FACTS("first", "parameter 1"));
}

/* ---- parts of a program that do not fit together ---- */

static void modules_are_those_that_the_kind_names(void **state) {
  plan p = right();
  p.modules = p.phase_count = 1;
  refused("a module too few", &p, SAYS_FACTS("module 1", "second"));
}

static void a_phase_before_the_one_that_gives_is_refused(void **state) {
  const ad_phase reversed[] = {right_order[1], right_order[0]}, alone[] = {right_order[1]};
  refused_phases("phases in the other order", reversed, 2, SAYS_FACTS("user", "h"));
  refused_phases("a phase alone", alone, 1, SAYS_FACTS("user", "h"));
  const ad_phase itself[] = {{.size = sizeof(ad_phase), .name = "ring", .needs = h, .gives = h, .run = run_nothing}};
  refused_phases("a phase that needs itself", itself, 1, SAYS_FACTS("ring", "h"));
}

static void a_value_is_given_once(void **state) {
  const ad_phase twice[] = {{.size = sizeof(ad_phase), .name = "one", .gives = h, .run = run_nothing},
                            {.size = sizeof(ad_phase), .name = "two", .gives = both, .run = run_nothing}};
  refused_phases("a value twice", twice, 2, SAYS_FACTS("two", "h"));
}

static void a_phase_has_a_function_and_a_module(void **state) {
  const ad_phase empty[] = {{.size = sizeof(ad_phase), .name = "empty"}},
                 elsewhere[] = {{.size = sizeof(ad_phase), .name = "lost", .module = 2, .run = run_nothing}};
  refused_phases("no function", empty, 1, SAYS_FACTS("empty"));
  refused_phases("no module", elsewhere, 1, SAYS_FACTS("lost", "module 2", "2"));
}

static void a_loss_is_divided_by_a_count_that_is_there(void **state) {
  plan p = right();
  p.without_count = 1;
  refused("no count", &p, SAYS_FACTS("loss", "number 0", "0"));
  p = right();
  const ad_loss_spec other[] = {{.size = sizeof(ad_loss_spec), .name = "other", .count = 1}};
  p.losses = other;
  refused("no second count", &p, SAYS_FACTS("other", "number 1", "0", "1"));
}

static void a_program_has_a_phase_and_a_loss(void **state) {
  plan p = right();
  p.phase_count = 0;
  refused("no phase", &p, SAYS_FACTS("of-tests", "0", "1"));
  p = right();
  p.loss_count = 0;
  refused("no loss", &p, SAYS_FACTS("of-tests", "2", "0"));
}

static void every_error_in_the_options_is_reported_at_its_key(void **state) {
  plan p = right();
  ad_program *program = NULL;
  p.width = 9;
  refused("a key's number", &p, SAYS_FACTS("model.width", "8", "9"));
  p.width = 3;
  assert_int_equal(make_on("dp=6", "tp=6", &p, 13, &program), AD_INVALID);
  assert_says("model.width", "3", "tp=6", "train.microbatches");
  p.width = 4;
  assert_int_equal(make_on("dp=6", "dq=6", &p, 1, &program), AD_INVALID);
  assert_says("second");
  assert_null(program);
}

static void memory_that_runs_out_leaves_nothing_behind(void **state) {
  plan p = right();
  ad_program *program = NULL;
  ad_comm *comm;
  must(ad_comm_open_dry(0, 6, &comm));
  ad_program_setting setting = {.comm = comm,
                                .meshes = (const char *const[]){"dp_replicate=2 dp_shard=3", "dp_shard=2 tp=3"},
                                .global_batch = 4,
                                .microbatches = 1};
  long n = 1;
  for (;; n++) {
    ad_memory_fail_at(n);
    ad_status status = ad_program_create(&kind, &p, &setting, &program);
    assert_true(reports_allocation(n, status));
    if (!status) break;
    assert_null(program);
  }
  assert_true(n > 15);
  ad_program_destroy(program);
  ad_comm_close(comm);
}

/* ---- values and losses in a phase ---- */

typedef struct fixture {
  ad_comm *comm;
  ad_program *program;
  ad_tape *tape;
  ad_passed_value values[1];
  ad_tensor *inputs[2], *needed[2];
  ad_submitted_loss losses[1];
} fixture;

static ad_phase_run open_phase(fixture *f, size_t phase) {
  static plan p;
  p = right();
  *f = (fixture){0};
  must(make_on("dp=1", "tp=1", &p, 1, &f->program));
  must(ad_comm_open_alone(&f->comm));
  must(ad_tape_create(f->comm, ad_program_mesh(f->program, 0), NULL, &f->tape));
  f->values[0].inputs = f->inputs;
  f->values[0].needed = f->needed;
  return (ad_phase_run){.program = f->program,
                        .phase = phase,
                        .microbatch = 3,
                        .tape = f->tape,
                        .values = f->values,
                        .losses = f->losses};
}

/* `name` of the list that has the phase's refusal; NULL: nothing is refused. */
static void close_phase(fixture *f, const char *name, const char *const *facts) {
  if (name) assert_int_equal(ad_tape_status(f->tape), AD_INVALID);
  if (name) assert_says_in(name, ad_last_error(), facts);
  if (!name) must(ad_tape_status(f->tape));
  ad_tape_destroy(f->tape);
  ad_program_destroy(f->program);
  ad_comm_close(f->comm);
}

static ad_tensor *number(fixture *f) {
  static float one = 1;
  ad_layout layout = ad_layout_all(ad_program_mesh(f->program, 0), AD_I);
  ad_shape scalar = {0};
  ad_array array = ad_array_describe(f->comm, AD_F32, &scalar, &layout);
  array.data = &one;
  return ad_input(f->tape, &array);
}

static void a_phase_gives_and_needs_what_it_says(void **state) {
  fixture f;
  ad_phase_run maker = open_phase(&f, 0), user = maker;
  assert_int_equal(ad_phase_microbatch(&maker), 3);
  assert_ptr_equal(ad_phase_tape(&maker), f.tape);
  ad_tensor *value = number(&f);
  ad_phase_give(&maker, "h", value);
  user.phase = 1;
  ad_tensor *arrived = ad_phase_need(&user, "h");
  assert_true(ad_tensor_scalar(arrived) == 1 && arrived != value);
  assert_ptr_equal(ad_phase_need(&user, "h"), arrived);  // one leaf, however often the value is asked for
  ad_phase_loss(&user, 0, arrived);
  assert_ptr_equal(f.losses[0].numerator, arrived);
  close_phase(&f, NULL, NULL);
}

static void a_value_made_of_constants_brings_no_gradient_back(void **state) {
  fixture f;
  ad_phase_run maker = open_phase(&f, 0), user = maker;
  user.phase = 1;
  ad_tensor *constant = ad_constant(f.tape, ad_tensor_array(number(&f)));
  ad_phase_give(&maker, "h", constant);
  assert_false(ad_phase_need(&user, "h")->carries);
  close_phase(&f, NULL, NULL);
  maker = open_phase(&f, 0), user = maker;
  user.phase = 1;
  ad_phase_give(&maker, "h", number(&f));
  assert_true(ad_phase_need(&user, "h")->carries);
  close_phase(&f, NULL, NULL);
}

/* On a bf16 tape a loss or a sum is f32, but the ranks that receive the value expect bf16. */
static void a_value_crosses_in_the_dtype_in_which_it_is_awaited(void **state) {
  fixture f;
  ad_phase_run at = open_phase(&f, 0);
  ad_tape_options options = {.size = sizeof options, .dtype = AD_BF16};
  ad_transfer_spec transfer = {.size = sizeof transfer, .value = "h"};
  ad_tape_destroy(f.tape);
  must(ad_tape_create(f.comm, ad_program_mesh(f.program, 0), &options, &f.tape));
  at.tape = f.tape;
  f.program->setting.compute = AD_BF16;
  ad_tensor *narrow = ad_to_dtype(f.tape, number(&f), AD_BF16);
  f.program->transfers = &transfer;
  f.program->transfer_count = 1;
  ad_phase_give(&at, "h", narrow);
  must(ad_tape_status(f.tape));
  f.values[0].output = NULL;
  ad_phase_give(&at, "h", number(&f));
  f.program->transfers = NULL;
  f.program->transfer_count = 0;
  close_phase(&f, "another dtype than declared", SAYS_FACTS("maker", "h", "f32", "bf16"));
}

static void what_a_phase_does_not_list_is_refused(void **state) {
  fixture f;
  ad_phase_run at = open_phase(&f, 0);
  assert_null(ad_tensor_array(ad_phase_need(&at, "h")));
  close_phase(&f, "a value that is not needed", SAYS_FACTS("maker", "h", "needs"));
  at = open_phase(&f, 1);
  ad_phase_give(&at, "h", number(&f));
  close_phase(&f, "a value that is not given", SAYS_FACTS("user", "h", "gives"));
  at = open_phase(&f, 1);
  ad_phase_need(&at, "h");
  close_phase(&f, "a value that nobody gave", SAYS_FACTS("user", "h"));
  at = open_phase(&f, 1);
  ad_phase_need(&at, NULL);
  close_phase(&f, "no value needed", SAYS_FACTS("user", "NULL", "needs"));
  at = open_phase(&f, 0);
  ad_phase_give(&at, NULL, number(&f));
  close_phase(&f, "no value given", SAYS_FACTS("maker", "NULL", "gives"));
  at = open_phase(&f, 0);
  ad_phase_give(&at, "h", NULL);
  close_phase(&f, "no tensor given", SAYS_FACTS("maker", "h", "NULL"));
  at = open_phase(&f, 0);
  ad_phase_give(&at, "h", number(&f));
  ad_phase_give(&at, "h", number(&f));
  close_phase(&f, "a value twice in a microbatch", SAYS_FACTS("maker", "h"));
}

static void a_loss_is_submitted_once(void **state) {
  fixture f;
  ad_phase_run at = open_phase(&f, 1);
  ad_phase_loss(&at, 1, number(&f));
  close_phase(&f, "a loss too many", SAYS_FACTS("user", "number 1", "0"));
  at = open_phase(&f, 1);
  ad_phase_loss(&at, 0, number(&f));
  ad_phase_loss(&at, 0, number(&f));
  close_phase(&f, "a loss twice", SAYS_FACTS("user", "number 0", "1"));
  at = open_phase(&f, 1);
  ad_phase_loss(&at, 0, NULL);
  close_phase(&f, "no value of a loss", SAYS_FACTS("user", "loss", "NULL"));
}

/* ---- registering kinds of programs ---- */

static void a_kind_is_registered_under_a_name_of_its_own(void **state) {
  static const char *const nothing[] = {NULL};
  static const ad_program_kind
      again = {.size = sizeof again, .name = "gpt", .modules = module_names, .create = create, .read = read_nothing},
      empty = {.size = sizeof empty, .name = "empty", .modules = nothing, .create = create, .read = read_nothing},
      older = {.size = sizeof older - 1, .name = "older", .modules = module_names};
  assert_ptr_equal(ad_program_kind_find("gpt"), ad_gpt());
  assert_null(ad_program_kind_find("of-tests"));
  assert_null(ad_program_kind_find(NULL));
  must(ad_program_register(&kind));
  assert_ptr_equal(ad_program_kind_find("of-tests"), &kind);
  assert_int_equal(ad_program_register(&kind), AD_INVALID);
  assert_says("of-tests");
  assert_int_equal(ad_program_register(&again), AD_INVALID);
  assert_int_equal(ad_program_register(&empty), AD_INVALID);
  assert_says("empty");
  ad_program_kind wrong = kind;
  wrong.name = "wrong";
  wrong.options_size = offsetof(plan, width) + 1;
  assert_int_equal(ad_program_register(&wrong), AD_INVALID);
  assert_says("model.width");
  wrong.keys = NULL;
  assert_int_equal(ad_program_register(&wrong), AD_INVALID);
  assert_says("kind->keys", "NULL");
  ad_program_kind half = kind;
  half.name = "half";
  half.sampling.next = ad_gpt()->sampling.next;
  assert_int_equal(ad_program_register(&half), AD_INVALID);
  assert_says("half", "sampling.next", "sampling.text", "sampling.kept_count");
  assert_int_equal(ad_program_register(&older), AD_INVALID);
  assert_listed();
  const ad_program_kind *const *kinds = ad_program_kinds();
  assert_ptr_equal(kinds[0], ad_gpt());
  size_t count = 0;
  while (kinds[count]) count++;
  assert_ptr_equal(kinds[count - 1], &kind);
}

/* ---- frozen parameters ---- */

static ad_status after_nothing(void *own, ad_phase_run *at) { return AD_OK; }

/* Freezes parameters of the two modules (bit i: parameter i of the four) and asks which phases learn. */
static unsigned learning_of(const plan *p, unsigned frozen) {
  ad_program *program;
  unsigned learning = 0;
  must(make(p, &program));
  for (unsigned i = p->bare ? 2 : 0; i < 4; i++) ad_program_param(program, i / 2, i % 2)->frozen = frozen >> i & 1;
  must(ad_program_settle_frozen(program));
  assert_int_equal(ad_program_has_frozen(program), frozen != 0);
  for (unsigned i = 0; i < p->phase_count; i++) learning |= (unsigned)ad_program_phase_learns(program, i) << i;
  ad_program_destroy(program);
  return learning;
}

static void a_phase_learns_from_its_own_parameters_and_from_what_it_needs(void **state) {
  static const char *const z[] = {"z", NULL};
  const ad_phase phases[] = {
      {.size = sizeof(ad_phase), .name = "maker", .gives = h, .run = run_nothing},
      {.size = sizeof(ad_phase), .name = "user", .module = 1, .needs = h, .gives = z, .run = run_nothing},
      {.size = sizeof(ad_phase), .name = "end", .needs = z, .run = run_nothing},
      {.size = sizeof(ad_phase), .name = "climb", .run = run_nothing, .after = after_nothing}};
  plan p = right();
  p.phases = phases;
  p.phase_count = 4;
  assert_int_equal(learning_of(&p, 0), 15);
  assert_int_equal(learning_of(&p, 1), 15);        /* one of the first module's two parameters is not frozen */
  assert_int_equal(learning_of(&p, 3), 8 + 4 + 2); /* `end` needs what the second module learns from */
  assert_int_equal(learning_of(&p, 12), 15);       /* `user` passes the gradient of `h` on */
  assert_int_equal(learning_of(&p, 15), 8);        /* `after` may read gradients of the phase's own inputs */
}

static void a_module_without_parameters_may_learn(void **state) {
  plan p = right();
  p.bare = 1;
  assert_int_equal(learning_of(&p, 12), 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_program_has_what_its_kind_added),
      cmocka_unit_test(names_of_parameters_carry_their_module_where_there_are_several),
      cmocka_unit_test(a_name_that_would_be_cut_is_refused),
      cmocka_unit_test(modules_are_those_that_the_kind_names),
      cmocka_unit_test(a_phase_before_the_one_that_gives_is_refused),
      cmocka_unit_test(a_value_is_given_once),
      cmocka_unit_test(a_phase_has_a_function_and_a_module),
      cmocka_unit_test(a_loss_is_divided_by_a_count_that_is_there),
      cmocka_unit_test(a_program_has_a_phase_and_a_loss),
      cmocka_unit_test(every_error_in_the_options_is_reported_at_its_key),
      cmocka_unit_test(memory_that_runs_out_leaves_nothing_behind),
      cmocka_unit_test(a_phase_gives_and_needs_what_it_says),
      cmocka_unit_test(a_value_made_of_constants_brings_no_gradient_back),
      cmocka_unit_test(a_value_crosses_in_the_dtype_in_which_it_is_awaited),
      cmocka_unit_test(what_a_phase_does_not_list_is_refused),
      cmocka_unit_test(a_loss_is_submitted_once),
      cmocka_unit_test(a_kind_is_registered_under_a_name_of_its_own),
      cmocka_unit_test(a_phase_learns_from_its_own_parameters_and_from_what_it_needs),
      cmocka_unit_test(a_module_without_parameters_may_learn),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
