/* Tables as CSV, as _dump_csv of torch.distributed.pipelining writes them: a row for each rank, a cell for each action.
 */
#include "schedule/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "schedule/cell.h"

/* ---- reading a table from CSV ---- */

/* Returns the cell without the quotes around it. Quotes inside a cell are not handled. */
static ad_table_cell unquoted(ad_table_cell cell) {
  int is_quoted = cell.length >= 2 && *cell.text == '"' && cell.text[cell.length - 1] == '"';
  return is_quoted ? ad_table_cell_trimmed(cell.text + 1, cell.length - 2) : cell;
}

/* Adds the actions of one line to the rank's list. */
static ad_status read_row(ad_table *table, int32_t rank, const char *line, size_t length, const char *name,
                          size_t *overlapped) {
  const char *end = line + length;
  for (size_t number = 1; line <= end; number++) {
    const char *stop = memchr(line, ',', (size_t)(end - line));
    if (!stop) stop = end;
    ad_table_cell cell = unquoted(ad_table_cell_trimmed(line, (size_t)(stop - line)));
    ad_status status = ad_table_cell_add(table, rank, cell, overlapped);
    if (status) return ad_fail_in(status, "%s, line %d, cell %zu (both from 1)", name, rank + 1, number);
    line = stop + 1;
  }
  return AD_OK;
}

/* Returns the length of the line without its line end; *next is the beginning of the next line. */
static size_t line_length(const char *line, const char *end, const char **next) {
  const char *stop = memchr(line, '\n', (size_t)(end - line));
  *next = stop ? stop + 1 : end;
  if (!stop) stop = end;
  if (stop > line && stop[-1] == '\r') stop--;
  return (size_t)(stop - line);
}

/* Returns the end of the text without trailing empty lines, which represent no rank. */
static const char *end_of_rows(const char *text, const char *end) {
  while (end > text && (end[-1] == '\n' || end[-1] == '\r' || end[-1] == ' ' || end[-1] == '\t')) end--;
  return end;
}

static int64_t count_rows(const char *text, const char *end) {
  int64_t rows = text < end;
  for (const char *at = text; at < end; at++) rows += *at == '\n';
  return rows;
}

static ad_status read_rows(ad_table *table, const char *text, const char *end, const char *name, size_t *overlapped) {
  const char *next;
  for (int32_t rank = 0; rank < ad_table_rank_count(table); rank++) {
    size_t length = line_length(text, end, &next);
    AD_TRY(read_row(table, rank, text, length, name, overlapped));
    text = next;
  }
  return AD_OK;
}

ad_status ad_table_csv_parse(const char *text, size_t size, const char *name, ad_table **out, size_t *overlapped) {
  const char *end = end_of_rows(text, text + size);
  int64_t rows = count_rows(text, end);
  ad_table *table;
  if (!rows) return ad_fail(AD_INVALID, "%s is empty; write a row of actions for each rank of the table", name);
  if (rows > AD_TABLE_RANKS_MAX)
    return ad_fail(
        AD_INVALID,
        "%s has %lld rows, one for each rank, but at most %d ranks are allowed; write a table of fewer ranks", name,
        (long long)rows, AD_TABLE_RANKS_MAX);
  AD_TRY(ad_table_create((int32_t)rows, &table));
  table->is_csv = 1;
  ad_status status = read_rows(table, text, end, name, overlapped);
  if (status)
    ad_table_destroy(table);
  else
    *out = table;
  return status;
}

/* ---- writing a table as CSV ---- */

/* Returns AD_INVALID if the table has something that a CSV cannot express. */
static ad_status check_writable(const ad_table *table) {
  if (table->edge_count)
    return ad_fail(AD_INVALID,
                   "the table cannot be written as CSV, because its stages do not form a chain; write JSON instead");
  for (int32_t r = 0; r < table->ranks; r++)
    for (size_t i = 0; i < table->rows[r].count; i++)
      if (table->rows[r].actions[i].kind == AD_ACTION_REDUCE && table->rows[r].actions[i].microbatch >= 0)
        return ad_fail(AD_INVALID,
                       "the table cannot be written as CSV, because it has a REDUCE of a single microbatch (first on "
                       "rank %d, place %zu), for which CSV has no word; write JSON instead",
                       r, i);
  return AD_OK;
}

static void write_action(FILE *file, const ad_action *action, int is_first) {
  const ad_action_record *record = ad_action_record_of(action->kind);
  if (!record->torch_name) return;
  fprintf(file, "%s%d%s", is_first ? "" : ",", action->stage, record->torch_name);
  if (record->names == AD_NAMES_MICROBATCH) fprintf(file, "%d", action->microbatch);
}

static void write_rows(const ad_table *table, FILE *file) {
  for (int32_t r = 0; r < table->ranks; r++) {
    for (size_t i = 0; i < table->rows[r].count; i++) write_action(file, &table->rows[r].actions[i], i == 0);
    fputs("\r\n", file);
  }
}

ad_status ad_table_csv(const ad_table *table, char **out) {
  AD_NEED(table, out);
  AD_TRY(check_writable(table));
  return ad_table_write_text(table, write_rows, out);
}
