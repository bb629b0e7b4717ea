/* A training loop of your own around addend's step: the recipe's model and data, but this program decides what happens
 * between steps. It evaluates, keeps the best weights and goes back to them, and saves checkpoints, from which a second
 * call continues.
 *
 *   example_own_loop RECIPE FOLDER STEPS */
#include <stdio.h>
#include <stdlib.h>
#include "addend/train.h"

typedef struct settings {
  ad_recipe *recipe;
  const char *folder;
  int64_t steps;
  int continues; /* 1: an earlier call left its checkpoint in the folder */
} settings;

typedef struct loop {
  ad_run *run;
  ad_checkpointer *checkpointer;
  char best[512], checkpoints[512];
  double lowest;
  int64_t step;
  int is_first_rank;
} loop;

static ad_status evaluate(loop *l, const char *what, double *loss) {
  ad_evaluation evaluation = {0};
  AD_TRY(ad_run_evaluate(l->run, &evaluation));
  if (l->is_first_rank) printf("%s: validation loss %.6f\n", what, evaluation.loss);
  *loss = evaluation.loss;
  return AD_OK;
}

/* Evaluates, and writes the weights if their loss is the lowest so far. */
static ad_status keep_best(loop *l) {
  char what[64];
  double loss;
  snprintf(what, sizeof what, "after step %d", (int)l->step);
  AD_TRY(evaluate(l, what, &loss));
  if (!(loss < l->lowest)) return AD_OK;
  l->lowest = loss;
  return ad_run_write_weights(l->run, l->best);
}

/* Resumes after the last step of the earlier call. The earlier call's best weights stay the best until others have a
 * lower loss. */
static ad_status continue_earlier(loop *l) {
  AD_TRY(ad_run_read_weights(l->run, l->best));
  AD_TRY(evaluate(l, "the earlier call's best", &l->lowest));
  AD_TRY(ad_run_load(l->run, l->checkpoints, &l->step));
  if (l->is_first_rank) printf("continues after step %d\n", (int)l->step);
  return AD_OK;
}

static ad_status go(loop *l, ad_comm *comm, const settings *s) {
  AD_TRY(ad_run_create(comm, s->recipe, NULL, &l->run));
  AD_TRY(ad_checkpointer_create(comm, ad_comm_mesh(comm), l->checkpoints, 1, &l->checkpointer));
  if (s->continues) AD_TRY(continue_earlier(l));
  while (l->step < s->steps) {
    ad_step_report report;
    AD_TRY(ad_run_step(l->run, l->step++, &report));
    AD_TRY(ad_checkpointer_poll(l->checkpointer));
    if (l->step % 5 == 0 || l->step == s->steps) AD_TRY(keep_best(l));
  }
  AD_TRY(ad_run_save(l->run, l->checkpointer, l->step));
  AD_TRY(ad_checkpointer_finish(l->checkpointer));
  double loss;
  AD_TRY(ad_run_read_weights(l->run, l->best));  // every rank reads its parts of the best weights
  return evaluate(l, "best", &loss);
}

static int on_each_rank(ad_comm *comm, void *context) {
  const settings *s = context;
  loop l = {.lowest = 1e300, .is_first_rank = !ad_comm_rank(comm)};
  snprintf(l.best, sizeof l.best, "%s/best.safetensors", s->folder);
  snprintf(l.checkpoints, sizeof l.checkpoints, "%s/checkpoints", s->folder);
  ad_status status = go(&l, comm, s);
  if (status) fprintf(stderr, "rank %d failed: %s\n", (int)ad_comm_rank(comm), ad_last_error());
  ad_checkpointer_destroy(l.checkpointer);
  ad_run_destroy(l.run);
  return status != AD_OK;
}

/* Returns 1 if an earlier call was completed: it writes the recipe into the folder at its end. */
static int has_earlier(const char *path) {
  FILE *file = fopen(path, "r");
  return file && !fclose(file);
}

/* Writes the recipe, with the values of all keys, into the folder of the checkpoints and the best weights. */
static ad_status write_recipe(const ad_recipe *recipe, const char *path) {
  char *text;
  AD_TRY(ad_recipe_print(recipe, &text));
  FILE *file = fopen(path, "w");
  int fails = !file || fputs(text, file) < 0;
  if (file) fails |= fclose(file);
  free(text);
  return fails ? ad_fail(AD_IO, "the file %s cannot be written; name a folder that exists and can be written", path)
               : AD_OK;
}

int main(int argc, char **argv) {
  if (argc != 4) return fprintf(stderr, "usage: example_own_loop RECIPE FOLDER STEPS\n"), 2;
  char path[512];
  snprintf(path, sizeof path, "%s/recipe.yaml", argv[2]);
  settings s = {.folder = argv[2], .steps = strtoll(argv[3], NULL, 10), .continues = has_earlier(path)};
  int64_t ranks = 0;
  ad_status status = ad_recipe_read(argv[1], NULL, 0, &s.recipe);
  if (!status) status = ad_recipe_world(s.recipe, &ranks);
  ad_launch_options options = {.size = sizeof options, .ranks = ranks, .function = on_each_rank, .context = &s};
  ad_launch_result result = {.size = sizeof result};
  if (!status) status = ad_launch(&options, &result);
  if (!status && !s.continues) status = write_recipe(s.recipe, path);
  if (status) fprintf(stderr, "%s\n", ad_last_error());
  ad_recipe_destroy(s.recipe);
  return status != AD_OK;
}
