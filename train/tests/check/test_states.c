/* Tests the check of states that a phase updates by gradients and a custom rule: in which order they are, that
 * their error is reported after the last parameter, and that no other state is listed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>
#include "base/injection.h"
#include "check/result.h"
#include "check/slack.h"
#include "module/module.h"
#include "program/program.h"
#include "program/states.h"
#include "says.h"

#define must(call)                                        \
  do {                                                    \
    if (call) fail_msg("%s: %s", #call, ad_last_error()); \
  } while (0)

enum { FIRST = 3, SECOND = 2 };

typedef struct scene {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_state_spec states[2];
  ad_module *module;
  ad_tape *tape;
  ad_program program;
  ad_phase_run at;
  double numbers[2][FIRST];
  ad_array gradients[2];
  ad_state_change changes[2]; /* changes[0] is the second state's, changes[1] the first's */
} scene;

static void open_scene(scene *s) {
  memset(s, 0, sizeof *s);
  must(ad_comm_open_alone(&s->comm));
  must(ad_mesh_create("dp=1", &s->mesh));
  ad_layout layout = ad_layout_all(s->mesh, AD_R);
  s->states[0] = (ad_state_spec){sizeof(ad_state_spec), "a", AD_F64, {1, {FIRST}}, layout, 1};
  s->states[1] = (ad_state_spec){sizeof(ad_state_spec), "b", AD_F64, {1, {SECOND}}, layout, 2};
  ad_module_spec spec = {.size = sizeof spec, .name = "m", .mesh = s->mesh, .states = s->states, .state_count = 2};
  ad_module_options options = {.size = sizeof options};
  ad_tape_options of_tape = {.size = sizeof of_tape};
  must(ad_module_create(s->comm, &spec, &options, &s->module));
  must(ad_tape_create(s->comm, s->mesh, &of_tape, &s->tape));
  s->at = (ad_phase_run){.program = &s->program, .module = s->module, .tape = s->tape};
  for (int64_t i = 0; i < 2; i++) {
    ad_shape shape = {1, {i ? FIRST : SECOND}};
    for (int k = 0; k < FIRST; k++) s->numbers[i][k] = (double)(10 * (i + 1) + k);
    s->gradients[i] =
        (ad_array){.dtype = AD_F64, .shape = shape, .local = shape, .layout = layout, .data = s->numbers[i]};
    s->changes[i] = (ad_state_change){(size_t)(1 - i), &s->gradients[i]};
  }
}

static void close_scene(scene *s) {
  ad_tape_destroy(s->tape);
  ad_module_destroy(s->module);
  ad_mesh_destroy(s->mesh);
  ad_comm_close(s->comm);
}

/* A rule that adds the gradient to the state; the state's number is noted in `called`. */
static char called[16];
static void note(char what) { called[strlen(called)] = what; }

static void add(const void *own, ad_phase_run *at, const ad_state_change *change, size_t i) {
  const ad_array *state = ad_phase_state(at, change->state);
  for (size_t k = 0; k < ad_array_numel(state); k++)
    ad_array_set(state, k, ad_array_get(state, k) + *(const double *)own * ad_array_get(change->gradient, k));
  note(i ? '1' : '0');
}
static void seen(void *context, void *passing) { note('s'); }
static void all_seen(void *context, void *passing) {
  const ad_states_passing *all = passing;
  note(all->count == 2 && all->rule->change == add ? 'a' : '?');
}

static void states_change_one_after_another(void **state) {
  scene s;
  double factor = 0.5;
  ad_state_rule rule = {.size = sizeof rule, .change = add, .own = &factor};
  open_scene(&s);
  memset(called, 0, sizeof called);
  ad_injection_set(AD_INJECT_STATE, (ad_injection){seen, NULL});
  ad_injection_set(AD_INJECT_STATES, (ad_injection){all_seen, NULL});
  must(ad_phase_change_states(&s.at, &rule, s.changes, 2));
  ad_injection_set(AD_INJECT_STATE, (ad_injection){0});
  ad_injection_set(AD_INJECT_STATES, (ad_injection){0});
  assert_string_equal(called, "s0s1a");
  assert_true(ad_array_get(ad_module_state(s.module, 1), 1) == 2 + 11 * factor);
  assert_true(ad_array_get(ad_module_state(s.module, 0), 2) == 1 + 22 * factor);
  must(ad_phase_change_states(&s.at, &rule, s.changes, 0));
  close_scene(&s);
}

static void what_fits_no_state_is_refused(void **state) {
  scene s;
  double factor = 1;
  ad_state_rule rule = {.size = sizeof rule, .change = add, .own = &factor}, other = rule;
  open_scene(&s);
  s.changes[0].state = 0;
  assert_int_equal(ad_phase_change_states(&s.at, &rule, s.changes, 2), AD_INVALID);
  assert_says("ad_phase_change_states", "0", "3", "2");
  s.changes[0].state = 2;
  assert_int_equal(ad_phase_change_states(&s.at, &rule, s.changes, 2), AD_INVALID);
  assert_says("2");
  s.changes[0] = (ad_state_change){1, NULL};
  assert_int_equal(ad_phase_change_states(&s.at, &rule, s.changes, 2), AD_INVALID);
  assert_says("1");
  other.change = NULL;
  assert_int_equal(ad_phase_change_states(&s.at, &other, s.changes, 2), AD_INVALID);
  assert_says("change", "ad_state_rule", "NULL");
  other = rule, other.size = 0;
  assert_int_equal(ad_phase_change_states(&s.at, &other, s.changes, 2), AD_INVALID);
  assert_int_equal(ad_phase_change_states(NULL, &rule, s.changes, 2), AD_INVALID);
  assert_int_equal(ad_phase_change_states(&s.at, NULL, s.changes, 2), AD_INVALID);
  assert_int_equal(ad_phase_change_states(&s.at, &rule, NULL, 2), AD_INVALID);
  s.program.setting.leaves = 4;
  s.changes[0] = s.changes[1];
  assert_int_equal(ad_phase_change_states(&s.at, &rule, s.changes, 2), AD_TYPE);
  assert_says("train.leaves", "after_step");
  assert_true(ad_array_get(ad_module_state(s.module, 0), 0) == 1);
  close_scene(&s);
}

/* Writes the reported error where the number of the state says. */
static void report_error(const void *own, ad_phase_run *at, const ad_state_change *change, size_t i, double error,
                         double *off) {
  for (size_t k = 0; k < ad_array_numel(change->gradient); k++) off[k] += error * (double)(i + 1);
}

static double slack_of(const ad_slack *slack, const ad_array *state) {
  for (size_t i = 0; i < slack->count; i++)
    if (slack->list[i].value == state->data) return slack->list[i].at[0];
  return -1;
}

/* A state's allowed error is a part of the largest element of its gradient, or of a millionth of the largest of all. */
static void what_may_be_off_is_taken_from_the_gradients(void **state) {
  scene s;
  double factor = 1;
  ad_slack slack = {0};
  ad_state_rule rule = {.size = sizeof rule, .change = add, .off = report_error, .own = &factor};
  open_scene(&s);
  s.numbers[1][0] = 1e9;
  memset(called, 0, sizeof called);
  ad_slack_watch(&slack);
  must(ad_phase_change_states(&s.at, &rule, s.changes, 2));
  must(ad_phase_change_states(&s.at, &rule, s.changes, 1)); /* adds to what the first change allowed */
  ad_injection_set(AD_INJECT_STATES, (ad_injection){0});
  must(slack.status);
  double of_second = AD_WIDE_BOUND * (1e-6 * 1e9) + AD_WIDE_BOUND * 11, of_first = 2 * AD_WIDE_BOUND * 1e9;
  assert_true(fabs(slack_of(&slack, ad_module_state(s.module, 1)) / of_second - 1) < 1e-12);
  assert_true(fabs(slack_of(&slack, ad_module_state(s.module, 0)) / of_first - 1) < 1e-12);
  ad_slack_release(&slack);
  close_scene(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(states_change_one_after_another),
      cmocka_unit_test(what_fits_no_state_is_refused),
      cmocka_unit_test(what_may_be_off_is_taken_from_the_gradients),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
