/* Tables as JSON: {"schedule": 1, "edges": [...], "ranks": [["0F0", ...], ...]}; see core/docs/pipeline.md. */
#include <jansson.h>
#include <string.h>

#include "base/error.h"
#include "files/json.h"
#include "schedule/cell.h"
#include "schedule/files.h"
#include "addend/helpers.h"

enum { FORMAT = 1 };

/* ---- reading a table from JSON ---- */

/* Reads an edge [from, to] or [from, to, "one_way"] and connects its stages. */
static ad_status read_edge(ad_table *table, const json_t *edge) {
  const json_t *from = json_array_get(edge, 0), *to = json_array_get(edge, 1), *way = json_array_get(edge, 2);
  size_t size = json_array_size(edge);
  if (!json_is_array(edge) || size < 2 || size > 3 || !json_is_integer(from) || !json_is_integer(to) ||
      (way && (!json_is_string(way) || strcmp(json_string_value(way), "one_way") != 0)))
    return ad_fail(AD_INVALID, "the entry is not an edge; write [from, to] or [from, to, \"one_way\"]");
  json_int_t first = json_integer_value(from), last = json_integer_value(to);
  if (first < 0 || first >= AD_TABLE_STAGES_MAX || last < 0 || last >= AD_TABLE_STAGES_MAX)
    return ad_fail(AD_INVALID, "the edge names a stage outside the range from 0 to %d; write stages of the table",
                   AD_TABLE_STAGES_MAX - 1);
  return ad_table_connect(table, (int32_t)first, (int32_t)last, way ? AD_STAGE_ONE_WAY : AD_STAGE_BOTH_WAYS);
}

static ad_status read_edges(ad_table *table, const json_t *edges, const char *name) {
  if (!edges) return AD_OK;
  if (!json_is_array(edges))
    return ad_fail(AD_INVALID, "%s: the value of \"edges\" is not a list; write a list of edges [from, to]", name);
  for (size_t i = 0; i < json_array_size(edges); i++) {
    ad_status status = read_edge(table, json_array_get(edges, i));
    if (status) return ad_fail_in(status, "%s, edge %zu (from 0)", name, i);
  }
  return AD_OK;
}

static ad_status read_action(ad_table *table, int32_t rank, const json_t *action, size_t *overlapped) {
  if (!json_is_string(action)) return ad_fail(AD_INVALID, "the action is not a string; write an action like \"0F0\"");
  return ad_table_cell_add(table, rank, ad_table_cell_trimmed(json_string_value(action), json_string_length(action)),
                           overlapped);
}

static ad_status read_rank(ad_table *table, int32_t rank, const json_t *list, const char *name, size_t *overlapped) {
  if (!json_is_array(list))
    return ad_fail(
        AD_INVALID,
        "%s: the entry of rank %d in \"ranks\" is not a list; write a list of actions, such as [\"0F0\", \"0B0\"]",
        name, rank);
  for (size_t i = 0; i < json_array_size(list); i++) {
    ad_status status = read_action(table, rank, json_array_get(list, i), overlapped);
    if (status) return ad_fail_in(status, "%s, rank %d, place %zu (both from 0)", name, rank, i);
  }
  return AD_OK;
}

static ad_status read_document(const json_t *document, const char *name, ad_table *table, size_t *overlapped) {
  const json_t *ranks = json_object_get(document, "ranks");
  AD_TRY(read_edges(table, json_object_get(document, "edges"), name));
  for (size_t r = 0; r < json_array_size(ranks); r++)
    AD_TRY(read_rank(table, (int32_t)r, json_array_get(ranks, r), name, overlapped));
  return AD_OK;
}

static ad_status check_document(const json_t *document, const char *name) {
  const json_t *format = json_object_get(document, "schedule"), *ranks = json_object_get(document, "ranks");
  if (!json_is_integer(format) || json_integer_value(format) != FORMAT)
    return ad_fail(
        AD_INVALID,
        "%s is not a schedule table, because its key \"schedule\" is not %d; name the JSON file of a schedule table",
        name, FORMAT);
  if (!json_is_array(ranks) || !json_array_size(ranks) || json_array_size(ranks) > AD_TABLE_RANKS_MAX)
    return ad_fail(AD_INVALID,
                   "%s: the value of \"ranks\" is not a list of 1 to %d lists; write one list of actions for each rank",
                   name, AD_TABLE_RANKS_MAX);
  return AD_OK;
}

static ad_status make_table(const json_t *document, const char *name, ad_table **out, size_t *overlapped) {
  ad_table *table;
  AD_TRY(check_document(document, name));
  AD_TRY(ad_table_create((int32_t)json_array_size(json_object_get(document, "ranks")), &table));
  ad_status status = read_document(document, name, table, overlapped);
  if (status)
    ad_table_destroy(table);
  else
    *out = table;
  return status;
}

ad_status ad_table_json_parse(const char *text, size_t size, const char *name, ad_table **out, size_t *overlapped) {
  json_error_t error;
  json_t *document;
  AD_TRY(ad_json_parse(text, size, JSON_REJECT_DUPLICATES, &document, &error));
  char reason[2 * JSON_ERROR_TEXT_LENGTH];
  if (!document)
    return ad_fail(AD_INVALID, "%s is not valid JSON at line %d, column %d (%s); correct the file", name, error.line,
                   error.column, ad_printable(error.text, reason, sizeof reason));
  ad_status status = make_table(document, name, out, overlapped);
  json_decref(document);
  return status;
}

/* ---- writing a table as JSON ---- */

static void write_edges(const ad_table *table, FILE *file) {
  if (!table->edge_count) return;
  fputs("  \"edges\": [", file);
  for (size_t e = 0; e < table->edge_count; e++)
    fprintf(file, "%s[%d, %d%s]", e ? ", " : "", table->edges[e].from, table->edges[e].to,
            table->edges[e].way == AD_STAGE_ONE_WAY ? ", \"one_way\"" : "");
  fputs("],\n", file);
}

static void write_rank(const ad_table_row *row, FILE *file) {
  char text[AD_ACTION_TEXT_MAX];
  fputs("    [", file);
  for (size_t i = 0; i < row->count; i++)
    fprintf(file, "%s\"%s\"", i ? ", " : "", ad_action_print(&row->actions[i], text, sizeof text));
  fputs("]", file);
}

static void write_document(const ad_table *table, FILE *file) {
  fprintf(file, "{\n  \"schedule\": %d,\n", FORMAT);
  write_edges(table, file);
  fputs("  \"ranks\": [\n", file);
  for (int32_t r = 0; r < table->ranks; r++) {
    write_rank(&table->rows[r], file);
    fputs(r + 1 < table->ranks ? ",\n" : "\n", file);
  }
  fputs("  ]\n}\n", file);
}

ad_status ad_table_json(const ad_table *table, char **out) {
  AD_NEED(table, out);
  return ad_table_write_text(table, write_document, out);
}
