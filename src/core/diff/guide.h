/* The pages of `addend explain`, which are docs/explain/NAME.md, built into the library. */
#ifndef DIFF_GUIDE_H
#define DIFF_GUIDE_H

typedef struct ad_guide_page {
  const char *name;
  const char *text;
} ad_guide_page;
/* In order of names; the name after the last is NULL. Made by cmake/guide.cmake. */
extern const ad_guide_page ad_guide_pages[];

int ad_guide_has(const char *name);

#endif
