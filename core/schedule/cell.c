/* Reads one action from a cell of a table. */
#include "schedule/cell.h"

#include <string.h>

#include "base/error.h"
#include "addend/helpers.h"

/* ---- trimming and printing cells ---- */

static int is_space(char c) { return c == ' ' || c == '\t'; }

ad_table_cell ad_table_cell_trimmed(const char *text, size_t length) {
  while (length && is_space(*text)) text++, length--;
  while (length && is_space(text[length - 1])) length--;
  return (ad_table_cell){text, length};
}

const char *ad_table_cell_print(ad_table_cell cell, char *buffer, size_t size) {
  char plain[48];
  size_t length = cell.length < sizeof plain - 4 ? cell.length : sizeof plain - 4;
  memcpy(plain, cell.text, length);
  memcpy(plain + length, cell.length > length ? "..." : "", cell.length > length ? 4 : 1);
  return ad_printable(plain, buffer, size);
}

/* ---- reading the parts of an action: numbers and kind ---- */

/* Takes the digits at the beginning of a cell. *out is -1 if there are no digits, or if the number is too large for a
 * table. */
static void take_number(ad_table_cell *cell, int32_t *out, int *is_large) {
  int64_t number = -1;
  for (; cell->length && *cell->text >= '0' && *cell->text <= '9'; cell->text++, cell->length--)
    if (number <= AD_TABLE_CELLS_MAX) number = (number < 0 ? 0 : 10 * number) + (*cell->text - '0');
  *is_large |= number > AD_TABLE_CELLS_MAX;
  *out = number > AD_TABLE_CELLS_MAX ? -1 : (int32_t)number;
}

static int begins(ad_table_cell cell, const char *name) {
  size_t length = name ? strlen(name) : 0;
  return length && cell.length >= length && !memcmp(cell.text, name, length);
}

/* Takes the longest name of a kind at the beginning of a cell. PyTorch before 2.6 wrote BW for B. */
static int take_kind(ad_table_cell *cell, ad_action_kind *out) {
  size_t longest = 0;
  for (int kind = 0; kind < AD_ACTION_COUNT; kind++) {
    const ad_action_record *record = ad_action_record_of((ad_action_kind)kind);
    const char *const names[] = {record->name, record->torch_name};
    for (size_t i = 0; i < 2; i++) {
      if (!begins(*cell, names[i]) || strlen(names[i]) <= longest) continue;
      longest = strlen(names[i]);
      *out = (ad_action_kind)kind;
    }
  }
  if (begins(*cell, "BW")) longest = 2, *out = AD_ACTION_B;
  cell->text += longest;
  cell->length -= longest;
  return longest > 0;
}

/* ---- reading one action ---- */

static ad_status refuse_cell(ad_table_cell cell, const char *why) {
  char text[AD_ACTION_TEXT_MAX];
  return ad_fail(AD_INVALID, "'%s' %s", ad_table_cell_print(cell, text, sizeof text), why);
}

/* Takes ">PEER" after a transfer; PEER is the stage of the transfer's peer. */
static ad_status take_hop(ad_table_cell cell, ad_table_cell *rest, ad_action *action, int *is_large) {
  int32_t peer;
  rest->text++;
  rest->length--;
  take_number(rest, &peer, is_large);
  if (!ad_action_is_transfer(action->kind) || peer < 0 || peer >= AD_TABLE_STAGES_MAX || peer == action->stage)
    return refuse_cell(cell,
                       "has a '>', which only transfers to another stage may have; leave '>' and what follows out");
  action->hop = peer - action->stage;
  return AD_OK;
}

/* Refuses an action whose stage or microbatch is missing, or is given although actions of its kind have none. Sets the
 * fields that the kind does not use to 0. */
static ad_status check_names(ad_table_cell cell, ad_action *action) {
  ad_action_names names = ad_action_record_of(action->kind)->names;
  int wants_stage = names != AD_NAMES_NOTHING;
  if (wants_stage && action->stage < 0)
    return refuse_cell(cell, "has no number of a stage before its kind; write, for example, 2F0");
  if (!wants_stage && action->stage >= 0)
    return refuse_cell(cell, "names a stage, but its kind is an action without a stage; leave the number out");
  if (names == AD_NAMES_MICROBATCH && action->microbatch < 0)
    return refuse_cell(cell, "has no number of a microbatch after its kind; write, for example, 2F0");
  if ((names == AD_NAMES_NOTHING || names == AD_NAMES_STAGE) && action->microbatch >= 0)
    return refuse_cell(cell,
                       "names a microbatch, but its kind is an action without a microbatch; leave the number out");
  if (!wants_stage) action->stage = 0;
  if (names == AD_NAMES_NOTHING || names == AD_NAMES_STAGE) action->microbatch = 0;
  return AD_OK;
}

ad_status ad_table_cell_read(ad_table_cell cell, ad_action *out) {
  ad_action action = {0};
  ad_table_cell rest = cell;
  int is_large = 0;
  take_number(&rest, &action.stage, &is_large);
  if (!take_kind(&rest, &action.kind))
    return refuse_cell(cell, "is not an action; write stage, kind and microbatch, as in 2F0, 1SEND_F3, 0UNSHARD");
  take_number(&rest, &action.microbatch, &is_large);
  if (rest.length && *rest.text == '>') AD_TRY(take_hop(cell, &rest, &action, &is_large));
  if (is_large) return refuse_cell(cell, "has a number that is too large for a table; write a smaller number");
  if (rest.length)
    return refuse_cell(cell, "has more text after its action; write stage, kind and microbatch, as in 2F0, 1SEND_F3");
  AD_TRY(check_names(cell, &action));
  *out = action;
  return AD_OK;
}

/* ---- adding a cell's actions to a table ---- */

static ad_status add_one(ad_table *table, int32_t rank, ad_table_cell cell) {
  ad_action action;
  AD_TRY(ad_table_cell_read(cell, &action));
  return ad_table_add(table, rank, &action);
}

/* Adds the actions of a cell such as "(0F1;1B0)OVERLAP_F_B". */
static ad_status add_overlapped(ad_table *table, int32_t rank, ad_table_cell cell) {
  static const char end[] = ")OVERLAP_F_B";
  size_t tail = sizeof end - 1;
  if (cell.length < tail + 1 || memcmp(cell.text + cell.length - tail, end, tail) != 0)
    return refuse_cell(cell, "begins with '(', so it must end with ')OVERLAP_F_B'; write both or neither");
  const char *at = cell.text + 1, *last = cell.text + cell.length - tail;
  while (at < last) {
    const char *stop = memchr(at, ';', (size_t)(last - at));
    if (!stop) stop = last;
    AD_TRY(add_one(table, rank, ad_table_cell_trimmed(at, (size_t)(stop - at))));
    at = stop + 1;
  }
  return AD_OK;
}

ad_status ad_table_cell_add(ad_table *table, int32_t rank, ad_table_cell cell, size_t *overlapped) {
  if (!cell.length) return AD_OK;
  if (*cell.text != '(') return add_one(table, rank, cell);
  ++*overlapped;
  return add_overlapped(table, rank, cell);
}
