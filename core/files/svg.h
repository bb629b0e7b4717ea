/* Writes pieces of SVG. Text remains text (not outlines). Coordinates are whole pixels. */
#ifndef FILES_SVG_H
#define FILES_SVG_H
#include <stdint.h>
#include <stdio.h>
#include "addend/status.h"
#include "base/internal.h"

/* Begins a picture: writes its style, which has colours for light and dark mode by class, and the heads of arrows. */
AD_INTERNAL void ad_svg_begin(FILE *file, int width, int height, const char *title);
AD_INTERNAL void ad_svg_end(FILE *file);

/* Writes a text. `class` is "title", "head", "quiet", "code", ...; with a second word "end" or "middle" the text ends
 * at x, or is centred at x. */
AD_INTERNAL void ad_svg_text(FILE *file, int x, int y, const char *class, const char *format, ...) AD_PRINTF(5, 6);
/* Returns an upper limit of a text's width in pixels, for a class of one word. */
AD_INTERNAL int ad_svg_text_width(const char *class, const char *text);
AD_INTERNAL void ad_svg_box(FILE *file, int x, int y, int width, int height, const char *class);
/* Draws a thin straight line. */
void ad_svg_line(FILE *file, int x, int y, int to_x, int to_y, const char *class);
/* Draws a curved arrow from left to right that is horizontal at both ends. */
AD_INTERNAL void ad_svg_arrow(FILE *file, int x, int y, int to_x, int to_y, const char *class);

/* ad_grouped prints a number with commas, such as "12,288", and returns buffer. */
enum { AD_GROUPED_MAX = 32 };
AD_INTERNAL const char *ad_grouped(int64_t number, char buffer[AD_GROUPED_MAX]);

#endif
