/* A pipeline's schedule of your own: two branches of stages that meet in a third, written action by action. addend
 * inserts the transfers, checks the table against the laws, measures it, and finds a mistake in it. Runs in one
 * process:
 *
 *   example_own_schedule [PICTURE.svg] */
#include <stdio.h>
#include <stdlib.h>
#include "addend/core.h"
#include "addend/schedule.h"

enum { STAGES = 3, MICROBATCHES = 4 };

static ad_status add(ad_table *table, int32_t rank, ad_action_kind kind, int32_t m) {
  return ad_table_add(table, rank, &(ad_action){.kind = kind, .stage = rank, .microbatch = m});
}

/* Adds one rank's actions: every forward, then every backward. `forgets` 1: a mistake, the last backward is left out.
 * */
static ad_status add_rank(ad_table *table, int32_t rank, int forgets) {
  for (int32_t m = 0; m < MICROBATCHES; m++) AD_TRY(add(table, rank, AD_ACTION_F, m));
  for (int32_t m = 0; m < MICROBATCHES - forgets; m++) AD_TRY(add(table, rank, AD_ACTION_B, m));
  return AD_OK;
}

/* Stages 0 and 1 both pass their values to stage 2; each stage lies on its own rank. */
static ad_status make_table(ad_table *table, int forgets) {
  AD_TRY(ad_table_connect(table, 0, 2, AD_STAGE_BOTH_WAYS));
  AD_TRY(ad_table_connect(table, 1, 2, AD_STAGE_BOTH_WAYS));
  for (int32_t rank = 0; rank < STAGES; rank++) AD_TRY(add_rank(table, rank, forgets && rank == 1));
  return ad_table_lower(table, NULL);  // inserts sends and receives, reductions and the end of the step
}

/* Prints rank 0's actions, with the peer of each transfer. */
static void print_actions(const ad_table *table) {
  char text[AD_ACTION_TEXT_MAX];
  printf("%d ranks, %d stages, %d microbatches; rank 0:", (int)ad_table_rank_count(table),
         (int)ad_table_stage_count(table), (int)ad_table_microbatch_count(table));
  for (size_t i = 0; i < ad_table_action_count(table, 0); i++) {
    const ad_action *action = ad_table_action(table, 0, i);
    printf(" %s", ad_action_print(action, text, sizeof text));
    if (action->kind == AD_ACTION_SEND_F)
      printf(" (%s to %d)", ad_action_name(action->kind), (int)ad_action_peer(action));
  }
  printf("\n");
}

/* Prints the table's makespan, bubble and activations in flight, and when rank 0's first backward runs. */
static ad_status print_costs(const ad_table *table) {
  ad_table_worth worth = {.size = sizeof worth};
  size_t all = 0, first = 0;
  for (int32_t rank = 0; rank < ad_table_rank_count(table); rank++) all += ad_table_action_count(table, rank);
  while (ad_table_action(table, 0, first)->kind != AD_ACTION_B) first++;
  AD_TRY(ad_table_measure(table, NULL, &worth));
  double *begin = malloc((2 * all + 1) * sizeof *begin);
  if (!begin) return ad_fail(AD_MEMORY, "no memory for the times of %d actions", (int)all);
  ad_status status = ad_table_times(table, NULL, begin, begin + all);
  if (!status)
    printf("makespan %g, bubble %.3f, %d activations in flight; rank 0's first backward is from %g to %g\n",
           worth.makespan, worth.bubble, (int)worth.in_flight, begin[first], begin[all + first]);
  free(begin);
  return status;
}

/* Writes the table as JSON and reads it again; then draws it. */
static ad_status write_table(const ad_table *table, const char *picture) {
  char *json, *svg;
  ad_table *again;
  size_t length = 0;
  AD_TRY(ad_table_json(table, &json));
  while (json[length]) length++;
  ad_status status = ad_table_parse(json, length, "own schedule", &again, NULL);
  free(json);
  AD_TRY(status);
  ad_table_drawing drawing = {.size = sizeof drawing, .title = "two branches"};
  status = ad_table_svg(again, NULL, &drawing, &svg);
  ad_table_destroy(again);
  AD_TRY(status);
  FILE *file = picture ? fopen(picture, "w") : NULL;
  if (file) fputs(svg, file);
  if (picture && (!file || fclose(file)))
    status = ad_fail(AD_IO, "the file %s cannot be written; name another file", picture);
  free(svg);
  return status;
}

static ad_status use_table(ad_table *table, const char *picture) {
  AD_TRY(make_table(table, 0));
  AD_TRY(ad_table_check(table, NULL));
  print_actions(table);
  AD_TRY(print_costs(table));
  return write_table(table, picture);
}

/* Makes the table again with the mistake: it must be refused. */
static ad_status try_mistake(ad_table *table) {
  ad_status status = make_table(table, 1);
  if (!status) status = ad_table_check(table, NULL);
  if (status != AD_INVALID)
    return ad_fail(AD_INVALID, "ad_table_check accepted a table in which the last backward of rank 1 is missing");
  printf("refused: %s\n", ad_last_error());
  return AD_OK;
}

/* Makes the table of a chain of stages with ad_table_add_leads instead of action by action: every stage is one
 * microbatch ahead of the next. */
static ad_status print_rule(ad_table *table) {
  ad_table_worth worth = {.size = sizeof worth};
  AD_TRY(ad_table_add_leads(table, (const int32_t[]){0, 1, 2}, STAGES, MICROBATCHES));
  AD_TRY(ad_table_lower(table, NULL));
  AD_TRY(ad_table_measure(table, NULL, &worth));
  printf("leads: makespan %g, bubble %.3f\n", worth.makespan, worth.bubble);
  return AD_OK;
}

int main(int argc, char **argv) {
  ad_table *tables[3] = {NULL, NULL, NULL};
  ad_status status = AD_OK;
  for (int i = 0; !status && i < 3; i++) status = ad_table_create(STAGES, &tables[i]);
  if (!status) status = use_table(tables[0], argc > 1 ? argv[1] : NULL);
  if (!status) status = try_mistake(tables[1]);
  if (!status) status = print_rule(tables[2]);
  if (status) fprintf(stderr, "%s\n", ad_last_error());
  for (int i = 0; i < 3; i++) ad_table_destroy(tables[i]);
  return status != AD_OK;
}
