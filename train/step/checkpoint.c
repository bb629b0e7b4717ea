/* What a checkpoint stores of a run. core/checkpoint writes and reads the files. */
#include <stdio.h>
#include "base/error.h"
#include "base/memory.h"
#include "checkpoint/checkpoint_snapshot.h"
#include "module/module.h"
#include "optim/record.h"
#include "program/program.h"
#include "step/fingerprint.h"
#include "step/resumed_states.h"
#include "step/run.h"

enum { NAME_SIZE = AD_STATE_NAME_MAX + 1 + AD_PROGRAM_NAME_SIZE, NUMBERS = 4 };

typedef struct run_state {
  ad_checkpoint_state state;
  ad_checkpoint_value *values;
  char (*names)[NAME_SIZE];
  ad_checkpoint_number numbers[NUMBERS]; /* optimizer steps, seed, loss scale, and steps since the loss scale changed */
  char *recipe;
  ad_fingerprint fingerprint;
  ad_run *run;
  int loads; /* 1: the state is read, so that states which begin anew are left out */
} run_state;

static void add_value(run_state *s, const char *prefix, const char *name, ad_array *array) {
  size_t at = s->state.value_count++;
  snprintf(s->names[at], NAME_SIZE, "%s.%s", prefix, name);
  s->values[at] = (ad_checkpoint_value){s->names[at], array};
}

/* Returns 1 if a parameter's master has the dtype of its value, so that it needs no place in a checkpoint beside the
 * value. It is then the value itself, or the part of the value that this rank updates. */
static int is_value(ad_run *run, size_t index) {
  const ad_array *value = ad_run_part(run, index, AD_PART_VALUE), *master = ad_run_part(run, index, AD_PART_MASTER);
  return master && master->dtype == value->dtype;
}

/* Lists a parameter's arrays for the checkpoint: value, master and optimizer states, as far as it has them, but no
 * states that begin anew. A master of the value's dtype is listed as the value: ad_run_refresh makes values of masters. */
static void list_param(ad_run *run, size_t index, run_state *s) {
  ad_run_param at = ad_run_param_at(run, index);
  char name[AD_PROGRAM_NAME_SIZE];
  ad_program_param_name(run->program, at.module, at.param, name, sizeof name);
  int count = s->loads && ad_run_has_fresh_states(run, index) ? AD_PART_STATE : AD_PART_KEPT;
  for (int part = 0; part < count; part++) {
    int again = part == AD_PART_MASTER && is_value(run, index), is_master = !part && is_value(run, index);
    ad_array *array = ad_run_part(run, index, is_master ? AD_PART_MASTER : (ad_param_part)part);
    if (array && !again)
      add_value(s, ad_param_part_name(ad_run_optimizer_kind(run, index), (ad_param_part)part), name, array);
  }
}

static void list_states(ad_run *run, size_t m, run_state *s) {
  const ad_module_spec *spec = ad_program_module(run->program, m);
  char name[AD_PROGRAM_NAME_SIZE];
  for (size_t i = 0; i < spec->state_count; i++) {
    snprintf(name, sizeof name, "%s.%s", spec->name, spec->states[i].name);
    ad_array *state = ad_run_state(run, m, i);
    if (state) add_value(s, "state", name, state);
  }
}

static size_t most_values(const ad_run *run) {
  size_t count = ad_run_param_count(run) * AD_PART_KEPT;
  for (size_t i = 0; i < ad_program_module_count(run->program); i++)
    count += ad_program_module(run->program, i)->state_count;
  return count;
}

static int64_t optimizer_steps(const ad_run *run) {
  int64_t steps = 0;
  for (size_t i = 0; i < ad_program_module_count(run->program); i++) {
    if (ad_run_module(run, i) && ad_module_optimizer(ad_run_module(run, i)))
      steps = ad_optimizer_steps(ad_module_optimizer(ad_run_module(run, i)));
  }
  return steps;
}

/* Lets the masters of parameters whose states begin anew be read from the values of the checkpoint if the parameters
 * were frozen, because such parameters have no masters. */
static void name_masters(const run_state *s, const ad_earlier_states *earlier) {
  char name[AD_PROGRAM_NAME_SIZE];
  for (size_t i = 0; i < ad_run_param_count(s->run); i++) {
    const ad_array *master = ad_run_has_fresh_states(s->run, i) ? ad_run_part(s->run, i, AD_PART_MASTER) : NULL;
    if (!master || is_value(s->run, i)) continue;
    ad_run_param at = ad_run_param_at(s->run, i);
    ad_param_part from = ad_earlier_is_frozen(s->run, earlier, i) ? AD_PART_VALUE : AD_PART_MASTER;
    size_t k = 0;
    while (s->values[k].array != master) k++;
    snprintf(s->names[k], NAME_SIZE, "%s.%s", ad_param_part_name(AD_ADAMW, from),
             ad_program_param_name(s->run->program, at.module, at.param, name, sizeof name));
  }
}

static ad_status judge_facts(void *context, const ad_checkpoint_fact *facts, size_t count) {
  run_state *s = context;
  ad_earlier_states earlier;
  AD_TRY(ad_earlier_states_read(&s->fingerprint.schema, facts, count, &earlier));
  ad_status status = ad_earlier_states_judge(s->run, &s->fingerprint, &earlier);
  if (!status) status = ad_fingerprint_judge(s->run, &s->fingerprint, facts, count);
  if (!status) name_masters(s, &earlier);
  ad_earlier_states_release(&earlier);
  return status;
}

static int is_unwanted(void *context, const char *name) {
  const run_state *s = context;
  return ad_run_discards_state(s->run, name);
}

static ad_status describe_state(ad_run *run, run_state *s) {
  size_t count = most_values(run);
  AD_TRY(ad_new(count, &s->values));
  AD_TRY(ad_new(count, &s->names));
  AD_TRY(ad_recipe_print(run->recipe, &s->recipe));
  AD_TRY(ad_fingerprint_create(run, &s->fingerprint));
  s->run = run;
  s->numbers[0] = (ad_checkpoint_number){"optimizer_steps", optimizer_steps(run)};
  s->numbers[1] = (ad_checkpoint_number){"seed", run->recipe->train.seed};
  s->numbers[2] = (ad_checkpoint_number){"loss_scale", run->loss_scale.exponent};
  s->numbers[3] = (ad_checkpoint_number){"loss_scale_good_steps", run->loss_scale.good_steps};
  s->state = (ad_checkpoint_state){.size = sizeof(ad_checkpoint_state),
                                   .values = s->values,
                                   .numbers = s->numbers,
                                   .number_count = NUMBERS,
                                   .text = s->recipe,
                                   .facts = s->fingerprint.facts,
                                   .fact_count = s->fingerprint.count,
                                   .judge = judge_facts,
                                   .context = s,
                                   .unwanted = is_unwanted};
  for (size_t i = 0; i < ad_run_param_count(run); i++) list_param(run, i, s);
  for (size_t i = 0; i < ad_program_module_count(run->program); i++) list_states(run, i, s);
  return AD_OK;
}

static void release_state(run_state *s) {
  ad_release(s->values);
  ad_release(s->names);
  ad_release(s->recipe);
  ad_fingerprint_release(&s->fingerprint);
}

ad_status ad_run_save(ad_run *run, ad_checkpointer *checkpointer, int64_t steps) {
  AD_NEED(run, checkpointer);
  run_state s = {0};
  ad_status status = ad_run_report_error(run, describe_state(run, &s));
  s.state.step = steps;
  if (!status) status = ad_checkpointer_save(checkpointer, &s.state);
  release_state(&s);
  return status;
}

ad_status ad_run_checkpoint_bytes(ad_run *run, size_t *out) {
  AD_NEED(run, out);
  run_state s = {0};
  ad_status status = describe_state(run, &s);
  if (!status) *out = ad_snapshot_bytes(run->comm, &s.state);
  release_state(&s);
  return status;
}

/* Checks the numbers of a checkpoint: the optimizer may not have taken more steps than the training has, and the loss
 * scale's exponent must be inside its limits. */
static ad_status check_numbers(const run_state *s) {
  const struct {
    int64_t least, most;
  } ranges[NUMBERS] = {
      {0, s->state.step}, {0, INT64_MAX}, {AD_LOSS_SCALE_LEAST, AD_LOSS_SCALE_MOST}, {0, s->state.step}};
  for (size_t i = 0; i < NUMBERS; i++) {
    const ad_checkpoint_number *number = &s->numbers[i];
    if (number->value >= ranges[i].least && number->value <= ranges[i].most) continue;
    return ad_fail(AD_IO,
                   "the checkpoint is damaged, since its number `%s` is %lld, but after %lld steps must be from %lld "
                   "to %lld; use another checkpoint",
                   number->name, (long long)number->value, (long long)s->state.step, (long long)ranges[i].least,
                   (long long)ranges[i].most);
  }
  return AD_OK;
}

static ad_status take_numbers(ad_run *run, const run_state *s) {
  for (size_t i = 0; i < ad_program_module_count(run->program); i++) {
    if (ad_run_module(run, i) && ad_module_optimizer(ad_run_module(run, i)))
      AD_TRY(ad_optimizer_set_steps(ad_module_optimizer(ad_run_module(run, i)), s->numbers[0].value));
  }
  run->loss_scale.exponent = (int)s->numbers[2].value;
  run->loss_scale.good_steps = s->numbers[3].value;
  return ad_run_begin_states(run, s->numbers[0].value);
}

ad_status ad_run_load(ad_run *run, const char *folder, int64_t *steps) {
  AD_NEED(run, folder, steps);
  run_state s = {.loads = 1};
  ad_status status = ad_run_report_error(run, ad_run_check_fresh_states(run));
  if (!status) status = ad_run_report_error(run, describe_state(run, &s));
  if (!status) status = ad_checkpoint_load(run->comm, run->everyone.mesh, folder, &s.state);
  if (!status) status = check_numbers(&s);
  if (!status) status = take_numbers(run, &s);
  if (!status) {
    *steps = s.state.step;
    status = ad_run_refresh(run, AD_MASTERS_WRITTEN);
  }
  release_state(&s);
  return status;
}
