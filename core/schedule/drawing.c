/* Draws a table as text for people: ranks as rows over time, then a summary; or the faults of a wrong table. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/locale.h"
#include "base/memory.h"
#include "base/text_stream.h"
#include "schedule/report.h"

enum { COLUMNS = 100, COLUMNS_LEAST = 40, COLUMNS_MOST = 10000, RANKS_SHOWN = 64, GUTTER = 10, LABEL = 24 };

/* How a table is laid out on a terminal. */
typedef struct layout {
  const ad_table_judged *judged;
  /* 1: each action is shown as a label with its numbers; 0: each column shows the letter of the action's kind */
  int has_labels;
  int has_stages; /* 1: labels also have the stage, because a rank has several */
  double scale;   /* columns for one unit of time */
  int width;      /* number of columns of a row, without the rank's name */
  int is_coloured;
} layout;

/* ---- how many columns a time unit takes ---- */

static int digits_of(int32_t number) { return number < 10 ? 1 : 1 + digits_of(number / 10); }

static int is_drawn(const ad_action *action) { return ad_action_record_of(action->kind)->part == AD_TABLE_COMPUTE; }

/* Returns the time of the shortest action that is drawn. */
static double shortest(const ad_table_judged *judged) {
  const ad_table *table = judged->table;
  double least = INFINITY;
  for (int32_t r = 0; r < table->ranks; r++)
    for (size_t i = 0; i < table->rows[r].count; i++)
      if (is_drawn(&table->rows[r].actions[i]))
        least = fmin(least, ad_table_cost_of(&judged->times.costs, &table->rows[r].actions[i]));
  return least;
}

/* Chooses the scale: with labels if a table drawn with labels fits into the columns, else with letters. */
static layout lay_out(const ad_table_judged *judged, int columns, ad_text_style style) {
  const ad_table *table = judged->table;
  layout to = {.judged = judged, .has_labels = 1, .is_coloured = style == AD_COLOURED_TEXT};
  int room = (columns < COLUMNS_LEAST ? COLUMNS_LEAST : columns) - GUTTER;
  to.has_stages = table->stages > table->ranks;
  int label = 2 + digits_of(table->microbatches - 1) + (to.has_stages ? digits_of(table->stages - 1) : 0);
  to.scale = label / shortest(judged);
  if (judged->worth.makespan * to.scale > room) {
    to.has_labels = 0;
    to.scale = room / judged->worth.makespan;
    double natural = 1 / shortest(judged);
    if (to.scale > natural) to.scale = natural;
  }
  to.width = (int)lround(judged->worth.makespan * to.scale);
  if (to.width < 1) to.width = 1;
  return to;
}

/* ---- printing one rank's row ---- */

/* Writes an action's label into its columns, fills the others with dashes, and leaves a space at the end. */
static void put_label(const layout *of, const ad_action *action, char *row, int from, int to) {
  char label[LABEL];
  if (of->has_stages)
    snprintf(label, sizeof label, "%d%s%d", action->stage, ad_action_name(action->kind), action->microbatch);
  else
    snprintf(label, sizeof label, "%s%d", ad_action_name(action->kind), action->microbatch);
  int length = (int)strlen(label);
  for (int at = from; at < to - 1 || at == from; at++) row[at] = at - from < length ? label[at - from] : '-';
}

static void put_letter(const ad_action *action, char *row, int from, int to) {
  for (int at = from; at < to; at++) row[at] = *ad_action_name(action->kind);
}

/* Writes a rank's actions into its row. */
static void fill_row(const layout *of, int32_t rank, char *row) {
  const ad_table_times_of *times = &of->judged->times;
  const ad_table_row *actions = &of->judged->table->rows[rank];
  memset(row, of->has_labels ? ' ' : '.', (size_t)of->width);
  for (size_t i = 0; i < actions->count; i++) {
    size_t number = times->index.first[rank] + i;
    int from = (int)lround(times->run.begin[number] * of->scale), to = (int)lround(times->run.end[number] * of->scale);
    if (!is_drawn(&actions->actions[i]) || from >= to) continue;
    if (of->has_labels)
      put_label(of, &actions->actions[i], row, from, to);
    else
      put_letter(&actions->actions[i], row, from, to);
  }
}

static const char *colour_of(char c, const char *present) {
  if (c == 'F') return "\033[34m";
  if (c == 'B' || c == 'I') return "\033[33m";
  if (c == 'W') return "\033[32m";
  return c == ' ' || c == '.' ? "\033[0m" : present;
}

/* Returns the letter that decides the colour of column `at`. Digits before a letter (the stage) have the letter's
 * colour. */
static char kind_at(const char *row, int at, int width) {
  int ahead = at;
  while (ahead < width && row[ahead] >= '0' && row[ahead] <= '9') ahead++;
  int begins = !at || row[at - 1] == ' ' || row[at - 1] == '-';
  return begins && ahead < width && strchr("FBIW", row[ahead]) ? row[ahead] : row[at];
}

static void print_coloured(const char *row, int width, FILE *file) {
  const char *present = "\033[0m";
  for (int at = 0; at < width; at++) {
    const char *colour = colour_of(kind_at(row, at, width), present);
    if (colour != present) fputs(colour, file);
    present = colour;
    putc(row[at], file);
  }
  fputs("\033[0m", file);
}

static void print_row(const layout *of, int32_t rank, char *row, FILE *file) {
  fill_row(of, rank, row);
  int width = of->width;
  while (width && row[width - 1] == ' ') width--;
  fprintf(file, "rank %-*d", GUTTER - 5, rank);
  if (of->is_coloured)
    print_coloured(row, width, file);
  else
    fwrite(row, 1, (size_t)width, file);
  putc('\n', file);
}

static ad_status print_rows(const layout *of, FILE *file) {
  const ad_table *table = of->judged->table;
  char *row;
  AD_TRY(ad_new((size_t)of->width + 1, &row));
  for (int32_t r = 0; r < table->ranks && r < RANKS_SHOWN; r++) print_row(of, r, row, file);
  if (table->ranks > RANKS_SHOWN) fprintf(file, "... and %d more ranks\n", table->ranks - RANKS_SHOWN);
  ad_release(row);
  return AD_OK;
}

/* ---- the lines below the rows ---- */

static const char *plural(size_t count) { return count == 1 ? "" : "s"; }

/* Prints the parts that are missing from the table, whose laws were not checked. */
static void print_parts(unsigned parts, FILE *file) {
  static const char *const names[] = {"transfers", "gathers", "reductions", "the end of the step"};
  const char *before = "; not checked, since the table has none: ";
  for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
    if (parts & (2u << i)) continue;
    fprintf(file, "%s%s", before, names[i]);
    before = ", ";
  }
  putc('\n', file);
}

/* Returns the parts that the table has. If no edge leads to another rank, no transfers are needed and they count as
 * present. */
static unsigned parts_of(const ad_table_judged *judged) {
  const ad_table_index *index = &judged->times.index;
  for (size_t e = 0; e < index->edges; e++)
    if (ad_table_edge_crosses(index, e)) return judged->table->parts;
  return judged->table->parts | AD_TABLE_TRANSFERS;
}

/* Prints one line: right or wrong, sizes, parts that were not checked, bubble, activations in flight. */
static void print_summary(const ad_table_judged *judged, FILE *file) {
  const ad_table *table = judged->table;
  fprintf(file, "%s: %d rank%s, %d stage%s, %d microbatch%s, %zu action%s", judged->holds ? "right" : "wrong",
          table->ranks, plural((size_t)table->ranks), table->stages, plural((size_t)table->stages), table->microbatches,
          table->microbatches == 1 ? "" : "es", table->action_count, plural(table->action_count));
  if (!judged->holds) {
    putc('\n', file);
    return;
  }
  print_parts(parts_of(judged), file);
  fprintf(file, "bubble %.1f %% of %g; activations in flight: %d at most (rank %d)", 100 * judged->worth.bubble,
          judged->worth.makespan, judged->worth.in_flight, judged->worth.in_flight_rank);
  if (judged->worth.deferred)
    fprintf(file, "; operands held for W: %d (rank %d)", judged->worth.deferred, judged->worth.deferred_rank);
  putc('\n', file);
}

static void print_faults(const ad_table_faults *faults, FILE *file) {
  for (size_t i = 0; i < faults->count && i < AD_TABLE_FAULTS_MAX; i++)
    fprintf(file, "%s: %s\n", ad_table_law_name(faults->list[i].law), faults->list[i].text);
  if (faults->count > AD_TABLE_FAULTS_MAX) fprintf(file, "... and %zu more\n", faults->count - AD_TABLE_FAULTS_MAX);
}

/* Prints the rows if the table breaks no law, then the faults and the summary. */
static ad_status print_judged(const ad_table_judged *judged, int columns, ad_text_style style, FILE *file) {
  ad_status status = AD_OK;
  if (judged->holds) {
    layout of = lay_out(judged, columns ? columns : COLUMNS, style);
    status = print_rows(&of, file);
  }
  print_faults(&judged->faults, file);
  print_summary(judged, file);
  return status;
}

static ad_status print_text(const ad_table_judged *judged, int columns, ad_text_style style, char **out) {
  ad_text_stream to;
  AD_TRY(ad_text_stream_open("the drawing of a table", &to));
  return ad_text_stream_close(&to, print_judged(judged, columns, style, to.file), out);
}

ad_status ad_table_text(const ad_table *table, const ad_table_options *options, ad_text_style style, size_t columns,
                        int *holds, char **out) {
  ad_table_judged judged;
  AD_NEED(table, holds, out);
  AD_TRY(ad_table_judged_create(table, options, &judged));
  ad_locale locale = ad_locale_enter();
  ad_status status = print_text(&judged, columns > COLUMNS_MOST ? COLUMNS_MOST : (int)columns, style, out);
  ad_locale_leave(locale);
  *holds = judged.holds;
  ad_table_judged_destroy(&judged);
  return status;
}
