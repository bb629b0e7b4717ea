/* Sets the outlines of a line, rotates and moves them, and draws them. */
#include "data/lines/typeset.h"

#include <limits.h>
#include <math.h>
#include FT_TRIGONOMETRY_H
#include "base/error.h"
#include "base/memory.h"

/* An empty box, which any outline makes larger. */
static const FT_BBox NOTHING = {LONG_MAX, LONG_MAX, LONG_MIN, LONG_MIN};

ad_status ad_typeset_create(size_t room, size_t stride, ad_typeset *out) {
  ad_typeset set = {.room = room, .stride = stride};
  ad_status status = ad_new(room, &set.outlines);
  if (!status) status = ad_new(room * stride, &set.points);
  if (status)
    ad_typeset_destroy(&set);
  else
    *out = set;
  return status;
}

void ad_typeset_destroy(ad_typeset *set) {
  ad_release(set->outlines);
  ad_release(set->points);
  *set = (ad_typeset){0};
}

/* Returns the smallest box around `box` and the outline. */
static FT_BBox around(const FT_BBox *box, const FT_Outline *outline) {
  FT_BBox own;
  if (!outline->n_points) return *box;
  FT_Outline_Get_CBox(outline, &own);
  return (FT_BBox){.xMin = own.xMin < box->xMin ? own.xMin : box->xMin,
                   .yMin = own.yMin < box->yMin ? own.yMin : box->yMin,
                   .xMax = own.xMax > box->xMax ? own.xMax : box->xMax,
                   .yMax = own.yMax > box->yMax ? own.yMax : box->yMax};
}

static void drop_spaces(ad_typeset *set) {
  while (set->count && !set->outlines[set->count - 1].n_points) set->count--;
}

void ad_typeset_line(ad_typeset *set, const ad_font *font, const ad_font_style *style, const uint8_t *characters,
                     size_t count, FT_Pos width) {
  FT_Pos pen = 0, advance;
  set->box = NOTHING;
  for (set->count = 0; set->count < count && set->count < set->room; set->count++) {
    FT_Outline *next = &set->outlines[set->count];
    *next = ad_font_character(font, characters[set->count], style, set->points + set->count * set->stride, &advance);
    FT_Outline_Translate(next, pen, 0);
    FT_BBox box = around(&set->box, next);
    if (next->n_points && box.xMax - box.xMin > width) break;
    set->box = box;
    pen += advance;
  }
  drop_spaces(set);
}

/* Rotates with the sine and cosine of FreeType, which are in fixed point and therefore the same on every machine. */
void ad_typeset_rotate(ad_typeset *set, double degrees) {
  FT_Vector unit;
  FT_Vector_Unit(&unit, lround(degrees * 65536));
  const FT_Matrix matrix = {.xx = unit.x, .xy = -unit.y, .yx = unit.y, .yy = unit.x};
  set->box = NOTHING;
  for (size_t i = 0; i < set->count; i++) {
    FT_Outline_Transform(&set->outlines[i], &matrix);
    set->box = around(&set->box, &set->outlines[i]);
  }
}

void ad_typeset_move(ad_typeset *set, FT_Pos x, FT_Pos y) {
  for (size_t i = 0; i < set->count; i++) FT_Outline_Translate(&set->outlines[i], x, y);
  set->box = (FT_BBox){set->box.xMin + x, set->box.yMin + y, set->box.xMax + x, set->box.yMax + y};
}

/* The picture in which add_spans draws. */
typedef struct canvas {
  float *picture;
  int64_t height, width;
} canvas;

/* Adds the ink of one row. A pixel that two characters share gets the parts that both cover. */
static void add_spans(int y, int count, const FT_Span *spans, void *user) {
  const canvas *to = user;
  float *row = to->picture + (to->height - 1 - y) * to->width;
  for (int i = 0; i < count; i++)
    for (int x = spans[i].x; x < spans[i].x + spans[i].len; x++)
      row[x] = fminf(1, row[x] + (float)spans[i].coverage / 255);
}

ad_status ad_typeset_draw(const ad_typeset *set, FT_Library library, int64_t height, int64_t width, float *picture) {
  canvas to = {picture, height, width};
  for (size_t i = 0; i < set->count; i++) {
    FT_Raster_Params params = {.flags = FT_RASTER_FLAG_AA | FT_RASTER_FLAG_DIRECT | FT_RASTER_FLAG_CLIP,
                               .gray_spans = add_spans,
                               .user = &to,
                               .clip_box = {0, 0, (FT_Pos)width, (FT_Pos)height}};
    FT_Error error = FT_Outline_Render(library, &set->outlines[i], &params);
    if (error)
      return ad_fail(AD_INVALID,
                     "FreeType cannot draw the outline of a character (error %d of FreeType); name another font",
                     error);
  }
  return AD_OK;
}
