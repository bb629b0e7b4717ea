/* The table of switches and setting them by name. What each one spoils is where the code reads it. */
#include "base/switches.h"

#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/text.h"

uint8_t ad_switches[AD_SWITCH_COUNT];
char ad_switch_axis_name[16];

static const ad_switch_record records[] = {
#define SWITCH_RECORD(code, name, per_axis, catalogue, words) {name, words, per_axis, catalogue},
    AD_SWITCH_LIST(SWITCH_RECORD)
#undef SWITCH_RECORD
};

int ad_switched_on_axis(ad_switch which, const char *axis) {
  return ad_switched(which) && (!ad_switch_axis_name[0] || !strcmp(ad_switch_axis_name, axis));
}

const ad_switch_record *ad_switch_at(ad_switch which) { return &records[which]; }

static ad_status unknown_switch(const char *text) {
  char buffer[1024];
  ad_text known = ad_text_on(buffer, sizeof buffer);
  for (int i = 0; i < AD_SWITCH_COUNT; i++) {
    ad_text_add(&known, "%s%s%s", i ? ", " : "", records[i].name, records[i].per_axis ? "[:AXIS]" : "");
  }
  return ad_fail(AD_INVALID, "\"%s\" is no switch; the switches are %s", text, buffer);
}

static int find_switch(const char *name, size_t length) {
  for (int i = 0; i < AD_SWITCH_COUNT; i++) {
    if (strlen(records[i].name) == length && !memcmp(records[i].name, name, length)) return i;
  }
  return -1;
}

static ad_status check_axis(int which, const char *axis) {
  if (!records[which].per_axis) return ad_fail(AD_INVALID, "the switch %s takes no axis", records[which].name);
  size_t length = strlen(axis);
  if (length && length < sizeof ad_switch_axis_name) return AD_OK;
  return ad_fail(AD_INVALID, "the switch %s needs an axis name of 1 to %zu characters after the colon, not \"%s\"",
                 records[which].name, sizeof ad_switch_axis_name - 1, axis);
}

ad_status ad_switch_set(const char *text) {
  int which = -1;
  const char *axis = "";
  if (text && text[0]) {
    size_t length = strcspn(text, ":");
    which = find_switch(text, length);
    if (which < 0) return unknown_switch(text);
    if (text[length]) {
      axis = text + length + 1;
      AD_TRY(check_axis(which, axis));
    }
  }
  memset(ad_switches, 0, sizeof ad_switches);
  snprintf(ad_switch_axis_name, sizeof ad_switch_axis_name, "%s", axis);
  if (which >= 0) ad_switches[which] = 1;
  return AD_OK;
}
