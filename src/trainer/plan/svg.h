/* Pieces of SVG, with text as text. Coordinates are whole pixels. */
#ifndef PLAN_SVG_H
#define PLAN_SVG_H
#include <stdint.h>
#include <stdio.h>
#include "addend/status.h"

/* Colours by class, for light and for dark readers, and the heads of arrows. */
void ad_svg_begin(FILE *file, int width, int height, const char *title);
void ad_svg_end(FILE *file);

/* `class`: "title", "head", "quiet", "code", ...; with "end" or "middle" beside it the text ends or is centred at x. */
void ad_svg_text(FILE *file, int x, int y, const char *class, const char *format, ...) AD_PRINTF(5, 6);
void ad_svg_box(FILE *file, int x, int y, int width, int height, const char *class);
/* From left to right, level at both ends. */
void ad_svg_arrow(FILE *file, int x, int y, int to_x, int to_y, const char *class);

/* "12,288". Returns buffer. */
enum { AD_GROUPED_MAX = 32 };
const char *ad_grouped(int64_t number, char buffer[AD_GROUPED_MAX]);

#endif
