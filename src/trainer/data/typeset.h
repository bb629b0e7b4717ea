/* Characters set side by side, turned, moved and drawn: arithmetic on outlines in 26.6 pixels, y upwards. Which
 * characters and in which font is decided in lines.c. */
#ifndef DATA_TYPESET_H
#define DATA_TYPESET_H
#include "data/font.h"

typedef struct ad_typeset {
  FT_Outline *outlines; /* of the characters that are set */
  FT_Vector *points;    /* of all outlines, `stride` of each */
  size_t stride, room;  /* room: the most characters */
  size_t count;         /* how many are set */
  FT_BBox box;          /* around all of them */
} ad_typeset;

/* Room for `room` characters of at most `stride` points. */
AD_CHECKED ad_status ad_typeset_create(size_t room, size_t stride, ad_typeset *out);
void ad_typeset_destroy(ad_typeset *set); /* one that is all zero is allowed */

/* Sets as many of the characters as a box of that width holds, the first at the origin and no space at the end. Kerning
 * is left out. */
void ad_typeset_line(ad_typeset *set, const ad_font *font, const ad_font_style *style, const uint8_t *characters,
                     size_t count, FT_Pos width);
void ad_typeset_turn(ad_typeset *set, double degrees); /* counterclockwise about the origin */
void ad_typeset_move(ad_typeset *set, FT_Pos x, FT_Pos y);
/* Adds ink, from 0 to 1, to the picture [height, width], whose lower left corner is the origin; what is outside is cut.
 */
AD_CHECKED ad_status ad_typeset_draw(const ad_typeset *set, FT_Library library, int64_t height, int64_t width,
                                     float *picture);

#endif
