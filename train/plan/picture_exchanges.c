/* Draws modules side by side, with a frame around those that have the same name, and below them what they send each
 * other: for each exchange an arrow forward and an arrow back. */
#include <stdlib.h>
#include <string.h>
#include "plan/picture.h"

enum {
  GAP = 16,
  FRAME = 8, /* distance of the frame from the boxes of modules with one name */
  FRAME_HEAD = 24,
  BOX_HEIGHT = 66,
  WAYS_HEIGHT = 50, /* height of the two arrows of an exchange with their labels */
  WAYS_APART = 8,
  LETTER = 6 /* approximate width of a small letter */
};

static int box_width(const ad_exchanges *x) {
  int count = x->party_count ? (int)x->party_count : 1;
  return (PICTURE_WIDTH - 2 * PICTURE_MARGIN - 2 * FRAME - (count - 1) * GAP) / count;
}

static int left_of(const ad_exchanges *x, size_t party) {
  return PICTURE_MARGIN + FRAME + (int)party * (box_width(x) + GAP);
}

static int middle_of(const ad_exchanges *x, size_t party) { return left_of(x, party) + box_width(x) / 2; }

/* Writes "ranks 4 to 7" and returns buffer. */
static const char *ranks_text(json_int_t first, json_int_t ranks, char *buffer, size_t size) {
  char from[AD_GROUPED_MAX], to[AD_GROUPED_MAX];
  ad_grouped(first, from);
  ad_grouped(first + ranks - 1, to);
  if (ranks == 1)
    snprintf(buffer, size, "rank %s", from);
  else
    snprintf(buffer, size, "ranks %s to %s", from, to);
  return buffer;
}

static void draw_party(FILE *file, const ad_exchanges *x, size_t number, int y) {
  const ad_party *party = &x->parties[number];
  char text[128], class[16];
  int middle = middle_of(x, number);
  snprintf(class, sizeof class, "cell g%d", (int)(number % 8));
  ad_svg_box(file, left_of(x, number), y, box_width(x), BOX_HEIGHT, class);
  ad_svg_text(file, middle, y + 20, "head middle", "%s", ad_party_text(party, text, sizeof text));
  ad_svg_text(file, middle, y + 38, "small middle", "%s",
              ranks_text(party->first_rank, party->ranks, text, sizeof text));
  if (party->modules > 1)
    ad_svg_text(file, middle, y + 54, "small middle", "%zu on %s each", party->modules, party->mesh);
  else
    ad_svg_text(file, middle, y + 54, "small middle", "%s", party->mesh);
}

/* Draws the frame around a party and those of the same name, if party `number` is the first of these; otherwise draws
 * nothing. */
static void draw_frame(FILE *file, const ad_exchanges *x, size_t number, int y) {
  const ad_party *first = &x->parties[number], *last = first + first->namesakes - 1;
  char ranks[80];
  int left = left_of(x, number), right = left_of(x, number + first->namesakes - 1) + box_width(x);
  if (first->namesakes == 1 || first->number > 1) return;
  ad_svg_box(file, left - FRAME, y, right - left + 2 * FRAME, FRAME_HEAD + BOX_HEIGHT + FRAME, "card");
  ad_svg_text(file, (left + right) / 2, y + 16, "head middle", "%s: %s", first->name,
              ranks_text(first->first_rank, last->first_rank + last->ranks - first->first_rank, ranks, sizeof ranks));
}

/* Draws a label centred at `middle`, or as near to it as the picture's edges allow. */
static void draw_label(FILE *file, int middle, int y, const char *text) {
  int half = LETTER * (int)strlen(text) / 2, least = PICTURE_MARGIN + half, most = PICTURE_WIDTH - least;
  if (middle > most) middle = most;
  if (middle < least) middle = least;
  ad_svg_text(file, middle, y, "label middle", "%s", text);
}

static void draw_exchange(FILE *file, const ad_exchanges *x, const ad_exchange *exchange, int y) {
  char name[256], text[384], bytes[AD_GROUPED_MAX];
  int from = middle_of(x, exchange->from), to = middle_of(x, exchange->to), middle = (from + to) / 2;
  ad_svg_arrow(file, from, y, to, y, "arrow");
  ad_svg_arrow(file, to, y + WAYS_APART, from, y + WAYS_APART, "arrow");
  snprintf(text, sizeof text, "%s: %s B, %s", ad_exchange_text(exchange, name, sizeof name),
           ad_grouped(exchange->bytes[0], bytes), ad_exchange_dtype(exchange, 0));
  draw_label(file, middle, y - 5, text);
  snprintf(text, sizeof text, "gradient%s: %s B, %s", exchange->values == 1 ? "" : "s",
           ad_grouped(exchange->bytes[1], bytes), ad_exchange_dtype(exchange, 1));
  draw_label(file, middle, y + WAYS_APART + 13, text);
}

void ad_picture_exchanges(FILE *file, const ad_exchanges *x, int *y) {
  int boxes = *y + FRAME_HEAD, below = boxes + BOX_HEIGHT + FRAME;
  for (size_t i = 0; i < x->party_count; i++) draw_frame(file, x, i, *y);
  for (size_t i = 0; i < x->party_count; i++) {
    ad_svg_box(file, middle_of(x, i) - 1, boxes, 2, below - boxes + (int)x->count * WAYS_HEIGHT, "card");
    draw_party(file, x, i, boxes);
  }
  for (size_t i = 0; i < x->count; i++) draw_exchange(file, x, &x->list[i], below + (int)i * WAYS_HEIGHT + 22);
  *y = below + (int)x->count * WAYS_HEIGHT + 6;
}
