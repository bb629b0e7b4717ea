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
} loop;

/* Evaluates, and writes the weights if they are the best so far. */
static ad_status keep_best(loop *l, int is_first_rank) {
  ad_evaluation evaluation = {0};
  AD_TRY(ad_run_evaluate(l->run, &evaluation));
  if (is_first_rank) printf("after step %d: validation loss %.6f\n", (int)l->step, evaluation.loss);
  if (!(evaluation.loss < l->lowest)) return AD_OK;
  l->lowest = evaluation.loss;
  return ad_run_write_weights(l->run, l->best);
}

static ad_status go(loop *l, ad_comm *comm, const settings *s) {
  int is_first_rank = !ad_comm_rank(comm);
  AD_TRY(ad_run_create(comm, s->recipe, NULL, &l->run));
  AD_TRY(ad_checkpointer_create(comm, ad_comm_mesh(comm), l->checkpoints, 1, &l->checkpointer));
  if (s->continues) AD_TRY(ad_run_load(l->run, l->checkpoints, &l->step));
  if (s->continues && is_first_rank) printf("continues after step %d\n", (int)l->step);
  while (l->step < s->steps) {
    ad_step_report report;
    AD_TRY(ad_run_step(l->run, l->step++, &report));
    AD_TRY(ad_checkpointer_poll(l->checkpointer));
    if (l->step % 5 == 0) AD_TRY(keep_best(l, is_first_rank));
  }
  AD_TRY(ad_run_save(l->run, l->checkpointer, l->step));
  AD_TRY(ad_checkpointer_finish(l->checkpointer));
  AD_TRY(ad_run_read_weights(l->run, l->best));  // every rank takes its parts
  return keep_best(l, is_first_rank);
}

static int on_each_rank(ad_comm *comm, void *context) {
  const settings *s = context;
  loop l = {.lowest = 1e300};
  snprintf(l.best, sizeof l.best, "%s/best.safetensors", s->folder);
  snprintf(l.checkpoints, sizeof l.checkpoints, "%s/checkpoints", s->folder);
  ad_status status = go(&l, comm, s);
  if (status) fprintf(stderr, "rank %d: %s\n", (int)ad_comm_rank(comm), ad_last_error());
  ad_checkpointer_destroy(l.checkpointer);
  ad_run_destroy(l.run);
  return status != AD_OK;
}

/* Writes the recipe with every key beside what the loop makes. If it is there, an earlier call wrote it. */
static ad_status write_recipe(settings *s) {
  char path[512], *text;
  snprintf(path, sizeof path, "%s/recipe.yaml", s->folder);
  FILE *earlier = fopen(path, "r");
  s->continues = earlier && !fclose(earlier);
  if (s->continues) return AD_OK;
  AD_TRY(ad_recipe_print(s->recipe, &text));
  FILE *file = fopen(path, "w");
  if (file) fputs(text, file);
  free(text);
  return file && !fclose(file) ? AD_OK : ad_fail(AD_IO, "%s cannot be written", path);
}

int main(int argc, char **argv) {
  if (argc != 4) return fprintf(stderr, "example_own_loop RECIPE FOLDER STEPS\n"), 2;
  settings s = {.folder = argv[2], .steps = strtoll(argv[3], NULL, 10)};
  int64_t ranks = 0;
  ad_status status = ad_recipe_read(argv[1], NULL, 0, &s.recipe);
  if (!status) status = write_recipe(&s);
  if (!status) status = ad_recipe_world(s.recipe, &ranks);
  ad_launch_options options = {.size = sizeof options, .ranks = ranks, .function = on_each_rank, .context = &s};
  ad_launch_result result = {.size = sizeof result};
  if (!status) status = ad_launch(&options, &result);
  if (status) fprintf(stderr, "%s\n", ad_last_error());
  ad_recipe_destroy(s.recipe);
  return status != AD_OK;
}
