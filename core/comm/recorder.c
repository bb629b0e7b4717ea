/* Keeps the last calls of this rank in a ring and prints them. ad_recorder_add runs in every call, so it only
 * copies; texts are made when the recorder is printed. */
#include "comm/recorder.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/text_stream.h"

void ad_recorder_open(ad_recorder *recorder) { recorder->opened = ad_now(); }

void ad_recorder_add(ad_recorder *recorder, const ad_call *call) {
  ad_recorded *recorded = &recorder->calls[call->number % AD_RECORDED_CALLS];
  recorded->number = call->number;
  ad_signature_take(call, &recorded->signature);
  recorded->axes = call->axes;
  recorded->shape = call->shape;
  if (call->shape.list) {
    uint32_t shown = call->members < AD_SHOWN_MEMBERS ? call->members : AD_SHOWN_MEMBERS;
    memcpy(recorded->ranks, call->shape.ranks, shown * sizeof *recorded->ranks);
    recorded->shape.ranks = recorded->ranks;
  }
  recorded->started = ad_now();
  size_t length = strnlen(call->site, AD_SITE_MAX - 1);
  memcpy(recorded->site, call->site, length);
  recorded->site[length] = 0;
}

static void print_line(FILE *stream, const ad_recorder *recorder, const ad_recorded *recorded, int in_flight) {
  char words[512];
  ad_text text = ad_text_on(words, sizeof words);
  ad_signature_print(&text, &recorded->signature);
  ad_text_add(&text, " over ");
  ad_group_words(&text, recorded->axes, &recorded->shape);
  fprintf(stream, "#%" PRIu64 " %s at %s: %s, started %.6f s\n", recorded->number, words, recorded->site,
          in_flight ? "in flight" : "done", 1e-9 * (double)(recorded->started - recorder->opened));
}

ad_status ad_recorder_print(const ad_recorder *recorder, int (*in_flight)(const void *context, uint64_t number),
                            const void *context, char **out) {
  ad_text_stream to;
  uint64_t last = 0;
  AD_TRY(ad_text_stream_open("the flight recorder", &to));
  for (int i = 0; i < AD_RECORDED_CALLS; i++)
    if (recorder->calls[i].number > last) last = recorder->calls[i].number;
  for (uint64_t number = last < AD_RECORDED_CALLS ? 1 : last - AD_RECORDED_CALLS + 1; number <= last; number++) {
    const ad_recorded *recorded = &recorder->calls[number % AD_RECORDED_CALLS];
    if (recorded->number == number) print_line(to.file, recorder, recorded, in_flight(context, number));
  }
  return ad_text_stream_close(&to, AD_OK, out);
}
