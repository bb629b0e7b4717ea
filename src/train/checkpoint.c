/* What of a run a checkpoint holds, and whole weights as one file. How checkpoints are written is in io/. */
#include <stdio.h>
#include "base/error.h"
#include "base/memory.h"
#include "io/checkpoint_snapshot.h"
#include "train/run.h"

enum { VALUES_OF_A_PARAM = 4, NAME_SIZE = 128 };
static const char *const prefixes[VALUES_OF_A_PARAM] = {"value", "first_moment", "second_moment", "master"};

typedef struct run_state {
  ad_checkpoint_state state;
  ad_checkpoint_value *values;
  char (*names)[NAME_SIZE];
  ad_checkpoint_number numbers[4]; /* optimizer steps, seed, loss scale, steps since it changed */
  char *recipe;
} run_state;

static ad_array *array_of(ad_run *run, size_t param, int which) {
  if (which == VALUES_OF_A_PARAM - 1) return run->masters[param];
  return which ? ad_adamw_state(run->optimizer, param, which - 1) : ad_store_value(run->store, param);
}

/* A master that is the value itself is kept once. */
static void list_values(ad_run *run, run_state *s) {
  size_t at = 0;
  for (size_t i = 0; i < run->param_count; i++) {
    for (int which = 0; which < VALUES_OF_A_PARAM; which++) {
      if (which && array_of(run, i, which) == array_of(run, i, 0)) continue;
      snprintf(s->names[at], NAME_SIZE, "%s.%s", prefixes[which], run->specs[i].name);
      s->values[at] = (ad_checkpoint_value){s->names[at], array_of(run, i, which)};
      at++;
    }
  }
  s->state.value_count = at;
}

static ad_status describe_state(ad_run *run, run_state *s) {
  size_t count = run->param_count * VALUES_OF_A_PARAM;
  AD_TRY(ad_new(count, &s->values));
  AD_TRY(ad_new(count, &s->names));
  AD_TRY(ad_recipe_print(run->recipe, &s->recipe));
  s->numbers[0] = (ad_checkpoint_number){"optimizer_steps", ad_adamw_steps(run->optimizer)};
  s->numbers[1] = (ad_checkpoint_number){"seed", run->recipe->train.seed};
  s->numbers[2] = (ad_checkpoint_number){"loss_scale", run->loss_scale.exponent};
  s->numbers[3] = (ad_checkpoint_number){"loss_scale_good_steps", run->loss_scale.good_steps};
  s->state = (ad_checkpoint_state){.values = s->values,
                                   .numbers = s->numbers,
                                   .number_count = sizeof s->numbers / sizeof *s->numbers,
                                   .text = s->recipe};
  list_values(run, s);
  return AD_OK;
}

static void release_state(run_state *s) {
  ad_release(s->values);
  ad_release(s->names);
  ad_release(s->recipe);
}

ad_status ad_run_save(ad_run *run, ad_checkpointer *checkpointer, int64_t steps) {
  AD_NEED(run, checkpointer);
  run_state s = {0};
  ad_status status = ad_run_tell(run, describe_state(run, &s));
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

static void take_numbers(ad_run *run, const run_state *s) {
  ad_adamw_set_steps(run->optimizer, s->numbers[0].value);
  run->loss_scale.exponent = (int)s->numbers[2].value;
  run->loss_scale.good_steps = s->numbers[3].value;
  if (s->numbers[1].value == run->recipe->train.seed || !ad_run_is_first(run)) return;
  ad_log(AD_LOG_WARNING, "the checkpoint was written with seed %lld, the recipe says %lld: samples differ from here on",
         (long long)s->numbers[1].value, (long long)run->recipe->train.seed);
}

ad_status ad_run_load(ad_run *run, const char *folder, int64_t *steps) {
  AD_NEED(run, folder, steps);
  run_state s = {0};
  ad_status status = ad_run_tell(run, describe_state(run, &s));
  if (!status) status = ad_checkpoint_load(run->comm, run->mesh, folder, &s.state);
  if (!status) {
    take_numbers(run, &s);
    *steps = s.state.step;
    status = ad_run_refresh(run, 1);
  }
  release_state(&s);
  return status;
}
