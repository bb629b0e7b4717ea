/* Sets characters side by side, rotates, moves and draws them, with outlines in 26.6 pixels, y upwards. lines.c chooses
 * the characters and the font. */
#ifndef DATA_TYPESET_H
#define DATA_TYPESET_H
#include "data/lines/font.h"

typedef struct ad_typeset {
  FT_Outline *outlines; /* the outlines of the characters that are set */
  FT_Vector *points;    /* the points of all outlines, `stride` for each */
  size_t stride, room;  /* room: the most characters that fit */
  size_t count;         /* number of characters that are set */
  FT_BBox box;          /* the box around all characters */
} ad_typeset;

/* Allocates memory for `room` characters of at most `stride` points each. */
AD_CHECKED ad_status ad_typeset_create(size_t room, size_t stride, ad_typeset *out);
void ad_typeset_destroy(ad_typeset *set); /* a set that is all zero is allowed */

/* Sets as many of the characters as fit into `width`, the first one at the origin. Spaces at the end are dropped.
 * Kerning is ignored. */
void ad_typeset_line(ad_typeset *set, const ad_font *font, const ad_font_style *style, const uint8_t *characters,
                     size_t count, FT_Pos width);
void ad_typeset_rotate(ad_typeset *set, double degrees); /* counterclockwise around the origin */
void ad_typeset_move(ad_typeset *set, FT_Pos x, FT_Pos y);
/* Adds the ink of the characters, from 0 to 1, to the picture [height, width], whose lower left corner is the origin.
 * Ink outside the picture is dropped. */
AD_CHECKED ad_status ad_typeset_draw(const ad_typeset *set, FT_Library library, int64_t height, int64_t width,
                                     float *picture);

#endif
