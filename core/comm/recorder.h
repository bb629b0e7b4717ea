/* The flight recorder: the last 256 calls of one rank. */
#ifndef COMM_RECORDER_H
#define COMM_RECORDER_H
#include "comm/signature.h"
#include "mesh/group.h"

enum { AD_RECORDED_CALLS = 256 };

typedef struct ad_recorded {
  uint64_t number;  // counts the rank's calls; 0: the entry is empty
  ad_signature signature;
  ad_axes axes;
  ad_group_shape shape;
  int64_t ranks[AD_SHOWN_MEMBERS];  // for a group that is a list: a copy of its ranks, since the list may be released
  char site[AD_SITE_MAX];
  int64_t started;  // when the call was started, by ad_now()
} ad_recorded;

typedef struct ad_recorder {
  ad_recorded calls[AD_RECORDED_CALLS];
  int64_t opened;  // when the comm was opened, by ad_now()
} ad_recorder;

void ad_recorder_open(ad_recorder *recorder);
void ad_recorder_add(ad_recorder *recorder, const ad_call *call);
/* Prints one line for each recorded call, oldest first. in_flight(context, number) returns 1 if call `number` is not
 * complete yet. The caller frees the text *out with free(). */
ad_status ad_recorder_print(const ad_recorder *recorder, int (*in_flight)(const void *context, uint64_t number),
                            const void *context, char **out) AD_CHECKED;

#endif
