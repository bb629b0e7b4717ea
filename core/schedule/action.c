/* The kinds of actions, and how an action is written. */
#include <stdio.h>

#include "base/text.h"
#include "schedule/table.h"

static const ad_action_record records[AD_ACTION_COUNT] = {
#define AD_ACTION_RECORD(code, name, torch, part, names) [code] = {name, torch, part, names},
    AD_ACTION_LIST(AD_ACTION_RECORD)
#undef AD_ACTION_RECORD
};

const ad_action_record *ad_action_record_of(ad_action_kind kind) { return &records[kind]; }

const char *ad_action_name(ad_action_kind kind) {
  return (unsigned)kind < AD_ACTION_COUNT ? records[kind].name : "unknown";
}

int ad_action_is_transfer(ad_action_kind kind) { return records[kind].part == AD_TABLE_TRANSFERS; }

int ad_action_goes_back(ad_action_kind kind) {
  return kind == AD_ACTION_SEND_B || kind == AD_ACTION_RECV_B || kind == AD_ACTION_WAIT_SEND_B;
}

int ad_action_is_receive(ad_action_kind kind) { return kind == AD_ACTION_RECV_F || kind == AD_ACTION_RECV_B; }

int ad_action_is_addend(ad_action_kind kind) { return kind == AD_ACTION_B || kind == AD_ACTION_W; }

int ad_action_is_backward(ad_action_kind kind) { return kind == AD_ACTION_B || kind == AD_ACTION_I; }

/* Returns 1 if the peer of a transfer without a hop is the next stage, -1 if it is the stage before. Values go to the
 * next stage and gradients to the stage before; a receiver's peer is in the opposite direction. */
static int32_t neighbour(ad_action_kind kind) {
  return ad_action_goes_back(kind) == ad_action_is_receive(kind) ? 1 : -1;
}

int32_t ad_action_peer(const ad_action *action) {
  return action->stage + (action->hop ? action->hop : neighbour(action->kind));
}

const char *ad_action_print(const ad_action *action, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  ad_action_names names = (unsigned)action->kind < AD_ACTION_COUNT ? records[action->kind].names : AD_NAMES_NOTHING;
  if (names != AD_NAMES_NOTHING) ad_text_add(&text, "%d", action->stage);
  ad_text_add(&text, "%s", ad_action_name(action->kind));
  if (names == AD_NAMES_MICROBATCH || (names == AD_NAMES_MAYBE && action->microbatch >= 0))
    ad_text_add(&text, "%d", action->microbatch);
  if (action->hop && action->hop != neighbour(action->kind)) ad_text_add(&text, ">%d", ad_action_peer(action));
  return buffer;
}
