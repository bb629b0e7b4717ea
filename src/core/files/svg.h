/* Pieces of SVG, with text as text. Coordinates are whole pixels. */
#ifndef FILES_SVG_H
#define FILES_SVG_H
#include <stdint.h>
#include <stdio.h>
#include "addend/status.h"
#include "base/internal.h"

/* Colours by class, for light and for dark readers, and the heads of arrows. */
AD_INTERNAL void ad_svg_begin(FILE *file, int width, int height, const char *title);
AD_INTERNAL void ad_svg_end(FILE *file);

/* `class`: "title", "head", "quiet", "code", ...; with "end" or "middle" beside it the text ends or is centred at x. */
AD_INTERNAL void ad_svg_text(FILE *file, int x, int y, const char *class, const char *format, ...) AD_PRINTF(5, 6);
AD_INTERNAL void ad_svg_box(FILE *file, int x, int y, int width, int height, const char *class);
/* Straight and thin. */
void ad_svg_line(FILE *file, int x, int y, int to_x, int to_y, const char *class);
/* From left to right, level at both ends. */
AD_INTERNAL void ad_svg_arrow(FILE *file, int x, int y, int to_x, int to_y, const char *class);

/* "12,288". Returns buffer. */
enum { AD_GROUPED_MAX = 32 };
AD_INTERNAL const char *ad_grouped(int64_t number, char buffer[AD_GROUPED_MAX]);

#endif
