/* The law that no ranks wait in a circle. Simulates the table; if the simulation does not reach the end, adds a fault
 * that names the circle. */
#include "base/memory.h"
#include "base/text.h"
#include "schedule/laws.h"

static ad_table_spot rank_spot(const ad_execution *run, int32_t rank) {
  return (ad_table_spot){rank, run->place[rank]};
}

/* Follows the waits from a stuck rank until they return to a rank already passed. Returns this rank, which lies on the
 * circle. */
static int32_t into_circle(const ad_execution *run, int32_t rank, char *is_passed) {
  while (!is_passed[rank]) {
    is_passed[rank] = 1;
    rank = run->waits_for[rank].rank;
  }
  return rank;
}

static void add_wait(ad_text *text, const ad_execution *run, int32_t rank) {
  const ad_table *table = run->index->table;
  ad_table_spot at = rank_spot(run, rank), what = run->waits_for[rank];
  char own[AD_ACTION_TEXT_MAX], other[AD_ACTION_TEXT_MAX];
  ad_text_add(text, "rank %d at place %d (%s) waits for %s of rank %d (place %d)", rank, at.place,
              ad_action_print(&table->rows[at.rank].actions[at.place], own, sizeof own),
              ad_action_print(&table->rows[what.rank].actions[what.place], other, sizeof other), what.rank, what.place);
}

/* the most waits of a circle that a fault names */
enum { WAITS_SHOWN = 4 };

/* Adds the fault for the circle that rank `first` lies on. */
static void add_circle_fault(const ad_execution *run, int32_t first, ad_table_faults *faults) {
  char circle[AD_TABLE_FAULT_TEXT];
  ad_text text = ad_text_on(circle, sizeof circle);
  int32_t rank = first, count = 0;
  do {
    if (count < WAITS_SHOWN) {
      ad_text_add(&text, "%s", count ? "; " : "");
      add_wait(&text, run, rank);
    }
    rank = run->waits_for[rank].rank;
    count++;
  } while (rank != first);
  if (count > WAITS_SHOWN) ad_text_add(&text, "; and %d more", count - WAITS_SHOWN);
  ad_table_fault_at(
      faults, AD_TABLE_LAW_CIRCLE, run->index->table, rank_spot(run, first),
      "with %s sends, these ranks wait for each other and never continue: %s. On one of these ranks, move the "
      "action that another rank waits for before the action that waits",
      run->sends == AD_SENDS_BUFFERED ? "buffered" : "blocking", circle);
}

ad_status ad_table_law_circle(const ad_table_index *index, ad_sends sends, ad_table_faults *faults) {
  ad_execution run;
  char *is_passed;
  AD_TRY(ad_execute(index, sends, NULL, &run));
  int32_t stuck = ad_execution_stuck(&run);
  ad_status status = ad_new((size_t)index->table->ranks, &is_passed);
  if (!status && stuck >= 0) add_circle_fault(&run, into_circle(&run, stuck, is_passed), faults);
  if (!status) ad_release(is_passed);
  ad_execution_destroy(&run);
  return status;
}
